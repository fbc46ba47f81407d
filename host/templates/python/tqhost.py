"""Helpers for a handler: they read fields, report failures, convert results and write log lines.

In: a function from a task to a result. Out: the class `Handler` that the component exports.
"""

import io
import json as _json
import os
import random
import sys
import time

from componentize_py_types import Err, Ok
from wit_world.imports import context, logging, store
from wit_world.imports import random as host_random
from wit_world.imports.logging import Level
from wit_world.imports.types import Deferral, Failure_Defer, Failure_Reject, Failure_Retry, Retry, Task


def reject(message: str) -> Err:
    """`raise reject("why")`: it will never work. The task is dead-lettered at once."""
    return Err(Failure_Reject(message))


def retry(message: str, after_ms: int | None = None) -> Err:
    """`raise retry("why")`: it may work later. The queue's backoff says when, unless `after_ms` does."""
    return Err(Failure_Retry(Retry(message, after_ms)))


def defer(message: str, after_ms: int) -> Err:
    """`raise defer("why", 60_000)`: it is too early. The task comes back later, and no attempt is used."""
    return Err(Failure_Defer(Deferral(message, after_ms)))


def has(task: Task, name: str) -> bool:
    """Whether the task has this field."""
    return any(field.name == name for field in task.fields)


def content(task: Task, name: str) -> bytes:
    """A field's bytes. If the field is missing, the task is rejected, because no attempt would find it."""
    for field in task.fields:
        if field.name == name:
            return field.value
    raise reject(f"field `{name}` is missing")


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


def progress(percent: int, note: str) -> None:
    """Shown on the task's status while it runs."""
    context.progress(percent, note)


def remaining_ms() -> int:
    """The time in milliseconds until the host stops this attempt."""
    return context.remaining_ms()


def now_ms(task: Task) -> int:
    """The time in milliseconds since the Unix epoch, as in time.time(). datetime.now() ends the attempt."""
    return task.deadline_ms - remaining_ms()


def log(level: str, message: str) -> None:
    """One line in the host's log; level is debug, info, warn or error."""
    logging.log(Level[level.upper()], "", message)


def handles(handle):
    """Makes the component's handler from a function.

    The function returns None, text, bytes, or a value that JSON can represent. If it raises an exception that
    is not one of the failures above, the exception is logged with its places and the attempt ends as a trap:
    the task is tried again, and the trap counts against this version. After a request that failed outside,
    such an exception is a retry instead.
    """

    class Handler:
        def handle(self, task: Task) -> bytes | None:
            _begin(task)
            try:
                return _result(handle(task))
            except BaseException as error:  # with sys.exit(), which would end the attempt without a word
                failure = _failure(error)
                if failure is None:
                    _tell(error)
                    if _outside is None:
                        _trap(error)
                    failure = retry(_described(error), *_outside)
                raise failure from None
            finally:
                _end_lines()

    return Handler


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
                return [_failure(value) or Ok(_result(value)) for value in handle(tasks)]
            except BaseException as error:
                _tell(error)
                _trap(error)
            finally:
                _end_lines()

    return BatchHandler


# How long the server asks to wait; set when a request of this attempt has failed outside.
_outside: tuple[int | None] | None = None


def failed_outside(after_ms: int | None = None) -> None:
    """For tqhost_http: notes that a request of this attempt has failed outside, and how long to wait.

    The failure may cause a later exception, which must not count against this version of the handler.
    """
    global _outside
    _outside = (after_ms,)


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
    """The places where it was raised, at most ten, the innermost last.

    The module traceback would look for source files, which are not there.
    """
    places, step = [], error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        places.append(f"\n  {code.co_filename.rsplit('/', 1)[-1]}:{step.tb_lineno} in {code.co_name}")
        step = step.tb_next
    return "".join(places[1:][-10:])


class _Lines(io.TextIOBase):
    """There is no stdout in the sandbox: what is printed becomes log lines."""

    def __init__(self, level: str):
        self.level = level
        self.rest = ""

    def writable(self) -> bool:
        return True

    def write(self, more: str) -> int:
        *lines, self.rest = (self.rest + more).split("\n")
        for line in lines:
            log(self.level, line)
        return len(more)

    def end(self) -> None:
        """Drops an unfinished line, so that it does not become part of another task's line."""
        if self.rest:
            self.write("\n")


# False in a unit test, which has streams, a clock and seeds of its own.
_in_sandbox = sys.platform == "wasi"
_out, _err = _Lines("info"), _Lines("warn")
if _in_sandbox:
    sys.stdout, sys.stderr = _out, _err


def _end_lines() -> None:
    _out.end()
    _err.end()


def _begin(task: Task) -> None:
    """Prepares an attempt. Before the first attempt of an instance, it gives new seeds."""
    global _task, _outside
    is_first = _task is None
    _task, _outside = task, None
    if is_first:
        for generator in _seeded:
            generator.seed()


# The task that runs. There is no clock either, but what is left until a deadline tells the time.
_task: Task | None = None


def _now_ns() -> int:
    return now_ms(_task) * 1_000_000 if _task else 0


if _in_sandbox:
    time.time_ns = time.monotonic_ns = time.perf_counter_ns = _now_ns
    time.time = time.monotonic = time.perf_counter = lambda: _now_ns() / 1e9

# The top of a file runs when the component is built, and every instance begins with the state that it left.
# So a generator that got its seed there gets a new one, unless the handler chose the seed.
_seeded = {random._inst} if _in_sandbox else set()
_urandom_of_build, _seed_of_random = os.urandom, random.Random.seed


def _urandom(size: int) -> bytes:
    return host_random.get_random_bytes(size) if _task else _urandom_of_build(size)


def _seed(generator: random.Random, a=None, version: int = 2) -> None:
    if _task is None:
        (_seeded.add if a is None else _seeded.discard)(generator)
    _seed_of_random(generator, int.from_bytes(_urandom(32)) if a is None else a, version)


if _in_sandbox:
    os.urandom = random._urandom = _urandom
    random.Random.seed = _seed
    random.seed = random._inst.seed
