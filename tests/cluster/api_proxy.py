"""A Kubernetes API that fails on command: a proxy between a client and the real API server.

    with ApiProxy(apiserver) as proxy:
        kubeconfig = proxy.kubeconfig(of_the_operator, folder / "through-proxy")
        proxy.always(answer(403, "Forbidden"), where=lambda request: request.namespace == "bad")
        proxy.cut()                     # watches end, and begin again through the fault
        proxy.well()

It listens without TLS on loopback, so a client must have a token. One connection carries one request.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
import threading
import urllib.parse
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.cluster.apiserver import ApiServer


@dataclass(frozen=True)
class Request:
    """A request of a client. `raw` is all of it, as it is sent on."""

    method: str
    path: str
    raw: bytes

    @property
    def namespace(self) -> str:
        """The namespace that the path leads into, empty for none."""
        before, _, after = self.path.partition("/namespaces/")
        return after.partition("/")[0] if before else ""

    @property
    def watches(self) -> bool:
        return "watch=true" in self.path


Fault = Callable[["ApiProxy", Request, asyncio.StreamWriter], Awaitable[None]]
Where = Callable[[Request], bool]


def answer(status: int, reason: str, body: str | None = None) -> Fault:
    """Nothing is carried out; the answer is this, a Status object unless a body is given."""
    reported = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": "made up"}
    data = (json.dumps({**reported, "code": status}) if body is None else body).encode()
    head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"

    async def fault(proxy: ApiProxy, request: Request, client: asyncio.StreamWriter) -> None:
        client.write(head.encode() + b"Connection: close\r\n\r\n" + data)
        await client.drain()

    return fault


def delayed(seconds: float) -> Fault:
    """The request is carried out late."""

    async def fault(proxy: ApiProxy, request: Request, client: asyncio.StreamWriter) -> None:
        await asyncio.sleep(seconds)
        await proxy.forward(request, client)

    return fault


class ApiProxy:
    """Serves while in its context. `requests`: all that came, in their order; `met`: those that met a fault."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._target = urllib.parse.urlsplit(server.url)
        self.requests: list[Request] = []
        self.met: list[Request] = []
        self._fault: tuple[Fault, Where] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="api-proxy", daemon=True)
        self._served: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._trust = ssl.create_default_context(cadata=self._authority())
        self._thread.start()
        self._listener = self._in_loop(asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20))
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._listener.close)
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    def kubeconfig(self, real: Path, path: Path) -> Path:
        """A kubeconfig like the real one that leads through the proxy."""
        config = json.loads(real.read_text())
        config["clusters"] = [{"name": "test", "cluster": {"server": self.url}}]
        path.write_text(json.dumps(config))
        return path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    def always(self, fault: Fault, where: Where = lambda request: True) -> None:
        """All requests of `where` meet this, until `well`; `met` begins again."""
        self.met = []
        self._fault = (fault, where)

    def well(self) -> None:
        """The proxy injects no more faults."""
        self._fault = None

    def cut(self) -> None:
        """Every open connection ends."""

        async def end() -> None:
            tasks = list(self._served)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self._in_loop(end())

    def _in_loop(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def _authority(self) -> str:
        config = json.loads(self._server.kubeconfig.read_text())
        return base64.b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"]).decode()

    async def _serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._served.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._one(await _read(reader), client)
        finally:
            self._served.discard(task)
            client.close()

    async def _one(self, request: Request, client: asyncio.StreamWriter) -> None:
        self.requests.append(request)
        fault = self._fault
        if fault is not None and fault[1](request):
            self.met.append(request)
            await fault[0](self, request, client)
        else:
            await self.forward(request, client)

    async def forward(self, request: Request, client: asyncio.StreamWriter) -> None:
        """The real server's answer, as it comes (a watch continues until one side ends it)."""
        reader, server = await asyncio.open_connection(self._target.hostname, self._target.port, ssl=self._trust)
        try:
            server.write(request.raw)
            await server.drain()
            while data := await reader.read(1 << 16):
                client.write(data)
                await client.drain()
        finally:
            server.close()


async def _read(reader: asyncio.StreamReader) -> Request:
    """A whole request, changed to ask for one answer on its connection."""
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head[:-4].split(b"\r\n")
    fields = [line for line in lines if not line.lower().startswith(b"connection:")]
    lengths = [int(line.partition(b":")[2]) for line in fields if line.lower().startswith(b"content-length:")]
    body = await reader.readexactly(lengths[0]) if lengths else b""
    method, path, _ = first.decode().split(" ")
    return Request(method, path, b"\r\n".join((first, *fields, b"Connection: close", b"", body)))
