"""Tests the built component in the sandbox of a host: no Redis, no host. `make test` builds it first."""

import json
import os
import subprocess
import unittest


def tried(*args):
    command = [os.environ.get("TQHOST", "tqhost"), "try", "{{NAME}}.wasm", "--json", *args]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.stdout, ran.stderr
    return json.loads(ran.stdout)


class Handler(unittest.TestCase):
    def test_the_words_of_the_sample_are_counted(self):
        ran = tried("task.json")
        self.assertEqual((ran["outcome"], ran["result"], ran["message"]), ("completed", {"words": 7}, None))

    def test_a_task_without_text_is_rejected(self):
        ran = tried("--field", "other=1")
        self.assertEqual((ran["outcome"], ran["message"]), ("reject", "field `content` is missing"))


if __name__ == "__main__":
    unittest.main()
