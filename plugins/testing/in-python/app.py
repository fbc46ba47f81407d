"""A guest in Python: it counts its tasks, prints, sends requests to `url`, and ends as the field `end` says.

It returns `tasks`, the number of its tasks with this one; in a batch also `batch`, the number of tasks in the
call; with `url` the response; with `effects` and `blobs` what it reads. `retry`, `unavailable`, `defer`,
`count` and `progress` use the number in the field `number`, if there is one. `uncaught` bypasses the helper
of `tqhost new`, like a handler that does not use it. `asks` asks a model at `url` and prints nothing.
"""

import asyncio
import io
import logging
import os
import random
import secrets
import sys
import time
import traceback
import uuid
import warnings
from datetime import UTC, datetime

from tqhost import batches, defer, handles, has, json, progress, reject, retry, text, unavailable
from tqhost_blobs import BlobError, blobs
from tqhost_effects import fence, flow, outbox, records, select, state
from tqhost_http import HttpError, fetch, request

tasks = 0

# This object is made when the component is built.
unseeded, seeded = random.Random(), random.Random(7)

def work(task):
    global tasks
    tasks += 1
    end = text(task, "end") if has(task, "end") else "well"
    if end == "asks":
        return asks(task)
    print("printed by", task.id, {"n": 1})
    print(f"complained by {task.id}", file=sys.stderr)
    print("nowhere", file=io.StringIO())
    logging.warning("warned by %s", task.id)
    sys.stdout.write(f"unfinished by {task.id}")
    if end.startswith("waits"):
        return waits(task, end)
    if end in CLUMSY or end == "naps":
        return naps(task, end)
    if has(task, "url"):
        return attempt(task).code if end == "code" else ask(task)
    if end == "effects":
        return effects(text(task, "key"))
    if end == "blobs":
        return files(task)
    number = json(task, "number") if has(task, "number") else 1.5
    later = {"retry": retry, "unavailable": unavailable, "defer": defer}.get(end)
    if later:
        raise later("as told", number)
    if end == "count":
        return state.increment("count", number)
    if end == "progress":
        progress(number if has(task, "number") else 100 / 3, "so far")
    if end == "throw":
        explode()
    if end == "random":
        drawn = [random.random(), unseeded.random(), random.Random().random()]
        drawn += [float(int.from_bytes(os.urandom(6))), float(secrets.randbits(48))]
        return {"drawn": drawn, "uuid": str(uuid.uuid4()), "seeded": seeded.random()}
    if end == "clocks":
        return clocks()
    if end == "caused":
        caused()
    if end == "exit":
        sys.exit(3)
    if end == "recursion":
        recurse(0)
    return {"tasks": tasks, "seconds": time.time()}


async def asks(task):
    """Returns the number of choices of an answer, or of events."""
    answer = await fetch("POST", text(task, "url"), body="x" * 100)
    if answer.headers["content-type"] == "text/event-stream":
        return answer.text().count("data: ")
    return len(answer.json()["choices"])


left = []


async def ticks():
    while True:
        await asyncio.sleep(0.005)


async def waits(task, end):
    """Waits for a clock and for `url`, counts itself before and after, and throws if `end` says so.

    A clock and a request that it leaves behind end with it.
    """
    state.increment(task.id, 1)
    left.append(asyncio.ensure_future(ticks()))
    await asyncio.gather(*(asyncio.sleep(0.1) for _ in range(3)))
    answer = await fetch("post", text(task, "url"), body="x" * 100)
    state.increment(task.id, answer.status)
    left.append(asyncio.ensure_future(fetch("GET", text(task, "url").replace("/size", "/silent"))))
    await asyncio.sleep(0)
    print("waited by", task.id)
    if end == "waits, throws":
        explode()
    return {"tasks": tasks, "count": state.increment(task.id, 0)}


async def naps(task, end):
    """Waits for a while, and then ends well, or in one of the ways of CLUMSY. It prints before and after."""
    print("before", task.id)
    await asyncio.sleep(0.05 if end in CLUMSY else 0.5)
    if end in CLUMSY:
        value = CLUMSY[end]()
        return await value if asyncio.iscoroutine(value) else value
    print("after", task.id)
    return {"id": task.id, "count": state.increment(task.id, 1)}


def endless():
    while True:
        pass


async def spins():
    while True:
        await asyncio.sleep(0)


async def deaf():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass


async def hoards():
    held = []
    while True:
        held.append(bytes(8 << 20))


async def leaves():
    """Leaves behind what fails later, and what never ends."""

    async def fails():
        await asyncio.sleep(0)
        explode()

    left.extend(asyncio.ensure_future(wait) for wait in [fails(), deaf(), asyncio.sleep(0.1)])
    asyncio.get_running_loop().call_later(0.01, explode)
    await asyncio.sleep(0.05)
    asyncio.get_running_loop().call_later(0.01, explode)


async def exits_in_a_child():
    async def child():
        sys.exit(3)

    await asyncio.ensure_future(child())


# Ways to misbehave beside others of the instance.
CLUMSY = {
    "endless": endless,
    "blocks": lambda: time.sleep(3600),
    "spins": spins,
    "deaf": deaf,
    "never": lambda: asyncio.sleep(3600),
    "hoards": hoards,
    "leaves": leaves,
    "exits in a child": exits_in_a_child,
    "aborts": os.abort,
    "large": lambda: "x" * (3 << 20),
    "floods": lambda: [print("line", n) for n in range(2000)] and None,
}


def effects(key):
    """Has effects of each kind, with a record at `key`, and returns what it reads then."""
    state.set("seen", {"by": "python"}, ttl_ms=60_000)
    state.set("gone", "x")
    state.delete("gone")
    state.set("late", "x", ttl_ms=-0.5)
    records.put(key, {"by": "python", "n": 1})
    records.expire(key, 60_000)
    outbox.enqueue("reports", {"by": "python"}, delay_ms=1, idempotency_key="once")
    return {
        "fence": fence(),
        "count": state.increment("count", 2),
        "seen": state.json("seen"),
        "gone": state.get("gone") is None,
        "record": records.text(key),
        "children": [child.json() for child in flow.results()],
    }


def files(task):
    """Puts a blob, reads it again, and names others that are refused."""
    name, refused = f"{task.id}/rows.json", []
    url = blobs.put(name, "application/json", {"by": "python"})
    for other in ["../other", f"{task.id}/none"]:
        try:
            refused.append(blobs.text(other))
        except BlobError as error:
            refused.append(error.code)
    return {"url": url, "read": blobs.json(name), "bytes": len(blobs.get(name)), "refused": refused}


def ask(task):
    """Sends a request to `url`, with `bodySize` bytes of body, `header`, and the timeout `seconds`.

    Each of these fields may be missing. With `throw` it waits for the end of the request.
    """
    body = "x" * int(text(task, "bodySize")) if has(task, "bodySize") else None
    headers = {text(task, "header"): "own"} if has(task, "header") else {}
    seconds = float(text(task, "seconds")) if has(task, "seconds") else None
    try:
        method = "post" if body else "get"
        response = request(method, text(task, "url"), headers=headers, body=body, timeout=seconds)
    finally:
        if has(task, "end") and text(task, "end") == "throw":
            explode()
    if response.status == 429:
        raise unavailable("the server is busy", response.retry_after_ms())
    return {"status": response.status, "type": response.headers.get("content-type"), "body": response.text()}


def attempt(task):
    try:
        return ask(task)
    except HttpError as error:
        return error


def explode():
    raise LookupError("boom in Python")


def caused():
    try:
        explode()
    except LookupError as error:
        raise ValueError("it was not there") from error


def clocks():
    """Sleeps for 20 ms in two ways, and returns what the clocks show and what the standard library prints."""
    began = time.monotonic()
    time.sleep(0.02)
    slept = time.monotonic() - began
    warnings.warn("warned by the module warnings")
    try:
        explode()
    except LookupError:
        logging.exception("logged by the module logging")
        printed = traceback.format_exc()
    both = asyncio.run(both_later())
    now = datetime.now(UTC).timestamp()
    return {"slept": slept, "both": both, "now": now, "seconds": time.time(), "printed": printed}


async def both_later():
    async def later(value):
        await asyncio.sleep(0.02)
        return value

    return await asyncio.gather(later(1), later(2))


def recurse(n):
    return recurse(n + 1) + 1


Helped = handles(work)


class Handler(Helped):
    def handle(self, task):
        if has(task, "end") and text(task, "end") == "uncaught":
            explode()
        return super().handle(task)


def together(tasks):
    ends = [text(task, "end") if has(task, "end") else "well" for task in tasks]
    if all(has(task, "url") for task in tasks):
        return [attempt(task) for task in tasks]
    if "throw" in ends:
        explode()
    return [one(index, task, end, len(tasks)) for index, (task, end) in enumerate(zip(tasks, ends))]


def one(index, task, end, count):
    select(index)
    if end == "effects":
        return effects(text(task, "key"))
    return reject("as told") if end == "reject" else {"batch": count}


BatchHandler = batches(together)
