"""Messages of magic 0 and 1, which Kafka wrote before 0.11: read, never written.

A message is offset int64, size int32, CRC-32 int32, magic int8, attributes int8, timestamp int64 (magic 1 only), key
length int32, key, value length int32, value; -1 is null. A compressed message (the wrapper) carries other messages as
its value and the offset of the last of them. Inner offsets are absolute in magic 0 and relative to the first in magic
1.

Source of facts: apache/kafka `LegacyRecord.java`, `AbstractLegacyRecordBatch.java`.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from logkeep_engine.errors import BatchTooLarge, CorruptBatch
from logkeep_engine.log.compression import Codec, decompress
from logkeep_engine.log.memory import listed_most

_MESSAGE = struct.Struct(">qiIBB")  # offset, size, crc, magic, attributes
_TIMESTAMP = struct.Struct(">q")
_LENGTH = struct.Struct(">i")

LOG_OVERHEAD = 12
"""Bytes of a message or a batch that its own length does not count: its offset, and that length (Kafka's name)."""

_CRC_END = 16  # offset (8), size (4) and the CRC itself (4): it covers what follows
_SMALLEST = {0: 14, 1: 22}
"""The least value of the size field: everything after it, with a null key and a null value."""

CODEC_MASK = 0x07  # bits 0 to 2 of a message's attributes
_APPEND_TIME = 0x08  # bit 3: the broker has set the times
_NO_TIMESTAMP = -1


_HINT = (
    "A compressed message of magic 0 or 1 is unpacked in every format: only its contents show which offsets it has. "
    "Give tasks more memory with LOGKEEP_TASK_MEMORY (256Mi unless it is set; one message may unpack to a twelfth of "
    "it), or leave the topic out."
)


class Message(NamedTuple):
    """One record of a message set. `timestamp` is -1 in magic 0."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


class MessageSet(NamedTuple):
    """The messages at one place of a log: a plain message, or a wrapper with what it holds."""

    magic: int
    size: int
    crc: int
    attributes: int
    timestamp: int
    messages: list[Message]


def read(buf: memoryview, pos: int) -> MessageSet:
    """Return the message at `pos`, a wrapper opened. Raises `CorruptBatch`, also when the message is cut short, and
    `BatchTooLarge` for a wrapper that holds more than a task's memory allows.
    """
    try:
        return _read(buf, pos)
    except CorruptBatch as problem:
        offset = struct.unpack_from(">q", buf, pos)[0] if len(buf) - pos >= 8 else "unknown"
        raise CorruptBatch(
            f"The message at offset {offset} is damaged: {problem.message}.", hint=problem.hint
        ) from problem
    except BatchTooLarge as problem:
        (offset,) = struct.unpack_from(">q", buf, pos)
        raise BatchTooLarge(
            f"The message at offset {offset} is too large to be unpacked: {problem.message}.", hint=_HINT
        ) from problem


def check_crc(buf: memoryview, pos: int) -> tuple[int, int]:
    """(CRC found in the message, CRC computed over it). The message at `pos` must be whole."""
    _, size, crc, _, _ = _MESSAGE.unpack_from(buf, pos)
    return crc, zlib.crc32(buf[pos + _CRC_END : pos + LOG_OVERHEAD + size])


def smallest_size(magic: int) -> int:
    """Return the least that the size field of a message may say."""
    return _SMALLEST[magic]


def _read(buf: memoryview, pos: int) -> MessageSet:
    offset, size, crc, magic, attributes, timestamp, key, value = _fields(buf, pos)
    code = attributes & CODEC_MASK
    # magic 0 has no time, so bit 3 says nothing there (KIP-32)
    attributes &= CODEC_MASK | _APPEND_TIME if magic else CODEC_MASK
    if code == Codec.NONE:
        plain = Message(offset, timestamp, _bytes(key), _bytes(value))
        return MessageSet(magic, LOG_OVERHEAD + size, crc, attributes, timestamp, [plain])
    # zstd came with magic 2 only (KIP-110)
    if code > Codec.LZ4:
        raise CorruptBatch(f"codec {code} does not exist in magic {magic}")
    if value is None:
        raise CorruptBatch("a compressed message has no value")
    inner = memoryview(decompress(Codec(code), value, broken_lz4_checksum=magic == 0))
    messages = _inner_messages(inner, timestamp if attributes & _APPEND_TIME else None)
    if (
        magic == 1 and offset
    ):  # a wrapper at offset 0 comes from old versions of librdkafka and was never given an offset
        if offset < messages[-1].offset:
            raise CorruptBatch(f"its offset is lower than {messages[-1].offset}, the last relative offset inside")
        base = offset - messages[-1].offset
        messages = [message._replace(offset=base + message.offset) for message in messages]
    return MessageSet(magic, LOG_OVERHEAD + size, crc, attributes, timestamp, messages)


def _inner_messages(data: memoryview, append_time: int | None) -> list[Message]:
    messages: list[Message] = []
    most = listed_most()
    position = 0
    while position < len(data):
        offset, size, _, magic, attributes, timestamp, key, value = _fields(data, position)
        if attributes & CODEC_MASK:
            raise CorruptBatch("a compressed message holds another compressed message")
        # the broker has set the time of the wrapper alone: those inside are still the producer's (KIP-32)
        if magic == 1 and append_time is not None:
            timestamp = append_time
        messages.append(Message(offset, timestamp, _bytes(key), _bytes(value)))
        if len(messages) > most:
            raise BatchTooLarge(f"it holds more than {most} messages")
        position += LOG_OVERHEAD + size
    if not messages:
        raise CorruptBatch("a compressed message holds no messages")
    return messages


def _fields(buf: memoryview, pos: int) -> tuple[int, int, int, int, int, int, memoryview | None, memoryview | None]:
    if len(buf) - pos < _MESSAGE.size:
        raise CorruptBatch(f"only {len(buf) - pos} bytes are left")
    offset, size, crc, magic, attributes = _MESSAGE.unpack_from(buf, pos)
    if magic not in _SMALLEST:
        raise CorruptBatch(f"magic {magic} in a message set")
    if size < _SMALLEST[magic]:
        raise CorruptBatch(f"its size {size} is less than the smallest message of magic {magic}")
    end = pos + LOG_OVERHEAD + size
    if end > len(buf):
        raise CorruptBatch(f"its {size} bytes are not all there")
    at = pos + _MESSAGE.size
    timestamp = _NO_TIMESTAMP
    if magic == 1:
        (timestamp,) = _TIMESTAMP.unpack_from(buf, at)
        at += _TIMESTAMP.size
    key, at = _sized(buf, at, end)
    value, at = _sized(buf, at, end)
    if at != end:
        raise CorruptBatch(f"{end - at} bytes are left over after its value")
    return offset, size, crc, magic, attributes, timestamp, key, value


def _sized(buf: memoryview, at: int, end: int) -> tuple[memoryview | None, int]:
    if end - at < _LENGTH.size:
        raise CorruptBatch("a length field is cut short")
    (length,) = _LENGTH.unpack_from(buf, at)
    at += _LENGTH.size
    if length < 0:
        return None, at
    if length > end - at:
        raise CorruptBatch(f"a field of {length} bytes does not fit into the {end - at} bytes left")
    return buf[at : at + length], at + length


def _bytes(part: memoryview | None) -> bytes | None:
    return None if part is None else bytes(part)
