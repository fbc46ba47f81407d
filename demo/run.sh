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
target=${CARGO_TARGET_DIR:-$root/target}
tqhost=$(realpath -m "${TQHOST_BIN:-$target/release/tqhost}")
stream_tasks=${DEMO_TASKS:-2000}
batch_tasks=100
# This limit is for events that never come, not for late ones.
limit_seconds=60

work=$(mktemp -d "${TMPDIR:-/tmp}/tqhost-demo.XXXXXX")
host_log=$work/host.log
host_pid=
is_done=no

clean_up() {
    code=$?
    trap - EXIT
    if [ -n "$host_pid" ]; then
        kill -TERM "$host_pid" 2>/dev/null || true
        wait "$host_pid" 2>/dev/null || true
    fi
    if [ "$is_done" != yes ]; then
        echo
        echo "demo: FAILED. The end of the host's log:" >&2
        tail -n 20 "$host_log" >&2 2>/dev/null || true
        [ "$code" != 0 ] || code=1
    fi
    rm -rf "$work"
    exit "$code"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

fail() {
    echo "demo: $*" >&2
    exit 1
}

expect() { # what, found, wanted
    [ "$2" = "$3" ] || fail "$1: found \`$2\`, expected \`$3\`"
}

step() {
    echo
    echo "== $*"
}

# Runs a command of tqhost, and shows how it could be typed.
show() {
    echo "\$ tqhost $*"
    tq "$@"
}

tq() {
    "$tqhost" --config "$config" "$@"
}

# Waits until a command succeeds.
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
    cp "$root/plugins/$1" "$work/plugins/$2.new"
    mv "$work/plugins/$2.new" "$work/plugins/$2.wasm"
}

# The first value of a key in a line of JSON, without its quotes.
json() { # key
    grep -oE "\"$1\":(\"([^\"\\\\]|\\\\.)*\"|[^,}]*)" | sed -nE '1 { s/^"[^"]*"://; s/^"//; s/"$//; p }'
}

# Pads a text with spaces to a number of columns. printf counts bytes, and a Chinese character takes two
# columns.
padded() { # text, columns
    local columns=${#1} n code
    for ((n = 0; n < ${#1}; n++)); do
        printf -v code %d "'${1:n:1}"
        [ "$code" -lt $((0x2e80)) ] || columns=$((columns + 1))
    done
    printf '%s%*s' "$1" $(($2 > columns ? $2 - columns : 0)) ''
}

# Prints the answer of the admin server.
http() { # path
    exec 3<>"/dev/tcp/${admin%:*}/${admin##*:}"
    printf 'GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n' "$1" "$admin" >&3
    cat <&3
    exec 3<&-
}

# Prints how many attempts of a queue the host has settled with this outcome.
settled() { # queue, outcome
    http /metrics | tr -d '\r' | awk -v queue="queue=\"$1\"" -v outcome="outcome=\"$2\"" \
        '/^tqhost_tasks_total{/ && index($0, queue) && index($0, outcome) { print int($NF) }'
}

is_ready() {
    [[ $(http /readyz) == 'HTTP/1.1 200 '* ]]
}

is_listening() {
    admin=$(sed -E 's/\x1b\[[0-9;]*m//g' "$host_log" |
        sed -nE 's/.*tqhost is running.* admin=([0-9.]+:[0-9]+).*/\1/p')
    [ -n "$admin" ]
}

# Hosts publish their state every few seconds.
has_told_states() {
    [[ $(tq queues --json) != *'"state":"starting"'* ]]
}

has_told_version() { # file
    local digest
    digest=$(sha256sum <"$root/plugins/$1")
    [[ $(tq plugins --json) == *"\"version\":\"${digest%% *}\""* ]]
}

[ -x "$tqhost" ] || fail "$tqhost is not there: run \`make build\`"
for wasm in resume-analyze testing/flaky testing/echo testing/echo-v2; do
    [ -f "$root/plugins/$wasm.wasm" ] || fail "plugins/$wasm.wasm is not built: run \`make plugins\`"
done
mkdir "$work/demo" "$work/plugins" "$work/ends"
config=$work/demo/tqhost.toml
# Another host may use the port, so the demo takes any free one.
sed 's/^listen = .*/listen = "127.0.0.1:0"/' "$root/demo/tqhost.toml" >"$config"

step "A host with a private Redis and three queues. It has no handlers yet."
install_handler testing/flaky.wasm flaky
install_handler testing/echo.wasm greet
"$tqhost" --config "$config" run 2>"$host_log" </dev/null &
host_pid=$!
wait_until "the host runs" is_listening
wait_until "the host is ready" is_ready
echo "tqhost runs as process $host_pid, its admin address is http://$admin"

step "Resumes are enqueued. Their handler is not there, so they wait; nothing is lost."
samples=()
ids=()
for sample in "$root"/plugins/resume-analyze/samples/*.txt; do
    name=$(basename "$sample" .txt)
    samples+=("$name")
    ids+=("$(tq enqueue resume-analyze "resumeId=$name" "content=@$sample")")
done
sample=plugins/resume-analyze/samples/one-page-en.txt
echo "\$ tqhost enqueue resume-analyze resumeId=one-page-en content=@$sample   (and ${#ids[@]} in all)"
for id in "${ids[@]}"; do
    status=$(tq status resume-analyze "$id" --json | json status)
    expect "the status of $id before its handler is there" "$status" PENDING
done
wait_until "the host tells of its queues" has_told_states
show queues

step "The handler is dropped into the plugins folder: the host takes it, PENDING becomes COMPLETED."
echo "\$ cp plugins/resume-analyze.wasm …/plugins/"
install_handler resume-analyze.wasm resume-analyze
resumes_completed=0
resumes_dead=0
dead_id=
printf '\n%-16s %-10s %-22s %-5s %5s  %s\n' RESUME STATUS NAME LANG SCORE NOTE
for n in "${!ids[@]}"; do
    id=${ids[$n]}
    # The last line shows the end of the task.
    end=$(timeout "$limit_seconds" "$tqhost" --config "$config" status resume-analyze "$id" --watch --json |
        tail -n 1)
    status=$(json status <<<"$end")
    result=$(grep -oE '"result":\{.*' <<<"$end" || true)
    case $status in
    COMPLETED)
        resumes_completed=$((resumes_completed + 1))
        [[ $result == *'"isResume":true'* ]] && note= || note='no resume'
        contact=$(grep -oE '"contact":\{.*' <<<"$result")
        score=$(json score <<<"$result")
        [ "$score" -ge 0 ] && [ "$score" -le 100 ] || fail "the score of ${samples[$n]} is $score"
        expect "the resumeId in the result" "$(json resumeId <<<"$result")" "${samples[$n]}"
        person=$(json name <<<"$contact")
        [ "$person" != null ] || person=-
        language=$(json language <<<"$result")
        ;;
    FAILED)
        resumes_dead=$((resumes_dead + 1))
        dead_id=$id
        person=- language=- score=- note=$(json error <<<"$end")
        ;;
    *) fail "the task of ${samples[$n]} is $status" ;;
    esac
    printf '%-16s %-10s %s %-5s %5s  %s\n' \
        "${samples[$n]}" "$status" "$(padded "$person" 22)" "$language" "$score" "$note"
done
expect "dead resumes (the empty one)" "$resumes_dead" 1
expect "completed resumes" "$resumes_completed" $((${#ids[@]} - 1))

step "What cannot be read is rejected: it is kept as a dead letter, with the reason."
show dead list resume-analyze
echo
show dead show resume-analyze "$dead_id"
letter=$(tq dead show resume-analyze "$dead_id" --json)
expect "the reason of the dead letter" "$(json reason <<<"$letter")" rejected
expect "its attempts" "$(json attempts <<<"$letter")" 1

step "A handler that fails twice is tried again, after the configured delays."
flaky_id=$(tq enqueue flaky failUntil=3)
echo "\$ tqhost enqueue flaky failUntil=3"
echo "$flaky_id"
show status flaky "$flaky_id" --watch
flaky=$(tq status flaky "$flaky_id" --json)
expect "the status of the retried task" "$(json status <<<"$flaky")" COMPLETED
expect "its attempts" "$(json attempt <<<"$flaky")" 3

step "Tasks flow, and their handler is replaced meanwhile."
# New batches start until all tasks are sent and some of them ran on the new version.
is_answered_by() { # version
    grep -qsF "\"version\":\"$1\"" "$work"/ends/*
}
senders=()
sent=0
batch=0
replaced_at=
end=$((SECONDS + limit_seconds))
while [ "$sent" -lt "$stream_tasks" ] || ! is_answered_by 2; do
    [ "$SECONDS" -lt "$end" ] || fail "no task ran on the new version within $limit_seconds s"
    # At most eight batches run at once; the host counts as a job, too.
    if [ "$(jobs -rp | wc -l)" -gt 8 ]; then
        sleep 0.05
        continue
    fi
    batch=$((batch + 1))
    for ((n = sent + 1; n <= sent + batch_tasks; n++)); do echo "{\"n\": $n}"; done >"$work/batch.$batch"
    # Each batch waits for its own tasks, and writes down how they ended.
    tq enqueue greet --jsonl "$work/batch.$batch" --wait --timeout "${limit_seconds}s" --json \
        >"$work/ends/$batch" &
    senders+=($!)
    sent=$((sent + batch_tasks))
    if [ -z "$replaced_at" ] && [ "$sent" -ge $((stream_tasks / 3)) ] && is_answered_by 1; then
        install_handler testing/echo-v2.wasm greet
        replaced_at=$sent
        echo "after $sent tasks: cp plugins/testing/echo-v2.wasm …/plugins/greet.wasm"
    fi
    sleep 0.1
done
for sender in "${senders[@]}"; do
    wait "$sender" || fail "a batch of tasks did not complete"
done
cat "$work"/ends/* >"$work/all-ends"
on_first=$(grep -cF '"version":"1"' "$work/all-ends" || true)
on_second=$(grep -cF '"version":"2"' "$work/all-ends" || true)
expect "tasks that ended" "$(grep -oE '^\{"id":"[^"]*"' "$work/all-ends" | sort -u | wc -l)" "$sent"
expect "tasks that completed" "$(grep -c '"status":"COMPLETED"' "$work/all-ends" || true)" "$sent"
expect "tasks on one version or the other" $((on_first + on_second)) "$sent"
numbers=$(grep -oE '"fields":\{"n":"[0-9]+"' "$work/all-ends" | sort -u | wc -l)
expect "different numbers in the results" "$numbers" "$sent"
[ "$on_first" -gt 0 ] && [ "$on_second" -gt 0 ] ||
    fail "both versions should have run tasks: $on_first and $on_second"
echo "$sent tasks: $on_first ran on version 1, $on_second on version 2, none was lost"

step "What is left in the queues, and which handlers there are."
wait_until "the host tells of the new version" has_told_version testing/echo-v2.wasm
show queues
echo
show plugins
left='"queued":0,"running":0,"delayed":0,"dead"'
expect "queues with nothing left to do" "$(tq queues --json | grep -oF "$left" | wc -l)" 3

# The host's count must match what the clients saw.
outcomes="completed retried rejected"
counts() {
    local queue outcome
    for queue in resume-analyze flaky greet; do
        for outcome in $outcomes; do settled "$queue" "$outcome"; done
    done | paste -sd ' '
}
expect "$outcomes of resume-analyze, flaky and greet, as the host counts" "$(counts)" \
    "$resumes_completed 0 1 1 2 0 $sent 0 0"

kill -TERM "$host_pid"
code=0
wait "$host_pid" || code=$?
host_pid=
expect "the exit code of the host" "$code" 0
is_done=yes

total=$((${#ids[@]} + 1 + sent))
completed=$((resumes_completed + 1 + sent))
binary=${tqhost#"$root/"}
cat <<END

== Done
$total tasks: $completed completed, $resumes_dead dead, 1 retried (twice); 2 versions of one handler; $SECONDS s

To start a host in the folder of the repository (its data stays in .tqhost):
  $binary --config demo/tqhost.toml
Then, in a second terminal:
  $binary --config demo/tqhost.toml enqueue resume-analyze resumeId=7 \\
      content=@plugins/resume-analyze/samples/one-page-en.txt --wait
  redis-cli -s .tqhost/redis/redis.sock XADD resume:analyze:stream '*' resumeId 8 content "Jane Doe, engineer"
  $binary --config demo/tqhost.toml queues
  $binary --help
Read README.md for a tour, and docs/handlers.md to write a handler.
END
