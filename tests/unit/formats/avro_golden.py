"""The objects of tests/formats/avro-v1 as bytes, and the same records in Python."""

from pathlib import Path

from logkeep_engine.log.consumed import PlainRecord

_FOLDER = Path(__file__).parents[2] / "formats" / "avro-v1" / "orders" / "partition=0"

NOON = 1_700_000_000_000

STRICT = [
    PlainRecord(0, NOON, 0, b"k1", b"v1", ()),
    PlainRecord(1, NOON + 1, 0, None, b"", [("a", b"1")]),
    PlainRecord(2**32, 2**63 - 1, 0, b"", b"v", [("é", b"")]),
]
LOSSLESS = [
    PlainRecord(0, NOON, 0, b"k1", b"v1", ()),
    PlainRecord(1, NOON + 1, 1, None, b"append", [("a", b"1")]),
    PlainRecord(2, None, None, b"k3", None, ()),
    PlainRecord(5, None, 0, b"", b"", ()),
    PlainRecord(6, 0, 0, None, b"h", [("a", b"1"), ("a", None), ("", b""), ("é", b"\xff\x00"), ("\udcff", b"")]),
    PlainRecord(2**32, 2**63 - 1, 0, b"k", None, ()),
]
OTHER = [
    PlainRecord(2, NOON, 0, b"", None, [("a", b"1"), ("b", b"2")]),
    PlainRecord(3, NOON + 1, 0, b"k", b"v", ()),
]


def golden(kind: str) -> bytes:
    """The bytes of `orders+0-<kind>.data`."""
    data = bytearray()
    for line in (_FOLDER / f"orders+0-{kind}.data.hex").read_text().splitlines():
        if line.startswith("'"):
            data += line[1:-1].encode("ascii")
        else:
            data += bytes.fromhex(line.partition("#")[0])
    return bytes(data)
