"""Broken batches, one file each in `broken_batches/`, named after what is wrong. `python -m tests.data.broken` writes
the files that are missing.

    cut-*       ends before the batch does, by the length it claims
    odd-*       what begins there is no sound batch of magic 2: fields that cannot be, another magic, a wrong CRC
    inside-*    header and CRC hold, and what is inside is damaged
    strange-*   the same, but Kafka's readers take it, and so do ours
    sound-*     is whole

The files stay as they are, so that what was broken once is tried for ever; add one for each new way. They are also
where the fuzzers of `kernel/fuzz` begin.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import cramjam

from logkeep_engine.log.batch import HEADER_SIZE, BatchHeader, pack_header, seal
from logkeep_engine.log.compression import Codec, compress
from logkeep_engine.log.records import Record, encode

FOLDER = Path(__file__).parent / "broken_batches"
SUFFIX = ".batch"
TIME = 1_700_000_000_000


def corpus() -> dict[str, bytes]:
    """The files by name, without the suffix."""
    return {path.name.removesuffix(SUFFIX): path.read_bytes() for path in sorted(FOLDER.glob(f"*{SUFFIX}"))}


def main() -> None:
    """Write the files that are missing."""
    FOLDER.mkdir(exist_ok=True)
    for name, data in made().items():
        path = FOLDER / f"{name}{SUFFIX}"
        if not path.exists():
            path.write_bytes(data)


def made() -> dict[str, bytes]:
    """All batches that this module knows to make."""
    inside = {**_records(), **_packed()}
    named = {f"{'strange' if name in _STRANGE else 'inside'}-{name}": data for name, data in inside.items()}
    return {**_cut(), **_odd(), **named, **_sound()}


_STRANGE = {
    "delta-below-zero",
    "delta-past-32-bits",
    "delta-past-the-last",
    "deltas-that-fall",
    "deltas-that-stay",
    "gzip-fifth-byte",
    "gzip-in-two",
    "gzip-seventh-byte",
    "header-key-that-is-no-text",
    "key-of-length-minus-two",
    "lz4-in-two",
    "offsets-past-64-bits",
    "records-of-an-empty-batch",
    "second-header-key-that-is-no-text",
    "second-key-of-length-minus-two",
    "snappy-in-two",
    "snappy-middle-byte",
    "time-past-64-bits",
    "times-past-64-bits",
    "value-of-length-minus-two",
    "zstd-in-two",
}


def _records_of_a_batch() -> list[Record]:
    return [
        Record(0, TIME, b"key", b"a value that is long enough to be worth compressing, worth compressing", ()),
        Record(1, TIME + 1, None, None, ((b"name", b"header"), (b"empty", None))),
        Record(2, TIME + 5, b"", b"", ()),
    ]


def _good(codec: Codec = Codec.NONE, base_offset: int = 0) -> bytes:
    moved = [record._replace(offset=base_offset + record.offset) for record in _records_of_a_batch()]
    return encode(moved, codec=codec, base_offset=base_offset)


def _with(batch: bytes, at: int, layout: str, *values: int, resealed: bool = True) -> bytes:
    """The batch with other fields, and the CRC that belongs to them."""
    changed = bytearray(batch)
    struct.pack_into(layout, changed, at, *values)
    if resealed:
        seal(changed)
    return bytes(changed)


def _of(packed: bytes, *, codec: int = 0, count: int = 1, last_delta: int | None = None, base: int = TIME) -> bytes:
    """A batch of these bytes with a CRC that holds."""
    last = max(0, count - 1) if last_delta is None else last_delta
    header = BatchHeader(0, HEADER_SIZE - 12 + len(packed), 0, 2, 0, codec, last, base, TIME, -1, -1, -1, count)
    batch = bytearray(pack_header(header) + packed)
    seal(batch)
    return bytes(batch)


def _cut() -> dict[str, bytes]:
    good = _good()
    sizes = {"nothing": 0, "one-byte": 1, "before-the-length": 11, "before-the-magic": 16, "in-the-header": 60}
    return {
        **{f"cut-{name}": good[:size] for name, size in sizes.items()},
        "cut-header-only": good[:HEADER_SIZE],
        "cut-last-byte": good[:-1],
        "cut-length-of-2-gib": _with(good, 8, ">i", 2**31 - 1),
        "cut-second-header": good + good[:30],
        "cut-second-body": good + _good(Codec.LZ4, 3)[:-5],
    }


def _odd() -> dict[str, bytes]:
    good = _good()
    flipped = bytearray(good)
    flipped[-1] ^= 0x10
    return {
        "odd-crc": _with(good, 17, ">I", 0xDEADBEEF, resealed=False),
        "odd-bit-of-a-record": bytes(flipped),
        "odd-bit-of-the-attributes": _with(good, 21, ">h", 0x40, resealed=False),
        "odd-second-batch": good + bytes(flipped),
        "odd-zeros": bytes(100),
        "odd-ones": b"\xff" * 100,
        "odd-text": b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n",
        **{f"odd-magic-{magic}": _with(good, 16, ">B", magic) for magic in (0, 1, 3, 255)},
        **{f"odd-length-{name}": _with(good, 8, ">i", value) for name, value in _LENGTHS.items()},
        "odd-last-offset-delta": _with(good, 23, ">i", -1),
        "odd-lowest-last-offset-delta": _with(good, 23, ">i", -(2**31)),
        "odd-record-count": _with(good, 57, ">i", -1),
        "odd-magic-1-in-fewer-bytes": _with(good, 16, ">B", 1)[:40],
    }


_LENGTHS = {"negative": -1, "lowest": -(2**31), "zero": 0, "one-too-short": HEADER_SIZE - 12 - 1}


def _varint(number: int) -> bytes:
    value = (number << 1) ^ (number >> 63)
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _record(*, delta: bytes = b"\0", time: bytes = b"\0", key: bytes = b"\x01", value: bytes = b"\x02v",
            headers: bytes = b"\0", length: int | None = None) -> bytes:  # fmt: skip
    """A record of parts that may be anything, and of a length that may be another one."""
    body = b"\0" + time + delta + key + value + headers
    return _varint(len(body) if length is None else length) + body


_HUGE = _varint(2**31 - 1)
_ENDLESS = b"\x80" * 9 + b"\x01"
_TOO_LONG = b"\xff" * 11


def _records() -> dict[str, bytes]:
    """One record is broken, in every way."""
    one = _record()
    broken: Mapping[str, bytes] = {
        "record-of-negative-length": _record(length=-1),
        "record-of-no-length": _record(length=0),
        "record-past-the-end": _record(length=200),
        "record-of-2-gib": _HUGE + b"\0\0\0",
        "record-shorter-than-its-fields": _record(length=4),
        "record-longer-than-its-fields": _record(length=8) + b"\0",
        "length-of-eleven-bytes": _TOO_LONG + one,
        "length-without-an-end": b"\xff\xff",
        "length-in-ten-bytes": _ENDLESS + one[1:],
        "time-of-eleven-bytes": _record(time=_TOO_LONG),
        "time-past-64-bits": _record(time=_varint(2**63 - 1)),
        "delta-below-zero": _record(delta=_varint(-1)),
        "delta-past-the-last": _record(delta=_varint(7)),
        "delta-past-32-bits": _record(delta=_varint(2**33)),
        "key-of-length-minus-two": _record(key=_varint(-2)),
        "key-past-the-record": _record(key=_varint(100) + b"k"),
        "key-of-2-gib": _record(key=_HUGE + b"k"),
        "value-of-length-minus-two": _record(value=_varint(-2)),
        "value-past-the-record": _record(value=_varint(3) + b"v"),
        "value-of-2-gib": _record(value=_HUGE),
        "headers-below-zero": _record(headers=_varint(-1)),
        "headers-that-are-not-there": _record(headers=_varint(3)),
        "headers-of-2-gib": _record(headers=_HUGE),
        "header-without-a-key": _record(headers=_varint(1) + _varint(-1) + _varint(1) + b"v"),
        "header-key-past-the-record": _record(headers=_varint(1) + _varint(9) + b"k"),
        "header-key-that-is-no-text": _record(headers=_varint(1) + _varint(2) + b"\xc3\x28" + _varint(-1)),
        "header-value-past-the-record": _record(headers=_varint(1) + _varint(1) + b"k" + _varint(9)),
    }
    found = {name: _of(data) for name, data in broken.items()}
    found |= {f"second-{name}": _of(one + data, count=2) for name, data in broken.items() if "key" in name}
    return found | {
        "more-records-than-there-are": _of(one, count=2),
        "fewer-records-than-there-are": _of(one + _record(delta=_varint(1)), count=1, last_delta=1),
        "2-gib-of-records": _of(one, count=2**31 - 1),
        "bytes-behind-the-last": _of(one + b"\0"),
        "records-of-an-empty-batch": _of(one, count=0),
        "no-bytes": _of(b"", count=1),
        "deltas-that-fall": _of(_record(delta=_varint(1)) + _record(), count=2),
        "deltas-that-stay": _of(_record() + _record(), count=2),
        "offsets-past-64-bits": _with(_of(_record(delta=_varint(9)), last_delta=9), 0, ">q", 2**63 - 3),
        "times-past-64-bits": _of(_record(time=_varint(9)), base=2**63 - 3),
    }


def _packed() -> dict[str, bytes]:
    """Compressed data is broken, in every codec."""
    plain = _good()[HEADER_SIZE:]
    found: dict[str, bytes] = {}
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        name, whole = codec.name.lower(), compress(codec, plain)
        for what, data in _damaged(whole):
            found[f"{name}-{what}"] = _of(data, codec=codec, count=3)
        twice = compress(codec, plain[: len(plain) // 2]) + compress(codec, plain[len(plain) // 2 :])
        found[f"{name}-in-two"] = _of(twice, codec=codec, count=3)
        broken = compress(codec, _record(key=_varint(100) + b"k"))
        found[f"{name}-key-past-the-record"] = _of(broken, codec=codec)
    for codec_number in (5, 6, 7):
        found[f"codec-{codec_number}"] = _of(plain, codec=codec_number, count=3)
    raw = bytes(cramjam.snappy.compress_raw(plain))
    xerial = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01"
    found |= {
        "snappy-block-of-4-gib": _of(b"\xff\xff\xff\xff\x0f" + raw[1:], codec=Codec.SNAPPY, count=3),
        "snappy-xerial-past-the-end": _of(xerial + struct.pack(">i", 9_999) + raw, codec=Codec.SNAPPY, count=3),
        "snappy-xerial-below-zero": _of(xerial + struct.pack(">i", -5) + raw, codec=Codec.SNAPPY, count=3),
        "snappy-xerial-header-only": _of(xerial, codec=Codec.SNAPPY, count=3),
        "zstd-of-16-eib": _of(b"\x28\xb5\x2f\xfd\xe0" + b"\xff" * 8 + b"\1\0\0", codec=Codec.ZSTD, count=3),
        "gzip-without-a-trailer": _of(gzip.compress(plain, mtime=0)[:-8], codec=Codec.GZIP, count=3),
    }
    return found


def _damaged(whole: bytes) -> Iterator[tuple[str, bytes]]:
    yield "cut", whole[:-3]
    yield "cut-in-half", whole[: len(whole) // 2]
    yield "nothing", b""
    yield "garbage", bytes(range(1, 60))
    yield "bytes-behind-it", whole + b"\1\2\3"
    for name, at in (("first", 0), ("fifth", 5), ("seventh", 7), ("middle", len(whole) // 2), ("last", len(whole) - 1)):
        flipped = bytearray(whole)
        flipped[at] ^= 0x44
        yield f"{name}-byte", bytes(flipped)


def _sound() -> dict[str, bytes]:
    good = _good()
    codecs: dict[str, Callable[[], bytes]] = {
        codec.name.lower(): lambda codec=codec: _good(codec)  # type: ignore[misc]
        for codec in Codec
    }
    return {
        **{f"sound-{name}": make() for name, make in codecs.items()},
        "sound-three": good + _good(Codec.ZSTD, 3) + _good(Codec.GZIP, 6),
        "sound-empty-batch": _of(b"", count=0, last_delta=4),
        "sound-highest-offset": _with(good, 0, ">q", 2**63 - 5),
        "sound-negative-offset": _with(good, 0, ">q", -7),
        "sound-all-attributes": _with(good, 21, ">h", 0x78),
        "sound-raw-snappy": _of(bytes(cramjam.snappy.compress_raw(good[HEADER_SIZE:])), codec=Codec.SNAPPY, count=3),
        "sound-header-value-of-null": _of(_record(headers=_varint(1) + _varint(1) + b"k" + _varint(-1))),
        "sound-gaps-between-deltas": _of(_record() + _record(delta=_varint(5)), count=2, last_delta=9),
    }


if __name__ == "__main__":
    main()
