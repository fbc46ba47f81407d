"""A Redis client for the old consumers of the tests: the Python standard library, and no packages.

In: commands. Out: replies, with bulk strings as bytes. A reply of RESP 2 only. Not here: what is consumed.
"""

import socket


class Redis:
    def __init__(self, port):
        self.stream = socket.create_connection(("127.0.0.1", port)).makefile("rwb")

    def call(self, *args):
        self.stream.write(b"*%d\r\n" % len(args))
        for arg in args:
            arg = arg if isinstance(arg, bytes) else str(arg).encode()
            self.stream.write(b"$%d\r\n%s\r\n" % (len(arg), arg))
        self.stream.flush()
        return self._reply()

    def _reply(self):
        line = self.stream.readline()
        if not line:
            raise ConnectionError("Redis closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest
        if kind == b"-":
            raise RuntimeError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self.stream.read(int(rest) + 2)[:-2]
        return None if rest == b"-1" else [self._reply() for _ in range(int(rest))]
