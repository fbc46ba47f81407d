"""The old consumers of an interview platform: what a team runs before it moves to tqhost.

    TABLE=http://127.0.0.1:8080/table python3 interview_platform.py PORT CONSUMER

In: entries of three streams, each through a group of its own. Out: the status of each record in the
application's table, acknowledged entries, which stay in their streams, and for a task that failed a new entry
with `retryCount` + 1, up to three times, at once.

A message without its fields is acknowledged and skipped, and a permanent error is not retried. The model is
left out: what the work does is in the id of the record. Its times are shorter than those of the original.
"""

import json
import os
import sys
import threading
import time
from urllib.request import ProxyHandler, Request, build_opener

from resp import Redis

# The kind of record, the stream, the group, the field of the record's id, whether a text comes with it.
QUEUES = [
    ("resume", "resume:analyze:stream", "analyze-group", "resumeId", True),
    ("knowledgebase", "knowledgebase:vectorize:stream", "vectorize-group", "kbId", True),
    ("session", "interview:evaluate:stream", "evaluate-group", "sessionId", False),
]
COUNT = 10
MAX_RETRIES = 3
MAX_LENGTH = 1000
MAX_ERROR = 500
TABLE = os.environ["TABLE"]
TO_TABLE = build_opener(ProxyHandler({}))
output = threading.Lock()


class Permanent(Exception):
    """An error that another attempt cannot mend."""


def say(**line):
    with output:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def hang(key):
    """The moment in which a test kills it."""
    say(began=key)
    time.sleep(3600)


def work(key, content, retries):
    if content is not None and not content.strip():
        raise Permanent("the text is empty")
    if key.endswith("-slow"):
        hang(key)
    if key.endswith("-broken") or key.endswith(("-unlucky", "-torn")) and retries == 0:
        raise RuntimeError("the model's answer is not usable " + "x" * MAX_ERROR)


def update(kind, key, status, error=""):
    """UPDATE … SET status = … WHERE id = …"""
    row = json.dumps({"status": status, "error": error[:MAX_ERROR]}).encode()
    TO_TABLE.open(Request(f"{TABLE}/{kind}/{key}", row, {"content-type": "application/json"})).close()


def handle(redis, queue, entry, fields):
    kind, stream, group, id_field, has_text = queue
    key, content = fields.get(id_field), fields.get("content")
    if not key or has_text and content is None:
        redis.call("XACK", stream, group, entry)
        return
    retries = int(fields.get("retryCount", 0))
    update(kind, key, "PROCESSING")
    try:
        work(key, content, retries)
        update(kind, key, "COMPLETED")
    except Permanent as why:
        update(kind, key, "FAILED", str(why))
    except RuntimeError as why:
        if retries < MAX_RETRIES:
            again = {**fields, "retryCount": retries + 1}
            flat = [part for pair in again.items() for part in pair]
            redis.call("XADD", stream, "MAXLEN", "~", MAX_LENGTH, "*", *flat)
            if key.endswith("-torn"):
                hang(key)
        else:
            update(kind, key, "FAILED", str(why))
    redis.call("XACK", stream, group, entry)


def consume(port, consumer, queue):
    _, stream, group, _, _ = queue
    redis = Redis(port)
    try:
        redis.call("XGROUP", "CREATE", stream, group, "0", "MKSTREAM")
    except RuntimeError as error:
        if not str(error).startswith("BUSYGROUP"):
            raise
    while True:
        read = redis.call(
            "XREADGROUP", "GROUP", group, consumer, "COUNT", COUNT, "BLOCK", 1000, "STREAMS", stream, ">"
        )
        for _, entries in read or []:
            for entry, flat in entries:
                texts = [part.decode() for part in flat]
                handle(redis, queue, entry, dict(zip(texts[::2], texts[1::2])))


if __name__ == "__main__":
    port, consumer = int(sys.argv[1]), sys.argv[2]
    for queue in QUEUES:
        threading.Thread(target=consume, args=(port, consumer, queue)).start()
