#!/usr/bin/env bash
# Installs the missing programs; if it cannot, it prints what to install.
#
#   scripts/setup.sh           what `make run` needs: redis-server, and a compiler for handlers in Rust
#   scripts/setup.sh --tests   also what `make test` needs: compilers for handlers in other languages
#   scripts/setup.sh --world   also what `make test-world` needs
#
# It prints nothing if nothing is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
    echo "setup: $*" >&2
    exit 1
}

# True when version $1 is $2 or newer.
reaches() {
    [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

# 1. Rust.
wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
command -v cargo >/dev/null && command -v rustc >/dev/null ||
    fail "needs cargo and rustc $wanted or newer: https://rustup.rs"
found=$(rustc --version | cut -d ' ' -f 2)
reaches "$found" "$wanted" || fail "rustc is $found, needs $wanted or newer: rustup update stable"
command -v cc >/dev/null || missing+=(gcc libc6-dev)

# 2. Redis or Valkey, 7.0 or newer. Each test starts its own redis-server; no test uses a running one.
command -v redis-server >/dev/null || missing+=(redis-server)

# 3. Python serves the tables of the demo. With venv, it is for the handlers in Python, and to get Node.js if
#    there is none.
command -v python3 >/dev/null || missing+=(python3)
case ${1-} in --tests | --world)
    python3 -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3 python3-venv)
    # clang and its linker, for the handlers in C.
    scripts/find-clang.sh >/dev/null 2>&1 || missing+=(clang-19 lld-19)
    ;;
esac

# 4. A JDK for the example and the client in Java, Mono for the client in C#, Node.js for the browser, the
#    program that checks units of systemd, a proxy with a client, a registry of images, packages of Go (a
#    client of Redis, and those that handlers use), and Sidekiq with a server for its example, from Debian.
if [ "${1-}" = --world ]; then
    command -v javac >/dev/null || missing+=(default-jdk-headless)
    ls /usr/lib/mono/4.5/{mcs.exe,System.{Net.Http,Runtime.Serialization,Xml.Linq}.dll} >/dev/null 2>&1 ||
        missing+=(mono-runtime mono-mcs libmono-system-{net-http,runtime-serialization,xml-linq}4.0-cil)
    command -v npm >/dev/null || missing+=(nodejs npm)
    command -v systemd-analyze >/dev/null || missing+=(systemd)
    command -v nginx >/dev/null || missing+=(nginx-light)
    command -v curl >/dev/null || missing+=(curl)
    command -v docker-registry >/dev/null || missing+=(docker-registry)
    ruby -e 'require "sidekiq"; require "webrick"' 2>/dev/null || missing+=(ruby-sidekiq ruby-webrick)
    for package in github-gomodule-redigo github-go-resty-resty github-hashicorp-go-retryablehttp \
        github-cenkalti-backoff github-google-uuid github-golang-jwt-jwt github-shopspring-decimal \
        github-tidwall-gjson github-go-playground-validator-v10 github-mitchellh-mapstructure \
        github-puerkitobio-goquery github-yuin-goldmark gopkg-yaml.v3 github-pelletier-go-toml.v2 \
        github-rs-zerolog github-mattn-go-sqlite3 github-go-sql-driver-mysql github-gorilla-websocket; do
        dpkg -s "golang-$package-dev" >/dev/null 2>&1 || missing+=("golang-$package-dev")
    done
fi

if [ -n "${missing+some}" ]; then
    as_root=()
    if [ "$(id -u)" != 0 ]; then
        sudo -n true 2>/dev/null || fail "missing. Run: sudo apt-get install ${missing[*]}"
        as_root=(sudo -n)
    fi
    command -v apt-get >/dev/null || fail "missing, install with this system's packages: ${missing[*]}"
    echo "setup: installing ${missing[*]}"
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300)
    # A slightly old list of packages often works. If it does not, or is missing, it is updated.
    "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >"$log" 2>&1 ||
        {
            "${apt[@]}" update &&
                "${apt[@]}" install -y --no-install-recommends "${missing[@]}"
        } >"$log" 2>&1 ||
        { cat "$log" >&2; fail "apt-get could not install ${missing[*]}"; }
fi

redis=$(redis-server --version | sed -n 's/.* v=\([0-9.]*\).*/\1/p')
reaches "$redis" 7.0 || fail "redis-server is $redis, needs 7.0 or newer"

# 5. Compilers for handlers.
scripts/build-plugins.sh --setup
case ${1-} in --tests | --world) scripts/build-languages.sh --setup ;; esac
