#!/usr/bin/env bash
# Fuzzes the code that reads bytes from others, for some minutes.
#
#   scripts/fuzz.sh [TARGET [MINUTES]]      TARGET is inspect, load (plugin files) or config; default: load 5
#
# It needs a nightly compiler and cargo-fuzz (`rustup toolchain add nightly`,
# `cargo install cargo-fuzz --locked`). It continues with the earlier inputs in tests/fuzz/corpus. The first
# run begins with the built handlers and with the configurations in docs/. If an input ends the process, the
# input is kept in tests/fuzz/artifacts, and the script fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../tests/fuzz"
target=${1:-load}
minutes=${2:-5}

fail() {
    echo "fuzz: $*" >&2
    exit 1
}

# Larger inputs take longer than they show. A new compiler's 64 KiB hold the standard library once more.
case $target in
inspect) max_len=131072 ;;
load) max_len=16384 ;;
config) max_len=8192 ;;
*) fail "there are the targets inspect, load and config, not \`$target\`" ;;
esac
cargo fuzz --version >/dev/null 2>&1 || fail "there is no cargo-fuzz: cargo install cargo-fuzz --locked"
cargo +nightly --version >/dev/null 2>&1 || fail "there is no nightly compiler: rustup toolchain add nightly"

seeds=seeds/$target
mkdir -p "$seeds" "corpus/$target"
if [ "$target" = config ]; then
    # Each block of TOML in the pages is a seed.
    awk -v dir="$seeds" '
        /^```toml/ { n++; on = 1; next }
        /^```/ { on = 0 }
        on { print > (dir "/" n ".toml") }' ../../docs/*.md
else
    find ../../plugins/testing -name '*.wasm' -size "-${max_len}c" -exec cp -t "$seeds" {} +
fi
[ -n "$(ls "$seeds")" ] || fail "no handler is built that is small enough: run \`make plugins\`"

# A thread that starts while the process ends looks like a leak. The fuzzer's bound of memory finds what grows
# from input to input.
export ASAN_OPTIONS=detect_leaks=0
# A component may take a second to compile with a sanitizer in the compiler. An input that takes a minute is a
# finding.
exec cargo +nightly fuzz run --fuzz-dir . "$target" "corpus/$target" "$seeds" -- \
    -max_total_time=$((minutes * 60)) -max_len="$max_len" -timeout=60 -rss_limit_mb=4096 -print_final_stats=1
