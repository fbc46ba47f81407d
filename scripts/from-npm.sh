#!/usr/bin/env bash
# Installs packages of `make test-world` from npm, and prints their folder.
#
#   scripts/from-npm.sh tests/world/browser   a headless Chromium, with what drives it and what judges pages
#   scripts/from-npm.sh clients/typescript    node-redis, ioredis, and the compiler of TypeScript
#
# The folder's package-lock.json pins the versions. They are kept in TQHOST_TOOLS (default ~/.cache/tqhost),
# and are not fetched again while that file stays the same. build-languages.sh removes what was not used for
# 60 days.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=$PWD/${1:?a folder with a package-lock.json}
name=$(basename "$packages")
cache=${TQHOST_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/tqhost}
version=$(sha256sum <"$packages/package-lock.json" | cut -c 1-20)
tools=$cache/tools/$name-$version
log=$(mktemp)
trap 'rm -f "$log"' EXIT

mkdir -p "$cache/tools"
# Two clones may run this at the same time.
exec 9>"$cache/lock"
flock 9
if [ ! -e "$tools/complete" ]; then
    echo "$name: fetching $(basename "$tools")" >&2
    rm -rf "$tools"
    mkdir -p "$tools"
    cp "$packages/package.json" "$packages/package-lock.json" "$tools"
    (cd "$tools" && npm ci --ignore-scripts --no-audit --no-fund >"$log" 2>&1 9>&-) || {
        cat "$log" >&2
        echo "$name: npm ci failed in $tools" >&2
        exit 1
    }
fi
touch "$tools/complete"
echo "$tools"
