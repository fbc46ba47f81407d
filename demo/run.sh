#!/usr/bin/env bash
# Shows tqhost at work, and checks each number that it shows: a wrong one ends the demo with exit code 1.
#
#   demo/run.sh                       the host is target/release/tqhost; `make run` builds it and the handlers
#   TQHOST_BIN=… demo/run.sh          another binary
#   DEMO_TASKS=500 demo/run.sh        fewer tasks for the part that replaces a handler (2000)
#
# All files are in a folder of its own, which is removed at the end: a configuration (demo/tqhost.toml), a
# plugins folder, and the data of the private Redis that the host starts. The demo needs bash and coreutils.
set -euo pipefail
export LC_ALL=C.UTF-8
unset TQHOST_LOG

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tqhost=$(realpath -m "${TQHOST_BIN:-${CARGO_TARGET_DIR:-$root/target}/release/tqhost}")
stream_tasks=${DEMO_TASKS:-2000}
# This limit is for events that never come, not for late ones.
limit_seconds=60
work=$(mktemp -d "${TMPDIR:-/tmp}/tqhost-demo.XXXXXX")
config=$work/demo/tqhost.toml
host_pid=
clean_up() {
    code=$?
    [ -z "$host_pid" ] || { kill -TERM "$host_pid" && wait "$host_pid"; } 2>/dev/null || true
    [ "$code" = 0 ] || { echo "demo: FAILED. The end of the host's log:" && tail -n 20 "$work/host.log"; } >&2
    rm -rf "$work"
}
trap clean_up EXIT

fail() { echo "demo: $*" >&2 && exit 1; }
step() { printf '\n== %s\n' "$*"; }
tq() { "$tqhost" --config "$config" "$@"; }
show() { echo "\$ tqhost $*" && tq "$@"; }
expect() { # what, found, wanted
    [ "$2" = "$3" ] || fail "$1: found \`$2\`, expected \`$3\`"
}
wait_until() { # what, command…
    local what=$1 end=$((SECONDS + limit_seconds))
    shift
    until "$@"; do
        [ "$SECONDS" -lt "$end" ] || fail "waited $limit_seconds s, in vain: $what"
        kill -0 "$host_pid" 2>/dev/null || fail "the host has ended while waiting: $what"
        sleep 0.05
    done
}
# Replaces a handler in one step, so that the host never sees half a file.
install_handler() { # file, name of the plugin
    [ -f "$root/plugins/$1" ] || fail "plugins/$1 is not built: run \`make plugins\`"
    cp "$root/plugins/$1" "$work/plugins/$2.new" && mv "$work/plugins/$2.new" "$work/plugins/$2.wasm"
}
# The first value of a key in a line of JSON, without its quotes.
json() { # key
    grep -oE "\"$1\":(\"([^\"\\\\]|\\\\.)*\"|[^,}]*)" | sed -nE '1 { s/^"[^"]*"://; s/^"//; s/"$//; p }'
}
is_serving() { [[ $(tq queues --json 2>&1) == *'"waiting-for-plugin"'* ]]; }
has_version() { # file
    [[ $(tq plugins --json) == *"\"version\":\"$(sha256sum <"$root/plugins/$1" | cut -d ' ' -f 1)\""* ]]
}

[ -x "$tqhost" ] || fail "$tqhost is not there: run \`make build\`"
mkdir "$work/demo" "$work/plugins" "$work/ends"
# Another host may use the port, so the demo takes any free one.
sed 's/^listen = .*/listen = "127.0.0.1:0"/' "$root/demo/tqhost.toml" >"$config"

step "A host with a private Redis and three queues. It has no handler for resumes yet."
install_handler testing/flaky.wasm flaky
install_handler testing/echo.wasm greet
"$tqhost" --config "$config" run 2>"$work/host.log" </dev/null &
host_pid=$!
wait_until "the host serves its queues" is_serving

step "Resumes are enqueued. Their handler is not there, so they wait; nothing is lost."
ids=() samples=("$root"/plugins/resume-analyze/samples/*.txt)
for sample in "${samples[@]}"; do
    ids+=("$(tq enqueue resume-analyze "resumeId=$(basename "$sample" .txt)" "content=@$sample")")
done
echo "\$ tqhost enqueue resume-analyze resumeId=… content=@…   (${#ids[@]} tasks)"
show queues

step "The handler is dropped into the plugins folder: the host takes it, PENDING becomes COMPLETED."
echo "\$ cp plugins/resume-analyze.wasm …/plugins/"
install_handler resume-analyze.wasm resume-analyze
dead_id='' completed=0
for n in "${!ids[@]}"; do
    name=$(basename "${samples[$n]}" .txt)
    end=$(tq status resume-analyze "${ids[$n]}" --watch --json | tail -n 1)
    result=${end#*'"result":'}
    if [ "$(json status <<<"$end")" = COMPLETED ]; then
        completed=$((completed + 1))
        note="score $(json score <<<"$result"), $(json name <<<"${result#*'"contact":'}")"
        expect "the resumeId in the result" "$(json resumeId <<<"$result")" "$name"
    else
        dead_id=${ids[$n]} note=$(json error <<<"$end")
    fi
    printf '%-16s %-10s %s\n' "$name" "$(json status <<<"$end")" "${note/null/no resume}"
done
expect "completed resumes (all but the empty one)" "$completed" $((${#ids[@]} - 1))

step "A task that the handler rejects is kept as a dead letter, with the reason."
show dead list resume-analyze
expect "the reason" "$(tq dead show resume-analyze "$dead_id" --json | json reason)" rejected

step "A handler that fails twice is tried again, after the configured delays."
flaky_id=$(tq enqueue flaky failUntil=3)
show status flaky "$flaky_id" --watch
expect "the attempts of the retried task" "$(tq status flaky "$flaky_id" --json | json attempt)" 3

step "Tasks flow, and their handler is replaced meanwhile."
ran_on() { cat "$work"/ends/* 2>/dev/null | grep -cF "\"version\":\"$1\"" || true; }
batches=0 end=$((SECONDS + limit_seconds))
# Batches go on until all tasks are sent and some of them ran on the new version.
until [ $((batches * 100)) -ge "$stream_tasks" ] && [ "$(ran_on 2)" -gt 0 ]; do
    [ "$SECONDS" -lt "$end" ] || fail "no task ran on the new version within $limit_seconds s"
    batches=$((batches + 1))
    seq -f '{"n": %.0f}' $((batches * 100 - 99)) $((batches * 100)) >"$work/batch"
    tq enqueue greet --jsonl "$work/batch" --wait --timeout "${limit_seconds}s" --json >"$work/ends/$batches"
    if [ "$batches" = $((stream_tasks / 300)) ]; then
        install_handler testing/echo-v2.wasm greet
        echo "after $((batches * 100)) tasks: cp plugins/testing/echo-v2.wasm …/plugins/greet.wasm"
    fi
done
sent=$((batches * 100)) first=$(ran_on 1) second=$(ran_on 2)
expect "tasks that completed" "$(cat "$work"/ends/* | grep -c '"status":"COMPLETED"')" "$sent"
expect "different tasks" "$(grep -ohE '"fields":\{"n":"[0-9]+"' "$work"/ends/* | sort -u | wc -l)" "$sent"
expect "tasks on one version or the other" $((first + second)) "$sent"
echo "$sent tasks: $first ran on version 1, $second on version 2, none was lost"

step "The queues and the handlers at the end."
wait_until "the host tells of the new version" has_version testing/echo-v2.wasm
show queues && echo && show plugins
left='"queued":0,"running":0,"delayed":0,"dead"'
expect "queues with nothing left to do" "$(tq queues --json | grep -oF "$left" | wc -l)" 3

kill -TERM "$host_pid" && wait "$host_pid" || fail "the host ended with $?"
host_pid=
total=$((${#ids[@]} + 1 + sent))
cat <<END

== Done
$total tasks: $((total - 1)) completed, 1 dead, 1 retried (twice); 2 versions of one handler; $SECONDS s

To start a host in the folder of the repository (its data stays in .tqhost):
  ${tqhost#"$root/"} --config demo/tqhost.toml
Then, in a second terminal:
  ${tqhost#"$root/"} --config demo/tqhost.toml enqueue resume-analyze resumeId=7 \\
      content=@plugins/resume-analyze/samples/one-page-en.txt --wait
  ${tqhost#"$root/"} --config demo/tqhost.toml queues
Read README.md for a tour, and docs/handlers.md to write a handler.
END
