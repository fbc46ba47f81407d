"""Stands in for a host in unit tests: effects and blobs go to `memory`, log lines to stderr, and
`memory.http` answers requests.

In: a handler and the fields of a task. Out: the handler's result, and what it left in `memory`. Import this
file before the handler, because it provides the modules that only the compiler knows.

    memory.http = [{"id": 7}, Reply("busy", 429, {"retry-after": "2"}), "connection-refused"]

Not here: grants and limits of size. `tqhost try` has all of them.
"""

import copy
import enum
import http.client
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import tqhost_packages


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
    http: Any = None
    """What answers requests: a list of answers, one for each request in turn; a function from a `Request` to
    an answer; or `network`, which is that of this machine. An answer is a `Reply`, or what becomes its body
    (bytes, or else JSON), or the code of an `HttpError`, like `connection-refused`."""
    requests: list["Request"] = field(default_factory=list)
    refusal: tuple[str, str] | None = None
    """The code and text of an error. The next call of outbox, state, records or blobs fails with
    it."""

    def reset(self) -> None:
        """Empties the memory. Call it before each test."""
        self.__dict__.update(Memory().__dict__)


@dataclass
class Request:
    """A request that the handler has made. Names of headers are in lower case."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Reply:
    """An answer. Its body is text, bytes, a list of pieces that arrive one by one, or what becomes JSON."""

    body: Any = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


def network(request: Request) -> Reply:
    """Asks the network of this machine, without the host's grants."""
    url = urlsplit(request.url)
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    connection = kind(url.netloc, timeout=60)
    try:
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        connection.request(request.method, path, request.body or None, request.headers)
        response = connection.getresponse()
        return Reply(response.read(), response.status, dict(response.getheaders()))
    finally:
        connection.close()


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


def _answered(method, url, headers, content, _timeout, _is_whole):
    """In place of the exchange of tqhost_http: the head of the response, then the pieces of its body."""
    import tqhost_http  # only here, because it imports what this file provides

    _, host, _ = tqhost_http._target(url)
    request = Request(method, url, {name.lower(): value for name, value in headers.items()}, content)
    memory.requests.append(request)
    answer = memory.http
    if isinstance(answer, list):
        answer = answer.pop(0) if answer else None
    elif callable(answer):
        answer = answer(request)
    if answer is None:
        kinds = "it is a list, a function or `network`"
        raise AssertionError(f"{method} {url}: `memory.http` has no answer; {kinds}")
    if isinstance(answer, str):
        raise tqhost_http.failure_of(answer, host)
    reply = answer if isinstance(answer, Reply) else Reply(answer)
    kind, body = {}, reply.body
    are_pieces = isinstance(answer, Reply) and isinstance(body, list)
    if not isinstance(body, (bytes, str)) and not are_pieces:
        kind, body = {"content-type": "application/json"}, json.dumps(body)
    yield reply.status, list({**kind, **reply.headers}.items())
    for piece in body if isinstance(body, list) else [body]:
        yield piece.encode() if isinstance(piece, str) else piece


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
    "outgoing_handler": {"answered": _answered},
    "http_types": {},
    "monotonic_clock": {},
    "poll": {},
    "streams": {"StreamError_Closed": _Case},
}

_provide("componentize_py_types", {"Ok": Ok, "Err": Err})
_provide("wit_world", {})
_provide("wit_world.imports", {})
for _name, _content in _INTERFACES.items():
    _provide(f"wit_world.imports.{_name}", _content)
    setattr(sys.modules["wit_world.imports"], _name, sys.modules[f"wit_world.imports.{_name}"])

tqhost_packages.install(is_sandbox=False)
