"""A producer's client for tqhost, on redis-py.

In: a redis-py client, alone or of a cluster, synchronous (`Queue`) or asyncio (`AsyncQueue`), and the name of
a queue's stream. Out: tasks by plain XADD, their statuses, waits that end, cancels through the HTTP API, and
webhooks of `http-call` that are checked. Not here: handlers, and what only hosts write.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import math
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Optional, Union

MAX_FIELDS = 1000
MAX_TASK_BYTES = 16 << 20
MAX_ID_BYTES = 256
MAX_DELAY_MS = 365 * 24 * 3600 * 1000
RESERVED = ("tq-", "end.")
ENDS = ("COMPLETED", "FAILED", "CANCELLED")
# Redis does not announce changes of a status, so a wait looks a few times a second.
PERIOD = 0.25
HTTP_TIMEOUT = 30.0
MAX_ANSWER = 1 << 20
# A trace context of W3C: version 00, or a later one, which appends to it, in 256 bytes at most.
TRACE_IDS = "(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
TRACE = rf"00-{TRACE_IDS}|(?!00|ff)[0-9a-f]{{2}}-{TRACE_IDS}-[!-@\[-~]{{0,200}}"

Value = Union[str, bytes]
Fields = Union[Mapping[str, Value], Iterable[tuple[str, Value]]]


class TqhostError(Exception):
    """The base of all errors of this module. Errors of Redis come as redis-py raises them."""


class NotATask(TqhostError, ValueError):
    """No host would take such a task. Nothing was written."""


class QueueFull(TqhostError):
    """As many tasks as `max_backlog` wait or run. Nothing was written."""


class NotEnded(TqhostError, TimeoutError):
    """The task has not ended within the time. It goes on; `status` is the last one that was seen."""

    def __init__(self, status: Status, timeout: float):
        super().__init__(f"not ended after {timeout:g} s: {status.id} is {status.status}")
        self.status = status


class ApiRefused(TqhostError):
    """The HTTP API refuses; `code` is one of docs/api.md, such as `unknown-task` or `task-ended`."""

    def __init__(self, http_status: int, code: str, detail: str):
        super().__init__(f"{code} ({http_status}): {detail}")
        self.http_status, self.code = http_status, code


class BadWebhook(TqhostError, ValueError):
    """The request is not one of `http-call`: answer 401."""


@dataclass(frozen=True)
class Status:
    """The fields of docs/status.md. UNKNOWN: the id is not known, or not yet, or not any more."""

    id: str
    status: str
    attempt: Optional[int] = None
    enqueued_at: Optional[int] = None
    due_at: Optional[int] = None
    started_at: Optional[int] = None
    finished_at: Optional[int] = None
    progress: Optional[int] = None
    note: Optional[str] = None
    error: Optional[str] = None
    duplicate_of: Optional[str] = None
    result: Optional[bytes] = None

    @property
    def has_ended(self) -> bool:
        return self.status in ENDS


NAMES = tuple(Status.__dataclass_fields__)[1:]
NUMBERS = ("attempt", "enqueued_at", "due_at", "started_at", "finished_at", "progress")


def _entry(fields: Fields, id: Optional[str], key: Optional[str], delay: float, trace: Optional[str]) -> list:
    """The names and values of the task's entry, by the rules of `tqhost enqueue`."""
    pairs = fields.items() if isinstance(fields, Mapping) else fields
    entry = [(name.encode(), value.encode() if isinstance(value, str) else value) for name, value in pairs]
    if any(not isinstance(value, (bytes, bytearray)) for _, value in entry):
        raise TypeError("the value of a field is str or bytes")
    if not entry:
        raise NotATask("a task needs at least one field")
    if len(entry) > MAX_FIELDS:
        raise NotATask(f"a task has at most {MAX_FIELDS} fields, this one has {len(entry)}")
    size = sum(len(name) + len(value) for name, value in entry)
    if size > MAX_TASK_BYTES:
        limit = f"{MAX_TASK_BYTES} bytes (16MiB)"
        raise NotATask(f"a task has at most {limit}, this one has {size}: keep large data in blobs")
    for name, _ in entry:
        for prefix in RESERVED:
            if name.startswith(prefix.encode()):
                raise NotATask(
                    f"field `{name.decode()}`: names that start with `{prefix}` are reserved for tqhost"
                )
    if not delay * 1000 <= MAX_DELAY_MS:
        raise NotATask("a delay is 365d at most")
    if key == "":
        raise NotATask("an idempotency key has at least one byte, this one is empty")
    if id is not None and not 0 < len(id.encode()) <= MAX_ID_BYTES:
        raise NotATask(f"a task's id has 1 to {MAX_ID_BYTES} bytes, this one has {len(id.encode())}")
    if trace is not None and not re.fullmatch(TRACE, trace):
        form = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        raise NotATask(f"not a W3C trace context: write it like {form}")
    # As with `tqhost enqueue`: the task's own trace context stays, and a full task gets none.
    if trace is not None and len(entry) < MAX_FIELDS and all(name != b"traceparent" for name, _ in entry):
        entry.append((b"traceparent", trace.encode()))
    if id is not None:
        entry.append((b"tq-id", id.encode()))
    if key is not None:
        entry.append((b"tq-key", key.encode()))
    if delay > 0:
        # A part of a millisecond counts as a whole one.
        entry.append((b"tq-delay-ms", str(math.ceil(round(delay * 1000, 6))).encode()))
    return [part for pair in entry for part in pair]


class _Commands:
    """The steps of each function: they yield a command, and are sent its reply, or seconds to sleep."""

    def __init__(self, redis: Any, stream: str, max_backlog: Optional[int] = None):
        """`max_backlog` is that of the queue's configuration; without it, no task is refused."""
        self.redis, self.stream, self.max_backlog = redis, stream, max_backlog
        # A stream's own hash tag is that of its other keys.
        self.base = f"tq:{stream}" if "{" in stream else f"tq:{{{stream}}}"

    def _enqueue(self, entry: list, id: Optional[str]) -> Generator:
        if self.max_backlog is not None:
            tasks = (yield ("XLEN", self.stream)) + (yield ("ZCARD", f"{self.base}:delayed"))
            if tasks >= self.max_backlog:
                raise QueueFull(
                    f"the queue of {self.stream} is full: {self.max_backlog} tasks or more wait or run "
                    "(max_backlog); try again later, or raise it"
                )
        added = yield ("XADD", self.stream, "*", *entry)
        return id if id is not None else added.decode()

    def _status(self, id: str) -> Generator:
        read = ("HMGET", f"{self.base}:task:{id}", *NAMES)
        values = yield read
        # A task that waits for its first host has no status, but an entry. One that left its entry between
        # these two commands has a status now.
        if values[0] is None and re.fullmatch(r"[0-9]{1,19}-[0-9]{1,19}", id):
            if (yield ("XRANGE", self.stream, id, id)):
                return Status(id, "PENDING")
            values = yield read
        if values[0] is None:
            return Status(id, "UNKNOWN")
        found = {name: value for name, value in zip(NAMES, values) if value is not None}
        for name in found.keys() - {"result"}:
            found[name] = int(found[name]) if name in NUMBERS else found[name].decode(errors="replace")
        return Status(id, **found)

    def _wait(self, id: str, timeout: float) -> Generator:
        end = time.monotonic() + timeout
        while not (status := (yield from self._status(id))).has_ended:
            if (left := end - time.monotonic()) <= 0:
                raise NotEnded(status, timeout)
            yield min(PERIOD, left)
        return status


class Queue(_Commands):
    """A queue, by a `redis.Redis` or `redis.RedisCluster`."""

    def enqueue(self, fields: Fields, *, id: Optional[str] = None, key: Optional[str] = None,
                delay: float = 0, traceparent: Optional[str] = None) -> str:
        """Adds a task, and returns its id: the given one, or that of its entry. `delay` is in seconds."""
        return self._run(self._enqueue(_entry(fields, id, key, delay, traceparent), id))

    def status(self, id: str) -> Status:
        return self._run(self._status(id))

    def wait(self, id: str, timeout: float) -> Status:
        """The status after the task's end, however it ended. Raises `NotEnded` after `timeout` seconds."""
        return self._run(self._wait(id, timeout))

    def _run(self, steps: Generator) -> Any:
        reply = None
        try:
            while True:
                if isinstance(step := steps.send(reply), float):
                    reply = time.sleep(step)
                else:
                    reply = self.redis.execute_command(*step, NEVER_DECODE=True)
        except StopIteration as end:
            return end.value


class AsyncQueue(_Commands):
    """Like `Queue`, by a client of `redis.asyncio`."""

    async def enqueue(self, fields: Fields, *, id: Optional[str] = None, key: Optional[str] = None,
                      delay: float = 0, traceparent: Optional[str] = None) -> str:
        return await self._run(self._enqueue(_entry(fields, id, key, delay, traceparent), id))

    async def status(self, id: str) -> Status:
        return await self._run(self._status(id))

    async def wait(self, id: str, timeout: float) -> Status:
        return await self._run(self._wait(id, timeout))

    async def _run(self, steps: Generator) -> Any:
        reply = None
        try:
            while True:
                if isinstance(step := steps.send(reply), float):
                    reply = await asyncio.sleep(step)
                else:
                    reply = await self.redis.execute_command(*step, NEVER_DECODE=True)
        except StopIteration as end:
            return end.value


def cancel(api: str, queue: str, id: str, token: Optional[str] = None) -> str:
    """Cancels a task through the HTTP API, since only hosts may end tasks. Returns the status that it had.

    `api` is a host's address, such as `http://127.0.0.1:7700`; `queue` the name in the configuration.
    Raises `ApiRefused`, or an `OSError` if the host is not reached.
    """
    path = "/v1/queues/{}/tasks/{}".format(*(urllib.parse.quote(part, safe="") for part in (queue, id)))
    request = urllib.request.Request(api.rstrip("/") + path, method="DELETE")
    if token is not None:
        request.add_header("authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=HTTP_TIMEOUT) as answer:
            status, body = answer.status, answer.read(MAX_ANSWER)
    except urllib.error.HTTPError as error:
        status, body = error.code, error.read(MAX_ANSWER)
    try:
        found = json.loads(body)
        if status == 200:
            return found["before"]
        refused = ApiRefused(status, found["code"], found["detail"])
    except (ValueError, KeyError, TypeError):
        refused = ApiRefused(status, "unreadable", "the answer is not one of tqhost")
    raise refused


async def cancel_async(api: str, queue: str, id: str, token: Optional[str] = None) -> str:
    """Like `cancel`, in a thread."""
    return await asyncio.to_thread(cancel, api, queue, id, token)


def verify_webhook(secret: str, headers: Mapping[str, str], body: bytes, *, tolerance: float = 300,
                   now: Optional[float] = None) -> str:
    """Checks a request of `http-call` (Standard Webhooks), and returns its `webhook-id`.

    `body` is the bytes as they came; `tolerance` is how many seconds the request's time may be away from
    `now`, which is this machine's clock by default. Raises `BadWebhook`.
    """
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        key = b""
    if not 24 <= len(key) <= 64:
        raise ValueError("the secret is not whsec_ and 24 to 64 bytes in base64")
    lower = {name.lower(): value for name, value in headers.items()}
    id, stamp, signatures = (lower.get(f"webhook-{name}", "") for name in ("id", "timestamp", "signature"))
    if not (id and stamp and signatures):
        raise BadWebhook("webhook-id, webhook-timestamp or webhook-signature is missing")
    if not re.fullmatch(r"[0-9]{1,15}", stamp):
        raise BadWebhook("webhook-timestamp is not a number")
    if not abs((time.time() if now is None else now) - int(stamp)) <= tolerance:
        raise BadWebhook("webhook-timestamp is too old or too new")
    signed = f"{id}.{stamp}.".encode() + body
    own = b"v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256))
    # Each signature is compared, whichever is equal.
    equal = [hmac.compare_digest(own, signature.encode()) for signature in signatures.split(" ")]
    if not any(equal):
        raise BadWebhook("no signature matches")
    return id
