"""Helpers for a handler: they read fields, report failures, convert results and write log lines.

In: a function from a task to a result. Out: the class `Handler` that the component exports.
"""

import asyncio
import contextvars
import inspect
import io
import json as _json
import math
import os
import random
import sys

from componentize_py_types import Err, Ok
from wit_world.imports import context, logging, outage, store
from wit_world.imports.logging import Level
from wit_world.imports.types import Deferral, Failure_Defer, Failure_Reject, Failure_Retry, Retry, Task


# False in a unit test, which has streams, seeds and an event loop of its own.
_in_sandbox = sys.platform == "wasi"
if _in_sandbox:
    import tqhost_loop


def reject(message: str) -> Err:
    """`raise reject("why")`: it will never work. The task is dead-lettered at once."""
    return Err(Failure_Reject(message))


def millis(name: str, value: float) -> int:
    """A time in milliseconds as the host takes it: a whole number. `name` is for the error.

    A time of less than a millisecond is never 0, which may mean something else to the host. A time below 0,
    which has passed, is 0.
    """
    try:
        # The host shortens long times, if they fit into 64 bits.
        return min(math.ceil(max(value, 0)), 2**64 - 1)
    except (TypeError, ValueError, ArithmeticError):
        raise ValueError(f"`{name}` is a number of milliseconds, not {value!r}") from None


def retry(message: str, after_ms: float | None = None) -> Err:
    """`raise retry("why")`: it may work later. The queue's backoff says when, unless `after_ms` does."""
    return Err(Failure_Retry(Retry(message, None if after_ms is None else millis("after_ms", after_ms))))


class _Outage(Err):
    """A failure for a cause outside of the handler."""


def unavailable(message: str, after_ms: float | None = None) -> Err:
    """`raise unavailable("why")`: a service outside is down, or asks to be called later, in `after_ms`.

    It is a retry that says nothing about this version. A queue with `hold` waits until the service is back.
    """
    return _Outage(retry(message, after_ms).value)


def defer(message: str, after_ms: float) -> Err:
    """`raise defer("why", 60_000)`: it is too early. The task comes back later, and no attempt is used."""
    return Err(Failure_Defer(Deferral(message, millis("after_ms", after_ms))))


def has(task: Task, name: str) -> bool:
    """Whether the task has this field."""
    return any(field.name == name for field in task.fields)


def content(task: Task, name: str) -> bytes:
    """A field's bytes. If the field is missing, the task is rejected, because no attempt would find it."""
    for field in task.fields:
        if field.name == name:
            return field.value
    raise reject(f"field `{name}` is missing: it has {_names(task)}")


def _names(task: Task) -> str:
    """The names of the fields that the task has, at most ten. One of them may be a typing error."""
    names = [field.name for field in task.fields]
    more = [f"and {len(names) - 10} more"] if len(names) > 10 else []
    return ", ".join(names[:10] + more) or "no fields"


def text(task: Task, name: str) -> str:
    """A field's text."""
    try:
        return content(task, name).decode("utf-8")
    except UnicodeDecodeError:
        raise reject(f"field `{name}` is not UTF-8 text") from None


def json(task: Task, name: str):
    """A field that holds JSON."""
    source = text(task, name)
    try:
        return _json.loads(source)
    except ValueError as error:
        raise reject(f"field `{name}` is not JSON: {error}") from None


def config(key: str) -> str | None:
    """The value that the host's configuration grants this plugin under this key."""
    return store.get(key)


def progress(percent: float, note: str) -> None:
    """Shown on the task's status while it runs. `percent` is rounded down, and stays between 0 and 100."""
    try:
        whole = int(min(max(percent, 0), 100))
    except (TypeError, ValueError):
        raise ValueError(f"`percent` is a number, not {percent!r}") from None
    context.progress(whole, note)


def remaining_ms() -> int:
    """The time in milliseconds until the host stops this attempt."""
    return context.remaining_ms()


def now_ms(task: Task) -> int:
    """The time in milliseconds since the Unix epoch, as the host's clock shows it."""
    return task.deadline_ms - remaining_ms()


def log(level: str, message: str) -> None:
    """One line in the host's log; level is debug, info, warn or error."""
    logging.log(Level[level.upper()], "", message)


def handles(handle):
    """Makes the component's handler from a function.

    The function may be `async`. It returns None, text, bytes, or a value that JSON can represent. If it
    raises an exception that is not one of the failures above, the exception is logged with its places and the
    attempt ends as a trap: the task is tried again, and the trap counts against this version. After a request
    that failed outside, such an exception is a retry instead.
    """

    class Handler:
        def handle(self, task: Task) -> bytes | None:
            _begin(task)
            try:
                value = handle(task)
                return _result(_run(value) if inspect.iscoroutine(value) else value)
            except BaseException as error:  # with sys.exit(), which would end the attempt without a word
                failure = _failure_of(error)
                if failure is None:
                    _trap(error)
                raise failure from None
            finally:
                _end_lines()

        def run(self) -> None:
            tqhost_loop.run_all(self.one)

        async def one(self, number: int, task: Task) -> None:
            _begin(task)
            try:
                value = tqhost_loop.call(handle, task)
                ended = Ok(_result(await value if inspect.iscoroutine(value) else value))
            except BaseException as error:
                ended = _failure_of(error)
            _end_lines()
            tqhost_loop.finish(number, ended)

    return Handler


def _failure_of(error: BaseException) -> Err | None:
    """The failure that an exception stands for. None if nobody caught it, which is logged then."""
    failure = _failure(error)
    if failure is None:
        _tell(error)
        outside = _attempt.get().outside
        if outside is None:
            return None
        kind, after_ms = outside
        cause = _causes(error)[-1]
        because = "" if cause is error else f", caused by {_described(cause)}"
        failure = kind(f"{_described(error)}{because}{_own_place(error)}", after_ms)
    elif failure is not error and isinstance(failure.value, Failure_Retry):
        # An error of a helper, such as that of a request: it says why, and the place says which one.
        failure.value.value.message += _own_place(error)
    return _told(failure, 0)


def batches(handle):
    """Makes the component's batch handler from a function.

    The function gets a list of tasks and returns a list of the same length. It has a result or a failure
    (returned, not raised) for each task, at the task's place. If the function raises an exception, the
    exception is logged, and each task is run again alone, by the handler. wit/world.wit needs the line
    `export tqhost:extensions/batch-handler@0.1.0;`.
    """

    class BatchHandler:
        def handle_batch(self, tasks: list[Task]) -> list:
            _begin(tasks[0])
            try:
                return [_ended(value, index) for index, value in enumerate(handle(tasks))]
            except BaseException as error:
                _tell(error)
                _trap(error)
            finally:
                _end_lines()

    return BatchHandler


def _ended(value, index: int):
    """How the task at this place of a batch ended."""
    failure = _failure(value)
    return Ok(_result(value)) if failure is None else _told(failure, index)


def _told(failure: Err, index: int) -> Err:
    """The failure of the task at this place, once the host knows whether a service is down."""
    if not isinstance(failure, _Outage):
        return failure
    outage.unavailable(index, failure.value.value.after_ms)
    return Err(failure.value)


class _Attempt:
    """The helpers' notes on one attempt."""

    def __init__(self):
        # How to fail, and how long the server asks to wait; set when a request has failed outside.
        self.outside: tuple | None = None
        # The unfinished lines on stdout and stderr.
        self.rests = {"info": "", "warn": ""}


_attempt = contextvars.ContextVar("attempt", default=_Attempt())


def failed_outside(failure=retry, after_ms: int | None = None) -> None:
    """For tqhost_http: notes that a request of this attempt has failed outside, and how to fail then.

    `failure` is `retry` or `unavailable`. A later exception becomes this failure, because it must not count
    against this version of the handler.
    """
    _attempt.get().outside = (failure, after_ms)


def _failure(value) -> Err | None:
    """The failure that `value` is, or that it has as `failure`, like the errors of tqhost_http."""
    is_plain = isinstance(value, Err) or not isinstance(value, Exception)
    failure = value if is_plain else getattr(value, "failure", None)
    kinds = (Failure_Retry, Failure_Reject, Failure_Defer)
    is_failure = isinstance(failure, Err) and isinstance(failure.value, kinds)
    return failure if is_failure else None


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _tell(error: BaseException) -> None:
    """Logs an exception. If a trap follows, the host uses this text for the task's error."""
    _end_lines()
    log("error", f"{_described(error)}{_places(error)}")


def _trap(error: BaseException) -> None:
    """Ends the attempt. A unit test gets the exception instead."""
    if not _in_sandbox:
        raise error
    os.abort()


def _result(value) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        value = _json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return value.encode()


def _places(error: BaseException) -> str:
    """The places where it was raised, the innermost first, and then what caused it."""
    text = _places_of(error)
    for inner in _causes(error)[1:]:
        text += f" caused by {_described(inner)}{_places_of(inner)}"
    return text


def _causes(error: BaseException) -> list[BaseException]:
    """An exception and what caused it, the innermost last. A chain may be a circle."""
    told = [error]
    while len(told) < 5:
        last = told[-1]
        inner = last.__cause__ or (None if last.__suppress_context__ else last.__context__)
        if inner is None or inner in told:
            break
        told.append(inner)
    return told


def _own_place(error: BaseException) -> str:
    """The innermost place in the project's own files, which componentize-py has in /0."""
    place, step = "", error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        if code.co_filename.startswith("/0/") and not code.co_filename.startswith("/0/tqhost"):
            place = f" at {code.co_filename[3:]}:{step.tb_lineno} in {code.co_name}"
        step = step.tb_next
    return place


def _places_of(error: BaseException) -> str:
    """At most ten places. Calls of the helpers and of Python's imports say nothing about the handler."""
    places, step = [], error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        file = code.co_filename.rsplit("/", 1)[-1]
        if not file.startswith(("tqhost", "<frozen")):
            places.append(f" at {file}:{step.tb_lineno} in {code.co_name}")
        step = step.tb_next
    return "".join(places[::-1][:10])


class _Lines(io.TextIOBase):
    """What is printed becomes log lines, which bear the task and a level."""

    def __init__(self, level: str):
        self.level = level

    def writable(self) -> bool:
        return True

    def write(self, more: str) -> int:
        if _task is None and self.level == "warn" and _in_sandbox:
            # A module may warn when it is imported, and no host is there then.
            return sys.__stderr__.write(more)
        rests = _attempt.get().rests
        *lines, rests[self.level] = (rests[self.level] + more).split("\n")
        for line in lines:
            log(self.level, line)
        return len(more)

    def end(self) -> None:
        """Drops an unfinished line, so that it does not become part of another task's line."""
        if _attempt.get().rests[self.level]:
            self.write("\n")


_out, _err = _Lines("info"), _Lines("warn")
if _in_sandbox:
    sys.stdout, sys.stderr = _out, _err
    # For an exception of a handler that is not made by `handles`.
    sys.excepthook = lambda _kind, error, _trace: _tell(error)


def _end_lines() -> None:
    _out.end()
    _err.end()


def _begin(task: Task) -> None:
    """Prepares an attempt. Before the first attempt of an instance, it gives new seeds."""
    global _task
    is_first = _task is None
    _task = task
    _attempt.set(_Attempt())
    if is_first:
        for generator in _seeded:
            generator.seed()


# The task that began last.
_task: Task | None = None

_run = tqhost_loop.run if _in_sandbox else asyncio.run


# The top of a file runs when the component is built, and every instance begins with the state that it left.
# So a generator that got its seed there gets a new one, unless the handler chose the seed.
_seeded = {random._inst} if _in_sandbox else set()
_seed_of_random = random.Random.seed


def _seed(generator: random.Random, a=None, version: int = 2) -> None:
    if _task is None:
        (_seeded.add if a is None else _seeded.discard)(generator)
    _seed_of_random(generator, a, version)


if _in_sandbox:
    random.Random.seed = _seed
    random.seed = random._inst.seed
