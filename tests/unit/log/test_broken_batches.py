"""The corpus of broken batches (`tests/data/broken.py`): the kernel finds what plain Python finds."""

import logkeep_kernel as kernel
import pytest

from logkeep_engine.errors import CorruptBatch
from logkeep_engine.log.batch import BatchHeader
from logkeep_engine.log.codec import decode_records
from logkeep_engine.log.consumed import LogRecord
from logkeep_engine.log.records import Record, decode
from tests.data.broken import FOLDER, SUFFIX, corpus, made
from tests.unit.log.oracle import walk_checked

CORPUS = corpus()
NO_END = 2**63 - 1
WHOLE = ("inside", "strange", "sound")

Placed = list[tuple[int, BatchHeader]]


def named(*kinds: str) -> dict[str, bytes]:
    return {name: data for name, data in CORPUS.items() if name.partition("-")[0] in kinds}


def in_python(data: bytes) -> tuple[Placed, bool]:
    """The batches in front of the damage, and whether there is damage."""
    found: Placed = []
    try:
        for placed in walk_checked(data, NO_END):
            found.append(placed)
    except CorruptBatch:
        return found, True
    return found, False


def by_kernel(data: bytes) -> tuple[Placed, int, str]:
    """The batches, the position behind them, and why there are no more."""
    found, end, why = kernel.walk(data, 0, NO_END, len(data) + 1, checked=True, make=BatchHeader._make)
    return list(found), end, why


@pytest.mark.parametrize("name", CORPUS)
def test_the_kernel_walks_as_python_does(name: str) -> None:
    data = CORPUS[name]
    expected, damaged = in_python(data)
    found, end, why = by_kernel(data)
    assert found == expected
    assert end == sum(header.size for _, header in expected)
    assert why == ("odd" if name.startswith("odd") else "end")
    assert damaged == (name.startswith("odd") and name != "odd-magic-1-in-fewer-bytes"), "Python knows old messages"
    assert (end == len(data)) == (name.partition("-")[0] in WHOLE or name == "cut-nothing")


@pytest.mark.parametrize("name", named("inside"))
def test_what_is_damaged_inside_is_refused_by_every_reader(name: str) -> None:
    for reader in (decode, decode_records):
        with pytest.raises(CorruptBatch):
            list(reader(CORPUS[name]))


@pytest.mark.parametrize("name", named("strange", "sound"))
def test_what_is_strange_is_the_same_to_every_reader(name: str) -> None:
    first, second = ([plain(record) for record in reader(CORPUS[name])] for reader in (decode, decode_records))
    assert first == second


def plain(record: Record | LogRecord) -> tuple[object, ...]:
    """The answer of every reader. Offsets past 64 bits wrap in compiled ones."""
    return record.offset % 2**64, record.timestamp, record.key, record.value


def test_a_batch_cut_anywhere_is_no_batch() -> None:
    data = CORPUS["sound-lz4"]
    for size in range(len(data)):
        assert by_kernel(data[:size]) == ([], 0, "end")


def test_a_bit_that_changed_anywhere_after_the_crc_is_seen() -> None:
    data = bytearray(CORPUS["sound-zstd"])
    for at in range(17, len(data)):
        data[at] ^= 1
        assert by_kernel(bytes(data)) == ([], 0, "odd")
        data[at] ^= 1
    assert len(by_kernel(bytes(data))[0]) == 1


def test_every_way_to_break_a_batch_is_in_the_folder() -> None:
    assert set(made()) <= set(CORPUS)
    assert {path.suffix for path in FOLDER.iterdir()} == {SUFFIX}
