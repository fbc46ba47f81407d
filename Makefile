# What can be done here; `make` lists it. Everything may be run again: what is there already is not made again.
#
# CARGO_TARGET_DIR is respected. cargo is parallel by itself, so the targets are not: `make -j` changes nothing.

SHELL := /bin/bash
.NOTPARALLEL:
.DEFAULT_GOAL := help

TARGET_DIR := $(abspath $(or $(CARGO_TARGET_DIR),target))
PLUGINS_TARGET_DIR := $(abspath $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR)/plugins,plugins/target))

.PHONY: help setup plugins build run test lint fmt audit bench chaos soak fuzz clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s  %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## Install what is missing: redis-server, compilers for handlers
	@scripts/setup.sh

plugins: setup ## Build the handlers under plugins/ to .wasm files
	@scripts/build-plugins.sh

build: setup ## Build the host: target/release/tqhost
	cargo build --release --locked

run: build plugins ## Set up, build, and show tqhost at work (about a minute after the first build)
	@TQHOST_BIN=$(TARGET_DIR)/release/tqhost demo/run.sh

# The tests mostly wait: for leases to end, for processes to start, for nothing to happen.
export RUST_TEST_THREADS ?= $(shell echo $$((2 * $$(nproc))))
test: plugins ## Set up and run all tests
	cargo test --locked --workspace --manifest-path plugins/Cargo.toml --target-dir $(PLUGINS_TARGET_DIR)
	cargo test --locked --workspace --lib --bins --tests

lint: setup ## Check the formatting, and what clippy says
	@scripts/lint.sh

fmt: ## Format the code
	cargo fmt --all
	cargo fmt --all --manifest-path plugins/Cargo.toml
	cargo fmt --manifest-path tests/bench/peers/Cargo.toml

audit: ## Check licences, sources and security advisories of the dependencies (needs cargo-deny)
	@scripts/audit.sh

bench: plugins ## Measure the host (an hour and more; SECTION=throughput for one, SECTION=peers with other queues; CONTRIBUTING.md)
	cargo bench --locked --bench host -- $(SECTION)

# A debug build: its assertions and checks of arithmetic are on, and being slower it is struck in more places.
chaos: plugins ## Break hosts, Redis, network and plugins at random under load, and count every task (MINUTES=5 SEED=random REDIS=always|everysec|failover)
	cargo bench --locked --profile dev --bench chaos -- --minutes "$(or $(MINUTES),5)" --seed "$(SEED)" --redis "$(or $(REDIS),always)"

MINUTES ?= 10
soak: plugins ## Run tasks for MINUTES (10) and see that the memory of host and Redis stays the same
	MINUTES=$(MINUTES) cargo bench --locked --bench soak

TARGET ?= load
fuzz: plugins ## Feed changed bytes to what loads plugins (TARGET=load, inspect or config, for MINUTES); needs nightly and cargo-fuzz
	@scripts/fuzz.sh $(TARGET) $(MINUTES)

clean: ## Delete what was built
	cargo clean --quiet
	cargo clean --quiet --manifest-path plugins/Cargo.toml --target-dir $(PLUGINS_TARGET_DIR)
	rm -f plugins/*.wasm plugins/testing/*.wasm
