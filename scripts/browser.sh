#!/usr/bin/env bash
# Installs the browser of `make test-world`, and prints the folder of its packages.
#
#   scripts/browser.sh
#
# It is a headless Chromium from npm, with what drives it and what judges pages (axe), in the versions that
# tests/world/browser/package-lock.json pins. It is kept in TQHOST_TOOLS (default ~/.cache/tqhost), and is not
# fetched again while that file stays the same. build-languages.sh removes what was not used for 60 days.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cache=${TQHOST_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/tqhost}
packages=$PWD/tests/world/browser
version=$(sha256sum <"$packages/package-lock.json" | cut -c 1-20)
tools=$cache/tools/browser-$version
log=$(mktemp)
trap 'rm -f "$log"' EXIT

mkdir -p "$cache/tools"
# Two clones may run this at the same time.
exec 9>"$cache/lock"
flock 9
if [ ! -e "$tools/complete" ]; then
    echo "browser: fetching $(basename "$tools")" >&2
    rm -rf "$tools"
    mkdir -p "$tools"
    cp "$packages/package.json" "$packages/package-lock.json" "$tools"
    (cd "$tools" && npm ci --ignore-scripts --no-audit --no-fund >"$log" 2>&1 9>&-) || {
        cat "$log" >&2
        echo "browser: npm ci failed in $tools" >&2
        exit 1
    }
fi
touch "$tools/complete"
echo "$tools"
