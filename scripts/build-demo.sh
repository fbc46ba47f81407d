#!/usr/bin/env bash
# Builds what demo/run.sh shows: the host, and at the same time its handlers, for which a core is idle while
# the last crate of the host is compiled.
#
# The host uses the allocator of the system, because the other one takes two minutes to build.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
nice scripts/build-plugins.sh --demo &
handlers=$!
cargo build --locked --no-default-features
host=$?
wait "$handlers" && exit "$host"
