#!/usr/bin/env bash
# Checks the formatting, and runs clippy, on the host and the handlers; any warning fails.
#
#   scripts/lint.sh
#
# It checks the handlers natively, and for WebAssembly if rustup has the target wasm32-wasip2.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
plugins=(--manifest-path plugins/Cargo.toml)
plugins_target=${CARGO_TARGET_DIR:+$CARGO_TARGET_DIR/plugins}
plugins_target=$(realpath -m "${plugins_target:-plugins/target}")

run() {
    echo "+ $*"
    "$@"
}

run cargo fmt --all --check
run cargo fmt --all "${plugins[@]}" --check
run cargo fmt --manifest-path tests/bench/peers/Cargo.toml --check
run cargo fmt --manifest-path clients/rust/Cargo.toml --check
run cargo clippy --locked --workspace --all-targets -- -D warnings
run cargo clippy --locked --test world -- -D warnings
run cargo clippy --locked --workspace "${plugins[@]}" --target-dir "$plugins_target" \
    --all-targets -- -D warnings
if command -v rustup >/dev/null && rustup target list --installed | grep -qx wasm32-wasip2; then
    run cargo clippy --locked --workspace "${plugins[@]}" --target-dir "$plugins_target" --lib --examples \
        --target wasm32-wasip2 -- -D warnings
else
    echo "lint: left out: clippy of the handlers for WebAssembly (no rustup target wasm32-wasip2)"
fi
for script in scripts/*.sh demo/*.sh host/templates/*/*.sh .ci/run; do
    run bash -n "$script"
done
