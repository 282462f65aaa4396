"""The folder of tests/formats/records-v1 as bytes, and the same records in Python."""

from pathlib import Path

from logkeep_engine.log.consumed import PlainRecord

_FOLDER = Path(__file__).parents[2] / "formats" / "records-v1" / "orders"

FIRST = "segment_partition_000_from_offset_0000000000"
SECOND = "segment_partition_000_from_offset_10000000000"

NOON = 1_700_000_000_000

RECORDS = [
    PlainRecord(0, NOON, 0, b"k1", b"v1"),
    PlainRecord(1, NOON + 1, 1, None, b"append"),
    PlainRecord(2, None, None, b"k3", None),
    PlainRecord(5, None, 0, b"", b""),
    PlainRecord(6, 0, 0, None, b"h", (("a", b"1"), ("a", None), ("", b""), ("é", b"\xff\x00"))),
    PlainRecord(2**32, 2**63 - 1, 0, b"k", None),
]
POSITIONS = [1, 37, 75, 101, 125, 197, 230]
LATER = [PlainRecord(10**10, NOON + 1000, 0, b"k", b"v")]


def golden(name: str) -> bytes:
    """The bytes of a file of the folder."""
    plain = _FOLDER / name
    if plain.exists():
        return plain.read_bytes()
    lines = (_FOLDER / f"{name}.hex").read_text().splitlines()
    return bytes.fromhex("".join(line.partition("#")[0] for line in lines))


def golden_folder() -> dict[str, bytes]:
    """Every file of the folder."""
    return {name: golden(name) for name in sorted(path.name.removesuffix(".hex") for path in _FOLDER.iterdir())}
