#!/usr/bin/env bash
# Runs all tests of the main module. One package at a time, since most of them start a control plane of their own and
# measure seconds; with the race detector where there is a C compiler for it. Arguments go to `go test`.
set -euo pipefail
cd "$(dirname "$0")/.."

begun=$SECONDS
KUBEBUILDER_ASSETS=$(go run ./hack/assets/cmd)
export KUBEBUILDER_ASSETS
unset KUBECONFIG # no test may reach a cluster that is not its own

race=
if [[ $(go env CGO_ENABLED) == 1 ]]; then
  race=-race
else
  echo "test: no C compiler, so without the race detector" >&2
fi

if [[ ! -x bin/promtool ]] && ! command -v promtool >/dev/null; then
  echo "test: no promtool (make promtool), so the alerts are not tested" >&2
fi

# databases tests fences on real databases, and says which were there.
databases() (
  cd test/fence
  go vet ./...
  if ! out=$(go test -count 1 -v . 2>&1); then
    echo "$out"
    return 1
  fi
  grep -E '^(--- |ok)|SKIPPED' <<<"$out"
)

echo "test: compiling" >&2
go build $race ./... # all packages at once; go test -p 1 would compile one after the other
echo "test: running on the control plane in $KUBEBUILDER_ASSETS" >&2
report=$(mktemp)
trap 'rm -f "$report"' EXIT
(cd test/bench && go vet ./... && go test ./...) # a module of its own
databases # another
(cd examples && go vet ./... && go test -count 1 ./...) # and another
if go test $race -p 1 -count 1 -timeout 30m "$@" ./... | grep -v --line-buffered 'no test files' | tee "$report"; then
  echo "test: PASS: $(grep -c '^ok' "$report") packages in $((SECONDS - begun)) s"
else
  echo "test: FAIL after $((SECONDS - begun)) s:"
  grep -E '^(--- FAIL|FAIL)' "$report" | sort -u || true
  exit 1
fi
