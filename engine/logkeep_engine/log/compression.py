"""The five codecs of record batches, as Kafka's Java clients and librdkafka write them.

Nothing is unpacked without a bound (see `memory`), and nothing is allocated by a length that was only read.

Source of facts: apache/kafka `org.apache.kafka.common.compress`, snappy-java's `SnappyInputStream`, the LZ4 frame
format.
"""

from __future__ import annotations

import struct
from enum import IntEnum

import cramjam
import logkeep_kernel as kernel

from logkeep_engine.errors import BatchTooLarge, CorruptBatch
from logkeep_engine.log.memory import ScratchMemory, lent, unpacked_most

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)  # version, oldest version that can read it
_XERIAL_BLOCK = 32 * 1024  # the block size of snappy-java, which Java clients use
_ZSTD_HEADER_MIN = 5  # magic and descriptor
_STEP = 8  # the space for data of unknown size grows by this, so that little is unpacked twice
_FRAME_BYTES = 128  # more than a frame has in addition to its blocks
_BLOCKS = 256  # incompressible bytes grow by less than this part of them

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_DESCRIBED = 15  # magic, the longest descriptor, its checksum; or magic, the shortest one, checksum, one block
_U32 = 0xFFFFFFFF


class Codec(IntEnum):
    """Bits 0-2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: Codec, data: bytes | bytearray) -> bytes:
    """Compress so that every Kafka client can read it: xerial-framed snappy, lz4 frames of independent blocks."""
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            return bytes(cramjam.gzip.compress(data))
        case Codec.SNAPPY:
            return _compress_xerial(data)
        case Codec.LZ4:
            # Kafka's Java reader refuses linked blocks, which are what cramjam writes by default. Level 1 is what its
            # producers use; cramjam's own, 4, takes five times as long.
            frame = cramjam.lz4.Compressor(level=1, content_checksum=False, block_linked=False)
            frame.compress(bytes(data))
            return bytes(frame.finish())
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data))


def surely_fit(limit: int) -> int:
    """Return the most bytes that are not more than `limit` after any of the codecs, even where they do not shrink: a
    little less, at least 1.
    """
    return max(1, (limit - _FRAME_BYTES) * _BLOCKS // (_BLOCKS + 1))


def decompress(codec: Codec, data: memoryview, *, limit: int | None = None, broken_lz4_checksum: bool = False) -> bytes:
    """Return the bytes that were compressed, at most `limit` of them (`memory.unpacked_most()` without it).

    Raises as `decompress_into`.
    """
    most = unpacked_most() if limit is None else limit

    def within(work: ScratchMemory) -> bytes:
        out = work.space(most)
        return bytes(out[: decompress_into(codec, data, out, broken_lz4_checksum=broken_lz4_checksum)])

    with lent() as work:
        size = work.most
        try:
            return within(work)
        except BatchTooLarge:
            if most <= size:
                raise
    while True:
        size = min(most, _STEP * size)
        try:
            return within(ScratchMemory(size))
        except BatchTooLarge:
            if size == most:
                raise


def decompress_into(codec: Codec, data: memoryview, out: memoryview, *, broken_lz4_checksum: bool = False) -> int:
    """Write the bytes that were compressed to `out`, and return their number. Never writes or allocates more than
    `out`, whatever the data claims.

    `broken_lz4_checksum`: the data is of a message of magic 0, whose writers computed the lz4 header checksum over
    the wrong bytes (KAFKA-3160). Raises `BatchTooLarge` if there is no space, and `CorruptBatch`, both without naming
    the batch: the caller knows which it is.
    """
    source = _with_right_lz4_checksum(data) if broken_lz4_checksum and codec is Codec.LZ4 else data
    size, why = kernel.decompress(codec, source, out)
    if size is not None:
        return size
    if why:
        raise CorruptBatch(f"its {codec.name.lower()} data cannot be decompressed: {why}")
    raise too_large(codec, data, len(out))


def too_large(codec: Codec, data: memoryview, limit: int) -> BatchTooLarge:
    """Return the error for data that unpacks to more than `limit` bytes."""
    claimed = _claimed(codec, data)
    says = f" (it says {claimed})" if claimed > limit else ""
    return BatchTooLarge(f"its {len(data)} bytes of {codec.name.lower()} data unpack to more than {limit} bytes{says}")


def announced_zstd(data: memoryview) -> int:
    """Return how many bytes a zstd frame says it unpacks to, -1 if it does not say."""
    if len(data) <= _ZSTD_HEADER_MIN:
        return -1
    descriptor = data[4]  # RFC 8878, 3.1.1.1: it follows the magic number of four bytes
    single = descriptor >> 5 & 1  # a single segment has no window byte, and always a content size
    size = (single, 2, 4, 8)[descriptor >> 6]
    at = 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3]  # past the window byte and the id of the dictionary
    # A size in two bytes is stored less 256, since smaller ones fit into one.
    return int.from_bytes(data[at : at + size], "little") + (256 if size == 2 else 0) if size else -1


def _claimed(codec: Codec, data: memoryview) -> int:
    """Return how many bytes the data says it unpacks to, -1 if it does not say."""
    if codec is Codec.NONE:
        return len(data)
    if codec is Codec.ZSTD:
        return announced_zstd(data)
    if codec is Codec.SNAPPY and data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return int(cramjam.snappy.decompress_raw_len(data))
    return -1


def _compress_xerial(data: bytes | bytearray) -> bytes:
    out = bytearray(_XERIAL_HEADER)
    view = memoryview(data)
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        out += struct.pack(">i", len(block))
        out += block
    return bytes(out)


def _with_right_lz4_checksum(frame: memoryview) -> bytes:
    """Return the frame with a right checksum of its descriptor.

    Writers of magic 0 hashed the frame's magic number too, and Kafka's reader ignores the byte for such messages.
    """
    fixed = bytearray(frame)
    if fixed[:4] != _LZ4_MAGIC:
        raise CorruptBatch("its lz4 data does not start with the lz4 frame magic")
    if len(fixed) < _LZ4_DESCRIBED:
        raise CorruptBatch("its lz4 data is cut short")
    has_content_size = fixed[4] & 0x08
    at = 14 if has_content_size else 6  # magic (4), flags (1), block size (1), and perhaps the content size (8)
    # The format takes the second byte of the hash of the descriptor, without the magic number.
    fixed[at] = _xxh32_short(bytes(fixed[4:at])) >> 8 & 0xFF
    return bytes(fixed)


def _xxh32_short(data: bytes) -> int:
    """xxHash32 with seed 0 of fewer than 16 bytes. A frame descriptor never has more."""
    prime1, prime2, prime3, prime4, prime5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
    state = (prime5 + len(data)) & _U32
    whole = len(data) // 4 * 4  # words of four bytes first, then single bytes
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        state = (state + word * prime3) & _U32
        state = (_rotate_left(state, 17) * prime4) & _U32
    for byte in data[whole:]:
        state = (state + byte * prime5) & _U32
        state = (_rotate_left(state, 11) * prime1) & _U32
    # the final mix of xxHash32, so that each bit of the input reaches each bit of the hash
    state = ((state ^ state >> 15) * prime2) & _U32
    state = ((state ^ state >> 13) * prime3) & _U32
    return state ^ state >> 16


def _rotate_left(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _U32
