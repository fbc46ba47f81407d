"""Tests the handler's function with answers of its own, and the built component with a server of its own.

`make test` builds the component first.
"""

import json
import os
import pathlib
import subprocess
import tempfile
import threading
import unittest
from http.server import BaseHTTPRequestHandler, HTTPServer

# The memory comes first, because it provides what the handler imports.
from tqhost_memory import Err, Reply, memory, run

import app


def events(*pieces):
    chunks = [json.dumps({"choices": [{"delta": {"content": piece}}]}) for piece in pieces]
    return [f"data: {chunk}\n\n" for chunk in [*chunks, "[DONE]"]]


class Function(unittest.TestCase):
    def setUp(self):
        memory.reset()
        memory.config = {"url": "https://model.example/v1", "model": "small", "api_key": "k"}

    def test_the_answer_is_put_together(self):
        memory.http = [Reply(events("A short", " text."))]
        self.assertEqual(json.loads(run(app.Handler, {"content": "x"})), {"summary": "A short text."})
        asked = memory.requests[0]
        self.assertEqual(asked.url, "https://model.example/v1/chat/completions")
        self.assertEqual(asked.json()["model"], "small")
        self.assertEqual(asked.headers["authorization"], "Bearer k")

    def test_a_busy_server_is_asked_again_when_it_says(self):
        memory.http = [Reply("busy", 429, {"retry-after": "2"})]
        with self.assertRaises(Err):
            run(app.Handler, {"content": "x"})
        self.assertEqual(memory.outages, [(0, 2000)])

    def test_a_server_that_is_away_is_asked_again(self):
        memory.http = ["connection-refused"]
        with self.assertRaises(Exception):
            run(app.Handler, {"content": "x"})
        self.assertEqual(memory.outages, [(0, None)])


class FakeModel(BaseHTTPRequestHandler):
    """A server with OpenAI's interface, which knows one sentence."""

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for event in events("Seven", " words."):
            self.wfile.write(event.encode())
            self.wfile.flush()

    def log_message(self, *_):
        """It says nothing."""


class Component(unittest.TestCase):
    def test_the_component_asks_a_server(self):
        server = HTTPServer(("127.0.0.1", 0), FakeModel)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        origin = f"http://127.0.0.1:{server.server_port}"
        with tempfile.TemporaryDirectory() as folder:
            config = pathlib.Path(folder, "tqhost.toml")
            config.write_text(
                f'[queues.q]\nplugin = "p"\n[plugins.p]\nallowed_hosts = ["{origin}"]\n'
                f'config = {{ url = "{origin}/v1" }}\n'
            )
            command = [os.environ.get("TQHOST", "tqhost"), "try", "{{NAME}}.wasm", "task.json", "--json"]
            grants = ["--config", str(config), "--queue", "q"]
            ran = subprocess.run([*command, *grants], capture_output=True, text=True)
        server.shutdown()
        server.server_close()
        self.assertTrue(ran.stdout, ran.stderr)
        self.assertEqual(json.loads(ran.stdout)["result"], {"summary": "Seven words."}, ran.stdout)


if __name__ == "__main__":
    unittest.main()
