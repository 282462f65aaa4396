"""The floor: the least that moving the same batches can cost in this language on this machine.

Backup: one socket, one reused buffer, one fetch under way for each partition; of what arrives, the headers are walked,
every CRC is computed, and the bytes are written to one file a partition and synced to disk. As for the engine, the disk
begins at once, and the system forgets what is on it: fresh memory for the page cache may cost more than all the rest
(docs/benchmarks.md). No metadata, no retries, no segments, indexes, digests, receipts or catalog: nobody could restore
from it. Restore: prebuilt requests, five under
way.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Sequence
from pathlib import Path

from crc32c import crc32c

from bench.load import IN_FLIGHT, groups
from bench.wire import PRODUCE, Buffer, Wire, produce_body
from logkeep_engine.log.batch import LOG_OVERHEAD, parse_header
from logkeep_engine.log.records import ControlType, control_type

FETCH_BYTES = 4 << 20
_TRANSACTIONAL = 0x10
_HEADER = struct.Struct(">qi4xxIhi")  # base offset, length, CRC, attributes, last offset delta


class Damaged(RuntimeError):
    """A batch whose CRC does not hold."""


def backup(bootstrap: str, topic: str, ends: Sequence[int], folder: Path, fetch_bytes: int = FETCH_BYTES) -> int:
    """Copy the partitions of a topic up to their end offsets into files below `folder`; returns the bytes."""
    folder.mkdir(parents=True)
    files = [os.open(folder / f"{number}.log", os.O_WRONLY | os.O_CREAT | os.O_EXCL) for number in range(len(ends))]
    total = 0
    with Wire(bootstrap, 2 * fetch_bytes) as wire:
        left = {number for number, end in enumerate(ends) if end}
        waiting = sorted(left, reverse=True)
        for _ in range(min(4, len(waiting))):
            wire.ask_fetch(topic, waiting.pop(), 0, fetch_bytes)
        while left:
            answer = wire.take_fetch()
            number = answer.partition
            whole, following = check(wire.view, answer.start, answer.end)
            if following < ends[number]:
                wire.ask_fetch(topic, number, following, fetch_bytes)
            else:
                left.discard(number)
                if waiting:
                    wire.ask_fetch(topic, waiting.pop(), 0, fetch_bytes)
            total += _write(files[number], wire.view[answer.start : whole])
    for file in files:
        os.fsync(file)
        os.close(file)
    return total


def check(view: memoryview, at: int, end: int) -> tuple[int, int]:
    """Check the batches in [at, end): where the last whole one ends, and the offset after it. Raises Damaged."""
    unpack = _HEADER.unpack_from
    following = 0
    while end - at >= 61:
        base, length, crc, _, delta = unpack(view, at)
        if at + LOG_OVERHEAD + length > end:
            break
        if crc32c(view[at + 21 : at + LOG_OVERHEAD + length]) != crc:
            raise Damaged(f"the batch at offset {base}")
        following = base + delta + 1
        at += LOG_OVERHEAD + length
    return at, following


def _write(file: int, data: memoryview) -> int:
    at = 0
    while at < len(data):
        at += os.write(file, data[at:])
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    return at


def prebuild(bootstrap: str, source: str, target: str, ends: Sequence[int]) -> list[list[Buffer]]:
    """Requests that bring the batches of `source` to `target`, in memory; of transactions the committed batches, as
    plain ones without a producer.
    """
    with Wire(bootstrap, 2 * FETCH_BYTES) as wire:
        kept = [_committed(_read(wire, source, number, end)) for number, end in enumerate(ends)]
    return [produce_body(target, group) for group in groups([iter(batches) for batches in kept])]


def _read(wire: Wire, topic: str, partition: int, end: int) -> list[bytearray]:
    batches: list[bytearray] = []
    offset = 0
    while offset < end:
        wire.ask_fetch(topic, partition, offset, FETCH_BYTES)
        answer = wire.take_fetch()
        at = answer.start
        whole, offset = check(wire.view, at, answer.end)
        while at < whole:
            (length,) = struct.unpack_from(">i", wire.view, at + 8)
            batch = bytearray(wire.view[at : at + LOG_OVERHEAD + length])
            batch[0:8] = bytes(8)  # the base offset, which the CRC does not cover
            batches.append(batch)
            at += LOG_OVERHEAD + length
    return batches


def _committed(batches: Sequence[bytearray]) -> list[bytearray]:
    """The batches without markers and aborted transactions. There is one producer."""
    kept: list[bytearray] = []
    waiting: list[bytearray] = []
    for batch in batches:
        header = parse_header(batch)
        if header.is_control:
            kept += waiting if control_type(batch) is ControlType.COMMIT else []
            waiting = []
        elif header.is_transactional:
            waiting.append(_plain(batch))
        else:
            kept.append(batch)
    return kept


def _plain(batch: bytearray) -> bytearray:
    """The same batch outside of a transaction and without a producer."""
    (attributes,) = struct.unpack_from(">h", batch, 21)
    struct.pack_into(">h", batch, 21, attributes & ~_TRANSACTIONAL)
    struct.pack_into(">qhi", batch, 43, -1, -1, -1)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return batch


def restore(bootstrap: str, requests: Sequence[Sequence[Buffer]]) -> float:
    """Send prebuilt requests, five under way, and return the seconds from the first byte to the last answer."""
    flying = 0
    with Wire(bootstrap) as wire:
        started = time.perf_counter()
        for number, request in enumerate(requests):
            wire.send(PRODUCE, 8, *request)
            flying += 1
            while flying >= IN_FLIGHT or (flying and number == 0):
                wire.take_produce()
                flying -= 1
        for _ in range(flying):
            wire.take_produce()
        return time.perf_counter() - started
