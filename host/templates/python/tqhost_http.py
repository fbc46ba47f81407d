"""HTTP requests. They need the line `import wasi:http/outgoing-handler@0.2.4;` in `wit/world.wit`.

In: a URL and what to send. Out: the whole `Response`, whatever its status, or an `HttpError`. The host's
configuration grants the targets (`allowed_hosts`), and bounds times and sizes (`http`).

    response = request("POST", "https://api.example.com/v1/orders", body=order, timeout=20)
    if response.status == 429:
        raise unavailable("the server is busy", response.retry_after_ms())

After a failed request, or a response with status 429 or 5xx, an exception that the handler does not catch is
a retry instead of a trap. It is `unavailable` after 429, 503 and a timeout, and if there is no answer at all.
Not here: redirects, which are responses like any other, and bodies that arrive in pieces.
"""

import calendar  # noqa: F401: mktime_tz imports it when it runs, and then nothing more can be imported
import json as _json
import re
import time
from dataclasses import dataclass
from email.utils import mktime_tz, parsedate_tz

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

    def text(self) -> str:
        return self.body.decode("utf-8")

    def json(self):
        return _json.loads(self.body)

    def retry_after_ms(self) -> int | None:
        """How long the server asks to wait (`Retry-After`), for `retry`.

        Without `Retry-After` it is None, and the queue's backoff decides.
        """
        value = self.headers.get("retry-after", "").strip()
        if (parts := _DELAY.fullmatch(value)) is not None:
            # A fraction is rounded up. What is longer than any time is the longest one.
            rounded = 1 if (parts[2] or "").strip("0") else 0
            return int(min((float(parts[1]) + rounded) * 1000, _LONGEST_MS))
        until = _seconds(value)
        if until is None:
            return None
        # A date is compared with the server's own clock, if the response tells it.
        now = _seconds(self.headers.get("date", ""))
        return int(max(0, until - (time.time() if now is None else now)) * 1000)


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
    return _blocking(_exchange(method, url, headers or {}, body, timeout))


async def fetch(
    method: str,
    url: str,
    *,
    headers: dict[str, str] | None = None,
    body: bytes | str | None = None,
    timeout: float | None = None,
) -> Response:
    """Does what `request` does, while other requests and other tasks of the instance go on."""
    return await _awaiting(_exchange(method, url, headers or {}, body, timeout))


def _exchange(method, url, headers, body, timeout):
    """The steps of a request. Each yields what it waits for, and is told whether that is there in time."""
    tls, host, path = _target(url)
    content = body.encode() if isinstance(body, str) else body or b""
    rest = remaining_ms()
    most = (rest - min(rest // 10, _MARGIN_MS)) / 1000
    end = time.monotonic() + (most if timeout is None else min(most, max(0, timeout)))
    message = _message(method, tls, host, path, headers, content)
    out = message.body() if content else None
    try:
        sent = outgoing_handler.handle(message, None)
    except Err as error:
        raise _error(error.value, host) from None
    with sent:
        if out is not None:
            yield from _write(out, content, end, host)
        with sent.subscribe() as ready:
            yield from _wait(ready, end, host)
        # The response is ready, and nothing has taken it yet.
        answer = sent.get().value
        if isinstance(answer, Err):
            raise _error(answer.value, host)
        with answer.value as response:
            return (yield from _read(response, end, host))


def _blocking(steps):
    """Takes the steps one by one, and blocks where they wait."""
    told = None
    try:
        while True:
            ready, seconds = steps.send(told)
            with monotonic_clock.subscribe_duration(int(seconds * 1e9)) as timer:
                # The timer counts whatever else is there: a server could send without end.
                told = 1 not in poll.poll([ready, timer])
    except StopIteration as end:
        return end.value


async def _awaiting(steps):
    """Takes the steps one by one, and lets others go on where they wait."""
    from tqhost_loop import ready as is_ready

    told = None
    try:
        while True:
            told = await is_ready(*steps.send(told))
    except StopIteration as end:
        return end.value
    finally:
        steps.close()


# The most time that is left for the handler after a request.
_MARGIN_MS = 500

# The longest time that the host can be told.
_LONGEST_MS = 2**64 - 1

# Made when the component is built.
_DELAY = re.compile("([0-9]+)(?:[.]([0-9]+))?")
_URL = re.compile("(https?)://([^/?#]*)([^#]*)(#.*)?", re.IGNORECASE | re.DOTALL)
_WORDS = re.compile("[A-Z][a-z0-9]*")
_METHODS = {
    name: getattr(http, f"Method_{name.capitalize()}")
    for name in ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"]
}

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
    method = method.upper()
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
        message.set_method(_METHODS[method]() if method in _METHODS else http.Method_Other(method))
    except Err:
        raise HttpError("HTTP-request-method-invalid", f"there is no method `{method}`") from None
    try:
        message.set_scheme(http.Scheme_Https() if tls else http.Scheme_Http())
        message.set_authority(host)
        message.set_path_with_query(path)
    except Err:
        raise HttpError("HTTP-request-URI-invalid", _WHY["HTTP-request-URI-invalid"]) from None
    return message


def _write(out, content: bytes, end: float, host: str):
    try:
        with out.write() as stream:
            at = 0
            while at < len(content):
                room = stream.check_write()
                if room == 0:
                    with stream.subscribe() as ready:
                        yield from _wait(ready, end, host)
                else:
                    stream.write(content[at : at + room])
                    at += room
        http.OutgoingBody.finish(out, None)
    except Err:
        # If the server does not take the whole body, its response, or the error in its place, says why.
        pass


def _read(response, end: float, host: str):
    with response.headers() as fields:
        headers: dict[str, str] = {}
        for name, value in fields.entries():
            name, value = name.lower(), value.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
    pieces = []
    with response.consume() as body, body.stream() as stream:
        while True:
            try:
                piece = stream.read(64 * 1024)
            except Err as error:
                if isinstance(error.value, StreamError_Closed):
                    break
                with error.value.value as failed:
                    code = http.http_error_code(failed)
                code = code or http.ErrorCode_HttpResponseIncomplete()
                raise _error(code, host, is_answered=True) from None
            pieces.append(piece)
            if not piece:
                with stream.subscribe() as ready:
                    yield from _wait(ready, end, host)
    answer = Response(response.status(), headers, b"".join(pieces))
    if answer.status == 429 or answer.status >= 500:
        later = unavailable if answer.status in (429, 503) else retry
        failed_outside(later, answer.retry_after_ms())
    return answer


def _wait(ready, end: float, host: str):
    rest = end - time.monotonic()
    if rest <= 0 or not (yield ready, rest):
        raise HttpError("HTTP-response-timeout", _WHY["HTTP-response-timeout"].replace("{host}", host))


def _error(error, host: str, *, is_answered: bool = False) -> HttpError:
    code = _code(error, "ErrorCode_")
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
