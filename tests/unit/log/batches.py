"""Small logs for the tests of this folder."""

import struct
from collections.abc import Sequence

from logkeep_kernel import IndexBuilder

from logkeep_engine.errors import CorruptBatch
from logkeep_engine.log.batch import HEADER_SIZE, Buffer, parse_header, rewritten_header, runs, walk
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.records import Record, encode

NOON = 1_700_000_000_000


def batch(
    base_offset: int,
    count: int = 1,
    *,
    codec: Codec = Codec.NONE,
    timestamp: int = NOON,
    value: bytes = b"v",
    producer_id: int = -1,
    transactional: bool = False,
    base_sequence: int = -1,
) -> bytes:
    """`count` records from `base_offset` on, a millisecond apart."""
    records = [Record(base_offset + i, timestamp + i, b"k%d" % i, value) for i in range(count)]
    return encode(
        records,
        codec=codec,
        base_offset=base_offset,
        producer_id=producer_id,
        transactional=transactional,
        base_sequence=base_sequence,
    )


def marker(offset: int, producer_id: int, *, commit: bool) -> bytes:
    """A transaction marker as the broker writes it."""
    key, value = struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, 7)
    plain = encode([Record(offset, NOON, key, value)], codec=Codec.NONE, base_offset=offset)
    return with_header(plain, base_offset=offset, producer_id=producer_id, attributes=0x30)


def rewrite(
    batch: Buffer,
    *,
    base_offset: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    transactional: bool | None = False,
    leader_epoch: int = -1,
) -> bytearray:
    """The same records, still packed, in a batch that a producer may send: see `rewritten_header`. Raises CorruptBatch
    unless `batch` is exactly one whole batch of magic 2."""
    view = memoryview(batch)
    header = parse_header(view)
    if header.magic != 2:
        raise CorruptBatch(
            f"The batch at offset {header.base_offset} has magic {header.magic} and cannot be sent as it is.",
            hint="Decode and encode it.",
        )
    if header.size != len(view):
        raise CorruptBatch(
            f"The batch at offset {header.base_offset} has {header.size} bytes, but {len(view)} are given."
        )
    out = bytearray(
        rewritten_header(
            view,
            header,
            base_offset=base_offset,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            transactional=transactional,
            leader_epoch=leader_epoch,
        )
    )
    out += view[HEADER_SIZE:]
    return out


def with_header(plain: bytes, *, base_offset: int | None = None, producer_id: int = -1, **fields: int) -> bytes:
    """A batch with other header fields and the CRC that belongs to them."""
    changed = bytearray(plain)
    places = {"attributes": (21, ">h"), "last_offset_delta": (23, ">i"), "base_timestamp": (27, ">q")}
    places |= {"max_timestamp": (35, ">q"), "record_count": (57, ">i")}
    for name, value in fields.items():
        at, form = places[name]
        struct.pack_into(form, changed, at, value)
    horizon = fields.get("attributes", 0) & 0x40
    ((_, header),) = walk(changed)
    sealed = rewrite(
        changed,
        base_offset=header.base_offset if base_offset is None else base_offset,
        producer_id=producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=None,
    )
    return _with_bit(sealed, horizon) if horizon else bytes(sealed)


def hidden(batch: bytes, highest: int = -1) -> bytes:
    """The batch as of a producer that does not set the highest time, in a broker that keeps what it gets."""
    header = parse_header(batch)
    return with_header(batch, producer_id=header.producer_id, max_timestamp=highest)


def of_epoch(batch: bytes, leader_epoch: int) -> bytes:
    """The batch as a leader of this epoch has appended it. Epochs never fall along a log. No CRC covers them."""
    return batch[:12] + struct.pack(">i", leader_epoch) + batch[16:]


def _with_bit(sealed: bytearray, bit: int) -> bytes:
    from crc32c import crc32c

    sealed[22] |= bit
    struct.pack_into(">I", sealed, 17, crc32c(memoryview(sealed)[21:]))
    return bytes(sealed)


def positions(log: Sequence[bytes]) -> list[int]:
    """Where each of the batches starts when they are joined."""
    return [sum(map(len, log[:i])) for i in range(len(log))]


def build_indexes(log: bytes, base_offset: int, *, index_interval_bytes: int) -> tuple[bytes, bytes]:
    """Offset and time index of a whole segment that starts at `base_offset`."""
    writer = IndexBuilder(base_offset, index_interval_bytes)
    for headers in runs(log, checked=False):
        writer.extend(headers)
    return writer.finish()
