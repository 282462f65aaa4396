"""Objects in a class for archives: a store that keeps them back until it was asked to retrieve them.

    cold = ColdObjects(proxy, bucket)
    cold.freeze("topics/orders")            # keys that have this in them
    ...                                     # GET: 403 InvalidObjectState; POST ?restore: 202, then 409
    cold.warm()                             # what was asked for can be read

The real server has one class. It keeps the objects, and the proxy says what S3 says of them: `InvalidObjectState`, the
class in lists, `x-amz-restore` and `x-amz-archive-status` in the headers of an object.
"""

from __future__ import annotations

import re
import threading
from urllib.parse import unquote

from tests.cluster.s3_proxy import Exchange, S3Proxy, answer

COLD, ASKED, WARM = "cold", "asked", "warm"
EXPIRY = 'expiry-date="Fri, 21 Dec 2412 00:00:00 GMT"'
_CONTENTS = re.compile(rb"<Contents>.*?</Contents>", re.DOTALL)
_CLASS = re.compile(rb"<StorageClass>.*?</StorageClass>")


class ColdObjects:
    """The cold objects of a bucket behind a proxy. `frozen`: what is to be cold, by a part of its key. `asked`: the key
    and the body of each request to retrieve one. `refuses`: the answer to all of these, if there is one."""

    def __init__(self, proxy: S3Proxy, bucket: str, storage_class: str = "GLACIER") -> None:
        self._bucket = bucket
        self._class = storage_class
        self._states: dict[str, str] = {}
        self._lock = threading.Lock()
        self.frozen: tuple[str, ...] = ()
        self.asked: list[tuple[str, str]] = []
        self.refuses: tuple[str, str] | None = None
        proxy.always(self._answer)

    def freeze(self, *parts: str) -> None:
        """From now on objects whose keys have one of these in them are cold, unless they are asked for or warm."""
        self.frozen = parts

    def warm(self) -> None:
        """Let what was asked for be readable."""
        with self._lock:
            self._states = {key: WARM if state == ASKED else state for key, state in self._states.items()}

    def expire(self) -> None:
        """The copies of what was retrieved are gone."""
        with self._lock:
            self._states.clear()

    def states(self) -> dict[str, str]:
        """The states of all objects that were asked for or looked at."""
        with self._lock:
            return dict(self._states)

    def _state(self, key: str) -> str:
        if not any(part in key for part in self.frozen):
            return ""
        return self._states.setdefault(key, COLD)

    def _answer(self, exchange: Exchange) -> None:
        method, target, _ = exchange.line.decode().split(" ")
        path, _, query = target.partition("?")
        key = unquote(path).removeprefix(f"/{self._bucket}").removeprefix("/")
        with self._lock:
            state = self._state(key) if key else ""
            if state and method == "POST" and "restore" in query:
                self._retrieve(exchange, key, state)
                return
        if state in (COLD, ASKED) and method == "GET":
            body = f"<StorageClass>{self._class}</StorageClass>"
            answer("403 Forbidden", "InvalidObjectState", f"no</Message>{body}<Message>")(exchange)
            return
        data = exchange.forward()
        if state and method == "HEAD":
            data = self._headed(data, state)
        elif not key and "list-type=2" in query:
            data = self._listed(data)
        exchange.send(data)

    def _retrieve(self, exchange: Exchange, key: str, state: str) -> None:
        self.asked.append((key, exchange.body.decode()))
        if self.refuses is not None:
            answer(*self.refuses)(exchange)
        elif state == ASKED:
            answer("409 Conflict", "RestoreAlreadyInProgress")(exchange)
        else:
            self._states[key] = ASKED if state == COLD else state
            exchange.send(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    def _headed(self, data: bytes, state: str) -> bytes:
        head, end, rest = data.partition(b"\r\n\r\n")
        lines = [f"x-amz-storage-class: {self._class}"]
        if self._class == "INTELLIGENT_TIERING" and state != WARM:
            lines.append("x-amz-archive-status: ARCHIVE_ACCESS")
        if state == ASKED:
            lines.append('x-amz-restore: ongoing-request="true"')
        if state == WARM and self._class != "INTELLIGENT_TIERING":
            lines.append(f'x-amz-restore: ongoing-request="false", {EXPIRY}')
        kept = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"x-amz-storage-class")]
        return b"\r\n".join([*kept, *(line.encode() for line in lines)]) + end + rest

    def _listed(self, data: bytes) -> bytes:
        head, end, body = data.partition(b"\r\n\r\n")
        body = _CONTENTS.sub(self._classed, body)
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
        assert not any(line.lower().startswith(b"transfer-encoding") for line in lines)
        return b"\r\n".join([*lines, b"Content-Length: %d" % len(body)]) + end + body

    def _classed(self, found: re.Match[bytes]) -> bytes:
        item = found.group()
        key = re.search(rb"<Key>(.*?)</Key>", item)
        assert key is not None
        with self._lock:
            if not self._state(unquote(key.group(1).decode())):
                return item
        named = f"<StorageClass>{self._class}</StorageClass>".encode()
        return _CLASS.sub(b"", item).replace(b"</Contents>", named + b"</Contents>")
