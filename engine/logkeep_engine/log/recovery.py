"""A log that was cut off while it was written: find where it ends, cut the rest, make its indexes again.

The log ends with the last batch that is whole, whose CRC holds and whose offsets rise. What follows a damaged batch
is cut too, as a broker does it: after a crash nothing behind the damage was ever acknowledged as durable.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from logkeep_engine.errors import CorruptBatch, CorruptIndex
from logkeep_engine.log.batch import BatchHeader, check_crc, walk
from logkeep_engine.log.segment import INDEX_INTERVAL_BYTES, AbortedTxn, IndexBuilder, pack_txn_entry, read_txn_index
from logkeep_engine.log.transactions import TransactionTracker

_BLOCK = 8 * 1024 * 1024
_OVERHEAD = 12  # base offset and batch length


@dataclass(frozen=True, slots=True)
class Recovery:
    """What is left of a log. `reason` says why the rest is not valid; it is empty if there is no rest."""

    valid_bytes: int
    next_offset: int
    batches: int
    cut_bytes: int
    reason: str


OnBatch = Callable[[memoryview, int, int, BatchHeader], None]
"""Called with a buffer, the batch's position in it, its position in the log, its header. The buffer is valid during
the call only.
"""


def scan(file: BinaryIO, *, base_offset: int = 0, on_batch: OnBatch | None = None) -> Recovery:
    """Read a log from its start and say how far it is valid; nothing is changed.

    `file` is seekable and opened for reading; `base_offset` is the segment's. Memory: 8 MiB, or the largest batch.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    position = 0
    next_offset = base_offset
    batches = 0
    held = b""  # what is read and not yet checked; starts with a batch

    def ended(reason: str) -> Recovery:
        return Recovery(position, next_offset, batches, size - position, reason)

    while position < size:
        rest = size - position
        needed = _OVERHEAD + int.from_bytes(held[8:_OVERHEAD], "big", signed=True) if len(held) >= _OVERHEAD else 0
        if needed > rest:
            return ended(f"The batch after offset {next_offset - 1} is cut short: {rest} of {needed} bytes.")
        held += file.read(min(max(_BLOCK, needed), rest) - len(held))
        consumed = 0
        try:
            with memoryview(held) as view:
                for at, header in walk(view):
                    check_crc(view, at, header)
                    if header.base_offset < next_offset:
                        raise CorruptBatch(
                            f"The batch at offset {header.base_offset} is behind offset {next_offset - 1}."
                        )
                    if on_batch is not None:
                        on_batch(view, at, position, header)
                    consumed = at + header.size
                    position += header.size
                    next_offset = header.next_offset
                    batches += 1
        except CorruptBatch as problem:
            return ended(problem.message)
        if not consumed and len(held) == rest:
            return ended(f"The batch after offset {next_offset - 1} is cut short: only {rest} bytes are left.")
        held = held[consumed:]
    return ended("")


def recover(
    path: Path, *, index_interval_bytes: int = INDEX_INTERVAL_BYTES, open_transactions: Mapping[int, int] | None = None
) -> Recovery:
    """Cut the `.log` at `path` after its last valid batch and write its indexes beside it; all durable on return.

    The file is named by its base offset, as a broker names it. `open_transactions` is what was open at its start
    (producer id to first offset); without it, an entry of the old `.txnindex` is kept if its abort marker is in the
    log, and a transaction of which neither is known has its first batch in this segment as its start. A crash in
    between leaves a valid log, and running again finishes.
    """
    base_offset = int(path.name.split(".")[0])
    stem = str(path).removesuffix(".log")
    tracker = TransactionTracker(open_transactions)
    indexes = IndexBuilder(base_offset, index_interval_bytes)
    aborted = {} if open_transactions is not None else _old_aborted(Path(f"{stem}.txnindex"))
    txnindex = bytearray()

    def on_batch(buf: memoryview, at: int, position: int, header: BatchHeader) -> None:
        txn = tracker.observe(buf, at, header)
        indexes.extend([(position, header)])
        if header.is_control:
            txn = aborted.get((header.producer_id, header.last_offset), txn)
            if txn is not None:
                txnindex.extend(pack_txn_entry(txn))

    with path.open("r+b") as log:
        found = scan(log, base_offset=base_offset, on_batch=on_batch)
        if found.cut_bytes:
            log.truncate(found.valid_bytes)
        os.fsync(log.fileno())
    made = indexes.finish()
    _write(Path(f"{stem}.index"), made.index)
    _write(Path(f"{stem}.timeindex"), made.timeindex)
    if txnindex:
        _write(Path(f"{stem}.txnindex"), bytes(txnindex))
    else:
        Path(f"{stem}.txnindex").unlink(missing_ok=True)
    _sync_folder(path.parent)
    return found


def _old_aborted(path: Path) -> dict[tuple[int, int], AbortedTxn]:
    try:
        entries = read_txn_index(path.read_bytes())
    except (FileNotFoundError, CorruptIndex):
        return {}
    return {(txn.producer_id, txn.last_offset): txn for txn in entries}


def _write(path: Path, content: bytes) -> None:
    fresh = path.with_name(f"{path.name}.tmp")
    with fresh.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
