"""Just enough of Kafka's protocol for one broker, over one blocking socket: what the floor and the loader speak.

It stands beside the engine's own client on purpose: a floor that shared its code would move with it. Requests have
versions without tagged fields (Fetch 11, Produce 8, ListOffsets 4 and so on), which brokers from 2.4 to 4.x take.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

Buffer = bytes | bytearray | memoryview

PRODUCE, FETCH, LIST_OFFSETS, FIND_COORDINATOR, INIT_PRODUCER_ID, ADD_PARTITIONS, END_TXN = 0, 1, 2, 10, 22, 24, 26
CONCURRENT_TRANSACTIONS = 51

_CLIENT = b"\x00\x05bench"
_SIZE = struct.Struct(">i")
_PARTITION = struct.Struct(">ihqqqi")  # partition, error, high watermark, last stable offset, log start, aborted


class WireError(RuntimeError):
    """A broker answered with an error code; the message names request and code."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a fetch of one partition: `start` and `end` bound its record batches in the receive buffer, in
    bytes."""

    partition: int
    start: int
    end: int


class Wire:
    """One connection. Requests may be sent ahead; answers are taken with `receive`, in order of the requests."""

    def __init__(self, bootstrap: str, buffer_bytes: int = 1 << 20) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(buffer_bytes)
        self.view = memoryview(self._buffer)
        self._id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def send(self, key: int, version: int, *parts: Buffer) -> None:
        """Send a request whose body is `parts`, one after the other, without joining them."""
        self._id += 1
        head = struct.pack(">hhi", key, version, self._id) + _CLIENT
        size = len(head) + sum(len(part) for part in parts)
        pending: list[Buffer] = [_SIZE.pack(size) + head, *parts]
        sent = self._socket.sendmsg(pending)
        total = size + 4
        while sent < total:
            rest: list[Buffer] = []
            at = 0
            for part in pending:
                if at + len(part) > sent:
                    rest.append(memoryview(part)[max(0, sent - at) :])
                at += len(part)
            pending, total, sent = rest, total - sent, 0
            sent = self._socket.sendmsg(pending)

    def receive(self) -> int:
        """Read the next answer into `view` and return its size in bytes; it begins with the correlation id."""
        self._fill(4)
        (size,) = _SIZE.unpack_from(self._buffer)
        if size > len(self._buffer):
            self.view.release()
            self._buffer = bytearray(size + (size >> 1))
            self.view = memoryview(self._buffer)
        self._fill(size)
        return int(size)

    def _fill(self, size: int) -> None:
        view, at = self.view, 0
        while at < size:
            got = self._socket.recv_into(view[at:size])
            if not got:
                raise WireError("the broker closed the connection")
            at += got

    # ---- requests

    def ask_fetch(self, topic: str, partition: int, offset: int, max_bytes: int) -> None:
        """Send a fetch of one partition, uncommitted records and all; its answer is read with `take_fetch`."""
        body = struct.pack(">iiiibii", -1, 500, 1, max_bytes, 0, 0, -1)
        body += struct.pack(">i", 1) + text(topic)
        body += struct.pack(">iiiqqi", 1, partition, -1, offset, -1, max_bytes)
        self.send(FETCH, 11, body + struct.pack(">ih", 0, 0))

    def take_fetch(self) -> Answer:
        """The next answer, which is to a fetch."""
        self.receive()
        view = self.view
        (error,) = struct.unpack_from(">h", view, 8)
        at = 18  # correlation id, throttle time, error, session, number of topics
        (length,) = struct.unpack_from(">h", view, at)
        at += 2 + length + 4
        partition, code, _, _, _, aborted = _PARTITION.unpack_from(view, at)
        if error or code:
            raise WireError(f"fetch of partition {partition}: error {error or code}")
        at += _PARTITION.size + 16 * max(0, aborted) + 4
        (size,) = _SIZE.unpack_from(view, at)
        return Answer(partition, at + 4, at + 4 + max(0, size))

    def take_produce(self) -> None:
        """The next answer, which is to a produce request: raises WireError if a partition refused its batch."""
        self.receive()
        view = self.view
        at = 4
        (topics,) = _SIZE.unpack_from(view, at)
        at += 4
        for _ in range(topics):
            (length,) = struct.unpack_from(">h", view, at)
            at += 2 + length
            (partitions,) = _SIZE.unpack_from(view, at)
            at += 4
            for _ in range(partitions):
                partition, code = struct.unpack_from(">ih", view, at)
                if code:
                    raise WireError(f"produce to partition {partition}: error {code}")
                at += 30  # partition, error, base offset, append time, log start
                (errors,) = _SIZE.unpack_from(view, at)
                if errors:
                    raise WireError(f"produce to partition {partition}: {errors} records refused")
                at += 4
                at += 2 + max(0, struct.unpack_from(">h", view, at)[0])

    def list_offset(self, topic: str, partition: int, timestamp: int) -> int:
        """The log start (-2) or high watermark (-1)."""
        body = struct.pack(">ibi", -1, 0, 1) + text(topic) + struct.pack(">iiiq", 1, partition, -1, timestamp)
        self.send(LIST_OFFSETS, 4, body)
        self.receive()
        at = 12
        (length,) = struct.unpack_from(">h", self.view, at)
        _, code, _, offset = struct.unpack_from(">ihqq", self.view, at + 2 + length + 4)
        if code:
            raise WireError(f"offsets of {topic} partition {partition}: error {code}")
        return int(offset)

    # ---- transactions

    def find_transactions(self, transactional_id: str) -> bool:
        """Whether this broker coordinates the transactional id by now; asking makes it create its topic."""
        self.send(FIND_COORDINATOR, 2, text(transactional_id), b"\x01")
        self.receive()
        return bool(struct.unpack_from(">h", self.view, 8)[0] == 0)

    def init_producer_id(self, transactional_id: str) -> tuple[int, int, int]:
        """(error code, producer id, epoch)."""
        self.send(INIT_PRODUCER_ID, 1, text(transactional_id), struct.pack(">i", 60_000))
        self.receive()
        code, producer_id, epoch = struct.unpack_from(">hqh", self.view, 8)
        return code, producer_id, epoch

    def add_partitions(
        self, transactional_id: str, producer: tuple[int, int], topic: str, partitions: Sequence[int]
    ) -> int:
        """Add partitions to the running transaction; the first partition's error code."""
        numbers = struct.pack(f">{len(partitions)}i", *partitions)
        body = text(transactional_id) + struct.pack(">qhi", *producer, 1) + text(topic)
        self.send(ADD_PARTITIONS, 1, body, struct.pack(">i", len(partitions)), numbers)
        self.receive()
        (length,) = struct.unpack_from(">h", self.view, 12)
        (code,) = struct.unpack_from(">h", self.view, 14 + length + 8)
        return int(code)

    def end_transaction(self, transactional_id: str, producer: tuple[int, int], *, commit: bool) -> int:
        """Commit or abort; the error code."""
        self.send(END_TXN, 1, text(transactional_id), struct.pack(">qhb", *producer, commit))
        self.receive()
        return int(struct.unpack_from(">h", self.view, 8)[0])


def text(value: str) -> bytes:
    """A string with its length in two bytes."""
    raw = value.encode()
    return struct.pack(">h", len(raw)) + raw


def produce_body(
    topic: str, batches: Sequence[tuple[int, Buffer]], *, transactional_id: str | None = None, acks: int = -1
) -> list[Buffer]:
    """The body of a Produce 8 request with one batch for each of several partitions, (partition, batch)."""
    head = struct.pack(">h", -1) if transactional_id is None else text(transactional_id)
    parts: list[Buffer] = [head + struct.pack(">hii", acks, 30_000, 1) + text(topic) + struct.pack(">i", len(batches))]
    for partition, batch in batches:
        parts.append(struct.pack(">ii", partition, len(batch)))
        parts.append(batch)
    return parts
