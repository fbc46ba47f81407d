#!/usr/bin/env bash
# Prints the time of the last run of the end-to-end tests, and its ten slowest tests.
#
#   scripts/slowest-tests.sh FILE   what tests/support/timing.rs writes: start, end and name of each test
set -euo pipefail
times=${1:?the file of times}
[[ -s $times ]] || exit 0
awk '
    { sum += $2 - $1 }
    NR == 1 || $1 < from { from = $1 }
    $2 > to { to = $2 }
    END {
        printf "%d end-to-end tests took %.0f s (%.0f s one after the other). The slowest:\n",
            NR, (to - from) / 1000, sum / 1000
    }
' "$times"
awk '{ printf "%8.1f s  %s\n", ($2 - $1) / 1000, $3 }' "$times" | sort -rn | awk 'NR <= 10'
