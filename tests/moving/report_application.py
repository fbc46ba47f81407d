"""The team's application: its producer of reports, its administration, and the work behind http-call.

    WEBHOOK_SECRET=whsec_… PORT=3000 python3 report_application.py REDIS_PORT TABLE

In: requests on PORT (0: a free one). Out: states in the team's table (report_table.py), messages in the Redis
list `report:queue`, and lines on stdout, the first one with its own port.

| path | it |
|---|---|
| /reports | adds a record, and pushes its message |
| /regenerate | pushes failed and stuck records again, and says how many, and how many it skipped |
| /change | sets columns of a record, for tests |
| /tasks/reports | makes a report: a task of tqhost |
| /tasks/report-ends | writes status 5: the end of a task that did not complete |

A GET has the whole table.
"""

import base64
import hashlib
import hmac
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from report_table import FAILED, GENERATING, WAITING, Broken, Table, say
from resp import Redis

QUEUE = "report:queue"
KEY = base64.b64decode(os.environ["WEBHOOK_SECRET"].removeprefix("whsec_"))
TOLERANCE_SECONDS = 300


def push(redis, record):
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    message = {"RecordId": record, "RetryCount": 0, "EnqueueTime": now}
    redis.call("LPUSH", QUEUE, json.dumps(message, separators=(",", ":")))


def add(redis, table, asked):
    table.add(asked["id"], asked.get("fails", 0), asked.get("hangs", 0))
    push(redis, asked["id"])
    return 202, {"RecordId": asked["id"]}


def regenerate(redis, table, asked):
    """Only those that have failed or are stuck qualify. How long a stuck one was silent is not looked at."""
    chosen = [record for record in asked["ids"] if table.status(record) in (FAILED, GENERATING)]
    for record in chosen:
        table.set(record, status=WAITING, retry_count=0, error="")
        push(redis, record)
    return 200, {"SuccessCount": len(chosen), "SkippedCount": len(asked["ids"]) - len(chosen)}


def change(_redis, table, asked):
    table.set(asked.pop("id"), **asked)
    return 200, {}


def work(_redis, table, task):
    record = json.loads(task["fields"]["data"])["RecordId"]
    known = table.answer_to(task["id"])
    if known:
        return 200, json.loads(known)
    if table.status(record) is None:
        return 410, {"title": "Gone", "detail": f"there is no record {record}"}
    answer = {"RecordId": record}
    try:
        table.generate(record, task["attempt"] - 1, task["id"], json.dumps(answer))
    except Broken as why:
        table.set(record, error=str(why))
        return 500, {"title": "Broken", "detail": str(why)}
    return 200, answer


def ended(_redis, table, task):
    fields = task["fields"]
    say(ended=fields["end.id"], reason=fields["end.reason"], status=fields["end.status"])
    try:
        record = json.loads(fields["data"])["RecordId"]
    except (ValueError, KeyError, TypeError):
        return 200, {}  # It was no message of a record.
    table.fail(record, fields["end.error"] or fields["end.status"])
    return 200, {}


PATHS = {"/reports": add, "/regenerate": regenerate, "/change": change}
TASKS = {"/tasks/reports": work, "/tasks/report-ends": ended}


def is_signed(headers, body):
    identity, stamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not stamp.isdigit() or abs(time.time() - int(stamp)) > TOLERANCE_SECONDS:
        return False
    made = hmac.new(KEY, f"{identity}.{stamp}.".encode() + body, hashlib.sha256).digest()
    expected = "v1," + base64.b64encode(made).decode()
    return any(hmac.compare_digest(expected, one) for one in headers.get("webhook-signature", "").split())


class Application(BaseHTTPRequestHandler):
    # Connections are kept, as a server of a team would.
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        self.answer(200, Table(sys.argv[2]).all())

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        act = TASKS.get(self.path)
        if act and not is_signed(self.headers, body):
            return self.answer(401, {"title": "the signature is wrong"})
        act = act or PATHS.get(self.path)
        if not act:
            return self.answer(404, {"title": "no such path"})
        return self.answer(*act(Redis(int(sys.argv[1])), Table(sys.argv[2]), json.loads(body)))

    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/problem+json" if status >= 400 else "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Application)
    say(port=server.server_address[1])
    server.serve_forever()
