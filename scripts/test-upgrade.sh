#!/usr/bin/env bash
# Replaces hosts of an older build by those of this one under load (tests/upgrade).
#
#   scripts/test-upgrade.sh            from the last tag, or from the commit before this one if there is none
#   scripts/test-upgrade.sh COMMIT     from this commit
#   TQHOST_PREVIOUS=PROGRAM scripts/test-upgrade.sh     from a program that is there
#
# The older source and its build are kept in the folder upgrade/ of TQHOST_TOOLS (default ~/.cache/tqhost).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ -z "${TQHOST_PREVIOUS:-}" ]; then
    commit=${1:-$(git describe --tags --abbrev=0 HEAD^ 2>/dev/null || git rev-parse HEAD^)}
    folder=${TQHOST_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/tqhost}/upgrade
    rm -rf "$folder/source"
    mkdir -p "$folder/source"
    git archive "$commit" | tar -x -C "$folder/source"
    scripts/stage.sh "the host of $commit" "eleven minutes, a change two" \
        cargo build --locked -p tqhost --manifest-path "$folder/source/Cargo.toml" \
        --target-dir "$folder/target"
    export TQHOST_PREVIOUS=$folder/target/debug/tqhost
fi
scripts/stage.sh "the upgrade" "a minute" cargo test --locked --test upgrade -- --nocapture
