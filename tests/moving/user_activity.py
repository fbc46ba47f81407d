"""The old consumer of user-activity events: what a team runs before it moves to tqhost.

    python3 user_activity.py PORT CONSUMER

In: entries of `events:user_activity` with one JSON field `data`, through the group `activity_processors`.
Out: a line on stdout for each event that was processed; acknowledged entries, which stay in the stream; and
dead letters in `dlq:user_activity` after three deliveries.

It is faithful to its original in what it does badly, too: an event is marked as processed before it is, so
that a crash in between loses it, and nothing deletes what was acknowledged. Its times are shorter here.
"""

import json
import os
import sys
import time

from resp import Redis

STREAM, GROUP, DEAD = "events:user_activity", "activity_processors", "dlq:user_activity"
MAX_DELIVERIES = 3
COUNT = 10
# Two minutes and 30 seconds in the original.
IDLE_MS = int(os.environ.get("IDLE_MS", "120000"))
CLAIM_SECONDS = float(os.environ.get("CLAIM_SECONDS", "30"))


def process(event):
    """Fails and hangs when the event says so; otherwise it is the work."""
    if event.get("action") == "broken":
        raise ValueError("unknown action: broken")
    if event.get("action") == "slow":
        print(json.dumps({"began": event["eventId"]}), flush=True)
        time.sleep(3600)
    print(json.dumps({"processed": event["eventId"]}), flush=True)


def handle(redis, consumer, entry, fields, deliveries):
    data = fields.get(b"data", b"")
    marker = None
    try:
        event = json.loads(data)
        marker = f"activity:processed:{event['eventId']}"
        if redis.call("SET", marker, 1, "NX", "EX", 24 * 60 * 60) is None:
            redis.call("XACK", STREAM, GROUP, entry)  # a duplicate
            return
        process(event)
    except Exception as why:
        if marker:
            redis.call("DEL", marker)
        if deliveries >= MAX_DELIVERIES:
            redis.call(
                "XADD", DEAD, "*", "original_id", entry, "failed_at", int(time.time()),
                "fail_reason", str(why), "consumer", consumer, "original_data", data,
            )
            redis.call("XACK", STREAM, GROUP, entry)
        return
    redis.call("XACK", STREAM, GROUP, entry)


def pairs(flat):
    return dict(zip(flat[::2], flat[1::2]))


def main(port, consumer):
    redis = Redis(port)
    try:
        redis.call("XGROUP", "CREATE", STREAM, GROUP, "0", "MKSTREAM")
    except RuntimeError as error:
        if not str(error).startswith("BUSYGROUP"):
            raise
    claimed = time.monotonic()
    while True:
        group = ("GROUP", GROUP, consumer)
        read = redis.call("XREADGROUP", *group, "COUNT", COUNT, "BLOCK", 50, "STREAMS", STREAM, ">")
        for _, entries in read or []:
            for entry, fields in entries:
                handle(redis, consumer, entry, pairs(fields), 1)
        if time.monotonic() - claimed < CLAIM_SECONDS:
            continue
        claimed = time.monotonic()
        reply = redis.call("XAUTOCLAIM", STREAM, GROUP, consumer, IDLE_MS, "0", "COUNT", COUNT)
        for entry, fields in reply[1]:
            [[_, _, _, deliveries]] = redis.call("XPENDING", STREAM, GROUP, entry, entry, 1)
            handle(redis, consumer, entry, pairs(fields), deliveries)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
