#!/usr/bin/env bash
# Fetches Prometheus, and prints the folder with `prometheus` and `promtool`.
#
# It is the package of Debian or Ubuntu, unpacked and not installed, so it needs no root. It is kept in the
# folder prometheus/ of TQHOST_TOOLS (default ~/.cache/tqhost). If both programs are in the path, they are
# used. If it cannot be had, the last line on stderr says why, and the exit code is 1.
set -euo pipefail

folder=${TQHOST_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/tqhost}/prometheus

fail() {
    echo "prometheus: $*" >&2
    exit 1
}

if command -v promtool >/dev/null && prometheus=$(command -v prometheus); then
    dirname "$prometheus"
    exit 0
fi
mkdir -p "$(dirname "$folder")"
# Two tests may run this at the same time.
exec 9>"$folder.lock"
flock 9
if [ ! -e "$folder/complete" ]; then
    command -v apt-get >/dev/null || fail "install Prometheus with promtool: this machine has no apt-get"
    rm -rf "$folder"
    mkdir -p "$folder/package"
    (cd "$folder/package" && apt-get download --quiet prometheus >&2) ||
        fail "the package cannot be fetched: \`apt-get update\` may help"
    dpkg-deb --extract "$folder"/package/*.deb "$folder"
    said=$("$folder/usr/bin/promtool" --version 2>&1) || fail "promtool does not run here: $said"
    rm -rf "$folder/package"
    touch "$folder/complete"
fi
echo "$folder/usr/bin"
