"""The five codecs of record batches, as Kafka's Java clients and librdkafka write them.

`decompress` never allocates by a length that it only read: gzip, lz4 and zstd grow with what they find, and a snappy
block's declared size is held against the most that snappy can expand.

Source of facts: apache/kafka `org.apache.kafka.common.compress`, snappy-java's `SnappyInputStream`, the LZ4 frame
format.
"""

from __future__ import annotations

import struct
from enum import IntEnum

import cramjam

from logkeep_engine.errors import CorruptBatch

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)  # version, oldest version that can read it
_XERIAL_BLOCK = 32 * 1024
_SNAPPY_MAX_EXPANSION = 32
"""A copy of at most 64 bytes takes at least 3, or 2 for at most 11: no input grows more than 22-fold."""

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
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


def decompress(codec: Codec, data: memoryview, *, broken_lz4_checksum: bool = False) -> bytes:
    """The bytes that were compressed.

    `broken_lz4_checksum`: the data is of a message of magic 0, whose writers computed the lz4 header checksum over
    the wrong bytes (KAFKA-3160). Raises `CorruptBatch`, without naming the batch: the caller knows which it is.
    """
    try:
        match codec:
            case Codec.NONE:
                return bytes(data)
            case Codec.GZIP:
                return bytes(cramjam.gzip.decompress(data))
            case Codec.SNAPPY:
                return _decompress_snappy(data)
            case Codec.LZ4:
                frame = _with_right_lz4_checksum(data) if broken_lz4_checksum else data
                return bytes(cramjam.lz4.decompress(frame))
            case Codec.ZSTD:
                return bytes(cramjam.zstd.decompress(data))
    except (cramjam.DecompressionError, struct.error, IndexError) as problem:
        raise CorruptBatch(f"its {codec.name.lower()} data cannot be decompressed: {problem}") from problem


def _compress_xerial(data: bytes | bytearray) -> bytes:
    out = bytearray(_XERIAL_HEADER)
    view = memoryview(data)
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        out += struct.pack(">i", len(block))
        out += block
    return bytes(out)


def _decompress_snappy(data: memoryview) -> bytes:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:  # librdkafka writes one raw block
        return _decompress_snappy_block(data)
    out = bytearray()
    position = 0
    end = len(data)
    while position < end:
        if data[position : position + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:  # a flush may begin the stream anew
            position += len(_XERIAL_HEADER)
            continue
        (length,) = struct.unpack_from(">i", data, position)
        position += 4
        if not 0 <= length <= end - position:
            raise CorruptBatch(f"a snappy block of {length} bytes does not fit into the {end - position} bytes left")
        out += _decompress_snappy_block(data[position : position + length])
        position += length
    return bytes(out)


def _decompress_snappy_block(block: memoryview) -> bytes:
    size = cramjam.snappy.decompress_raw_len(block)
    if size > _SNAPPY_MAX_EXPANSION * len(block):
        raise CorruptBatch(f"a snappy block of {len(block)} bytes claims to hold {size} bytes")
    return bytes(cramjam.snappy.decompress_raw(block))


def _with_right_lz4_checksum(frame: memoryview) -> bytes:
    """The frame with the checksum of its descriptor made right.

    Writers of magic 0 hashed the frame's magic number too, and Kafka's reader ignores the byte for such messages.
    """
    fixed = bytearray(frame)
    if fixed[:4] != _LZ4_MAGIC:
        raise CorruptBatch("its lz4 data does not start with the lz4 frame magic")
    has_content_size = fixed[4] & 0x08
    at = 14 if has_content_size else 6
    fixed[at] = _xxh32_short(bytes(fixed[4:at])) >> 8 & 0xFF
    return bytes(fixed)


def _xxh32_short(data: bytes) -> int:
    """xxHash32 with seed 0 of fewer than 16 bytes: all that a frame descriptor ever has."""
    prime1, prime2, prime3, prime4, prime5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
    state = (prime5 + len(data)) & _U32
    whole = len(data) // 4 * 4
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        state = (state + word * prime3) & _U32
        state = (_rotate_left(state, 17) * prime4) & _U32
    for byte in data[whole:]:
        state = (state + byte * prime5) & _U32
        state = (_rotate_left(state, 11) * prime1) & _U32
    state = ((state ^ state >> 15) * prime2) & _U32
    state = ((state ^ state >> 13) * prime3) & _U32
    return state ^ state >> 16


def _rotate_left(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _U32
