"""Files in an object store, in a part of it that is the plugin's own.

It needs the line under `For blobs` in `wit/world.wit`. In: names, and text, bytes, or anything that JSON can
represent. Out: a file's URL, its bytes, or a `BlobError`. A blob is written at once, not with the end of the
task, so name it by the task's id.

    url = blobs.put(f"{task.id}/rows.csv", "text/csv", rows)
"""

import json as _json
from collections.abc import Callable
from typing import Any, TypeVar

from componentize_py_types import Err
from tqhost import reject, retry

try:
    from wit_world.imports import blobs as _blobs
except ImportError as error:
    raise ImportError("blobs need the line under `For blobs` in wit/world.wit") from error

T = TypeVar("T")


class BlobError(Exception):
    """Why a call was refused.

    `code` is `invalid-name`, `not-found`, `too-large` or `unavailable`. If nobody catches the error, the task
    ends with `failure`: a retry if the store is unavailable, otherwise a rejection.
    """

    def __init__(self, code: str, why: str):
        super().__init__(why)
        self.code = code
        self.failure = retry(why) if code == "unavailable" else reject(why)


class _BlobsOfPlugin:
    """Blobs of the plugin.

    A name has 1 to 512 bytes: letters of ASCII, digits, `._-+=@:,`, and `/` between its parts.
    """

    def put(self, name: str, content_type: str, data: str | bytes | int | float | bool | list | dict) -> str:
        """Writes a blob as a whole, in the place of an earlier one of this name. Returns its URL.

        An empty content type stands for bytes of any kind.
        """
        return _attempt(lambda: _blobs.put(name, content_type, _bytes(data)))

    def get(self, name: str) -> bytes:
        return _attempt(lambda: _blobs.get(name))

    def text(self, name: str) -> str:
        return self._read(name, lambda data: data.decode("utf-8"))

    def json(self, name: str) -> Any:
        return self._read(name, _json.loads)

    def _read(self, name: str, convert: Callable[[bytes], T]) -> T:
        data = self.get(name)
        try:
            return convert(data)
        except ValueError as error:
            # It is the same in every attempt.
            raise reject(f"the blob `{name}` is not as expected: {error}") from None


blobs = _BlobsOfPlugin()


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        value = _json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return value.encode()


_CODES = {
    "Error_InvalidName": "invalid-name",
    "Error_NotFound": "not-found",
    "Error_TooLarge": "too-large",
    "Error_Unavailable": "unavailable",
}


def _attempt(call: Callable[[], T]) -> T:
    """Calls a function that may fail with an error of its interface."""
    try:
        return call()
    except Err as error:
        code = _CODES.get(type(error.value).__name__)
        if code is None:
            raise
        raise BlobError(code, error.value.value) from None
