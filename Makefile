.DEFAULT_GOAL := help

help: ## List the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build bin/concord
	go build -o bin/concord ./cmd/concord

plugin: ## Build bin/kubectl-concord
	go build -tags grpcnotrace -ldflags '-s -w' -o bin/kubectl-concord ./cmd/kubectl-concord

test: ## Run all tests that need nothing but Go
	go test ./...

soak: ## Run all that is slow, before a release: servers rolled, killed and paused, and go install
	go test . ./e2e ./server/kube ./examples/... -p 1 -timeout 4h -args -slow

race: ## Run the tests under the race detector
	go test -race -timeout 60m ./...

sim: ## Attack the protocol in simulated worlds, for a minute
	go run ./cmd/concord-sim --exhaustive --preemptions 1 --parallel 2
	go run ./cmd/concord-sim --seeds 0 --duration 1m --parallel 2
	go run ./cmd/concord-sim --aggregated --seeds 0 --duration 20s --parallel 2

mutants: ## Drop every safety rule, one at a time, and see the simulator miss it
	go run ./cmd/concord-sim --mutants --parallel 2

generate: ## Write the generated code and references anew
	go generate ./...
	gofmt -l . | xargs -r gofmt -w
	CONCORD_UPDATE=1 go test ./cmd/concord ./cmd/kubectl-concord -run TestReference
	cd deploy && go run ./generate && CONCORD_UPDATE=1 go test . -run TestChartValues

manifests-test: ## Test deploy: what Helm and kustomize render, alerts, the image's layout
	cd deploy && go vet ./... && go test ./...

dashboard-test: ## Test the dashboard in Chromium, which has to be installed (or set $$CHROMIUM), against real servers
	cd dashboard/browser && export GOFLAGS="$$GOFLAGS -mod=mod -count=1" && go vet ./... && go test ./... -timeout 20m

dashboard-screenshots: ## Take the pictures of docs/dashboard.md anew, in Chromium
	cd dashboard/browser && export GOFLAGS="$$GOFLAGS -mod=mod" && go test ./... -count 1 -run TestContent -screenshots $(CURDIR)/docs/dashboard

# What images and releases are of; goreleaser gives its own.
VERSION ?= $$(git describe --tags --always)
COMMIT ?= $$(git rev-parse HEAD)
CREATED ?= $$(git log -1 --format=%ct)
PLATFORMS = linux/amd64$(if $(ONE_PLATFORM),,$(comma)linux/arm64)
comma = ,

image: ## Build the container images as OCI layouts, bin/image and bin/image-controllers, for linux/amd64 and linux/arm64
	cd deploy && for of in concord=image concord-controllers=image-controllers; do \
	  go run ./image --program "github.com/concord-dev/concord/cmd/$${of%=*}" --out "../bin/$${of#*=}" --platforms $(PLATFORMS) --version "$(VERSION)" --commit "$(COMMIT)" --created "$(CREATED)" || exit; done

release: ## Build a release into bin/dist and bin/release, a snapshot where no tag is checked out, and look it through; ONE_PLATFORM=1 for linux/amd64 alone
	PATH="$(CURDIR)/bin/release/tools:$$PATH" GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=remote.origin.url GIT_CONFIG_VALUE_0=https://github.com/concord-dev/concord \
	  go run github.com/goreleaser/goreleaser/v2@v2.16.0 release --clean --skip=publish,announce $$(git describe --exact-match --tags >/dev/null 2>&1 || echo --snapshot)
	bin/release/tools/concord-release check $(if $(ONE_PLATFORM),--platforms linux/amd64) bin/dist bin/release

release-parts: image
	rm -rf bin/release && mkdir -p bin/release/tools
	GOBIN=$(CURDIR)/bin/release/tools go install github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.9.0
	cd deploy && go build -o ../bin/release/tools/concord-release ./release && ../bin/release/tools/concord-release chart --version $(VERSION) --commit $(COMMIT) --out ../bin/release
	for of in concord=image concord-controllers=image-controllers; do \
	  tar --sort=name --mtime=@$(CREATED) --owner=0 --group=0 --numeric-owner -cf "bin/release/$${of%=*}-image-$(VERSION).tar" -C "bin/$${of#*=}" . || exit; done

check: ## gofmt, go vet, golangci-lint with the check of feature histories, and drift of generated code
	@test -z "$$(gofmt -l .)" || { gofmt -l .; exit 1; }
	go vet ./...
	@go generate ./... && git diff --exit-code -- '*zz_generated*' docs || { echo "generated code differs: run make generate and commit"; exit 1; }
	go run -C tools -mod=mod ./golangci-lint run --timeout 20m

bench: ## Measure what the protocol costs and how fast migrations are, side by side
	go run ./bench/server
	go run ./bench/migration

conformance: ## Run Kubernetes' own e2e suites against our servers, stock as control
	go run ./conformance
	go run ./conformance -release 1.36

interop: ## Run concord controllers beside Kubernetes' own programs of 1.37, of 1.36 and of 1.34
	cd interop && export GOFLAGS="$$GOFLAGS -mod=mod -count=1" && go vet ./... && go test . -timeout 30m && go test . -timeout 60m -args -release 1.36 && \
	  go test . -timeout 60m -run 'Test(BadObjects|TakeOver|ReleasedDefinitions)$$' -args -release 1.34

picture: ## Draw docs/demo.svg, which the README shows, from a run of the demo
	mkdir -p bin
	go run ./cmd/concord demo > bin/demo.txt || { cat bin/demo.txt; exit 1; }
	go run ./demo/picture < bin/demo.txt > docs/demo.svg

demo: ## Watch three servers upgrade themselves
	go run ./cmd/concord demo

.PHONY: picture help build test soak race sim mutants generate manifests-test dashboard-test dashboard-screenshots image check bench conformance interop demo plugin release release-parts
