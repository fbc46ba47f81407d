"""Stands in for a host in unit tests: effects and blobs go to `memory`, and log lines to stderr.

In: a handler and the fields of a task. Out: the handler's result, and what it left in `memory`. Import this
file before the handler, because it provides the modules that only the compiler knows.

Not here: grants, limits of size and HTTP requests. `tqhost try` has all of them.
"""

import copy
import enum
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any


@dataclass
class Memory:
    """What a handler did, and what it finds."""

    sent: list = field(default_factory=list)
    """The tasks of the outbox, each with `id`, `queue`, `fields` (a dict of bytes), `delay_ms`,
    `idempotency_key` and `after`, the ids of the children that it waits for."""
    results: list = field(default_factory=list)
    """The children's results, for a task that follows a flow: `child(queue, value)` makes one."""
    state: dict[str, bytes] = field(default_factory=dict)
    records: dict[str, dict[str, bytes]] = field(default_factory=dict)
    blobs: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """The content type and the bytes of each blob."""
    config: dict[str, str] = field(default_factory=dict)
    fence: int = 1
    outages: list[tuple[int, int | None]] = field(default_factory=list)
    """What the last call reported with `unavailable`: the place of the task, and `after_ms`."""
    refusal: tuple[str, str] | None = None
    """The code and text of an error. The next call of outbox, state, records or blobs fails with
    it."""

    def reset(self) -> None:
        """Empties the memory. Call it before each test."""
        self.__dict__.update(Memory().__dict__)


memory = Memory()


def child(queue: str, value: bytes | None) -> Any:
    """The result of one child of a flow."""
    return SimpleNamespace(task_id=f"child-{queue}", queue=queue, value=value)


def run(handler: type, fields: Mapping[str, bytes | str], attempt: int = 1) -> bytes | None:
    """Runs one attempt of a handler, at a task with these fields, and returns its result.

    If the attempt fails, its effects are dropped, its blobs stay, and `Err` is raised with the failure as its
    `value`.
    """
    before = copy.deepcopy({"sent": memory.sent, "state": memory.state, "records": memory.records})
    given = [
        Field(name, value.encode() if isinstance(value, str) else value) for name, value in fields.items()
    ]
    task = SimpleNamespace(
        id="1-0",
        queue="test",
        fields=given,
        attempt=attempt,
        max_attempts=3,
        enqueued_at_ms=1_767_225_600_000,
        deadline_ms=1_767_225_660_000,
        traceparent=None,
    )
    memory.outages = []
    try:
        return handler().handle(task)
    except BaseException:
        memory.__dict__.update(before)
        raise


@dataclass
class Ok:
    value: Any


class Err(Exception):
    def __init__(self, value: Any):
        super().__init__(value)
        self.value = value


@dataclass
class Field:
    name: str
    value: bytes


@dataclass
class Retry:
    message: str
    after_ms: int | None


@dataclass
class Deferral:
    message: str
    after_ms: int


@dataclass
class _Case:
    value: Any


@dataclass
class NewTask:
    queue: str
    fields: list[Field]
    delay_ms: int
    idempotency_key: str | None


def _cases(prefix: str, *names: str) -> dict[str, type]:
    """A variant's cases."""
    return {f"{prefix}_{name}": type(f"{prefix}_{name}", (_Case,), {}) for name in names}


_ERRORS = _cases(
    "Error", "UnknownQueue", "NotPermitted", "TooLarge", "Unavailable", "InvalidName", "NotFound"
)


def _refuse(code: str, why: str) -> None:
    raise Err(_ERRORS["Error_" + "".join(word.capitalize() for word in code.split("-"))](why))


def _begin(key: str | None = None) -> None:
    if memory.refusal is not None:
        refusal, memory.refusal = memory.refusal, None
        _refuse(*refusal)
    if key is not None and not 1 <= len(key.encode()) <= 512:
        _refuse("too-large", f"a key has 1 to 512 bytes, this one has {len(key.encode())}")


def _send(task: NewTask, after: list[str]) -> str:
    sent = {**task.__dict__, "id": f"new-{len(memory.sent) + 1}", "after": after}
    sent["fields"] = {each.name: each.value for each in task.fields}
    memory.sent.append(SimpleNamespace(**sent))
    return sent["id"]


def _enqueue(task: NewTask) -> str:
    _begin()
    return _send(task, [])


def _fan_out(children: list[NewTask], then: NewTask) -> str:
    _begin()
    return _send(then, [_send(each, []) for each in children])


class _State:
    def get(self, key: str) -> bytes | None:
        _begin(key)
        return memory.state.get(key)

    def set(self, key: str, value: bytes, ttl_ms: int) -> None:
        _begin(key)
        memory.state[key] = value

    def delete(self, key: str) -> None:
        _begin(key)
        memory.state.pop(key, None)

    def increment(self, key: str, delta: int) -> int:
        _begin(key)
        try:
            value = int(memory.state.get(key, b"0")) + delta
        except ValueError:
            _refuse("unavailable", f"the value of `{key}` is not a whole number")
        if abs(value) >= 10**18:
            _refuse("too-large", f"the counter `{key}` would have more than 18 digits")
        memory.state[key] = str(value).encode()
        return value


class _Records:
    def put(self, key: str, fields: list[Field]) -> None:
        _begin(key)
        memory.records.setdefault(key, {}).update((each.name, each.value) for each in fields)

    def get(self, key: str) -> list[Field] | None:
        _begin(key)
        found = memory.records.get(key)
        return None if found is None else [Field(name, value) for name, value in found.items()]

    def delete(self, key: str) -> None:
        _begin(key)
        memory.records.pop(key, None)

    def expire(self, key: str, ttl_ms: int) -> None:
        _begin(key)


class _Blobs:
    def put(self, name: str, content_type: str, data: bytes) -> str:
        _begin_blob(name)
        if content_type and "/" not in content_type:
            _refuse("invalid-name", "the content type has no `/`")
        memory.blobs[name] = (content_type or "application/octet-stream", data)
        return f"memory:///{name}"

    def get(self, name: str) -> bytes:
        _begin_blob(name)
        if name not in memory.blobs:
            _refuse("not-found", f"there is no blob `{name}`")
        return memory.blobs[name][1]


def _begin_blob(name: str) -> None:
    _begin()
    is_part = re.compile(r"[A-Za-z0-9._+=@:,-]{1,200}").fullmatch
    if len(name) > 512 or not all(is_part(part) and part not in (".", "..") for part in name.split("/")):
        _refuse("invalid-name", f'"{name}" is not the name of a blob')


_Level = enum.Enum("Level", ["TRACE", "DEBUG", "INFO", "WARN", "ERROR", "CRITICAL"])


def _log(level: enum.Enum, context: str, message: str) -> None:
    print(level.name.lower(), message, file=sys.stderr)


def _methods(interface: object) -> dict[str, Any]:
    names = [name for name in dir(interface) if not name.startswith("_")]
    return {name: getattr(interface, name) for name in names}


def _provide(name: str, content: Mapping[str, Any]) -> None:
    module = ModuleType(name)
    module.__dict__.update(content)
    sys.modules[name] = module


_INTERFACES = {
    "context": {"progress": lambda percent, note: None, "remaining_ms": lambda: 60_000},
    "logging": {"log": _log, "Level": _Level},
    "store": {"get": lambda key: memory.config.get(key)},
    "types": {
        "Deferral": Deferral,
        "Field": Field,
        "Retry": Retry,
        "Task": SimpleNamespace,
        **_cases("Failure", "Retry", "Reject", "Defer"),
    },
    "delivery": {"fence": lambda: memory.fence, "select": lambda index: None},
    "outage": {"unavailable": lambda index, after_ms: memory.outages.append((index, after_ms))},
    "flow": {"results": lambda: list(memory.results)},
    "outbox": {"NewTask": NewTask, "enqueue": _enqueue, "fan_out": _fan_out},
    "state": _methods(_State()),
    "records": _methods(_Records()),
    "blobs": _methods(_Blobs()),
}

_provide("componentize_py_types", {"Ok": Ok, "Err": Err})
_provide("wit_world", {})
_provide("wit_world.imports", {})
for _name, _content in _INTERFACES.items():
    _provide(f"wit_world.imports.{_name}", _content)
    setattr(sys.modules["wit_world.imports"], _name, sys.modules[f"wit_world.imports.{_name}"])
