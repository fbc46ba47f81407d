"""Carries out the calls of the conformance suite: a line of JSON for each call in, and for each answer out.

    REDIS_URL=redis://… python conformance.py sync|asyncio

Not here: the cases (`../conformance`), and the judge (`tests/world/clients.rs`).
"""

import asyncio
import base64
import json
import os
import sys

import redis
import redis.asyncio

import tqhost_client as tqhost

ERRORS = {
    tqhost.NotATask: "not-a-task",
    tqhost.QueueFull: "queue-full",
    tqhost.BadWebhook: "bad-webhook",
    ValueError: "bad-secret",
}


async def carry_out(call: dict, connection, is_sync: bool):
    async def end(value):
        return value if is_sync else await value

    name = call["call"]
    if name == "verify":
        found = tqhost.verify_webhook(
            call["secret"], call["headers"], base64.b64decode(call["body"]),
            tolerance=call["tolerance"], now=call["now"],
        )
        return {"id": found}
    if name == "cancel":
        run = tqhost.cancel if is_sync else tqhost.cancel_async
        return {"before": await end(run(call["api"], call["queue"], call["id"], call.get("token")))}
    kind = tqhost.Queue if is_sync else tqhost.AsyncQueue
    queue = kind(connection, call["stream"], call.get("max_backlog"))
    if name == "enqueue":
        fields = [(name, base64.b64decode(value)) for name, value in call["fields"]]
        rest = {name: call[name] for name in ("id", "key", "traceparent") if name in call}
        return {"id": await end(queue.enqueue(fields, delay=call.get("delay_ms", 0) / 1000, **rest))}
    if name == "wait":
        return shown(await end(queue.wait(call["id"], call["timeout_ms"] / 1000)))
    return shown(await end(queue.status(call["id"])))


def shown(status: tqhost.Status) -> dict:
    found = {name: value for name, value in vars(status).items() if value is not None}
    if status.result is not None:
        found["result"] = base64.b64encode(status.result).decode()
    return found


async def main() -> None:
    is_sync = sys.argv[1] == "sync"
    # A client that decodes replies is the harder one: a result may be any bytes.
    library = redis if is_sync else redis.asyncio
    connection = library.Redis.from_url(os.environ["REDIS_URL"], decode_responses=True)
    for line in sys.stdin:
        try:
            answer = await carry_out(json.loads(line), connection, is_sync)
        except tqhost.NotEnded as error:
            answer = {"error": "not-ended", "status": error.status.status}
        except tqhost.ApiRefused as error:
            answer = {"error": "api-refused", "code": error.code, "http_status": error.http_status}
        except (tqhost.TqhostError, ValueError) as error:
            answer = {"error": ERRORS[type(error)], "message": str(error)}
        print(json.dumps(answer), flush=True)


asyncio.run(main())
