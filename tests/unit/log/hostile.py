"""Batches that take a few kilobytes and unpack to far more than a task may take."""

import gc
import struct
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import cramjam

from logkeep_engine.log.batch import HEADER_SIZE, BatchHeader, pack_header, seal
from logkeep_engine.log.compression import Codec, compress
from logkeep_engine.log.records import Record, encode
from tests.unit.log.batches import NOON

ZEROS = 64 << 20
"""Three times of what a task unpacks."""


def zeros(codec: Codec, size: int = ZEROS, *, base_offset: int = 0, raw_snappy: bool = False) -> bytes:
    """One record whose value is `size` zeros."""
    if codec is Codec.NONE:
        return _zeros(codec, size, base_offset, raw_snappy)
    return _packed_zeros(codec, size, base_offset, raw_snappy)


@cache  # some kilobytes, which take long to make, for many tests
def _packed_zeros(codec: Codec, size: int, base_offset: int, raw_snappy: bool) -> bytes:
    return _zeros(codec, size, base_offset, raw_snappy)


def _zeros(codec: Codec, size: int, base_offset: int, raw_snappy: bool) -> bytes:
    if not raw_snappy:
        return encode([Record(base_offset, NOON, b"k", bytes(size))], codec=codec, base_offset=base_offset)
    plain = encode([Record(base_offset, NOON, b"k", bytes(size))], codec=Codec.NONE, base_offset=base_offset)
    return sealed(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(plain[HEADER_SIZE:])), base_offset=base_offset)


def sealed(
    codec: Codec, packed: bytes, *, count: int = 1, base_offset: int = 0, last_delta: int | None = None
) -> bytes:
    """A batch of these bytes, whatever they are, with the CRC that belongs to them."""
    batch = bytearray(
        pack_header(
            BatchHeader(
                base_offset=base_offset,
                batch_length=HEADER_SIZE - 12 + len(packed),
                leader_epoch=-1,
                magic=2,
                crc=0,
                attributes=codec,
                last_offset_delta=count - 1 if last_delta is None else last_delta,
                base_timestamp=NOON,
                max_timestamp=NOON,
                producer_id=-1,
                producer_epoch=-1,
                base_sequence=-1,
                record_count=count,
            )
        )
    )
    batch += packed
    seal(batch)
    return bytes(batch)


def zeros_of_no_size(size: int) -> bytes:
    """The same in zstd without a content size: only who unpacks it knows."""
    plain = encode([Record(0, NOON, b"k", bytes(size))], codec=Codec.NONE, base_offset=0)
    stream = cramjam.zstd.Compressor()
    stream.compress(plain[HEADER_SIZE:])
    return sealed(Codec.ZSTD, bytes(stream.finish()))


def wrapper(magic: int, codec: Codec, values: Sequence[bytes]) -> bytes:
    """A compressed message of magic 0 or 1 that holds messages of these values, from offset 0 on."""
    inner = b"".join(_message(magic, at, 0, value) for at, value in enumerate(values))
    packed = bytearray(compress(codec, inner))
    if magic == 0 and codec is Codec.LZ4:
        packed[6] ^= 0xFF  # writers of magic 0 had it wrong
    return _message(magic, len(values) - 1, codec, bytes(packed))


def _message(magic: int, offset: int, attributes: int, value: bytes) -> bytes:
    time = struct.pack(">q", NOON) if magic else b""
    rest = struct.pack(">BB", magic, attributes) + time + struct.pack(">ii", -1, len(value)) + value
    return struct.pack(">qiI", offset, 4 + len(rest), zlib.crc32(rest)) + rest


def many(codec: Codec, count: int, *, base_offset: int = 0, step: int = 1, header_key: bytes | None = None) -> bytes:
    """`count` records of nothing: seven bytes each in the batch, hundreds as objects."""
    body = bytearray()
    end = b"\x01\x01\x00" if header_key is None else b"\x01\x01\x02" + _varint(len(header_key)) + header_key + b"\x01"
    for number in range(count):
        delta = _varint(number * step)
        record = b"\x00\x00" + delta + end
        body += _varint(len(record)) + record
    return sealed(codec, compress(codec, body), count=count, base_offset=base_offset, last_delta=(count - 1) * step)


def many_headers(codec: Codec, count: int) -> bytes:
    """One record with `count` headers of no name and no value: two bytes each in the batch."""
    record = b"\x00\x00\x00\x01\x01" + _varint(count) + b"\x00\x01" * count
    return sealed(codec, compress(codec, _varint(len(record)) + record))


def claims(size: int) -> dict[str, bytes]:
    """Batches that say they unpack to `size` bytes and do not: by the name of the codec."""
    frame = (
        b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", size) + b"\x01\x00\x00"
    )  # one segment, content size, one empty block
    preamble = bytearray()
    left = size
    while left > 0x7F:
        preamble.append(left & 0x7F | 0x80)
        left >>= 7
    preamble.append(left)
    block = bytes(preamble) + b"\x00a"
    xerial = b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, len(block)) + block
    return {
        "zstd": sealed(Codec.ZSTD, frame),
        "snappy": sealed(Codec.SNAPPY, block),
        "xerial": sealed(Codec.SNAPPY, xerial),
    }


def _varint(number: int) -> bytes:
    number <<= 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def peak_of(work: Callable[[], object]) -> int:
    """The most bytes by which the process is larger while `work` continues than it was before."""
    gc.collect(1)  # what is older than the test takes its memory before and behind; to walk it takes long
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
    before = _status("VmRSS")
    work()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) << 10
