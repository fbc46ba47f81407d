#!/usr/bin/env bash
# Checks licences, sources, duplicates and security advisories of all dependencies, by the rules in deny.toml.
#
#   scripts/audit.sh                        needs cargo-deny, and https://github.com for the advisories
#   scripts/audit.sh --without-advisories   for CI: needs no other service; prints what it leaves out
#
# Licences are also checked without cargo-deny, by the test `tidy`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! command -v cargo-deny >/dev/null; then
    if [ "${1:-}" = --without-advisories ]; then
        echo "audit: left out: cargo-deny is not installed (licences were checked by the tests)"
        exit 0
    fi
    echo "audit: needs cargo-deny: cargo install --locked cargo-deny" >&2
    exit 1
fi
if [ "${1:-}" = --without-advisories ]; then
    echo "audit: left out: advisories; 'make audit' checks them"
    checks=(bans licenses sources)
else
    checks=(advisories bans licenses sources)
fi
for manifest in Cargo.toml plugins/Cargo.toml; do
    cargo deny --locked --config deny.toml --manifest-path "$manifest" check "${checks[@]}"
done
