"""Both sides of a comparison with a library do the same work."""

from io import BytesIO
from typing import Any

import fastavro
import pytest

from bench import handmade


def test_joined_batches_are_those_of_the_library() -> None:
    for pair in handmade.pairs():
        if pair.work.startswith("join"):
            assert pair.ours() == pair.theirs()


def test_the_library_reads_what_is_packed_by_hand() -> None:
    records = handmade._records(100)
    rows: list[Any] = list(fastavro.reader(BytesIO(handmade._packed(records))))
    assert [(row["offset"], row["key"], row["value"]) for row in rows] == [(r.offset, r.key, r.value) for r in records]


def test_figures_are_those_of_one_unit() -> None:
    pair = handmade.Pair("count", "none", "µs", 1000.0, lambda: sum(range(200_000)), lambda: None)
    ours, theirs = handmade.measure(pair, rounds=3)
    assert 0 <= theirs < ours < 1000
    with pytest.raises(ZeroDivisionError):
        handmade.measure(handmade.Pair("nothing", "none", "µs", 0.0, pair.ours, pair.theirs), rounds=1)
