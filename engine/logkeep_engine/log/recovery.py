"""Recovers a log that was cut off while it was written: finds where it ends, cuts the rest, makes its indexes again.

The log ends with the last batch that is whole, whose CRC holds, whose offsets rise and lie where the segment can hold
them. What follows a damaged batch is cut too, as a broker does it: after a crash nothing after the damage was ever
acknowledged as durable.

Source of facts: apache/kafka `LogSegment.java` (recover, ensureOffsetInRange), `LogLoader.java` (a segment without its
offset index is recovered).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from logkeep_engine.errors import CorruptBatch, CorruptIndex
from logkeep_engine.log.batch import LOG_OVERHEAD, BatchHeader, Headers, runs
from logkeep_engine.log.segment import (
    INDEX_INTERVAL_BYTES,
    MAX_RELATIVE_OFFSET,
    AbortedTxn,
    IndexBuilder,
    pack_txn_entry,
    read_txn_index,
)
from logkeep_engine.log.transactions import TRANSACTIONAL_OR_CONTROL, TransactionTracker

_BLOCK = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Recovery:
    """The valid part of a log. `reason` says why the rest is not valid; it is empty if there is no rest."""

    valid_bytes: int
    next_offset: int
    batches: int
    cut_bytes: int
    reason: str


OnBatches = Callable[[memoryview, Headers], None]
"""Called with a buffer, and with headers of batches in it: of one transactional batch or control batch, or of any
number of others. The buffer is valid during the call only.
"""


def misplaced(header: BatchHeader, next_offset: int, base_offset: int, end_offset: int | None = None) -> str:
    """Return why a batch cannot follow offset `next_offset` - 1 in the segment of `base_offset`, "" if it can.

    No CRC covers a batch's base offset, so this is all that shows a flipped bit of it. `end_offset` is the base offset
    of the next segment, None if that is not known.
    """
    if header.base_offset < next_offset:
        return f"The batch at offset {header.base_offset} is after offset {next_offset - 1}"
    if header.last_offset - base_offset > MAX_RELATIVE_OFFSET:
        return f"The batch at offset {header.base_offset} is too far above the segment's base offset {base_offset}"
    if end_offset is not None and header.next_offset > end_offset:
        return f"The batch at offset {header.base_offset} reaches into the next segment, which begins at {end_offset}"
    return ""


def scan(
    file: BinaryIO, *, base_offset: int = 0, end_offset: int | None = None, on_batches: OnBatches | None = None
) -> Recovery:
    """Read a log from its start and say how far it is valid; nothing is changed.

    `file` is seekable and opened for reading; `base_offset` is the segment's, `end_offset` the next one's (None: not
    known). Memory: 8 MiB, or the largest batch.
    """
    limit = base_offset + MAX_RELATIVE_OFFSET + 1
    limit = limit if end_offset is None else min(limit, end_offset)
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
        needed = (
            LOG_OVERHEAD + int.from_bytes(held[8:LOG_OVERHEAD], "big", signed=True) if len(held) >= LOG_OVERHEAD else 0
        )
        if needed > rest:
            return ended(f"The batch after offset {next_offset - 1} is cut short: {rest} of {needed} bytes.")
        held += file.read(min(max(_BLOCK, needed), rest) - len(held))
        consumed = 0
        try:
            with memoryview(held) as view:
                for headers in runs(view, checked=True):
                    good = headers[: headers.in_order(next_offset, limit)]
                    for part in _parts(good):
                        if on_batches is not None:
                            on_batches(view, part)
                        consumed = part.end
                        position += part.size
                        next_offset = part.next_offset
                        batches += len(part)
                    if len(good) < len(headers):
                        _, header = headers[len(good)]
                        raise CorruptBatch(f"{misplaced(header, next_offset, base_offset, end_offset)}.")
        except CorruptBatch as error:
            return ended(error.message)
        if not consumed and len(held) == rest:
            return ended(f"The batch after offset {next_offset - 1} is cut short: only {rest} bytes are left.")
        held = held[consumed:]
    return ended("")


def _parts(headers: Headers) -> Iterator[Headers]:
    """Each transactional batch and each control batch alone, the others together."""
    start = 0
    for number in headers.with_bits(TRANSACTIONAL_OR_CONTROL):
        if number > start:
            yield headers[start:number]
        start = number + 1
        yield headers[number:start]
    if start < len(headers):
        yield headers[start:]


def recover(
    path: Path,
    *,
    index_interval_bytes: int = INDEX_INTERVAL_BYTES,
    open_transactions: Mapping[int, int] | None = None,
    end_offset: int | None = None,
) -> Recovery:
    """Cut the `.log` at `path` after its last valid batch and write its indexes next to it; all durable on return.

    The file is named by its base offset, as a broker names it. `open_transactions` is what was open at its start
    (producer id to first offset); without it, an entry of the old `.txnindex` is kept if its abort marker is in the
    log, and a transaction of which neither is known has its first batch in this segment as its start. `end_offset` is
    the base offset of the next segment, None if that is not known.

    The old offset and time index go before the log is cut, and the new ones come last: after a crash in between they
    are missing, so that a broker makes them itself, and running again finishes.
    """
    base_offset = int(path.name.split(".")[0])
    stem = str(path).removesuffix(".log")
    index, timeindex, txnindex = (Path(stem + suffix) for suffix in (".index", ".timeindex", ".txnindex"))
    owners = {file: owner_of(file, path) for file in (index, timeindex, txnindex)}
    tracker = TransactionTracker(open_transactions)
    indexes = IndexBuilder(base_offset, index_interval_bytes)
    aborted = {} if open_transactions is not None else _old_aborted(txnindex)
    entries = bytearray()

    def note(buf: memoryview, headers: Headers) -> None:
        at, header = headers[0]
        txn = tracker.observe(buf, at, header)
        indexes.extend(headers)
        if header.is_control:
            txn = aborted.get((header.producer_id, header.last_offset), txn)
            if txn is not None:
                entries.extend(pack_txn_entry(txn))

    with path.open("r+b") as log:
        found = scan(log, base_offset=base_offset, end_offset=end_offset, on_batches=note)
        index.unlink(missing_ok=True)
        timeindex.unlink(missing_ok=True)
        sync_folder(path.parent)
        if found.cut_bytes:
            os.ftruncate(log.fileno(), found.valid_bytes)
        os.fsync(log.fileno())
    if entries:
        replace_file(txnindex, bytes(entries), owners[txnindex])
    else:
        txnindex.unlink(missing_ok=True)
    sync_folder(path.parent)
    made_index, made_timeindex = indexes.finish()
    replace_file(timeindex, made_timeindex, owners[timeindex])
    replace_file(index, made_index, owners[index])
    sync_folder(path.parent)
    return found


def owner_of(path: Path, otherwise: Path) -> os.stat_result:
    """Return the owner of the file for `replace_file`; if the file is not there, the owner of the other one."""
    try:
        return path.stat()
    except FileNotFoundError:
        return otherwise.stat()


def replace_file(path: Path, content: bytes, owner: os.stat_result) -> None:
    """Write a file again as a whole; it is durable once the folder is synced too.

    It gets the mode and, since a broker of another user must be able to open it, the owner in `owner`.
    """
    fresh = path.with_name(f"{path.name}.tmp")
    try:
        with fresh.open("wb") as file:
            file.write(content)
            file.flush()
            give(file, owner)
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def give(file: BinaryIO, owner: os.stat_result) -> None:
    """Set mode and, as root, owner of an open file."""
    if os.geteuid() == 0:
        os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
    os.fchmod(file.fileno(), stat.S_IMODE(owner.st_mode))


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _old_aborted(path: Path) -> dict[tuple[int, int], AbortedTxn]:
    try:
        entries = read_txn_index(path.read_bytes())
    except (FileNotFoundError, CorruptIndex):
        return {}
    return {(txn.producer_id, txn.last_offset): txn for txn in entries}
