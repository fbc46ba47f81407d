#!/bin/sh
# Builds the handler again whenever one of its files has changed, and runs it on task.json after each build.
# `make watch` calls it; Ctrl-C ends it.
"${TQHOST:-tqhost}" try {{NAME}}.wasm task.json{{TRY_ARGS}} --watch &
trying=$!
trap 'kill "$trying" 2>/dev/null' EXIT
trap 'exit 0' INT TERM

# The files that are newer than the last build, without those that a build makes.
changed() {
    find . \( -name node_modules -o -name target -o -name '.?*' -o -name __pycache__ -o -path ./types \
        -o -path ./build -o -path ./bindings \) -prune \
        -o -type f -newer .watched ! -name '*.wasm*' ! -name task.json -print
}

touch .watched
while kill -0 "$trying" 2>/dev/null; do
    if [ -n "$(changed)" ]; then
        # A file that changes during the build is newer. A build that fails is tried again after a change.
        touch .watched
        ${MAKE:-make} --silent build || true
    fi
    sleep 0.3
done
