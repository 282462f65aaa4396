"""Keys whose records are looked for, and batches without these records.

    wanted = WantedKeys.of([b"customer-17"])      # pickles without the keys
    left = remains(batch, header, wanted.kernel())

Where wanted keys go, the keys themselves do not: each is known by its length, and by a BLAKE3 made with a secret that
is drawn again each time.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from logkeep_kernel import Keys, key_digest

from logkeep_engine.errors import CorruptBatch
from logkeep_engine.log.batch import HEADER_SIZE, BatchHeader, parse_header
from logkeep_engine.log.codec import as_rows, decode_records, plain_records
from logkeep_engine.log.compression import compress
from logkeep_engine.log.memory import lent
from logkeep_engine.log.records import Record, encode, sealed

__all__ = ["Keys", "Remains", "WantedKeys", "emptied", "remains"]

_SECRET_BYTES = 32
_MAGIC = 2
_CODEC = 0x07  # bits 0 to 2 of a batch's attributes
_APPEND_TIME = 0x08  # bit 3: the broker has set the times
_DELETE_HORIZON = 0x40  # bit 6: the first timestamp is the time from which tombstones go (KIP-534)
_NO_TIMESTAMP = -1


@dataclass(frozen=True, slots=True)
class WantedKeys:
    """Keys, none of which can be read here. `known` has the digests of all keys of a length, one after the other: a
    million keys travel as a few objects."""

    secret: bytes = field(repr=False)
    known: tuple[tuple[int, bytes], ...] = field(repr=False)

    @classmethod
    def of(cls, keys: Iterable[bytes]) -> Self:
        """Return the digests of these keys."""
        secret = secrets.token_bytes(_SECRET_BYTES)
        known: dict[int, bytearray] = {}
        for key in keys:
            known.setdefault(len(key), bytearray()).extend(key_digest(secret, key))
        return cls(secret, tuple((length, bytes(digests)) for length, digests in known.items()))

    def kernel(self) -> Keys:
        """Give them to the kernel, which finds them. It takes a second for a million: do it once in a task."""
        return Keys(self.secret, self.known)


@dataclass(frozen=True, slots=True)
class Remains:
    """The rest of a batch: another batch, b"" if it has lost all its records, and how many those were."""

    batch: bytes
    erased: int


def remains(batch: memoryview, header: BatchHeader, keys: Keys) -> Remains | None:
    """Return the batch without the records of the keys; None if it has none of them. The CRC is not checked.

    The other records stay as they are, with offsets, times and headers, and so do the batch's base offset, last offset,
    codec and producer. Messages of magic 0 and 1 become a batch of magic 2: they have no other form without one of
    them. Raises CorruptBatch, and BatchTooLarge for more than a task's memory allows.
    """
    if header.is_control or not header.record_count:
        return None
    if header.magic < _MAGIC:
        return _of_messages(batch, header, keys)
    with lent() as work:
        try:
            found = keys.leave(batch, plain_records(batch, header, work, None))
        except ValueError as error:
            raise CorruptBatch(f"The batch at offset {header.base_offset} is damaged: {error}.") from error
    if found is None:
        return None
    packed, count, max_timestamp = found
    erased = header.record_count - count
    if not count:
        return Remains(b"", erased)
    left = header._replace(record_count=count, max_timestamp=max_timestamp)
    return Remains(sealed(compress(header.codec, packed), left), erased)


def emptied(header: BatchHeader) -> bytes:
    """Return the batch of this header without any records, as a broker's cleaner leaves it: who reads on knows its
    offsets."""
    attributes = header.attributes & ~(_CODEC | _DELETE_HORIZON)
    return sealed(
        b"",
        header._replace(magic=_MAGIC, attributes=attributes, base_timestamp=_NO_TIMESTAMP, record_count=0),
    )


def _of_messages(batch: memoryview, header: BatchHeader, keys: Keys) -> Remains | None:
    records = decode_records(batch, header)
    found = set(keys.found(as_rows(records)))
    if not found:
        return None
    left = [
        Record(item.offset, _NO_TIMESTAMP if item.timestamp is None else item.timestamp, item.key, item.value)
        for number, item in enumerate(records)
        if number not in found
    ]
    if not left:
        return Remains(b"", len(found))
    made = encode(left, codec=header.codec, base_offset=header.base_offset)
    head = parse_header(made)._replace(last_offset_delta=header.last_offset_delta)
    if header.is_log_append_time:
        head = head._replace(attributes=head.attributes | _APPEND_TIME)
    return Remains(sealed(made[HEADER_SIZE:], head), len(found))
