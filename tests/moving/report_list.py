"""The old consumer of reports: what a team runs before it moves to tqhost.

    python3 report_list.py PORT TABLE

In: messages of the Redis list `report:queue`, one at a time, oldest first. Out: reports in the team's table
(report_table.py), and messages in the list `report:queue:dead` after the fourth failure.

It is faithful to its original in what it does badly, too: BRPOP takes a message out of Redis, so the message
in its hands is lost when it is killed, and so is one that waits for its retry, which it does in memory. Bad
JSON is dropped. Its times are shorter here.
"""

import json
import os
import sys
import time

from report_table import Broken, GENERATING, Table, say
from resp import Redis

QUEUE, DEAD = "report:queue", "report:queue:dead"
BLOCK_SECONDS = 30
# 10, 30 and 60 seconds in the original.
DELAYS = [float(text) for text in os.environ.get("DELAYS", "10,30,60").split(",")]
ERROR_SECONDS = 5


def handle(redis, table, item):
    try:
        message = json.loads(item)
        record, retry_count = message["RecordId"], message["RetryCount"]
    except (ValueError, KeyError, TypeError) as why:
        say(dropped=why)
        return
    try:
        table.generate(record, retry_count)
        return
    except Broken as why:
        error = str(why)
    if retry_count == len(DELAYS):
        redis.call("LPUSH", DEAD, item)
        table.fail(record, error)
        return
    table.set(record, status=GENERATING, error=error)
    say(waits=record)
    # The work is transactional: nothing else runs meanwhile.
    time.sleep(DELAYS[retry_count])
    message["RetryCount"] = retry_count + 1
    redis.call("LPUSH", QUEUE, json.dumps(message, separators=(",", ":")))


def main(port, table):
    redis = None
    while True:
        try:
            redis = redis or Redis(port)
            popped = redis.call("BRPOP", QUEUE, BLOCK_SECONDS)
            if popped:
                handle(redis, table, popped[1])
        except (OSError, RuntimeError) as why:
            say(redis=why)
            redis = None
            time.sleep(ERROR_SECONDS)


if __name__ == "__main__":
    main(int(sys.argv[1]), Table(sys.argv[2]))
