.DEFAULT_GOAL := help

help: ## List the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build bin/concord
	go build -o bin/concord ./cmd/concord

test: ## Run all tests that need nothing but Go
	go test ./...

slow: ## Run the slow suites too: real processes killed and paused
	go test ./... -slow

race: ## Run the tests under the race detector
	go test -race ./...

check: ## gofmt, go vet, golangci-lint where it is installed, and drift of generated code
	@test -z "$$(gofmt -l .)" || { gofmt -l .; exit 1; }
	go vet ./...
	@if command -v golangci-lint >/dev/null; then golangci-lint run; else echo "golangci-lint is not installed: skipped"; fi

bench: ## Measure what the protocol costs, side by side
	go run ./bench/protocol

demo: ## Watch three servers upgrade themselves
	go run ./cmd/concord demo

.PHONY: help build test slow race check bench demo
