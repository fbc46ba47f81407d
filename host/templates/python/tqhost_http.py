"""HTTP requests. They need the line `import wasi:http/outgoing-handler@0.2.4;` in `wit/world.wit`.

In: a URL and what to send. Out: the whole `Response`, whatever its status, or an `HttpError`. The host's
configuration grants the targets (`allowed_hosts`), and bounds times and sizes (`http`).

    response = request("POST", "https://api.example.com/v1/orders", body=order, timeout=20)
    if response.status == 429:
        raise unavailable("the server is busy", response.retry_after_ms())

    response = await fetch("GET", "https://api.example.com/v1/orders/7")

    with stream("GET", "https://api.example.com/v1/rows") as answer:
        for piece in answer: ...

While `request` and `stream` wait, the whole instance does. With `fetch`, other requests and other tasks of
the instance go on.

After a failed request, or a response with status 429 or 5xx, an exception that the handler does not catch is
a retry instead of a trap. It is `unavailable` after 429, 503 and a timeout, and if there is no answer at all.
Not here: redirects, which are responses like any other; httpx, requests and urllib (`tqhost_packages`).
"""

import calendar  # noqa: F401: mktime_tz imports it when it runs, and then nothing more can be imported
import json as _json
import re
import time
import zlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from email.utils import mktime_tz, parsedate_tz
from typing import Any, NamedTuple

from componentize_py_types import Err
from tqhost import failed_outside, reject, remaining_ms, retry, unavailable

try:
    from wit_world.imports import http_types as http
    from wit_world.imports import monotonic_clock, outgoing_handler, poll
    from wit_world.imports.streams import StreamError_Closed
except ImportError as error:
    raise ImportError(
        "requests need the line `import wasi:http/outgoing-handler@0.2.4;` in wit/world.wit"
    ) from error


@dataclass
class Response:
    status: int
    headers: dict[str, str]
    """Names in lower case. Several values of one name are joined with `, `."""
    body: bytes
    fields: list[tuple[str, str]] = field(default_factory=list)
    """The headers as the server has sent them, one by one."""

    def text(self) -> str:
        return self.body.decode("utf-8")

    def json(self):
        return _json.loads(self.body)

    def retry_after_ms(self) -> int | None:
        """How long the server asks to wait (`Retry-After`), for `retry`.

        Without `Retry-After` it is None, and the queue's backoff decides.
        """
        return _retry_after_ms(self.headers)


class Answer:
    """A response whose body arrives in pieces: iterate over it once. `with` ends the request in any case."""

    def __init__(self, status: int, fields: list[tuple[str, str]], pieces):
        self.status = status
        self.fields = fields
        self.headers: dict[str, str] = {}
        for name, value in fields:
            name = name.lower()
            self.headers[name] = f"{self.headers[name]}, {value}" if name in self.headers else value
        self._pieces = self._sent = pieces
        if status == 429 or status >= 500:
            failed_outside(unavailable if status in (429, 503) else retry, self.retry_after_ms())

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces

    def __aiter__(self) -> AsyncIterator[bytes]:
        """The pieces of an answer of `begin`."""
        return self._pieces

    async def aclose(self) -> None:
        await self._sent.aclose()

    def __enter__(self) -> "Answer":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        self._pieces.close()
        self._sent.close()

    def retry_after_ms(self) -> int | None:
        """The same as that of a `Response`."""
        return _retry_after_ms(self.headers)

    def lines(self) -> Iterator[str]:
        """The lines of a body of text, each when it is complete."""
        rest = b""
        for piece in self:
            *whole, rest = (rest + piece).split(b"\n")
            yield from (line.rstrip(b"\r").decode("utf-8") for line in whole)
        if rest:
            yield rest.decode("utf-8")


class HttpError(Exception):
    """Why there is no response. The text names the host of the URL, but no path, header or body.

    `code` is one of wasi:http's `error-code` (`HTTP-request-denied`, `connection-refused`, …) or
    `header-error` (`forbidden`, `invalid-syntax`). If nobody catches the error, the task ends with `failure`:
    a retry, `unavailable` where the server does not answer at all or in time, or a rejection where the same
    error would happen again.
    """

    def __init__(self, code: str, why: str, *, is_answered: bool = False):
        super().__init__(why)
        self.code = code
        is_down = code in _UNREACHABLE or (code in _CUT and not is_answered)
        later = unavailable if is_down else retry
        self.failure = reject(why) if code in _THE_SAME_AGAIN else later(why)
        if code not in _THE_SAME_AGAIN | _REFUSED:
            failed_outside(later)


def request(
    method: str,
    url: str,
    *,
    headers: dict[str, str] | None = None,
    body: bytes | str | None = None,
    timeout: float | None = None,
) -> Response:
    """Sends a request and waits for the whole response.

    `timeout` is in seconds, for the whole response. By default, and at most, a request may take a little less
    than the rest of the attempt: a tenth of it less, up to half a second. So the handler can still tell that
    the server did not answer.
    """
    pieces = _blocking(_steps(method, url, headers, body, timeout, is_whole=True))
    with Answer(*next(pieces), pieces) as sent:
        content = b"".join(_decoded(sent.headers, sent))
    return Response(sent.status, sent.headers, content, sent.fields)


async def fetch(
    method: str,
    url: str,
    *,
    headers: dict[str, str] | None = None,
    body: bytes | str | None = None,
    timeout: float | None = None,
) -> Response:
    """Does what `request` does, while other requests and other tasks of the instance go on."""
    sent = await begin(method, url, headers, body, timeout, is_whole=True)
    content = b"".join(_decoded(sent.headers, [piece async for piece in sent]))
    return Response(sent.status, sent.headers, content, sent.fields)


async def begin(method, url, headers, body, timeout, *, is_whole: bool) -> Answer:
    """For `fetch` and tqhost_packages: waits for the head. `async for` brings the body as it was sent."""
    pieces = _awaiting(_steps(method, url, headers, body, timeout, is_whole))
    return Answer(*await anext(pieces), pieces)


def stream(
    method: str,
    url: str,
    *,
    headers: dict[str, str] | None = None,
    body: bytes | str | None = None,
    timeout: float | None = None,
    decoded: bool = True,
) -> Answer:
    """Sends a request and waits for the head of the response.

    `timeout` is in seconds, for the head and then for each piece of the body. Without `decoded`, a body with
    `content-encoding` stays as it is.
    """
    pieces = _blocking(_steps(method, url, headers, body, timeout, is_whole=False))
    sent = Answer(*next(pieces), pieces)
    if decoded:
        sent._pieces = _decoded(sent.headers, sent._pieces)
    return sent


class _Wait(NamedTuple):
    """What a step waits for. It is told whether that is there in time."""

    ready: Any
    seconds: float


def _blocking(steps) -> Iterator:
    """What the steps find. The whole instance waits where they wait."""
    told = None
    try:
        while True:
            step = steps.send(told)
            told = None
            if isinstance(step, _Wait):
                with monotonic_clock.subscribe_duration(int(step.seconds * 1e9)) as timer:
                    told = 1 not in poll.poll([step.ready, timer])
            else:
                yield step
    except StopIteration:
        return
    finally:
        steps.close()


async def _awaiting(steps) -> AsyncIterator:
    """What the steps find. Others go on where they wait."""
    told = None
    try:
        while True:
            step = steps.send(told)
            told = None
            if isinstance(step, _Wait):
                # A unit test has no event loop of ours, and never waits here.
                from tqhost_loop import ready

                told = await ready(step.ready, step.seconds)
            else:
                yield step
    except StopIteration:
        return
    finally:
        steps.close()


def _steps(method, url, headers, body, timeout, is_whole: bool):
    """What a request waits for, and what it finds: the status with the headers, then pieces of the body."""
    content = body.encode() if isinstance(body, str) else body or b""
    exchange = _exchange if _answered is None else _answered
    return exchange(method.upper(), url, headers or {}, content, timeout, is_whole)


def _exchange(method, url, headers, content, timeout, is_whole):
    tls, host, path = _target(url)
    clock = _Clock(timeout, is_whole, host)
    message = _message(method, tls, host, path, headers, content)
    out = message.body() if content else None
    try:
        sent = outgoing_handler.handle(message, None)
    except Err as error:
        raise _error(error.value, host) from None
    with sent:
        if out is not None:
            yield from _write(out, content, clock)
        with sent.subscribe() as ready:
            yield from clock.wait(ready)
        # The response is ready, and nothing has taken it yet.
        answer = sent.get().value
        if isinstance(answer, Err):
            raise _error(answer.value, host)
        with answer.value as response:
            with response.headers() as fields:
                head = [(name, value.decode("latin-1")) for name, value in fields.entries()]
            yield response.status(), head
            yield from _pieces(response, clock)


class _Clock:
    """Bounds the waits of one request: all together, or each of them."""

    def __init__(self, timeout: float | None, is_whole: bool, host: str):
        rest = remaining_ms()
        most = (rest - min(rest // 10, _MARGIN_MS)) / 1000
        self.each = most if timeout is None else min(most, max(0, timeout))
        self.end = time.monotonic() + (self.each if is_whole else most)
        self.host = host

    def wait(self, ready):
        if not (yield _Wait(ready, self.rest())):
            raise self.late()

    def rest(self) -> float:
        """The time that is left. It counts whatever is there: a server could send without end."""
        rest = min(self.each, self.end - time.monotonic())
        if rest <= 0:
            raise self.late()
        return rest

    def late(self) -> HttpError:
        return failure_of("HTTP-response-timeout", self.host)


def _decoded(headers: dict[str, str], pieces) -> Iterator[bytes]:
    """The pieces of the body, without its content coding."""
    coding = headers.get("content-encoding", "").strip().lower()
    if coding not in ("gzip", "x-gzip", "deflate"):
        yield from pieces
        return
    decoder = None
    try:
        for piece in filter(None, pieces):
            if decoder is None:
                # Some servers send deflate without its head.
                is_bare = coding == "deflate" and piece[0] & 0x0F != 8
                decoder = zlib.decompressobj(-15 if is_bare else 47)
            yield decoder.decompress(piece)
        if decoder is not None:
            yield decoder.flush()
    except zlib.error as error:
        raise HttpError("HTTP-response-content-coding", f"the body is not {coding}: {error}") from None


# The most time that is left for the handler after a request.
_MARGIN_MS = 500

# The longest time that the host can be told.
_LONGEST_MS = 2**64 - 1

# With these codes the time was over.
TOO_LATE = {
    "HTTP-response-timeout",
    "connection-timeout",
    "connection-read-timeout",
    "connection-write-timeout",
}

# A unit test's answer in place of the network, from tqhost_memory.
_answered = getattr(outgoing_handler, "answered", None)

# Made when the component is built.
_DELAY = re.compile("([0-9]+)(?:[.]([0-9]+))?")
_URL = re.compile("(https?)://([^/?#]*)([^#]*)(#.*)?", re.IGNORECASE | re.DOTALL)
_WORDS = re.compile("[A-Z][a-z0-9]*")
_METHODS = {"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"}

_THE_SAME_AGAIN = {
    "HTTP-request-URI-invalid",
    "HTTP-request-method-invalid",
    "HTTP-request-body-size",
    "HTTP-response-body-size",
    "forbidden",
    "invalid-syntax",
}

# With these codes the host refused the request, and sent nothing.
_REFUSED = {"HTTP-request-denied", "destination-IP-prohibited"}

# With these codes no server answers, whatever the request asks for.
_UNREACHABLE = {
    "DNS-error",
    "DNS-timeout",
    "destination-not-found",
    "destination-unavailable",
    "destination-IP-unroutable",
    "TLS-protocol-error",
    "TLS-certificate-error",
    "TLS-alert-received",
    "configuration-error",
    "connection-refused",
    "connection-timeout",
    "connection-read-timeout",
    "connection-write-timeout",
    "HTTP-response-timeout",
}

# With these codes the connection ended before the answer or within it.
_CUT = {"connection-terminated", "HTTP-response-incomplete"}

_WHY = {
    "HTTP-request-denied": "the request to {host} is refused: "
    "the plugin's allowed_hosts do not allow it, or max_requests were made",
    "destination-IP-prohibited": "the request to {host} is refused: its address is not public",
    "HTTP-request-URI-invalid": "the url has characters that it cannot have",
    "HTTP-request-body-size": "the request is larger than the plugin's max_request_body",
    "HTTP-response-body-size": "the response is larger than the plugin's max_response_body",
    "HTTP-response-timeout": "{host} did not answer in time",
    "connection-read-timeout": "{host} did not answer in time",
    "connection-write-timeout": "{host} did not answer in time",
    "connection-timeout": "{host} could not be reached in time",
    "connection-refused": "{host} refuses connections",
    "connection-terminated": "{host} ended the connection too early",
    "HTTP-response-incomplete": "{host} ended the connection too early",
    "DNS-error": "{host} could not be looked up",
    "DNS-timeout": "{host} could not be looked up",
    "TLS-certificate-error": "the certificate of {host} is not trusted",
}


def _target(url: str) -> tuple[bool, str, str]:
    """The parts of a URL, which wasi:http takes one by one."""
    parts = _URL.fullmatch(url)
    if parts is None:
        raise HttpError("HTTP-request-URI-invalid", "the url does not begin with http:// or https://")
    scheme, host, path, _ = parts.groups()
    if host == "" or "@" in host:
        raise HttpError("HTTP-request-URI-invalid", "the url has no host, or a user name in it")
    return scheme.lower() == "https", host, path if path.startswith("/") else f"/{path}"


def _message(method: str, tls: bool, host: str, path: str, headers: dict[str, str], content: bytes):
    fields = http.Fields()
    size = {"content-length": str(len(content))} if content or method in ("POST", "PUT", "PATCH") else {}
    for name, value in {**headers, **size}.items():
        try:
            fields.append(name, value.encode())
        except Err as error:
            # The value may be a secret.
            code = _code(error.value, "HeaderError_")
            raise HttpError(code, f"the header `{name}` cannot be sent") from None
    message = http.OutgoingRequest(fields)
    try:
        is_known = method in _METHODS
        kind = getattr(http, f"Method_{method.capitalize()}") if is_known else http.Method_Other
        message.set_method(kind() if is_known else kind(method))
    except Err:
        raise HttpError("HTTP-request-method-invalid", f"there is no method `{method}`") from None
    try:
        message.set_scheme(http.Scheme_Https() if tls else http.Scheme_Http())
        message.set_authority(host)
        message.set_path_with_query(path)
    except Err:
        raise HttpError("HTTP-request-URI-invalid", _WHY["HTTP-request-URI-invalid"]) from None
    return message


def _write(out, content: bytes, clock: _Clock):
    try:
        with out.write() as stream:
            at = 0
            while at < len(content):
                room = stream.check_write()
                if room == 0:
                    with stream.subscribe() as ready:
                        yield from clock.wait(ready)
                else:
                    stream.write(content[at : at + room])
                    at += room
        http.OutgoingBody.finish(out, None)
    except Err:
        # If the server does not take the whole body, its response, or the error in its place, says why.
        pass


def _pieces(response, clock: _Clock):
    with response.consume() as body, body.stream() as stream, stream.subscribe() as ready:
        while True:
            try:
                piece = stream.read(64 * 1024)
            except Err as error:
                if isinstance(error.value, StreamError_Closed):
                    break
                with error.value.value as failed:
                    code = http.http_error_code(failed)
                code = code or http.ErrorCode_HttpResponseIncomplete()
                raise _error(code, clock.host, is_answered=True) from None
            if piece:
                clock.rest()
                yield piece
            else:
                yield from clock.wait(ready)


def _retry_after_ms(headers: dict[str, str]) -> int | None:
    value = headers.get("retry-after", "").strip()
    if (parts := _DELAY.fullmatch(value)) is not None:
        # A fraction is rounded up. What is longer than any time is the longest one.
        rounded = 1 if (parts[2] or "").strip("0") else 0
        return int(min((float(parts[1]) + rounded) * 1000, _LONGEST_MS))
    until = _seconds(value)
    if until is None:
        return None
    # A date is compared with the server's own clock, if the response tells it.
    now = _seconds(headers.get("date", ""))
    return int(max(0, until - (time.time() if now is None else now)) * 1000)


def _error(error, host: str, *, is_answered: bool = False) -> HttpError:
    return failure_of(_code(error, "ErrorCode_"), host, is_answered=is_answered)


def failure_of(code: str, host: str, *, is_answered: bool = False) -> HttpError:
    """The error with this code."""
    why = _WHY.get(code, "the request to {host} failed: " + code).replace("{host}", host)
    return HttpError(code, why, is_answered=is_answered)


def _code(case, prefix: str) -> str:
    """The name in WIT: `HttpRequestDenied` is `HTTP-request-denied`."""
    words = _WORDS.findall(type(case).__name__.removeprefix(prefix))
    upper = ("Http", "Dns", "Tls", "Ip", "Uri")
    return "-".join(word.upper() if word in upper else word.lower() for word in words)


def _seconds(date: str) -> int | None:
    """The time of an HTTP date, since the Unix epoch."""
    try:
        parsed = parsedate_tz(date)
        return None if parsed is None else mktime_tz(parsed)
    except (ValueError, OverflowError, IndexError, TypeError):
        return None
