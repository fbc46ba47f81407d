"""Effects that commit in the step that completes the task, or never.

`outbox` has tasks for other queues, `state` values that outlive the task, `records` Redis hashes of your own,
`flow` the results of a flow, and `fence` the number of the delivery. They need the lines under `For effects`
in `wit/world.wit`.

In: values, as text, bytes, or anything that JSON can represent. Out: values, or an `EffectError`. An attempt
sees its own writes. One that fails leaves nothing.

    outbox.enqueue("letters", {"resume": text(task, "resume")}, delay_ms=60_000)
    state.increment("resumes")
"""

import json as _json
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from componentize_py_types import Err
from tqhost import millis, reject, retry

try:
    from wit_world.imports import delivery as _delivery
    from wit_world.imports import flow as _flow
    from wit_world.imports import outbox as _outbox
    from wit_world.imports import records as _records
    from wit_world.imports import state as _state
    from wit_world.imports.types import Field
except ImportError as error:
    raise ImportError("effects need the lines under `For effects` in wit/world.wit") from error

T = TypeVar("T")
Value = str | bytes | int | float | bool | list | dict | None
"""Text, bytes, or what becomes JSON."""


class EffectError(Exception):
    """Why a call was refused; it has no effect then.

    `code` is `unknown-queue`, `not-permitted`, `too-large` or `unavailable`. If nobody catches the error, the
    task ends with `failure`: a retry if Redis is unavailable, otherwise a rejection.
    """

    def __init__(self, code: str, why: str):
        super().__init__(why)
        self.code = code
        self.failure = retry(why) if code == "unavailable" else reject(why)


@dataclass
class NewTask:
    queue: str
    """The queue's name in the host's configuration, which grants it by `enqueue_to`."""
    fields: Mapping[str, Value] = field(default_factory=dict)
    delay_ms: float = 0
    """The time from the commit until the task may run."""
    idempotency_key: str | None = None
    """A second task with this key is not enqueued."""


@dataclass
class ChildResult:
    task_id: str
    queue: str
    value: bytes | None

    def json(self) -> Any:
        """The result as JSON. If there is none, the task is rejected, because no attempt would find any."""
        try:
            return _json.loads(self.value or b"")
        except ValueError as error:
            who = f"task {self.task_id} in queue `{self.queue}`"
            raise reject(f"the result of {who} is not JSON: {error}") from None


class _Outbox:
    """Tasks that the host enqueues when this one completes."""

    def enqueue(
        self,
        queue: str,
        fields: Mapping[str, Value] | None = None,
        *,
        delay_ms: float = 0,
        idempotency_key: str | None = None,
    ) -> str:
        """Returns the id that the task will have."""
        task = _new_task(NewTask(queue, fields or {}, delay_ms, idempotency_key))
        return _attempt(lambda: _outbox.enqueue(task))

    def fan_out(self, children: Iterable[NewTask], then: NewTask) -> str:
        """Enqueues `children`, and `then` once when every child has completed. Returns the id of `then`.

        If a child becomes a dead letter, `then` does so, too.
        """
        return _attempt(lambda: _outbox.fan_out([_new_task(child) for child in children], _new_task(then)))


class _FlowOfTask:
    """The results of a flow, for the task that runs after its children."""

    def results(self) -> list[ChildResult]:
        """In the order of the children; empty for a task that follows no flow."""
        return [ChildResult(each.task_id, each.queue, each.value) for each in _flow.results()]


class _StateOfPlugin:
    """Values of the plugin that outlive its tasks. A key has 1 to 512 bytes."""

    def get(self, key: str) -> bytes | None:
        return _attempt(lambda: _state.get(key))

    def text(self, key: str) -> str | None:
        return self._read(key, lambda value: value.decode("utf-8"))

    def json(self, key: str) -> Any:
        return self._read(key, _json.loads)

    def set(self, key: str, value: Value, *, ttl_ms: float = 0) -> None:
        """Keeps a value until it is deleted, or for `ttl_ms` from the commit on."""
        _attempt(lambda: _state.set(key, _bytes(value), _ttl(ttl_ms)))

    def delete(self, key: str) -> None:
        _attempt(lambda: _state.delete(key))

    def increment(self, key: str, delta: int = 1) -> int:
        """Adds to a whole number, which begins at 0. Returns the value that this attempt sees.

        The commit adds to what is stored then, so no count is lost.
        """
        return _attempt(lambda: _state.increment(key, _whole(delta)))

    def _read(self, key: str, convert: Callable[[bytes], T]) -> T | None:
        value = self.get(key)
        try:
            return None if value is None else convert(value)
        except ValueError as error:
            # The task is not at fault.
            raise EffectError("unavailable", f"the value of `{key}` is not as expected: {error}") from None


class _RecordsOfTeam:
    """Redis hashes under keys of your own. The plugin's `records` grants patterns of keys."""

    def put(self, key: str, fields: Mapping[str, Value]) -> None:
        """Sets fields, and leaves the other fields as they are."""
        _attempt(lambda: _records.put(key, _fields(fields)))

    def get(self, key: str) -> dict[str, bytes] | None:
        found = _attempt(lambda: _records.get(key))
        return None if found is None else {each.name: each.value for each in found}

    def text(self, key: str) -> dict[str, str] | None:
        """The fields as text."""
        found = self.get(key)
        return None if found is None else {name: value.decode("utf-8") for name, value in found.items()}

    def delete(self, key: str) -> None:
        _attempt(lambda: _records.delete(key))

    def expire(self, key: str, ttl_ms: float) -> None:
        """Deletes the hash after this time, counted from the commit. 0 keeps it until it is deleted."""
        _attempt(lambda: _records.expire(key, _ttl(ttl_ms)))


outbox = _Outbox()
flow = _FlowOfTask()
state = _StateOfPlugin()
records = _RecordsOfTeam()


def fence() -> int:
    """A number that grows with every delivery of the task.

    Send it along with effects outside tqhost, and let the service refuse a number lower than one that it has
    seen for this task.
    """
    return _delivery.fence()


def select(index: int) -> None:
    """In a batch: says to which task the following calls belong; the first one is 0.

    Without it, these calls end the batch as a trap.
    """
    _delivery.select(index)


def _new_task(task: NewTask) -> _outbox.NewTask:
    delay = millis("delay_ms", task.delay_ms)
    return _outbox.NewTask(task.queue, _fields(task.fields), delay, task.idempotency_key)


def _fields(fields: Mapping[str, Value]) -> list[Field]:
    return [Field(name, _bytes(value)) for name, value in fields.items()]


def _bytes(value: Value) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        value = _json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return value.encode()


def _ttl(ttl_ms: float) -> int:
    """A value whose time has passed goes at once. The host would keep it for ever with 0."""
    return max(millis("ttl_ms", ttl_ms), int(ttl_ms < 0))


def _whole(delta: int) -> int:
    """A whole number that the host takes."""
    try:
        whole = operator.index(delta)
        if -(2**63) <= whole < 2**63:
            return whole
    except TypeError:
        pass
    raise ValueError(f"`delta` is a whole number of 64 bits, not {delta!r}")


_CODES = {
    "Error_UnknownQueue": "unknown-queue",
    "Error_NotPermitted": "not-permitted",
    "Error_TooLarge": "too-large",
    "Error_Unavailable": "unavailable",
}


def _attempt(call: Callable[[], T]) -> T:
    """Calls a function that may fail with an error of its interface."""
    try:
        return call()
    except Err as error:
        code = _CODES.get(type(error.value).__name__)
        if code is None:
            raise
        raise EffectError(code, error.value.value) from None
