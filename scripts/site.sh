#!/usr/bin/env bash
# Builds the pages of docs/ as a site with a search, and checks the links within it.
#
#   scripts/site.sh FOLDER
#
# docs/SUMMARY.md says which pages it has, and docs/book.toml how it is built: by mdBook, which is kept in
# TQHOST_TOOLS (default ~/.cache/tqhost) and is built there at the first run, in three minutes. It needs
# Python 3.9. build-languages.sh removes what was not used for 60 days.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=$(realpath -m "${1:?a folder for the site}")
version=0.5.4
cache=${TQHOST_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/tqhost}
tools=$cache/tools/mdbook-$version

mkdir -p "$cache/tools"
# Two clones may run this at the same time.
exec 9>"$cache/lock"
flock 9
if [ ! -e "$tools/complete" ]; then
    echo "site: building mdBook $version" >&2
    rm -rf "$tools"
    # Without its server. `--debug` is quicker to build, and the site takes seconds either way.
    env -u CARGO_TARGET_DIR cargo install mdbook --version "$version" --locked --debug --quiet \
        --no-default-features --features search --root "$tools" 9>&-
fi
touch "$tools/complete"
flock -u 9

rm -rf "$out"
"$tools/bin/mdbook" build --dest-dir "$out" docs
# mdBook copies every file of docs/ that is no page; it uses the style sheet under another name.
rm -f "$out/book.toml" "$out/site.css"
python3 scripts/site.py check "$out"
