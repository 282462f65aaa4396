"""The corpus of broken batches, restored: the kernel's stream refuses what the Python before it refused, and more."""

from collections.abc import Sequence

import pytest

from logkeep_engine.errors import CorruptBatch
from logkeep_engine.log.batch import HEADER_SIZE
from logkeep_engine.restore.streams.filter import Outgoing
from tests.data.broken import corpus
from tests.unit.restore.test_merge_kernel import by_kernel, by_python, inside, only

CORPUS = corpus()
WHOLE = [name for name in CORPUS if name.startswith(("inside", "strange", "sound")) and name != "sound-three"]
REFUSED = ("inside-", "strange-delta")


def stream(kernel: bool, name: str) -> list[Outgoing]:
    """The batch between two sound ones."""
    batches = only(CORPUS["sound-none"], CORPUS[name], CORPUS["sound-lz4"])
    return by_kernel(batches) if kernel else by_python(batches)


def contents(items: Sequence[Outgoing]) -> list[tuple[object, ...]]:
    """Bounds and content; offsets past 64 bits wrap in the kernel."""
    return [
        (item.index, item.count, [(first % 2**64, count) for first, count in item.source], inside(item))
        for item in items
    ]


def refused(name: str) -> bool:
    try:
        stream(True, name)
    except CorruptBatch:
        return True
    return False


@pytest.mark.parametrize("name", WHOLE)
def test_a_batch_is_refused_or_merged_as_python_merged_it_or_sent_as_it_is(name: str) -> None:
    """A batch that is not merged is not unpacked: it goes out as it is archived, and the broker looks at it."""
    if refused(name):
        assert name.startswith(REFUSED)
        return
    as_it_is = CORPUS[name][HEADER_SIZE:]
    found = stream(True, name)
    if as_it_is not in [b"".join(item.data or ())[HEADER_SIZE:] for item in found]:
        assert contents(found) == contents(stream(False, name))


def test_most_damage_is_refused() -> None:
    damaged = [name for name in WHOLE if name.startswith("inside-")]
    assert sum(map(refused, damaged)) > 0.8 * len(damaged)
    assert all(refused(name) for name in damaged if "checksum" in name or name.startswith("inside-record-"))
