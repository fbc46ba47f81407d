"""Runs async handlers: one task, or many at once in one instance (`instance = { concurrent = … }`).

In: coroutines. Out: an event loop that waits for the host: clocks, answers, and the next task. Before each
step, the loop tells the host which task computes, so that the step belongs to this task. When a task ends,
what it has left running is cancelled, as asyncio.run() does.

`ready(pollable, seconds)` waits for something of the host. Not here: what a task returns (`tqhost`).
"""

import asyncio
import collections
import contextvars
import selectors
import sys

try:
    from wit_world.imports import monotonic_clock, poll
    from wit_world.imports import tasks as _tasks
except ImportError as error:
    raise ImportError(
        "an event loop needs the lines `import tqhost:extensions/tasks@0.1.0;` and "
        "`import wasi:clocks/monotonic-clock@0.2.4;` in wit/world.wit"
    ) from error

# The number of the task, in an instance that runs several.
_number = contextvars.ContextVar("number", default=None)
# The tasks of such an instance that have not ended.
_running: dict[int, asyncio.Task] = {}
# The number that the host knows.
_entered = None
# While there is always something to do, the host is asked in every n-th round.
_ROUNDS = 8


def _enter(number) -> None:
    global _entered
    # The host has forgotten a task that has ended, so its steps belong to no task.
    number = number if number in _running else None
    if number != _entered:
        _entered = number
        _tasks.enter(number)


class _Ready(collections.deque):
    """The steps that are to be done. Each belongs to the task in whose context it was made."""

    def popleft(self):
        step = super().popleft()
        _enter(step._context.get(_number))
        return step


class _Waits(selectors.SelectSelector):
    """Waits for the host, where other loops wait for sockets."""

    def __init__(self):
        super().__init__()
        self.waiting: dict = {}
        # Ready when the host has news of tasks, and the function to call then.
        self.news = self.take = None
        self.rounds = 0

    def select(self, timeout=None):
        self.rounds += 1
        if timeout is not None and timeout <= 0 and self.rounds % _ROUNDS:
            return []
        waiting = list(self.waiting.items())
        pollables = [pollable for pollable, _ in waiting]
        if self.news is not None:
            pollables.append(self.news)
        if timeout is None:
            if not pollables:
                raise RuntimeError("asyncio waits for something that can never happen")
            self._poll(waiting, pollables)
        else:
            with monotonic_clock.subscribe_duration(max(0, int(timeout * 1e9))) as timer:
                self._poll(waiting, [*pollables, timer])
        return []

    def _poll(self, waiting, pollables) -> None:
        # While a loop of asyncio.run() waits, its task holds the instance.
        if self.news is not None:
            _enter(None)
        for index in poll.poll(pollables):
            if index < len(waiting):
                future = waiting[index][1]
                if not future.done():
                    future.set_result(True)
            elif pollables[index] is self.news:
                self.take()


class Loop(asyncio.SelectorEventLoop):
    def __init__(self):
        self.waits = _Waits()
        super().__init__(self.waits)
        self._ready = _Ready()

    def _make_self_pipe(self):
        pass

    _close_self_pipe = _write_to_self = _make_self_pipe

    def run_in_executor(self, executor, function, *args):
        """There are no threads: asyncio.to_thread() runs its function at once."""
        done = self.create_future()
        try:
            done.set_result(function(*args))
        except Exception as error:
            done.set_exception(error)
        return done


async def ready(pollable, seconds: float) -> bool:
    """Waits until it is ready, while other tasks go on. False if it is not ready after `seconds`."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    late = loop.call_later(seconds, lambda: future.done() or future.set_result(False))
    loop.waits.waiting[pollable] = future
    try:
        return await future
    finally:
        late.cancel()
        del loop.waits.waiting[pollable]


def _complain(loop, context) -> None:
    """Logs an exception that nobody caught, for the task that it belongs to: it may be found much later."""
    of, computes = context.get("future") or context.get("task"), _entered
    if isinstance(of, asyncio.Task):
        _enter(of.get_context().get(_number))
    loop.default_exception_handler(context)
    _enter(computes)


# Made when the component is built. asyncio.run() makes one of its own.
_loop = Loop()
_loop.set_exception_handler(_complain)
sys.modules["asyncio.unix_events"]._UnixDefaultEventLoopPolicy._loop_factory = Loop


def run(coroutine):
    """Runs one task to its end."""
    try:
        return _loop.run_until_complete(coroutine)
    finally:
        _cancel_rest()


def _cancel_rest() -> None:
    rest = asyncio.all_tasks(_loop)
    for each in rest:
        each.cancel()
    if rest:
        _loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))


def call(function, task):
    """Calls a handler within the loop. One that is not async may call asyncio.run(), as it may alone."""
    own = asyncio.tasks._swap_current_task(_loop, None)
    asyncio._set_running_loop(None)
    try:
        return function(task)
    finally:
        asyncio._set_running_loop(_loop)
        asyncio.tasks._swap_current_task(_loop, own)


def run_all(begin) -> None:
    """Runs the tasks that the host brings. `begin(number, task)` makes a task's coroutine."""

    def take():
        while (event := _tasks.next()) is not None:
            if isinstance(event, _tasks.Event_Start):
                number = event.value.number
                context = contextvars.copy_context()
                context.run(_number.set, number)
                job = _loop.create_task(begin(number, event.value.task), context=context)
                # One that is cancelled before its first step has not called `finish`.
                job.add_done_callback(lambda _, number=number: number in _running and finish(number, None))
                _running[number] = job
            elif isinstance(event, _tasks.Event_Stop):
                job = _running.get(event.value)
                if job is not None:
                    job.cancel()
            else:
                _loop.stop()
                return

    with _tasks.subscribe() as news:
        _loop.waits.news, _loop.waits.take = news, take
        try:
            take()
            _loop.run_forever()
        finally:
            _loop.waits.news = _loop.waits.take = None
        _cancel_rest()
        _enter(None)


def finish(number: int, ended) -> None:
    """Tells the host how a task has ended. None: by an exception that nobody caught."""
    global _entered
    if ended is None:
        _tasks.fail(number)
    else:
        _tasks.finish(number, ended)
    # No task computes now, as the host sees it.
    _entered = None
    own = _running.pop(number)
    for each in asyncio.all_tasks(_loop):
        if each is not own and each.get_context().get(_number) == number:
            each.cancel()
