"""A store that fails on command: a proxy between a client and the real S3 server.

    with S3Proxy(server) as proxy:
        proxy.meet(silent, answer("503 Slow Down", "SlowDown"))     # the next two requests, one fault each
        proxy.always(slow(10_000), where=lambda line: line.startswith(b"GET"))
        storage = open_uri(uri, proxy.endpoint, ...)

One connection carries one request, so that a fault hits one request. Stores and the networks in front of them do each
of these: a load balancer that has forgotten a connection is silent, S3 answers 503 when it is asked to slow down, a
store behind a cache lists late.
"""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self


class Server(Protocol):
    """A server of HTTP on a port."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


Fault = Callable[["Exchange"], None]
Where = Callable[[bytes], bool]


class Exchange:
    """One request and what becomes of it. `line` is its first line."""

    def __init__(self, proxy: S3Proxy, client: socket.socket, request: bytes) -> None:
        self.proxy = proxy
        self.line = request.partition(b"\r\n")[0]
        self._client = client
        self._request = request

    def forward(self) -> bytes:
        """The real server's answer: from now on the request is carried out."""
        with socket.create_connection(self.proxy.target) as upstream:
            upstream.sendall(self._request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
            data = b"".join(iter(lambda: upstream.recv(65536), b""))
        if not self.proxy.hides:
            return data
        head, separator, body = data.partition(b"\r\n\r\n")
        kept = [line for line in head.split(b"\r\n") if not line.lower().startswith(self.proxy.hides)]
        return b"\r\n".join(kept) + separator + body

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the request, their names in lower case."""
        lines = self._request.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
        named = (line.partition(":") for line in lines)
        return {name.strip().lower(): value.strip() for name, _, value in named}

    @property
    def body(self) -> bytes:
        """The body of the request."""
        return self._request.partition(b"\r\n\r\n")[2]

    def send(self, data: bytes) -> None:
        self._client.sendall(data)

    def hold(self) -> None:
        """Say nothing until the client has gone, or the proxy ends."""
        self._client.settimeout(0.1)
        while not self.proxy.ended.is_set():
            try:
                if not self._client.recv(65536):
                    return
            except TimeoutError:
                continue
            except OSError:
                return

    def reset(self) -> None:
        """Close with a TCP reset."""
        self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._client.close()


def silent(exchange: Exchange) -> None:
    """Nothing is carried out and nothing is said."""
    exchange.hold()


def applied_then_silent(exchange: Exchange) -> None:
    """The request is carried out and nothing is said."""
    exchange.forward()
    exchange.hold()


def lost_answer(exchange: Exchange) -> None:
    """The request is carried out and the connection closed."""
    exchange.forward()


def reset(exchange: Exchange) -> None:
    """Nothing is carried out and the connection is reset."""
    exchange.reset()


def stale_list(exchange: Exchange) -> None:
    """A list as it was when it was asked for first."""
    fresh = exchange.forward()
    exchange.send(exchange.proxy.first_lists.setdefault(exchange.line, fresh))


def slow(bytes_per_second: int) -> Fault:
    """The answer comes in small pieces."""

    def fault(exchange: Exchange) -> None:
        data = exchange.forward()
        piece = max(1, bytes_per_second // 10)
        for start in range(0, len(data), piece):
            exchange.send(data[start : start + piece])
            time.sleep(0.1)

    return fault


def delayed(seconds: float) -> Fault:
    """The answer comes late."""

    def fault(exchange: Exchange) -> None:
        data = exchange.forward()
        exchange.proxy.ended.wait(seconds)
        exchange.send(data)

    return fault


def cut_body(after: int, *, then: Fault = lambda exchange: None) -> Fault:
    """Only the first bytes of the answer's body come; the connection is closed behind them, or `then` happens."""

    def fault(exchange: Exchange) -> None:
        head, separator, body = exchange.forward().partition(b"\r\n\r\n")
        exchange.send(head + separator + body[:after])
        then(exchange)

    return fault


def answer(status: str, code: str, message: str = "") -> Fault:
    """The store answers with an error and carries nothing out. Azure has the code in a header, too."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\nConnection: close"
    head += f"\r\nx-ms-error-code: {code}"
    return lambda exchange: exchange.send(head.encode() + b"\r\n\r\n" + body)


class S3Proxy(socketserver.ThreadingTCPServer):
    """Listens on loopback while in its context. `requests`: the first lines of all requests, in their order; `heads`:
    the same with their headers. `spoil`: bytes that are overwritten in every request. `hides`: what the headers begin
    with, in lower case, that no answer has on its way back. `first_lists`: what `stale_list` shows, by the request's
    first line.
    """

    exchange = Exchange
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, server: Server) -> None:
        super().__init__(("127.0.0.1", 0), _Relay)
        self.target = (server.host, server.port)
        self.requests: list[bytes] = []
        self.heads: list[bytes] = []
        self.spoil = b""
        self.hides = b""
        self._refused: dict[bytes, Fault] = {}
        self.first_lists: dict[bytes, bytes] = {}
        self.ended = threading.Event()
        self._next: deque[tuple[Fault, Where]] = deque()
        self._always: tuple[Fault, Where] | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, name="s3-proxy", daemon=True).start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.ended.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, *_: object) -> None:
        """A client that has gone is no news."""

    @property
    def endpoint(self) -> str:
        """The proxy's URL, in place of the server's."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def meet(self, *faults: Fault, where: Where = lambda line: True) -> None:
        """Each of the next requests whose first line is one of `where` meets one of these."""
        with self._lock:
            self._next.extend((fault, where) for fault in faults)

    def always(self, fault: Fault, where: Where = lambda line: True) -> None:
        """All requests of `where` meet this, until `well`."""
        with self._lock:
            self._always = (fault, where)

    def refuses(self, fault: Fault, *headers: bytes) -> None:
        """All requests with one of these headers, in lower case, meet this."""
        with self._lock:
            self._refused |= {b"\r\n%b:" % header: fault for header in headers}

    def well(self) -> None:
        """The proxy injects no more faults."""
        with self._lock:
            self._next.clear()
            self._always = None

    def _fault(self, line: bytes, head: bytes) -> Fault:
        with self._lock:
            for header, fault in self._refused.items():
                if header in head.lower():
                    return fault
            if self._next and self._next[0][1](line):
                return self._next.popleft()[0]
            if self._always is not None and self._always[1](line):
                return self._always[0]
        return _none


def _none(exchange: Exchange) -> None:
    data = exchange.forward()
    if b"list-type=2" in exchange.line:
        exchange.proxy.first_lists.setdefault(exchange.line, data)
    exchange.send(data)


class _Relay(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        proxy = self.server
        assert isinstance(proxy, S3Proxy)
        request = _message(self.request)
        if not request:
            return
        if proxy.spoil:
            request = request.replace(proxy.spoil, bytes(len(proxy.spoil)))
        exchange = proxy.exchange(proxy, self.request, request)
        head = request.partition(b"\r\n\r\n")[0]
        proxy.requests.append(exchange.line)
        proxy.heads.append(head)
        proxy._fault(exchange.line, head)(exchange)


def _message(connection: socket.socket) -> bytes:
    """A whole request, b"" if the client has gone."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    lengths = [line.split(b":")[1] for line in lines if line.lower().startswith(b"content-length:")]
    if any(line.lower().startswith(b"expect:") for line in lines):
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    parts, wanted = [body], (int(lengths[0]) if lengths else 0) - len(body)
    while wanted > 0:
        more = connection.recv(1 << 20)
        if not more:
            return b""
        parts.append(more)
        wanted -= len(more)
    kept = b"\r\n".join(line for line in lines if not line.lower().startswith(b"expect:"))
    return kept + b"\r\n\r\n" + b"".join(parts)
