"""A guest of componentize-py without any option, in the published world `task-handler`, without helpers.

It returns what the standard library finds. With the field `end` it raises an exception that has a cause.
"""

import json
import os
import random
import time
import uuid


class Handler:
    def handle(self, task):
        if any(field.name == "end" for field in task.fields):
            try:
                raise ValueError("the cause")
            except ValueError as error:
                raise LookupError("boom in Python") from error
        print("printed in Python")
        began = time.time()
        time.sleep(0.02)
        try:
            files = os.listdir("/")
        except OSError as error:
            files = type(error).__name__
        found = {"files": files, "variables": len(os.environ)}
        times = {"seconds": began, "slept": time.time() - began}
        drawn = {"uuid": str(uuid.uuid4()), "random": random.SystemRandom().random()}
        return json.dumps({**found, **times, **drawn}).encode()
