# belay's chores. "make" alone explains them.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Every target uses all cores by itself; side by side they would only swap.
.NOTPARALLEL:

# Kubernetes versions: what tests run on, and the oldest that the API facts are checked on.
K8S_VERSION ?= v1.37.2
K8S_OLDEST ?= v1.34.0
# How long each fuzz target runs, and which benchmarks do.
FUZZTIME ?= 30s
BENCH ?= .
DEMO_FLAGS ?=
E2E ?= .
COMPARE ?= all
# Images are called $(IMAGE_PREFIX)/belay-webhook:$(VERSION), as in manifests/base.
IMAGE_PREFIX ?= ghcr.io/belay-dev
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
DOCKER ?= docker

# The race detector needs a C compiler; without one, tests run all the same.
RACE := $(if $(shell command -v gcc || command -v cc),-race)

# Everything is compiled as releases are: tests, tools, the control plane and the nodes' parts have most of
# Kubernetes' libraries in common, and Go's cache keeps one of them for each of these settings.
export CGO_ENABLED := 0
export GOFLAGS := $(strip $(filter-out -trimpath,$(shell go env GOFLAGS)) -trimpath)
# "make lint" has vet look at all packages; a second look would have it read Kubernetes again.
GO_TEST := go test -vet=off

# Go modules that are no part of the root module, and tested on their own.
MODULES := hack/alerts hack/controlplane hack/kind/certmanager hack/kind/networkpolicies
GO_DIRS := $(wildcard cmd webhook sidecar test hack)

say = @printf '\033[1m==> %s\033[0m\n' "$(1)"

# Tools are built once into bin/, under a name that changes with their pins and the Go version.
tool = bin/$(1)-$(shell { cat $(2)/go.mod; go env GOVERSION; } | cksum | cut -d' ' -f1)
CONTROLLER_GEN := $(call tool,controller-gen,hack/tools)
KUSTOMIZE := $(call tool,kustomize,hack/tools)
GOVULNCHECK := $(call tool,govulncheck,hack/tools)
GOLANGCI_LINT := $(call tool,golangci-lint,hack/tools/golangci-lint)
HELM := $(call tool,helm,hack/tools/helm)

##@ Everyday

.PHONY: help
help: ## explain every target (the default)
	@awk 'BEGIN { FS = ":.*## " } \
		/^##@ / { printf "\n\033[1m%s\033[0m\n", substr($$0, 5) } \
		/^[a-z0-9-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@printf '\nVariables: K8S_VERSION=%s K8S_OLDEST=%s FUZZTIME=%s BENCH=%s E2E=%s DEMO_FLAGS IMAGE_PREFIX=%s VERSION=%s\n' \
		'$(K8S_VERSION)' '$(K8S_OLDEST)' '$(FUZZTIME)' '$(BENCH)' '$(E2E)' '$(IMAGE_PREFIX)' '$(VERSION)'

.PHONY: build
build: ## build every command of cmd/ into bin/, static
	$(call say,building $(notdir $(wildcard cmd/*)) into bin/)
	CGO_ENABLED=0 go build -trimpath -ldflags='-s -w -X github.com/belay-dev/belay/webhook/app.version=$(VERSION) -X github.com/belay-dev/belay/sidecar/app.version=$(VERSION)' -o bin/ ./cmd/...

.PHONY: demo
demo: ## show on a real control plane what belay does; DEMO_FLAGS=--keep leaves it up
	@go build -o bin/demo ./hack/demo
	@bin/demo $(DEMO_FLAGS)

.PHONY: clean
clean: ## remove bin/; control planes in the user's cache stay
	rm -rf bin

##@ Testing

.PHONY: test
test: test-unit test-modules test-integration ## run all tests: units, then the control plane's own, then integration

.PHONY: test-unit
test-unit: ## run all tests that need no control plane; those of sidecar/ with the race detector
	$(call say,testing packages (the first run compiles the Kubernetes libraries: about 4 minutes on two cores))
	$(if $(RACE),CGO_ENABLED=1) $(GO_TEST) $(RACE) ./sidecar/...
	$(GO_TEST) $$(go list ./... | grep -Ev '/(sidecar|test/(integration|e2e|bench))(/|$$)')

.PHONY: race
race: ## run the tests of all that requests share with the race detector; the first run compiles the Kubernetes libraries once more
	CGO_ENABLED=1 $(GO_TEST) -race ./sidecar/... ./webhook/internal/health/... ./webhook/internal/certs/... ./webhook/internal/admission/... ./webhook/internal/collector/... ./webhook/internal/facts/... ./webhook/app/...

.PHONY: test-modules
test-modules: ## run the tests of the modules below hack/
	@for module in $(MODULES); do \
		printf '\033[1m==> testing %s\033[0m\n' "$$module"; \
		go test -C "$$module" -vet=off -count=1 -short ./...; \
	done

# One package at a time (-p 1): each has a control plane of its own, and two of them starve each other on two cores.
.PHONY: test-integration
test-integration: controlplane $(HELM) ## run test/integration on K8S_VERSION, and the API facts also on K8S_OLDEST
	$(call say,integration tests on Kubernetes $(K8S_VERSION))
	@mkdir -p bin && rm -f bin/report.txt
	BELAY_TEST_REPORT=$(CURDIR)/bin/report.txt BELAY_HELM=$(CURDIR)/$(HELM) BELAY_K8S_VERSION=$(K8S_VERSION) $(GO_TEST) -count=1 -p 1 -timeout 40m ./test/integration/...
	@echo 'measured:' && cat bin/report.txt
	$(call say,cert-manager's controllers, as end to end tests run them)
	go test -C hack/kind/certmanager -vet=off -count=1 -timeout 20m ./...
	$(call say,API facts on Kubernetes $(K8S_OLDEST))
	env -u KUBEBUILDER_ASSETS BELAY_K8S_VERSION=$(K8S_OLDEST) $(GO_TEST) -count=1 -p 1 -timeout 40m ./test/integration/apifacts/...

.PHONY: controlplane
controlplane: ## build kube-apiserver, etcd and kube-controller-manager of both versions, and kubectl, into the user's cache
	$(call say,control plane $(K8S_VERSION) (about 7 minutes on two cores when it is not in the cache))
	go run -C hack/controlplane . build --version $(K8S_VERSION)
	$(call say,control plane $(K8S_OLDEST))
	env -u KUBEBUILDER_ASSETS go run -C hack/controlplane . build --version $(K8S_OLDEST)
	$(call say,kubectl $(K8S_VERSION) (half a minute when it is not in the cache))
	go run -C hack/controlplane . kubectl --version $(K8S_VERSION)

.PHONY: fuzz
fuzz: ## run each fuzz target for FUZZTIME; what fails is kept in testdata/fuzz
	@grep -rE --include='*_test.go' -o '^func Fuzz[A-Za-z0-9_]*' $(GO_DIRS) | while IFS=: read -r file func; do \
		name="$${func#func }"; \
		printf '\033[1m==> %s of %s for %s\033[0m\n' "$$name" "$$(dirname "$$file")" '$(FUZZTIME)'; \
		go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "./$$(dirname "$$file")"; \
	done

.PHONY: bench
bench: ## run the benchmarks that match BENCH
	go test -run '^$$' -bench '$(BENCH)' -benchmem ./webhook/... ./sidecar/... ./test/bench/...

.PHONY: bench-sidecar
bench-sidecar: ## measure what a sidecar costs its pod, beside what it may cost; takes a minute
	go test -run '^$$' -bench BenchmarkSidecar -benchtime 1x -count 1 ./test/bench/sidecar/

##@ Verifying

.PHONY: verify
verify: verify-generate verify-format lint walls verify-tidy verify-manifests verify-chart ## check all that a change must keep: generated files, format, lint, walls, modules, manifests, chart
	$(call say,verified)

.PHONY: generate
generate: $(CONTROLLER_GEN) $(KUSTOMIZE) ## generate deep copies and CRDs from webhook/api, and the chart from these and manifests/
	$(call say,generating from webhook/api)
	$(CONTROLLER_GEN) object paths=./webhook/api/...
	@$(MAKE) --no-print-directory -C manifests helm-gen-crds chart KUSTOMIZE=$(CURDIR)/$(KUSTOMIZE)

# The first part of "make -C manifests helm-gen-crds".
.PHONY: crds
crds: $(CONTROLLER_GEN)
	@{ grep -ls controller-gen.kubebuilder.io/version manifests/crds/*.yaml || true; } | xargs -r rm -f
	$(CONTROLLER_GEN) crd paths=./webhook/api/... output:crd:dir=manifests/crds

# Sums are compared rather than "git status", so that types can be verified before they are committed.
sums = find webhook/api manifests/crds manifests/charts -type f \( -name 'zz_generated*' -o -path 'manifests/*' \) -exec cksum {} + | sort -k3

.PHONY: verify-generate
verify-generate: $(CONTROLLER_GEN) $(KUSTOMIZE) ## generate, and fail if that changed, added or removed a file
	@before="$$($(sums))"; \
	$(MAKE) --no-print-directory generate; \
	after="$$($(sums))"; \
	if [ "$$before" != "$$after" ]; then \
		echo 'generated files were out of date; they are written anew now, commit them:' >&2; \
		{ diff <(echo "$$before") <(echo "$$after") || true; } | \
			awk '/^</ { was[$$4] = 1 } /^>/ { is[$$4] = 1 } \
				END { for (f in was) print "  " (f in is ? "changed" : "removed"), f; for (f in is) if (!(f in was)) print "  added  ", f }' | \
			sort -k2 >&2; \
		exit 1; \
	fi

.PHONY: verify-format
verify-format: ## fail if gofmt would change a file
	$(call say,gofmt)
	@unformatted="$$(gofmt -l $(GO_DIRS))"; \
	if [ -n "$$unformatted" ]; then \
		printf 'these files are not formatted; run "gofmt -w" on them:\n%s\n' "$$unformatted" >&2; \
		exit 1; \
	fi

.PHONY: lint
lint: $(GOLANGCI_LINT) ## run golangci-lint with .golangci.yaml
	$(call say,golangci-lint)
	$(GOLANGCI_LINT) run ./...
	@for module in $(MODULES); do (cd "$$module" && $(CURDIR)/$(GOLANGCI_LINT) run --config $(CURDIR)/.golangci.yaml ./...); done

.PHONY: vet
vet: ## run go vet, which "make lint" has among its linters
	$(call say,go vet)
	go vet ./...
	@for module in $(MODULES); do go vet -C "$$module" ./...; done

.PHONY: walls
walls: ## check which package imports which, and the top level
	$(call say,dependency walls)
	$(GO_TEST) -count=1 ./test/deps/...

.PHONY: verify-tidy
verify-tidy: ## fail if go mod tidy would change a go.mod or go.sum
	$(call say,go mod tidy)
	@for module in . $(MODULES) hack/kind/coredns; do go mod tidy -C "$$module" -diff; done

# A Component is no kustomization of its own; it is built with those that name it.
.PHONY: verify-manifests
verify-manifests: $(KUSTOMIZE) ## build every kustomization below manifests/
	$(call say,kustomize build)
	@find manifests -name kustomization.yaml -not -path '*/charts/*' | sort | while read -r file; do \
		if grep -q '^kind: Component' "$$file"; then continue; fi; \
		dir="$$(dirname "$$file")"; \
		printf '%-40s' "$$dir"; \
		$(KUSTOMIZE) build "$$dir" | awk '/^kind:/ { count++ } END { print count+0 " objects" }'; \
	done

.PHONY: verify-chart
verify-chart: $(HELM) $(KUSTOMIZE) ## lint the chart, and compare it with what kustomize builds
	$(call say,chart)
	$(HELM) lint --strict --quiet manifests/charts/belay
	BELAY_HELM=$(CURDIR)/$(HELM) BELAY_KUSTOMIZE=$(CURDIR)/$(KUSTOMIZE) $(GO_TEST) -count=1 ./test/charts/...

.PHONY: vuln
vuln: $(GOVULNCHECK) ## look for known vulnerabilities; needs the network, and is no part of verify
	$(call say,govulncheck)
	$(GOVULNCHECK) ./...

##@ Real clusters

.PHONY: kind-up
kind-up: ## make a kind cluster of three nodes, with all that it takes; the last line is its KUBECONFIG
	$(call say,kind cluster (15 minutes on two cores the first time, 45 seconds with the node image))
	@bin=$$(mktemp -d) && trap 'rm -rf "$$bin"' EXIT && go build -o "$$bin/kind" ./hack/kind && "$$bin/kind" up

.PHONY: kind-down
kind-down: ## remove the cluster and what was started for it; the node image stays in the user's cache
	@go run ./hack/kind down

.PHONY: e2e
e2e: kind-up $(HELM) ## run test/e2e on the cluster of kind-up, E2E=pattern some of it; what went wrong is in bin/e2e
	$(call say,end to end)
	@rm -f bin/e2e-report.txt
	@BELAY_TEST_REPORT=$(CURDIR)/bin/e2e-report.txt BELAY_HELM=$(CURDIR)/$(HELM) BELAY_E2E_KUBECONFIG="$$(go run ./hack/kind kubeconfig)" \
		$(GO_TEST) -v -count=1 -timeout 40m -run '$(E2E)' ./test/e2e/ | grep --line-buffered -Ev '^=== (RUN|PAUSE|CONT|NAME)' || { code=$$?; cat bin/e2e-report.txt 2>/dev/null; go run ./hack/kind logs bin/e2e/nodes || true; echo 'logs, events and descriptions are in bin/e2e' >&2; exit $$code; }
	@echo 'measured:' && cat bin/e2e-report.txt

##@ Releasing

.PHONY: images
images: ## make the images of the Dockerfile's targets: with an engine, or without into bin/images; they are equal
	$(call say,images $(IMAGE_PREFIX)/belay-*:$(VERSION))
	go run ./hack/images build --prefix '$(IMAGE_PREFIX)' --version '$(VERSION)' --engine '$(DOCKER)'

.PHONY: images-compare
images-compare: ## check that an engine and "make images" make equal images of COMPARE; the first run takes 6 minutes
	BELAY_COMPARE_IMAGES=$(COMPARE) DOCKER='$(DOCKER)' go test -count=1 -timeout 30m -v -run TestTheEngineMakesEqualImages ./hack/images/

# Tools: each is built by the first target that needs it.

$(CONTROLLER_GEN):
	$(call say,building controller-gen (about a minute on two cores the first time))
	go build -C hack/tools -o $(CURDIR)/$@ sigs.k8s.io/controller-tools/cmd/controller-gen

$(KUSTOMIZE):
	$(call say,building kustomize (half a minute on two cores the first time))
	go build -C hack/tools -o $(CURDIR)/$@ sigs.k8s.io/kustomize/kustomize/v5

$(GOVULNCHECK):
	$(call say,building govulncheck)
	go build -C hack/tools -o $(CURDIR)/$@ golang.org/x/vuln/cmd/govulncheck

$(GOLANGCI_LINT):
	$(call say,building golangci-lint (about 4 minutes on two cores the first time))
	go build -C hack/tools/golangci-lint -o $(CURDIR)/$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

$(HELM):
	$(call say,building helm (about 3 minutes on two cores the first time))
	go build -C hack/tools/helm -o $(CURDIR)/$@ helm.sh/helm/v4/cmd/helm
