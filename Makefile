# DistLock needs Go, git and make to be built, tested and tried; everything else is built from pinned modules into
# bin/, and the control plane is downloaded or built once (hack/assets). `make help` lists the targets.

MODULE  := github.com/distlock-dev/distlock
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
IMAGE   ?= ghcr.io/distlock-dev/distlock:$(VERSION)

CONTROLLER_GEN := bin/controller-gen
GOLANGCI_LINT  := bin/golangci-lint
GOVULNCHECK    := bin/govulncheck

# generated is what `generate` and `manifests` write, and `verify` compares.
generated := 'api/*/zz_generated.*.go' config/crd/bases config/rbac/role.yaml dist/install.yaml

.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets.
	@awk 'BEGIN { FS = ":.*## " } \
		/^## / { printf "\n%s\n", substr($$0, 4) } \
		/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

## Use

.PHONY: demo
demo: assets ## Watch the main job on a local control plane, a crash of the controller included.
	@go run ./hack/demo

.PHONY: up
up: ## Start a local control plane with CRDs, RBAC and policies; prints its kubeconfig.
	@go run ./hack/assets/cmd >/dev/null
	@go build -o bin/hack-local ./hack/local
	@bin/hack-local up

.PHONY: down
down: ## Stop the local control plane and remove it.
	@go build -o bin/hack-local ./hack/local
	@bin/hack-local down

.PHONY: build
build: plugin ## Build the controller and the kubectl plugin into bin/.
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/manager .

.PHONY: plugin
plugin: ## Build the kubectl plugin into bin/kubectl-distlock.
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/kubectl-distlock ./cmd/kubectl-distlock

.PHONY: image
image: ## Build the container image IMAGE with Docker.
	docker build --build-arg VERSION=$(VERSION) -t $(IMAGE) .

.PHONY: install-yaml
install-yaml: ## Write dist/install.yaml: everything for `kubectl apply -f`.
	@hack/install-yaml.sh

## Develop

.PHONY: assets
assets: ## Get etcd, the API server, its controllers and kubectl, once; prints their folder.
	@go run ./hack/assets/cmd

.PHONY: generate
generate: $(CONTROLLER_GEN) ## Write the generated Go code.
	$(CONTROLLER_GEN) object:headerFile=hack/boilerplate.go.txt paths=./api/...

.PHONY: manifests
manifests: $(CONTROLLER_GEN) ## Write the CRDs and the controller's role from the markers in the code.
	$(CONTROLLER_GEN) crd paths=./api/... output:crd:dir=config/crd/bases
	$(CONTROLLER_GEN) rbac:roleName=distlock-manager-role paths=./controllers/... output:rbac:dir=config/rbac

.PHONY: fmt
fmt: $(GOLANGCI_LINT) ## Format the code.
	$(GOLANGCI_LINT) fmt ./...

## Check

.PHONY: test
test: ## Run all tests, those on a real API server included.
	@hack/test.sh

.PHONY: bench
bench: ## Measure the controller and the Go package; an hour. BENCH_ARGS='-n 20 -only rounds' is a quick look.
	@cd test/bench && go run . $(BENCH_ARGS)

.PHONY: soak
soak: ## Thirty minutes of killed leaders and failing requests, judged throughout. SOAK_ARGS=-soak.time=2m is shorter.
	@go test ./test/soak -count 1 -timeout 0 -v -soak.time=30m -soak.kill=1m -soak.calm=6m $(SOAK_ARGS)

.PHONY: lint
lint: $(GOLANGCI_LINT) ## Lint, import directions included.
	$(GOLANGCI_LINT) run --allow-parallel-runners ./...

.PHONY: verify
verify: generate manifests install-yaml ## Fail when generated files or go.mod are not as the code says.
	@go mod tidy -diff
	@go mod verify
	@git diff --exit-code -- $(generated) || { echo "verify: the files above are generated and not up to date: commit them" >&2; exit 1; }
	@new=$$(git ls-files --others --exclude-standard -- $(generated)); \
		if [ -n "$$new" ]; then echo "verify: generated and not committed: $$new" >&2; exit 1; fi
	@echo "verify: generated files are up to date"

.PHONY: promtool
promtool: ## Get promtool, for the tests of the alerts, from Debian's package; into bin/.
	@hack/promtool.sh

.PHONY: databases
databases: ## Get PostgreSQL and MariaDB, for the tests of fences, from Debian's packages; into bin/databases.
	@hack/databases.sh

.PHONY: vuln
vuln: $(GOVULNCHECK) ## Report known vulnerabilities that the code reaches.
	$(GOVULNCHECK) ./...

.PHONY: tools
tools: $(CONTROLLER_GEN) $(GOLANGCI_LINT) $(GOVULNCHECK) ## Build the pinned tools into bin/.

.PHONY: clean
clean: ## Remove bin/. The control plane stays cached.
	rm -rf bin

# The tools have modules of their own, so that their requirements do not become ours.
$(CONTROLLER_GEN): hack/tools/go.mod hack/tools/go.sum
	go build -modfile=hack/tools/go.mod -o $@ sigs.k8s.io/controller-tools/cmd/controller-gen

$(GOVULNCHECK): hack/tools/go.mod hack/tools/go.sum
	go build -modfile=hack/tools/go.mod -o $@ golang.org/x/vuln/cmd/govulncheck

$(GOLANGCI_LINT): hack/tools/golangci/go.mod hack/tools/golangci/go.sum
	go build -modfile=hack/tools/golangci/go.mod -trimpath -ldflags '-s -w' -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
