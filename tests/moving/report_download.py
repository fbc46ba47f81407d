"""The old consumer of report downloads: what a team runs before it moves to tqhost.

    python3 report_download.py PORT FOLDER

In: messages that start a report, in a sorted set of Redis by the time from which they may be taken. Out: CSV
files in FOLDER, in place of a cloud storage, and `status`, `url` and `error` in the hash of the record, in
place of a row of the team's database.

The original takes its messages from RabbitMQ. The sorted set stands for it: a message stays there until it
is acknowledged, so that one whose consumer was killed is taken again, and may be delayed. The half in Redis
is as in the original: a hash for each job has the lists of its tables and `queryDoneCount`, and expires after
ten minutes. It is faithful in what is bad about that, too: a message that is taken again counts twice.
"""

import csv
import io
import json
import os
import sys
import time
import urllib.error
import urllib.request

from resp import Redis

BROKER = "broker:download"
JOB_SECONDS = 600
MAX_DEFERRALS = 6
# A minute in the original.
DEFER_SECONDS = float(os.environ.get("DEFER_SECONDS", "60"))
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class NotReady(Exception):
    """The inputs of a stage are not there yet."""


def say(**line):
    print(json.dumps(line), flush=True)


def publish(redis, message, delay=0):
    redis.call("ZADD", BROKER, time.time() + delay, json.dumps(message))


def job_of(message):
    return f"download:job:{message['record']}"


def record_of(message):
    return f"download:record:{message['record']}"


def fetch(url):
    """The rows of a table: dictionaries of text."""
    try:
        with OPENER.open(url) as response:
            kind, text = response.headers["content-type"], response.read().decode()
    except urllib.error.HTTPError as error:
        if error.code in (404, 425, 503):
            raise NotReady(f"{url} is not ready ({error.code})") from error
        raise
    if "json" in kind:
        return [{name: str(value) for name, value in row.items()} for row in json.loads(text)]
    return list(csv.DictReader(io.StringIO(text)))


def lists_of(redis, message, tables):
    lists = redis.call("HMGET", job_of(message), *[table["name"] for table in tables])
    if None in lists:
        raise NotReady("a list is not there")
    return [json.loads(one) for one in lists]


def first_tables(message):
    return [table for table in message["tables"] if not table.get("sub")]


def plan(redis, message):
    redis.call("HSET", record_of(message), "status", "GENERATING")
    redis.call("DEL", job_of(message))
    redis.call("HSET", job_of(message), "queryDoneCount", 0)
    redis.call("EXPIRE", job_of(message), JOB_SECONDS)
    for table in first_tables(message):
        publish(redis, {**message, "stage": "query", "table": table})


def query(redis, message):
    table = message["table"]
    redis.call("HSET", job_of(message), table["name"], json.dumps(fetch(table["url"])))
    if redis.call("HINCRBY", job_of(message), "queryDoneCount", 1) == len(first_tables(message)):
        publish(redis, {**message, "stage": "subquery", "table": None, "deferrals": 0})


def subquery(redis, message):
    lists = lists_of(redis, message, first_tables(message))
    keys = ",".join(row[message["key"]] for row in lists[0])
    for table in message["tables"]:
        if table.get("sub"):
            rows = fetch(f"{table['url']}?keys={keys}")
            redis.call("HSET", job_of(message), table["name"], json.dumps(rows))
    publish(redis, {**message, "stage": "assemble", "deferrals": 0})


def assemble(redis, message):
    columns, rows = [message["key"]], {}
    for one in lists_of(redis, message, message["tables"]):
        for row in one:
            columns += [name for name in row if name not in columns]
            rows.setdefault(row[message["key"]], {}).update(row)
    path = os.path.join(sys.argv[2], f"{message['record']}.csv")
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows.values())
    redis.call("HSET", record_of(message), "status", "COMPLETED", "url", f"file://{path}", "error", "")
    redis.call("DEL", job_of(message))


STAGES = {"plan": plan, "query": query, "subquery": subquery, "assemble": assemble}


def handle(redis, message):
    try:
        STAGES[message["stage"]](redis, message)
        return
    except NotReady as why:
        error, is_late = str(why), True
    except (OSError, ValueError, KeyError) as why:
        error, is_late = str(why), False
    if is_late and message["deferrals"] < MAX_DEFERRALS:
        publish(redis, {**message, "deferrals": message["deferrals"] + 1}, DEFER_SECONDS)
        say(deferred=message["record"])
        return
    redis.call("HSET", record_of(message), "status", "FAILED", "error", error)


def main(port):
    redis = Redis(port)
    while True:
        found = redis.call("ZRANGEBYSCORE", BROKER, "-inf", time.time(), "LIMIT", 0, 1)
        if not found:
            time.sleep(0.01)
            continue
        handle(redis, json.loads(found[0]))
        redis.call("ZREM", BROKER, found[0])  # the acknowledgement


if __name__ == "__main__":
    main(int(sys.argv[1]))
