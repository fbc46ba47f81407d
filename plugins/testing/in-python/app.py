"""What a handler in Python may do: keeps a count of its tasks, prints, and ends as the field `end` says.

Returns `tasks`, how many it has had with this one; in a batch `batch`, how many came with it. `uncaught` gets past the helper of `tqhost new`, as in a handler that does not use it.
"""

import io
import logging
import sys
import time

from tqhost import batches, handles, has, reject, text

tasks = 0


def work(task):
    global tasks
    tasks += 1
    print("printed by", task.id, {"n": 1})
    print(f"complained by {task.id}", file=sys.stderr)
    print("nowhere", file=io.StringIO())
    logging.warning("warned by %s", task.id)
    sys.stdout.write(f"unfinished by {task.id}")
    end = text(task, "end") if has(task, "end") else "well"
    if end == "throw":
        explode()
    if end == "exit":
        sys.exit(3)
    if end == "recursion":
        recurse(0)
    return {"tasks": tasks, "seconds": time.time()}


def explode():
    raise LookupError("boom in Python")


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
    if "throw" in ends:
        explode()
    return [reject("as told") if end == "reject" else {"batch": len(tasks)} for end in ends]


BatchHandler = batches(together)
