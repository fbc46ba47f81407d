"""Makes packages and modules of everyday use work in a handler: httpx, requests, urllib, and what needs them.

In: the import of such a module. Out: the module, whose requests tqhost_http makes: the host has the
connections and TLS, and its configuration grants the targets. Packages on top of them, like `openai` and
`anthropic`, need nothing more. In the sandbox sockets raise an `OSError` with a reason, `ssl` is a stand-in,
and `jiter` has one in plain Python, because its own code is native.

Not here: the requests themselves (`tqhost_http`), and what is imported at the build (`tqhost_build`).
"""

import contextlib
import importlib
import io
import json
import re
import sys
from types import ModuleType

_NO_SOCKETS = (
    "a handler has no sockets: the host makes its requests, by httpx, requests, urllib.request or tqhost_http"
)
_NO_TLS = "TLS is the host's part: it makes the connection of every request, and checks the certificate"


def install(is_sandbox: bool = sys.platform == "wasi") -> None:
    """Changes each module of the table below as soon as it is imported."""
    if is_sandbox:
        sys.modules["ssl"], sys.modules["jiter"] = _ssl(), _jiter()
        _TABLE["socket"] = _socket
    for name in _TABLE.keys() & sys.modules.keys():
        _change(sys.modules[name])
    sys.meta_path.insert(0, _Changes())


def _http():
    """tqhost_http, which needs a line in wit/world.wit: so it is imported with the first of the packages."""
    if _why_not is not None:
        raise RuntimeError(_why_not)
    return sys.modules["tqhost_http"]


_why_not: str | None = None


def _import_http() -> None:
    global _why_not
    try:
        importlib.import_module("tqhost_http")
    except ImportError as error:
        _why_not = str(error)


def _send(method, url, headers, content, timeout):
    """The response of a request, whose body arrives in pieces, with its content coding as it is."""
    return _http().stream(method, url, headers=headers, body=content, timeout=timeout, decoded=False)


def _httpx(httpx) -> None:
    """The transports of httpx, and of httpx2, which has the same interface."""

    @contextlib.contextmanager
    def telling(request):
        """Errors become those of httpx."""
        http = _http()
        try:
            yield
        except http.HttpError as error:
            kind = httpx.ReadTimeout if error.code in http.TOO_LATE else httpx.ConnectError
            raise kind(str(error), request=request) from error

    def parts(request, content):
        limits = [limit for limit in request.extensions.get("timeout", {}).values() if limit is not None]
        headers = _without_framing(request.headers.multi_items())
        return request.method, str(request.url), headers, content, max(limits, default=None)

    class Stream(httpx.SyncByteStream):
        def __init__(self, sent, request):
            self.sent, self.request = sent, request

        def __iter__(self):
            with telling(self.request):
                yield from self.sent

        def close(self):
            self.sent.close()

    class AsyncStream(httpx.AsyncByteStream):
        def __init__(self, sent, request):
            self.sent, self.request = sent, request

        async def __aiter__(self):
            with telling(self.request):
                async for piece in self.sent:
                    yield piece

        async def aclose(self):
            await self.sent.aclose()

    def handle(_self, request):
        with telling(request):
            sent = _send(*parts(request, request.read()))
        return httpx.Response(sent.status, headers=sent.fields, stream=Stream(sent, request))

    async def handle_async(_self, request):
        content = await request.aread()
        with telling(request):
            sent = await _http().begin(*parts(request, content), is_whole=False)
        return httpx.Response(sent.status, headers=sent.fields, stream=AsyncStream(sent, request))

    def nothing(_self, *_, **__):
        """There is no pool of connections."""

    async def nothing_async(_self, *_):
        """There is no pool of connections."""

    async def enter_async(self):
        return self

    def is_timeout(value):
        if not isinstance(value, httpx.Timeout):
            raise TypeError("this is not a Timeout")
        return value

    # Otherwise the models of Pydantic 1 change the constructor of this class, and `timeout=` is lost.
    httpx.Timeout.__get_validators__ = staticmethod(lambda: iter([is_timeout]))
    for kind in (httpx.HTTPTransport, httpx.AsyncHTTPTransport):
        kind.__init__ = kind.__exit__ = kind.close = nothing
        kind.__enter__ = lambda self: self
        kind.__aenter__ = enter_async
        kind.__aexit__ = kind.aclose = nothing_async
    httpx.HTTPTransport.handle_request = handle
    httpx.AsyncHTTPTransport.handle_async_request = handle_async


def _without_framing(headers):
    """The host frames the message."""
    own = ("host", "connection", "content-length", "transfer-encoding")
    return {name: value for name, value in headers if name.lower() not in own}


def _requests(adapters) -> None:
    """The adapter of requests."""
    from requests import exceptions
    from urllib3.response import HTTPResponse

    def send(self, request, stream=False, timeout=None, verify=True, cert=None, proxies=None):
        limits = timeout if isinstance(timeout, tuple) else (timeout,)
        body = request.body
        if hasattr(body, "read"):
            body = body.read()
        elif body is not None and not isinstance(body, (bytes, str)):
            body = b"".join(body)
        seconds = sum(limit for limit in limits if limit is not None) or None
        headers = _without_framing(request.headers.items())
        try:
            sent = _send(request.method, request.url, headers, body, seconds)
            raw = HTTPResponse(
                io.BytesIO(b"".join(sent)),
                headers=sent.fields,
                status=sent.status,
                preload_content=False,
            )
        except _http().HttpError as error:
            is_late = error.code in _http().TOO_LATE
            kind = exceptions.ReadTimeout if is_late else exceptions.ConnectionError
            raise kind(str(error), request=request) from error
        return self.build_response(request, raw)

    adapters.HTTPAdapter.send = send


def _urllib(module) -> None:
    """The handlers of http: and https: in urllib.request."""
    from email.message import Message
    from urllib.error import URLError
    from urllib.response import addinfourl

    def send(_self, request):
        body = request.data
        if body is not None and not isinstance(body, (bytes, str)):
            body = body.read() if hasattr(body, "read") else b"".join(body)
        headers = _without_framing({**request.headers, **request.unredirected_hdrs}.items())
        timeout = request.timeout if isinstance(request.timeout, (int, float)) else None
        url = request.full_url.partition("#")[0]
        try:
            with _send(request.get_method(), url, headers, body, timeout) as sent:
                content = b"".join(sent)
        except _http().HttpError as error:
            late = error.code in _http().TOO_LATE
            raise URLError(TimeoutError(str(error)) if late else OSError(str(error))) from error
        fields = Message()
        for name, value in sent.fields:
            fields[name] = value
        response = addinfourl(io.BytesIO(content), fields, request.full_url, sent.status)
        response.msg = response.reason = ""
        return response

    class Https(module.AbstractHTTPHandler):
        https_open = send
        https_request = module.AbstractHTTPHandler.do_request_

        def __init__(self, *_, **__):
            super().__init__()

    module.HTTPHandler.http_open = send
    module.HTTPSHandler = Https


def _socket(module) -> None:
    def refuse(*_, **__):
        raise OSError(_NO_SOCKETS)

    module.socket.__init__ = refuse
    names = "getaddrinfo getnameinfo gethostbyname gethostbyname_ex gethostbyaddr socketpair fromfd"
    for name in names.split():
        setattr(module, name, refuse)


def _ssl() -> ModuleType:
    """What packages look for in `ssl` when they are imported. Its settings have no effect."""
    module = ModuleType("ssl", "A stand-in: the host makes the connections.")

    def refuse(*_, **__):
        raise OSError(_NO_TLS)

    class SSLContext:
        options = verify_mode = verify_flags = minimum_version = maximum_version = 0
        check_hostname = post_handshake_auth = False
        keylog_filename = None
        wrap_socket = wrap_bio = refuse

        def __init__(self, protocol=None):
            self.protocol = protocol

        def nothing(self, *_, **__):
            """The host has the certificates."""

        load_verify_locations = load_default_certs = load_cert_chain = set_default_verify_paths = nothing
        set_alpn_protocols = set_ciphers = nothing

        def get_ca_certs(self, *_):
            return []

    class TLSVersion(int):
        TLSv1 = TLSv1_1 = TLSv1_2 = TLSv1_3 = MINIMUM_SUPPORTED = MAXIMUM_SUPPORTED = 0

    def missing(name):
        # Constants are numbers that nobody reads.
        if name.isupper() or re.fullmatch("(CERT|OP|PROTOCOL|VERIFY|HAS|ALERT)_[A-Za-z0-9_]+", name):
            return 0
        raise AttributeError(f"`ssl` has no `{name}` here: {_NO_TLS}")

    class SSLError(OSError):
        pass

    errors = "CertificateError SSLCertVerificationError SSLWantReadError SSLWantWriteError SSLSyscallError"
    for name in f"{errors} SSLEOFError SSLZeroReturnError".split():
        setattr(module, name, type(name, (SSLError,), {}))
    module.__dict__.update(
        SSLError=SSLError,
        SSLContext=SSLContext,
        SSLSocket=type("SSLSocket", (), {}),
        SSLObject=type("SSLObject", (), {}),
        MemoryBIO=type("MemoryBIO", (), {}),
        TLSVersion=TLSVersion,
        OPENSSL_VERSION="none: the host makes the connections",
        OPENSSL_VERSION_INFO=(3, 0, 0, 0, 0),
        create_default_context=lambda *_, **__: SSLContext(),
        _create_unverified_context=lambda *_, **__: SSLContext(),
        get_server_certificate=refuse,
        __getattr__=missing,
    )
    return module


def _jiter() -> ModuleType:
    """The parser that `openai` and `anthropic` use, for JSON that may be cut off, too."""
    module = ModuleType("jiter", "A stand-in in plain Python.")

    def from_json(data, /, *, partial_mode=False, **_):
        text = bytes(data).decode()
        try:
            return json.loads(text)
        except ValueError:
            if partial_mode in (False, "off"):
                raise
            return _of_beginning(text, partial_mode == "trailing-strings")

    module.__dict__.update(
        from_json=from_json, cache_clear=lambda: None, cache_usage=lambda: 0, LosslessFloat=float
    )
    return module


def _of_beginning(text: str, keeps_strings: bool):
    """The value of JSON that is cut off: what is complete in it; with `keeps_strings` a last text, too."""
    closers, in_string, at, ends = [], False, 0, []
    while at < len(text):
        sign = text[at]
        if in_string:
            at += sign == "\\"
            in_string = sign != '"'
        elif sign == '"':
            in_string = True
        elif sign in "[{":
            closers.append("]" if sign == "[" else "}")
            ends.append((at + 1, closers[:]))
        elif sign in "]}" and closers:
            closers.pop()
            ends.append((at + 1, closers[:]))
        elif sign == ",":
            ends.append((at, closers[:]))
        at += 1
    close = lambda these: "".join(reversed(these))  # noqa: E731
    tries = []
    if in_string and keeps_strings:
        # An escape may be cut off, too.
        cut = re.sub(r"\\(u[0-9a-fA-F]{0,3})?$", "", text)
        tries += [cut + '"' + close(closers)]
    tries += [text + close(closers)]
    tries += [text[:end] + close(these) for end, these in reversed(ends)]
    for each in tries:
        try:
            return json.loads(each)
        except ValueError:
            continue
    raise ValueError("this is not the beginning of JSON")


# Each module, and what is done to it after its import.
_TABLE = {
    "httpx": _httpx,
    "httpx2": _httpx,
    "requests.adapters": _requests,
    "urllib.request": _urllib,
}


def _change(module: ModuleType) -> None:
    if module.__name__ != "socket":
        _import_http()
    _TABLE[module.__name__](module)


class _Changes:
    """Finds the modules of the table where Python would, and changes them after they have run."""

    def find_spec(self, name, path=None, target=None):
        if name not in _TABLE:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                spec.loader = _Changed(spec.loader)
                return spec
        return None


class Late:
    """Finds nothing, but says why."""

    def find_spec(self, name, path=None, target=None):
        raise ModuleNotFoundError(
            f"`{name}` is imported while a task runs, and was not imported when the component was built: "
            "import it at the top of app.py",
            name=name,
        )


class _Changed:
    def __init__(self, loader):
        self.loader = loader

    def __getattr__(self, name):
        return getattr(self.loader, name)

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        self.loader.exec_module(module)
        _change(module)
