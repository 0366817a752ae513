.DEFAULT_GOAL := help

help: ## List the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build bin/concord
	go build -o bin/concord ./cmd/concord

test: ## Run all tests that need nothing but Go
	go test ./...

slow: ## Run the suites with real processes that are killed and paused
	go test ./e2e ./server/kube ./examples/... -p 1 -timeout 90m -args -slow

race: ## Run the tests under the race detector
	go test -race -timeout 60m ./...

sim: ## Attack the protocol in simulated worlds, for a minute
	go run ./cmd/concord-sim --exhaustive --preemptions 1 --parallel 2
	go run ./cmd/concord-sim --seeds 0 --duration 1m --parallel 2

mutants: ## Drop every safety rule, one at a time, and see the simulator miss it
	go run ./cmd/concord-sim --mutants --parallel 2

generate: ## Write the generated code anew
	go generate ./...
	gofmt -l . | xargs -r gofmt -w

check: ## gofmt, go vet, concord-vet, golangci-lint where it is installed, and drift of generated code
	@test -z "$$(gofmt -l .)" || { gofmt -l .; exit 1; }
	go vet ./...
	go run ./cmd/concord-vet -test=false ./...
	@go generate ./... && git diff --exit-code -- '*zz_generated*' || { echo "generated code differs: run make generate and commit"; exit 1; }
	@if command -v golangci-lint >/dev/null; then golangci-lint run; else echo "golangci-lint is not installed: skipped"; fi

bench: ## Measure what the protocol costs and how fast migrations are, side by side
	go run ./bench/server
	go run ./bench/migration

demo: ## Watch three servers upgrade themselves
	go run ./cmd/concord demo

.PHONY: help build test slow race sim mutants generate check bench demo
