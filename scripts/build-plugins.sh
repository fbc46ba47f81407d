#!/usr/bin/env bash
# Builds the handlers under plugins/, and puts them in place as plugins/<name>.wasm and
# plugins/testing/<name>.wasm.
#
#   scripts/build-plugins.sh
#   scripts/build-plugins.sh --setup   only finds a compiler for Rust, and installs one if there is none
#   scripts/build-plugins.sh --demo    only the handlers that demo/run.sh shows, all in Rust
#
# It prints nothing unless it fails. It does not touch a file whose content stays the same, and replaces a
# file by a rename, so that a host that watches the folder sees only whole files.
#
# By default it uses the first of two compilers that works:
#   TQHOST_GUEST_TOOLCHAIN=rustup   rustup's, with the target wasm32-wasip2: components, with WASI
#   TQHOST_GUEST_TOOLCHAIN=debian   Debian's rustc-web cargo-web rust-web-src lld-19, with the target
#                                   wasm32-unknown-unknown: core modules with their component type, but
#                                   without WASI
# Intermediate files are in the folder plugins/ of CARGO_TARGET_DIR if that is set, otherwise in
# plugins/target.
set -euo pipefail

scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
plugins=$(cd "$scripts/../plugins" && pwd)
target_dir=${CARGO_TARGET_DIR:+$CARGO_TARGET_DIR/plugins}
target_dir=$(realpath -m "${target_dir:-$plugins/target}")
log=$(mktemp)
trap 'rm -f "$log"' EXIT

fail() {
    echo "build-plugins: $*" >&2
    exit 1
}

# Runs a command silently; prints its output if it fails.
quietly() {
    "$@" >"$log" 2>&1 || {
        cat "$log" >&2
        fail "failed: $*"
    }
}

have_rustup() {
    command -v rustup cargo >/dev/null || return 1
    # The folder plugins/ decides which compiler cargo runs.
    (cd "$plugins" && rustup target list --installed 2>/dev/null) | grep -qx wasm32-wasip2
}

add_rustup() {
    have_rustup && return 0
    command -v rustup cargo >/dev/null || return 1
    # Without a mirror, this fails or hangs.
    (cd "$plugins" && timeout 60 rustup target add wasm32-wasip2 >/dev/null 2>&1)
}

debian_packages=(rustc-web cargo-web rust-web-src lld-19)

have_debian() {
    dpkg-query -W -f '${Status}\n' "${debian_packages[@]}" 2>/dev/null |
        grep -c '^install ok installed$' | grep -qx "${#debian_packages[@]}"
}

install_debian() {
    have_debian && return 0
    command -v apt-get >/dev/null ||
        fail "needs rustup with the target wasm32-wasip2, or Debian with the packages ${debian_packages[*]}"
    [ "$(id -u)" = 0 ] ||
        fail "no rustup target wasm32-wasip2 here. As root, run: apt-get install ${debian_packages[*]}"
    quietly apt-get update
    DEBIAN_FRONTEND=noninteractive quietly apt-get install -y --no-install-recommends "${debian_packages[@]}"
}

toolchain=${TQHOST_GUEST_TOOLCHAIN:-}
if [ -z "$toolchain" ]; then
    # An installed compiler comes first, because adding a target takes time, and more of it without a mirror.
    if have_rustup; then
        toolchain=rustup
    elif have_debian; then
        toolchain=debian
    elif add_rustup; then
        toolchain=rustup
    else
        toolchain=debian
    fi
fi

# Settings for native builds do not fit WebAssembly.
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_TARGET CARGO_BUILD_RUSTFLAGS
unset RUSTC_WRAPPER RUSTC_WORKSPACE_WRAPPER

case $toolchain in
rustup)
    add_rustup || fail "rustup cannot add the target wasm32-wasip2"
    target=wasm32-wasip2
    build=(cargo build --release --target "$target")
    ;;
debian)
    install_debian
    target=wasm32-unknown-unknown
    export RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER=wasm-ld-19
    build=(/usr/bin/cargo build --release -Zbuild-std=std,panic_abort --target "$target")
    ;;
*)
    fail "TQHOST_GUEST_TOOLCHAIN is rustup or debian, not \`$toolchain\`"
    ;;
esac
[ "${1:-}" != --setup ] || exit 0

cd "$plugins"
built=$target_dir/$target/release
handlers=(kb-vectorize report-assemble report-plan report-query resume-analyze)
if [ "${1:-}" = --demo ]; then
    guests=(echo echo-v2 flaky)
    chosen=("${guests[@]/#/--example=}")
else
    handlers+=(http-call interview-evaluate)
    guests=()
    for source in testing/*.rs; do
        [ "$source" = testing/lib.rs ] || guests+=("$(basename "$source" .rs)")
    done
    chosen=(--examples)
fi
quietly "${build[@]}" --locked --quiet --target-dir "$target_dir" "${handlers[@]/#/-p}"
quietly "${build[@]}" --locked --quiet --target-dir "$target_dir" -p testing-guests "${chosen[@]}"

# Cargo writes a `-` of a library's name as `_`.
land() {
    local from=$1 to=$2
    cmp -s "$from" "$to" && return 0
    cp "$from" "$to.tmp.$$"
    chmod 644 "$to.tmp.$$"
    mv -f "$to.tmp.$$" "$to"
}

for name in "${handlers[@]}"; do
    land "$built/${name//-/_}.wasm" "$name.wasm"
done
for name in "${guests[@]}"; do
    land "$built/examples/${name//-/_}.wasm" "testing/$name.wasm"
done

[ "${1:-}" = --demo ] || "$scripts/build-languages.sh"
