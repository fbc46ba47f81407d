"""Adds tasks with the real client of Celery, and reads what became of them, as the tests say.

In: a line of JSON for each call. Out: a line of JSON with its answer.
"""

import json
import os
import sys

import shop
from celery import chain
from celery.result import AsyncResult


def take(count):
    """Takes messages as a worker does, and ends before it acknowledges them."""
    child = os.fork()
    if child == 0:
        channel = shop.app.connection_for_read().channel()
        taken = [channel.basic_get("celery") for _ in range(count)]
        os._exit(0 if all(taken) else 1)
    return {"taken": os.waitpid(child, 0)[1] == 0}


def answer(call):
    if "take" in call:
        return take(call["take"])
    if "get" in call:
        result = AsyncResult(call["get"], app=shop.app)
        try:
            value = result.get(timeout=call.get("timeout", 30))
        except Exception as problem:
            value = {"raised": f"{type(problem).__name__}: {problem}"}
        return {"status": result.status, "value": value}
    if "chain" in call:
        tasks = [shop.app.signature(task, args) for task, args in call["chain"]]
        return {"id": chain(*tasks).apply_async().id}
    made = shop.app.send_task(call["task"], call.get("args"), **call.get("options", {}))
    return {"id": made.id}


for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))), flush=True)
