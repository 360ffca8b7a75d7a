#!/usr/bin/env bash
# Puts promtool, with which test/metrics tests the alerts, into bin/: from Debian's package prometheus, of which nothing
# is installed and no daemon is started. Fails where there is no apt, or no such package.
set -euo pipefail
cd "$(dirname "$0")/.."

if command -v promtool || [[ -x bin/promtool ]]; then
  exit 0
fi
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || { echo "promtool: no apt here" >&2; exit 1; }
root=$PWD
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
download() { (cd "$dir" && apt-get -qq -o APT::Sandbox::User=root download prometheus); }
if ! download; then # the lists of packages are missing, or too old
  [[ $(id -u) == 0 ]] || { echo "promtool: only root can renew apt's lists" >&2; exit 1; }
  apt-get -qq update
  download
fi
dpkg-deb --fsys-tarfile "$dir"/prometheus_*.deb | tar -x -C "$dir" ./usr/bin/promtool
mkdir -p bin
mv "$dir/usr/bin/promtool" "$root/bin/promtool"
bin/promtool --version
