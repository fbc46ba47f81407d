#!/usr/bin/env bash
# Installs the S3 server of `make test-world`, and prints the folder of its programs.
#
#   scripts/s3-server.sh
#
# It is moto, from Python's registry, with the versions that tests/world/requirements.txt pins. It is kept in
# TQHOST_TOOLS (default ~/.cache/tqhost), and is not fetched again while this file stays the same.
# build-languages.sh removes what was not used for 60 days.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cache=${TQHOST_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/tqhost}
requirements=$PWD/tests/world/requirements.txt
version="$(sha256sum <"$requirements" | cut -c 1-20)-$(python3 --version | tr -d ' ')"
tools=$cache/tools/s3-server-$version
log=$(mktemp)
trap 'rm -f "$log"' EXIT

quietly() {
    "$@" >"$log" 2>&1 9>&- || {
        cat "$log" >&2
        echo "s3-server: failed: $*" >&2
        exit 1
    }
}

mkdir -p "$cache/tools"
# Two clones may run this at the same time.
exec 9>"$cache/lock"
flock 9
if [ ! -e "$tools/complete" ]; then
    echo "s3-server: fetching $(basename "$tools")" >&2
    rm -rf "$tools"
    quietly python3 -m venv "$tools"
    quietly "$tools/bin/pip" install --disable-pip-version-check --requirement "$requirements"
fi
touch "$tools/complete"
echo "$tools/bin"
