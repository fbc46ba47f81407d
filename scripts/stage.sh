#!/usr/bin/env bash
# Runs one stage of something long, and says what begins, how long it usually takes, and how long it took.
#
#   scripts/stage.sh "2/4 the host" "5 minutes, then seconds" cargo build …
#   STAGES=FILE scripts/stage.sh …     also notes the time in FILE
#   STAGES=FILE scripts/stage.sh       prints the table of these times
set -uo pipefail
if [ $# = 0 ]; then
    awk -F '\t' '{ printf "%7d s  %s\n", $1, $2; sum += $1 } END { printf "%7d s  in all\n", sum }' "$STAGES"
    exit
fi
name=$1 usual=$2
shift 2
echo "== $name ($usual)"
SECONDS=0
"$@"
code=$?
[ "$code" = 0 ] && echo "== $name: $SECONDS s" || echo "== $name: failed after $SECONDS s" >&2
[ -z "${STAGES:-}" ] || printf '%s\t%s\n' "$SECONDS" "$name" >>"$STAGES"
exit "$code"
