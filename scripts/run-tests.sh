#!/usr/bin/env bash
# Runs the tests of the host: those of handlers/, which build and compile, and beside them all others, which
# mostly wait for leases, for processes and for events that must not happen.
#
#   RUST_TEST_THREADS   how many of the others run at once; half as many of handlers/ do
set -uo pipefail
threads=${RUST_TEST_THREADS:-$(nproc)}
stage=$(dirname "${BASH_SOURCE[0]}")/stage.sh
"$stage" "the build of the host and its tests" "twelve minutes, a change two" \
    cargo test --locked --workspace --lib --bins --tests --no-run || exit

log=$(mktemp)
# In a process group of its own, it can be ended together with what it has started.
set -m
RUST_TEST_THREADS=$(((threads + 1) / 2)) nice cargo test --locked --test e2e handlers:: >"$log" 2>&1 &
handlers=$!
set +m
trap 'kill -- -$handlers 2>/dev/null; rm -f "$log"' EXIT

"$stage" "the tests of the host" "thirteen minutes; those of handlers end later" \
    cargo test --locked --workspace --lib --bins --tests --no-fail-fast -- --skip handlers::
others=$?
wait $handlers
code=$?
echo "The tests of handlers/, which ran at the same time:"
cat "$log"
[ "$others" != 0 ] || others=$code
exit "$others"
