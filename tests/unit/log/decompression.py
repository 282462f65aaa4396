"""Decompression by cramjam and Python: the oracle of what the kernel does."""

import struct

import cramjam

from logkeep_engine.errors import BatchTooLarge, CorruptBatch
from logkeep_engine.log.compression import Codec, too_large

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)  # version, oldest version that can read it
_SNAPPY_MAX_EXPANSION = 32
_NO_ROOM = "failed to write whole buffer"
"""The words of cramjam's decompressors when the space is full."""


def decompress_into(codec: Codec, data: memoryview, out: memoryview) -> int:
    """Write the bytes that were compressed to `out`, and return their number. Never writes or allocates more than
    `out`, whatever the data claims.

    Raises `BatchTooLarge` if there is no space, and `CorruptBatch`.
    """
    try:
        match codec:
            case Codec.NONE:
                return _copy(data, out)
            case Codec.GZIP:
                return int(cramjam.gzip.decompress_into(data, out))
            case Codec.SNAPPY:
                return _decompress_snappy(data, out)
            case Codec.LZ4:
                return int(cramjam.lz4.decompress_into(data, out))
            case Codec.ZSTD:
                return int(cramjam.zstd.decompress_into(data, out))
    except (cramjam.DecompressionError, struct.error, IndexError) as problem:
        if str(problem) == _NO_ROOM:
            raise too_large(codec, data, len(out)) from None
        raise CorruptBatch(f"its {codec.name.lower()} data cannot be decompressed: {problem}") from problem


def _copy(data: memoryview, out: memoryview) -> int:
    if len(data) > len(out):
        raise too_large(Codec.NONE, data, len(out))
    out[: len(data)] = data
    return len(data)


def _decompress_snappy(data: memoryview, out: memoryview) -> int:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:  # librdkafka writes one raw block
        return _decompress_snappy_block(data, out)
    written = 0
    position = 0
    end = len(data)
    while position < end:
        if data[position : position + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:  # a flush may begin the stream again
            position += len(_XERIAL_HEADER)
            if position > end:  # Kafka's reader refuses it, too
                raise CorruptBatch("the snappy header is cut short")
            continue
        (length,) = struct.unpack_from(">i", data, position)
        position += 4
        if not 0 <= length <= end - position:
            raise CorruptBatch(f"a snappy block of {length} bytes does not fit into the {end - position} bytes left")
        try:
            written += _decompress_snappy_block(data[position : position + length], out[written:])
        except BatchTooLarge:
            raise too_large(Codec.SNAPPY, data, len(out)) from None
        position += length
    return written


def _decompress_snappy_block(block: memoryview, out: memoryview) -> int:
    """Compare the declared size with the most that snappy can expand, and with the space that there is."""
    size = cramjam.snappy.decompress_raw_len(block)
    if size > _SNAPPY_MAX_EXPANSION * len(block):
        raise CorruptBatch(f"a snappy block of {len(block)} bytes claims to hold {size} bytes")
    if size > len(out):
        raise too_large(Codec.SNAPPY, block, len(out))
    return int(cramjam.snappy.decompress_raw_into(block, out))
