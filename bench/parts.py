"""The cost of the single steps of moving batches on this machine: CPU seconds for a gigabyte of each step alone.

A backup receives a byte, computes two checksums over it (CRC-32C of the batch, digest of the object) and writes it; a
restore reads it, checks it, computes the CRC of the batch as it is sent, and sends it. The sum is what those steps must
cost in one thread; what a task takes besides is the engine's own.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from crc32c import crc32c

from bench import topics
from logkeep_engine.contract.archive_format import DigestAlgorithm
from logkeep_engine.digest import Digest, Hasher
from logkeep_engine.log.batch import walk

_PIECE = 1 << 20
_TOTAL = 1 << 30


def measure(folder: Path, total: int = _TOTAL) -> list[dict[str, Any]]:
    """Rows of step and CPU seconds a gigabyte; the walk over headers also for batches of one small record."""
    data = memoryview(os.urandom(_PIECE))
    count = total // _PIECE
    file = folder / "parts"
    steps: dict[str, Callable[[], float]] = {
        "receive from a socket into one buffer": lambda: _receive(data, count),
        "CRC-32C": lambda: _thread_cpu(lambda: [crc32c(data) for _ in range(count)]),
        **{
            Digest.of(b"", algorithm).name: partial(_thread_cpu, partial(_digest, algorithm, data, count))
            for algorithm in DigestAlgorithm
        },
        "write to a file": lambda: _write(file, data, count),
        "read from a file": lambda: _read(file, count),
        "send to a socket": lambda: _send(data, count),
    }
    rows: list[dict[str, Any]] = []
    for name, step in steps.items():
        rows.append({"step": name, "CPU s/GB": round(step() / (count * _PIECE) * 1e9, 3)})
    file.unlink()
    for topic in topics.named(["zstd-1k", "single-100"]):
        rows.append({"step": f"walk over headers, {topic.name}", "CPU s/GB": round(_walk(topic), 3)})
    return rows


def _thread_cpu(work: Callable[[], object]) -> float:
    started = time.thread_time()
    work()
    return time.thread_time() - started


def _digest(algorithm: DigestAlgorithm, data: memoryview, count: int) -> None:
    hasher = Hasher(algorithm)
    for _ in range(count):
        hasher.update(data)


def _connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        out = socket.create_connection(server.getsockname())
        return out, server.accept()[0]


def _send_all(out: socket.socket, data: memoryview, count: int) -> None:
    for _ in range(count):
        out.sendall(data)


def _receive(data: memoryview, count: int) -> float:
    out, into = _connected()
    sender = threading.Thread(target=_send_all, args=(out, data, count))
    sender.start()
    buffer = memoryview(bytearray(len(data)))

    def receive() -> None:
        left = count * len(data)
        while left:
            left -= into.recv_into(buffer)

    used = _thread_cpu(receive)
    sender.join()
    out.close()
    into.close()
    return used


def _send(data: memoryview, count: int) -> float:
    out, into = _connected()
    buffer = memoryview(bytearray(len(data)))

    def drain() -> None:
        while into.recv_into(buffer):
            pass

    receiver = threading.Thread(target=drain)
    receiver.start()
    used = _thread_cpu(lambda: _send_all(out, data, count))
    out.close()
    receiver.join()
    into.close()
    return used


def _write(file: Path, data: memoryview, count: int) -> float:
    with file.open("wb", buffering=0) as out:
        return _thread_cpu(lambda: [out.write(data) for _ in range(count)])


def _read(file: Path, count: int) -> float:
    buffer = memoryview(bytearray(_PIECE))
    with file.open("rb", buffering=0) as source:
        return _thread_cpu(lambda: [source.readinto(buffer) for _ in range(count)])


def _walk(topic: topics.Topic) -> float:
    templates = topics.pool(topic.shrunk(topic.records * topic.record_bytes // 4_000_000))
    data = memoryview(b"".join(template.data for template in templates))
    rounds = max(1, 20_000 // len(templates))
    used = _thread_cpu(lambda: [sum(1 for _ in walk(data)) for _ in range(rounds)])
    return used / (len(data) * rounds) * 1e9
