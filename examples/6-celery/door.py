"""Runs tasks of Celery that tqhost sends by HTTP, in the place of a worker. In Django it is a view.

WEBHOOK_SECRET=whsec_… PORT=3000 python door.py

In: requests of `http-call` to /tasks/QUEUE. Out: the task's result and status where Celery keeps them, and an
answer from which tqhost learns what becomes of the task. Retries, callbacks, chains and chords go on as in a
worker: Celery's own tracer runs the task.
"""

import base64
import json
import os
import sys
from datetime import datetime, timezone
from wsgiref.simple_server import make_server

from celery import states
from celery.app.task import Context
from celery.app.trace import build_tracer
from kombu.compression import decompress
from kombu.serialization import loads, prepare_accept_content
from shop import app
from tqhost_client import BadWebhook, verify_webhook

SECRET = os.environ["WEBHOOK_SECRET"]


def content(message):
    """The arguments of a message, and what else its body has."""
    body, headers = message["body"], message["headers"]
    if message["properties"].get("body_encoding") == "base64":
        body = base64.b64decode(body)
    if headers.get("compression"):
        body = decompress(body, headers["compression"])
    accept = prepare_accept_content(app.conf.accept_content)
    return loads(body, message["content-type"], message["content-encoding"], accept=accept)


def run(message, attempt):
    """Runs the task of a message. Returns the status of the answer, its headers, and its text."""
    headers, properties = message["headers"], message["properties"]
    id, task = headers["id"], app.tasks.get(headers["task"])
    if task is None:
        return 422, {}, f"there is no task {headers['task']}"
    # The same task comes again if its answer was lost.
    known = app.backend.get_task_meta(id, cache=False)
    if known["status"] == states.SUCCESS:
        return 200, {}, repr(known["result"])
    try:
        args, kwargs, embed = content(message)
    except Exception as problem:  # It would fail each time.
        return 422, {}, f"{type(problem).__name__}: {problem}"
    # `is_eager`: a retry is not sent to the broker. tqhost has it.
    request = {
        **headers,
        **(embed or {}),
        "is_eager": True,
        "retries": headers.get("retries", 0) + attempt - 1,
        "correlation_id": id,
        "delivery_info": properties.get("delivery_info", {}),
    }
    result, info, _, text = build_tracer(task.name, task, app=app)(id, args, kwargs, request)
    if info is None or info.state == states.IGNORED:
        return 200, {}, text
    if info.state == states.RETRY:
        return 500, {"Retry-After": str(seconds(info.retval.when))}, str(info.retval)
    if info.state == states.REJECTED and info.retval.requeue:
        return 500, {}, text
    # Celery does not repeat a task that raised anything else.
    return 422, {}, f"{type(info.retval).__name__}: {info.retval}"


def seconds(when):
    """The seconds until a retry, of a time or of a number of seconds."""
    if isinstance(when, datetime):
        when = (when - datetime.now(when.tzinfo or timezone.utc)).total_seconds()
    return max(0, round(when or 0))


def end(fields):
    """Notes the end of a task that Celery's tracer has not noted, such as one that nobody could run."""
    id = fields["end.id"]
    if fields.get("end.reason") == "duplicate":
        return
    # This call may come twice, and a chord counts each end.
    if app.backend.get_task_meta(id, cache=False)["status"] in states.READY_STATES:
        return
    # With the request, the backend also tells the chord, the rest of the chain and the errbacks.
    request = None
    if fields.get("end.reason") != "malformed" and "data" in fields:
        try:
            message = json.loads(fields["data"])
            _, _, embed = content(message)
            place = {"delivery_info": message["properties"].get("delivery_info", {})}
            request = Context({**message["headers"], **(embed or {}), **place})
        except Exception as problem:  # The task is dead because of that, perhaps.
            print(f"{id}: {problem}", file=sys.stderr)
    if fields["end.status"] == "CANCELLED" or fields.get("end.reason") == "expired":
        app.backend.mark_as_revoked(id, fields.get("end.error", ""), request=request)
    else:
        problem = RuntimeError(f"{fields['end.reason']}: {fields['end.error']}")
        app.backend.mark_as_failure(id, problem, request=request)


def door(environ, start_response):
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    named = {name[5:].replace("_", "-"): value for name, value in environ.items() if name.startswith("HTTP_")}
    try:
        verify_webhook(SECRET, named, body)
    except BadWebhook as problem:
        status, headers, text = 401, {}, str(problem)
    else:
        task = json.loads(body)
        fields = task["fields"]
        if "end.id" in fields:
            status, headers, text = 200, {}, end(fields)
        else:
            status, headers, text = run(json.loads(fields["data"]), task["attempt"])
    start_response(f"{status} -", [("Content-Type", "text/plain; charset=utf-8"), *headers.items()])
    return [(text or "").encode()]


if __name__ == "__main__":
    with make_server("127.0.0.1", int(os.environ.get("PORT", "3000")), door) as server:
        print(json.dumps({"port": str(server.server_port)}), flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            sys.exit()
