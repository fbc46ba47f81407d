"""Tests the handler's function, and the built component in the sandbox of a host: no Redis, no host.

`make test` builds the component first.
"""

import json
import os
import subprocess
import unittest

# The memory comes first, because it provides what the handler imports.
from tqhost_memory import run

import app


def tried(*args):
    command = [os.environ.get("TQHOST", "tqhost"), "try", "{{NAME}}.wasm", "--json", *args]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.stdout, ran.stderr
    return json.loads(ran.stdout)


class Handler(unittest.TestCase):
    def test_words_are_counted(self):
        self.assertEqual(run(app.Handler, {"content": "one  two\nthree"}), b'{"words":3}')

    def test_the_words_of_the_sample_are_counted(self):
        ran = tried("task.json")
        self.assertEqual((ran["outcome"], ran["result"], ran["message"]), ("completed", {"words": 7}, None))

    def test_a_task_without_text_is_rejected(self):
        ran = tried("--field", "other=1")
        expected = ("reject", "field `content` is missing: it has other")
        self.assertEqual((ran["outcome"], ran["message"]), expected)


if __name__ == "__main__":
    unittest.main()
