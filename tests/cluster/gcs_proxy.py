"""Resumable uploads as Google Cloud Storage keeps them and fake-gcs-server does not: the service says how much has
arrived, takes each byte once, and tells again of the object that it has made.

fake-gcs-server takes the question for the end of the upload, and what is sent twice for more bytes. So the proxy
answers the question, as https://cloud.google.com/storage/docs/performing-resumable-uploads says it, and the server gets
all else.
"""

from __future__ import annotations

import re

from tests.cluster.s3_proxy import Exchange, Fault, S3Proxy, Server


class _Upload(Exchange):
    """A request that may be of a resumable upload."""

    def forward(self) -> bytes:
        assert isinstance(self.proxy, GcsProxy)
        session, sent = re.search(rb"upload_id=(\w+)", self.line), self.headers.get("content-range")
        if session is None or sent is None:
            return super().forward()
        made, kept = self.proxy.made.get(session[1]), self.proxy.kept.get(session[1], 0)
        if made is not None:
            return made
        place = re.fullmatch(r"bytes ([0-9]+)-([0-9]+)/([0-9]+|\*)", sent)
        if place is None:
            had = f"Range: bytes=0-{kept - 1}\r\n" if kept else ""
            return f"HTTP/1.1 308 Permanent Redirect\r\n{had}Content-Length: 0\r\nConnection: close\r\n\r\n".encode()
        if int(place[1]) != kept:
            return b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        answered = super().forward()
        if answered.split()[1] == b"308":
            self.proxy.kept[session[1]] = int(place[2]) + 1
        else:
            self.proxy.made[session[1]] = answered
        return answered

    def shorten(self, count: int) -> None:
        """Leave of the body only the first bytes, which are not the end of the upload."""
        start = int(self.headers["content-range"].split()[1].split("-")[0])
        head, _, body = self._request.partition(b"\r\n\r\n")
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-")]
        lines += [b"Content-Length: %d" % count, b"Content-Range: bytes %d-%d/*" % (start, start + count - 1)]
        self._request = b"\r\n".join(lines) + b"\r\n\r\n" + body[:count]


class GcsProxy(S3Proxy):
    """`kept`: the bytes that have arrived in an upload, and `made`: the answer about the object that it has become, by
    the name of the upload."""

    exchange = _Upload

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.kept: dict[bytes, int] = {}
        self.made: dict[bytes, bytes] = {}


def kept_in_part(count: int, *, told: bool) -> Fault:
    """The store keeps the first bytes of a part, and says so, or closes the connection."""

    def fault(exchange: Exchange) -> None:
        assert isinstance(exchange, _Upload)
        exchange.shorten(count)
        answered = exchange.forward()
        if told:
            exchange.send(answered)

    return fault
