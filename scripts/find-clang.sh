#!/usr/bin/env bash
# Prints the clang for handlers in C: the first one here that compiles to WebAssembly and has a linker for it.
#
#   scripts/find-clang.sh
#   TQHOST_CLANG=/opt/wasi-sdk/bin/clang scripts/find-clang.sh     takes this one, if it works
#
# If there is none, it prints the reason and ends with exit code 1.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Only compiling and linking shows whether a clang works: Apple's cannot make WebAssembly, and Debian's has
# its linker in another package.
serves() {
    echo 'int answer(void) { return 42; }' >"$work/a.c"
    "$1" --target=wasm32 -nostdlib -Wl,--no-entry -o "$work/a.wasm" "$work/a.c" >"$work/log" 2>&1
}

if [ -n "${TQHOST_CLANG:-}" ]; then
    serves "$TQHOST_CLANG" && echo "$TQHOST_CLANG" && exit 0
    echo "find-clang: TQHOST_CLANG=$TQHOST_CLANG makes no WebAssembly: $(head -n 1 "$work/log")" >&2
    exit 1
fi
for name in clang-19 clang clang-{22,21,20,18,17,16}; do
    command -v "$name" >/dev/null && serves "$name" && command -v "$name" && exit 0
done
echo "find-clang: needs clang with the target wasm32, and lld:" \
    "on Debian or Ubuntu the packages clang-19 lld-19," \
    "elsewhere LLVM's; TQHOST_CLANG names one that is not in the path" >&2
exit 1
