"""A small S3 over HTTP, with objects in memory, that can fail: one bucket, whole objects, conditional creates.

    with S3Front(world) as front:
        storage = front.storage()

It speaks what `logkeep_engine.storage` sends through botocore for small objects. Multipart uploads are not
there: simulated archives are small.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import socket
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from enum import StrEnum
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from logkeep_engine.contract import names
from logkeep_engine.storage.place import BucketPlace
from logkeep_engine.storage.s3 import S3Storage
from tests.simulation.cluster import World

BUCKET = "simulated"
SLOW_SECONDS = 0.05


class HttpKind(StrEnum):
    """A thing that a store does instead of answering well."""

    SLOW_DOWN = "503 SlowDown"
    INTERNAL = "500 InternalError, after it was done"
    SLOW = "slow"
    LOST_ANSWER = "done, connection dropped"
    DROPPED = "connection dropped"
    CUT_BODY = "body cut short"
    STALE_LIST = "list without the newest object"
    SILENCE = "no answer"


@dataclass(slots=True)
class HttpFault:
    """A fault after so many requests of a method (`GET`, `PUT`, `LIST`, `POST`, `HEAD`), so many times."""

    kind: HttpKind
    method: str
    after: int
    times: int = 1

    def __str__(self) -> str:
        return f"S3 {self.method}: {self.kind.value}, after {self.after}, {self.times} times"


@dataclass(frozen=True, slots=True)
class _Request:
    method: str  # LIST for the listing of the bucket
    key: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class S3Front:
    """A context manager; its listener lives in the loop of `world`."""

    def __init__(self, world: World) -> None:
        self.objects: dict[str, bytes] = {}
        self.faults: list[HttpFault] = []
        self.used: Counter[str] = Counter()
        self._world = world
        self._written: dict[str, float] = {}  # when, in seconds since the epoch
        self._newest = ""
        self._connections: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen(64)
        self._socket.setblocking(False)
        self.endpoint = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._world.do(self._start)
        self._storage = S3Storage(
            BucketPlace(f"s3://{BUCKET}/archive", self.endpoint, None, names.OWN_KEYS, identity=False),
            {names.ENV_S3_ACCESS_KEY: "simulated", names.ENV_S3_SECRET_KEY: "simulated"},
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._world.do(self._stop)
        self._socket.close()

    def storage(self) -> S3Storage:
        """The archive's, empty. Always the same: making a client of botocore takes longer than a schedule."""
        self.objects.clear()
        self.faults.clear()
        self._newest = ""
        return self._storage

    def heal(self) -> None:
        self.faults.clear()

    def _start(self) -> None:
        self._server = self._world.loop.create_task(self._accept())

    def _stop(self) -> None:
        self._server.cancel()
        self._world.loop.remove_reader(self._socket)
        for task in self._connections:
            task.cancel()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            client, _ = await loop.sock_accept(self._socket)
            client.setblocking(False)
            task = loop.create_task(self._serve(client))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

    async def _serve(self, client: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=client, limit=1 << 20)
        try:
            while True:
                await self._one(await _read_request(reader, writer), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.transport.abort()

    async def _one(self, request: _Request, writer: asyncio.StreamWriter) -> None:
        kind = self._take(request.method)
        if kind is HttpKind.DROPPED:
            raise ConnectionResetError
        if kind is HttpKind.SILENCE:
            await asyncio.Event().wait()
        if kind is HttpKind.SLOW_DOWN:
            answer = _error(503, "SlowDown")
        else:
            answer = self._answer(request, stale=kind is HttpKind.STALE_LIST)
        if kind is HttpKind.INTERNAL:
            answer = _error(500, "InternalError")
        if kind is HttpKind.LOST_ANSWER:
            raise ConnectionResetError
        if kind is HttpKind.SLOW:
            await asyncio.sleep(SLOW_SECONDS)
        body = b"" if request.method == "HEAD" else answer.body
        length = len(answer.body)
        headers = {"Content-Length": str(length), "Date": formatdate(usegmt=True), **answer.headers}
        head = f"HTTP/1.1 {answer.status} X\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        if kind is HttpKind.CUT_BODY:
            body = body[: len(body) // 2]
        writer.write(head.encode() + b"\r\n" + body)
        await writer.drain()
        if kind is HttpKind.CUT_BODY:
            raise ConnectionResetError

    def _take(self, method: str) -> HttpKind | None:
        for fault in self.faults:
            if fault.method != method:
                continue
            if fault.after > 0:
                fault.after -= 1
                continue
            fault.times -= 1
            if fault.times == 0:
                self.faults.remove(fault)
            self.used[f"S3 {method}: {fault.kind.value}"] += 1
            return fault.kind
        return None

    # ---- what is there

    def _answer(self, request: _Request, *, stale: bool) -> _Answer:
        match request.method:
            case "LIST":
                return self._list(request, stale=stale)
            case "PUT":
                return self._put(request)
            case "GET" | "HEAD":
                return self._get(request)
            case "POST" if "delete" in request.query:
                for key in re.findall(r"<Key>(.*?)</Key>", request.body.decode()):
                    self.objects.pop(unquote(key), None)
                return _xml("<DeleteResult/>")
        return _error(501, "NotImplemented")

    def _put(self, request: _Request) -> _Answer:
        there = self.objects.get(request.key)
        if request.headers.get("if-none-match") == "*" and there is not None:
            return _error(412, "PreconditionFailed")
        wanted = request.headers.get("if-match")
        if wanted is not None and (there is None or wanted.strip('"') != _etag(there)):
            return _error(412, "PreconditionFailed")
        self.objects[request.key] = request.body
        self._written[request.key] = time.time()
        self._newest = request.key
        return _Answer(200, headers={"ETag": f'"{_etag(request.body)}"'})

    def _get(self, request: _Request) -> _Answer:
        data = self.objects.get(request.key)
        if data is None:
            return _error(404, "NoSuchKey")
        headers = {"ETag": f'"{_etag(data)}"', "Last-Modified": formatdate(self._written[request.key], usegmt=True)}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("range", ""))
        if asked is None:
            return _Answer(200, data, headers)
        start, end = int(asked[1]), int(asked[2] or len(data) - 1)
        if start >= len(data):
            return _error(416, "InvalidRange")
        end = min(end, len(data) - 1)
        return _Answer(206, data[start : end + 1], {**headers, "Content-Range": f"bytes {start}-{end}/{len(data)}"})

    def _list(self, request: _Request, *, stale: bool) -> _Answer:
        prefix = request.query.get("prefix", [""])[0]
        keys = sorted(key for key in self.objects if key.startswith(prefix) and not (stale and key == self._newest))
        items = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.objects[key])}</Size>"
            f"<LastModified>{datetime.fromtimestamp(self._written[key], UTC).isoformat()}</LastModified>"
            f'<ETag>"{_etag(self.objects[key])}"</ETag></Contents>'
            for key in keys
        )
        return _xml(
            f"<ListBucketResult><Name>{BUCKET}</Name><KeyCount>{len(keys)}</KeyCount>"
            f"<IsTruncated>false</IsTruncated>{items}</ListBucketResult>"
        )


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> _Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.strip().split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    parts = urlsplit(target)
    bucket, _, key = unquote(parts.path).strip("/").partition("/")
    assert bucket == BUCKET, target
    query = parse_qs(parts.query, keep_blank_values=True)
    return _Request("LIST" if method == "GET" and not key else method, key, query, headers, body)


def _etag(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def _xml(body: str) -> _Answer:
    return _Answer(200, f'<?xml version="1.0"?>{body}'.encode(), {"Content-Type": "application/xml"})


def _error(status: int, code: str) -> _Answer:
    return _Answer(
        status, f"<Error><Code>{code}</Code><Message>simulated</Message></Error>".encode(),
        {"Content-Type": "application/xml"},
    )  # fmt: skip
