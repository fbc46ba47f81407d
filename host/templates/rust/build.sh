#!/usr/bin/env bash
# Builds {{NAME}}.wasm, or the file that is named. A file whose content stays the same is not touched.
#
# It uses rustup's target wasm32-wasip2, and adds the target if it can. Otherwise it uses Debian's compiler
# with its source, from the packages rustc-web cargo-web rust-web-src lld-19. That one has no WASI, so
# println! prints nothing. TQHOST_GUEST_TOOLCHAIN=rustup or debian selects one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
# Settings for native builds do not fit WebAssembly.
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_TARGET CARGO_BUILD_RUSTFLAGS
unset RUSTC_WRAPPER RUSTC_WORKSPACE_WRAPPER

have_rustup() {
    command -v rustup >/dev/null || return 1
    rustup target list --installed 2>/dev/null | grep -qx wasm32-wasip2 ||
        timeout 60 rustup target add wasm32-wasip2 >/dev/null 2>&1
}

toolchain=${TQHOST_GUEST_TOOLCHAIN:-}
[ -n "$toolchain" ] || if have_rustup; then toolchain=rustup; else toolchain=debian; fi
if [ "$toolchain" = rustup ]; then
    target=wasm32-wasip2
    cargo build --release --target "$target"
else
    [ -x /usr/bin/cargo ] && command -v wasm-ld-19 >/dev/null || {
        echo "build: needs rustup with the target wasm32-wasip2," \
            "or Debian with the packages rustc-web cargo-web rust-web-src lld-19" >&2
        exit 1
    }
    target=wasm32-unknown-unknown
    RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER=wasm-ld-19 \
        /usr/bin/cargo build --release -Zbuild-std=std,panic_abort --target "$target"
fi
built=${CARGO_TARGET_DIR:-target}/$target/release/handler_{{MODULE}}.wasm
file=${1:-{{NAME}}.wasm}
cmp -s "$built" "$file" || {
    cp "$built" "$file.tmp" && mv "$file.tmp" "$file"
}
