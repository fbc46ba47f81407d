#!/usr/bin/env bash
# Shows tqhost at work, and checks each number that it shows: a wrong one ends the demo with exit code 1.
#
#   demo/run.sh                       the host is target/debug/tqhost; `make run` builds it and the handlers
#   TQHOST_BIN=… demo/run.sh          another binary
#   DEMO_TASKS=500 demo/run.sh        fewer tasks for the part that replaces a handler (2000)
#   KEEP=1 demo/run.sh                the host stays, and the address of its dashboard is shown
#
# All files are in a folder of its own, which is removed at the end: a configuration (demo/tqhost.toml), a
# plugins folder, tables, and the data of the private Redis. It needs bash, coreutils, python3 and redis-cli.
set -euo pipefail
export LC_ALL=C.UTF-8
unset TQHOST_LOG
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tqhost=$(realpath -m "${TQHOST_BIN:-${CARGO_TARGET_DIR:-target}/debug/tqhost}")
stream_tasks=${DEMO_TASKS:-2000}
# This limit is for events that never come, not for late ones.
limit_seconds=60
work=$(mktemp -d "${TMPDIR:-/tmp}/tqhost-demo.XXXXXX")
config=$work/demo/tqhost.toml log=$work/host.log pids=()
clean_up() {
    code=$?
    [ -z "${kept:-}" ] || exit "$code"
    { kill "${pids[@]}" && wait "${pids[@]}"; } 2>/dev/null || true
    [ "$code" = 0 ] || { echo "demo: FAILED. The end of the host's log:" && tail -n 20 "$log"; } >&2
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
wait_until() { # what, text, command: until its output has the text
    local end=$((SECONDS + limit_seconds))
    until [[ $("${@:3}" 2>&1) == *"$2"* ]]; do
        [ "$SECONDS" -lt "$end" ] || fail "waited $limit_seconds s, in vain: $1"
        kill -0 "$host_pid" 2>/dev/null || fail "the host has ended while waiting: $1"
        sleep 0.05
    done
}
# Replaces a handler in one step, so that the host never sees half a file.
install_handler() { # file, name of the plugin
    [ -f "plugins/$1" ] || fail "plugins/$1 is not built: run \`make plugins\`"
    cp "plugins/$1" "$work/plugins/$2.new" && mv "$work/plugins/$2.new" "$work/plugins/$2.wasm"
}
# The first value of a key in a line of JSON, without its quotes.
json() { # key
    grep -oE "\"$1\":(\"([^\"\\\\]|\\\\.)*\"|[^,}]*)" | sed -nE '1 { s/^"[^"]*"://; s/^"//; s/"$//; p }'
}

[ -x "$tqhost" ] || fail "$tqhost is not there: run \`make run\`"
mkdir "$work/demo" "$work/plugins" "$work/tables" "$work/ends"
# A service for the tables of a report. It and the host take any free ports, as others may use the usual ones.
exec {web}< <(exec python3 -um http.server --bind 127.0.0.1 --directory "$work/tables" 0 2>/dev/null)
pids+=($!)
read -r _ _ _ _ _ port _ <&"$web"
sed "s/^listen = .*/listen = \"127.0.0.1:0\"/; s/:7701\"/:$port\"/" demo/tqhost.toml >"$config"

step "A host with a private Redis and seven queues. It has no handler for resumes yet."
install_handler testing/flaky.wasm flaky
install_handler testing/echo.wasm greet
for name in kb-vectorize report-plan report-query report-assemble; do install_handler $name.wasm $name; done
# A host that is to stay gets a session of its own, so that it outlives the terminal.
${KEEP:+setsid} "$tqhost" --config "$config" run >/dev/null 2>"$log" </dev/null &
host_pid=$!
pids+=("$host_pid")
wait_until "the host serves its queues" '"waiting-for-plugin"' tq queues --json

step "Resumes are enqueued. Their handler is not there, so they wait; nothing is lost."
ids=() samples=(plugins/resume-analyze/samples/*.txt)
for sample in "${samples[@]}"; do
    ids+=("$(tq enqueue resume-analyze "resumeId=$(basename "$sample" .txt)" "content=@$sample")")
done
echo "\$ tqhost enqueue resume-analyze resumeId=… content=@…   (${#ids[@]} tasks)"
show queues

step "The handler is dropped into the plugins folder: the host takes it, PENDING becomes COMPLETED."
echo "\$ cp plugins/resume-analyze.wasm …/plugins/"
install_handler resume-analyze.wasm resume-analyze
for n in "${!ids[@]}"; do
    end=$(tq status resume-analyze "${ids[$n]}" --watch --json | tail -n 1) note=$(json error <<<"$end")
    [ "$note" != null ] || note="score $(json score <<<"$end"), $(json name <<<"${end#*'"contact":'}")"
    printf '%-16s %-10s %s\n' "$(basename "${samples[$n]}" .txt)" "$(json status <<<"$end")" \
        "${note/null/no resume}" | tee -a "$work/resumes"
done
expect "completed resumes (all but the empty one)" "$(grep -c COMPLETED "$work/resumes")" $((${#ids[@]} - 1))

step "A task that the handler rejects is kept as a dead letter; one that fails twice is tried again."
show dead list resume-analyze
expect "dead letters with this reason" "$(tq dead list resume-analyze --json | grep -o rejected | wc -l)" 1
flaky_id=$(tq enqueue flaky failUntil=3)
show status flaky "$flaky_id" --watch
expect "the attempts of the retried task" "$(tq status flaky "$flaky_id" --json | json attempt)" 3

step "A document becomes chunks with vectors: Redis hashes, which commit with the task."
end=$(tq enqueue kb-vectorize knowledgeBaseId=7 documentId=readme content=@README.md --wait --json)
echo "\$ tqhost enqueue kb-vectorize knowledgeBaseId=7 documentId=readme content=@README.md --wait"
redis() { redis-cli -s "$(sed -n 's/.*starting the private Redis .*socket=//p' "$log")" "$@"; }
chunks=$(redis --scan --pattern 'kb:{kb}:7:chunk:readme:*' | sort)
expect "chunks in Redis" "$(wc -l <<<"$chunks")" "$(json chunks <<<"$end")"
key=$(head -n 1 <<<"$chunks") bytes=$(redis HSTRLEN "$key" vector)
expect "the bytes of a vector with 512 dimensions" "$bytes" 2048
echo "$(wc -l <<<"$chunks") hashes, such as $key: \"$(redis HGET "$key" heading)\", a vector of $bytes B"

step "A report is a flow: three tasks ask services for tables, and one joins them. One service is not ready."
cp demo/tables/{candidates.csv,interviews.json} "$work/tables/"
echo "\$ tqhost enqueue report-plan reportId=7 key=id tables=@demo/report.json"
tables=$(sed "s/:7701/:$port/" demo/report.json)
report=$(tq enqueue report-plan reportId=7 key=id "tables=$tables" --wait --json | json assemble)
wait_until "two tables are there" '"children_completed":2' tq status report-assemble "$report" --json
show status report-assemble "$report"
echo "\$ cp demo/tables/offers.csv …" && cp demo/tables/offers.csv "$work/tables/"
show status report-assemble "$report" --watch
file=$(tq status report-assemble "$report" --json | json url) && file=${file#file://}
echo "\$ cat $file" && cat "$file"
expect "rows with a cell of each table" "$(grep -c '^9,王小云,cryptography,Emmy,10,.*,98000' "$file")" 1

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
version=$(sha256sum <plugins/testing/echo-v2.wasm | cut -d ' ' -f 1)
wait_until "the host tells of the new version" "\"version\":\"$version\"" tq plugins --json
show queues && echo && show plugins
left='"queued":0,"running":0,"delayed":0,"held_tasks":0,"dead"'
expect "queues with nothing left to do" "$(tq queues --json | grep -oF "$left" | wc -l)" 7
all=$((${#ids[@]} + 1 + 1 + 5 + sent))
summary="$all tasks: $((all - 1)) completed, 1 dead, 1 retried (twice); 2 versions of one handler; $SECONDS s"
here=${tqhost#"$PWD/"}
if [ -n "${KEEP:-}" ]; then
    dashboard=http://$(sed -n 's/.* admin=\([0-9.:]*\) .*tqhost is running.*/\1/p;
        s/.*tqhost is running.* admin=\([0-9.:]*\).*/\1/p' "$log")
    step "Done: the host stays" && echo "$summary" && kept=yes
    cat <<END
The dashboard:  $dashboard/
Ask the host:   $here --config $config queues
A task:         $here --config $config enqueue greet name=you --wait
Stop it:        kill ${pids[*]} && rm -r $work
END
    exit
fi
kill -TERM "$host_pid" && wait "$host_pid" || fail "the host ended with $?"
step "Done" && echo "$summary"
cat <<END
What to try next:
  KEEP=1 make run            the same, and the host stays: open its dashboard, and add tasks of your own
  $here new word-count       a project for a handler of yours, with a test
  less README.md             a tour of five minutes, with a Redis of yours
END
