"""Quotas of a broker on the bytes of its clients, set by one request of Kafka's protocol: Kafka's tool starts a JVM."""

import socket
import struct
from collections.abc import Iterable

_ALTER_CLIENT_QUOTAS = 49
BYTE_RATES = ("consumer_byte_rate", "producer_byte_rate")


class QuotaRefused(RuntimeError):
    """The broker does not set the quota; the message has its error."""


def set_byte_rates(bootstrap: str, bytes_per_second: int | None) -> None:
    """Let every user read and write so much a second, all its clients together; None for no quota."""
    entity = _array([_string("user") + _string(None)])
    rate = 0.0 if bytes_per_second is None else float(bytes_per_second)
    changes = [_string(name) + struct.pack(">d?", rate, bytes_per_second is None) for name in BYTE_RATES]
    answer = _ask(bootstrap, _array([entity + _array(changes)]) + struct.pack(">?", False))
    _, entries, error = struct.unpack_from(">iih", answer)
    if (entries, error) != (1, 0):
        raise QuotaRefused(f"{bootstrap} does not set the quota: error {error}, {entries} entries")


def _ask(bootstrap: str, body: bytes) -> bytes:
    """Ask by version 0 of AlterClientQuotas; returns the answer after its header."""
    host, _, port = bootstrap.rpartition(":")
    request = struct.pack(">hhi", _ALTER_CLIENT_QUOTAS, 0, 1) + _string("tests") + body
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as answers:
            (length,) = struct.unpack(">i", answers.read(4))
            return answers.read(length)[4:]


def _string(text: str | None) -> bytes:
    raw = (text or "").encode()
    return struct.pack(">h", -1 if text is None else len(raw)) + raw


def _array(items: Iterable[bytes]) -> bytes:
    listed = list(items)
    return struct.pack(">i", len(listed)) + b"".join(listed)
