"""The erasure benchmark erases what it says."""

import pytest

from bench import erasure
from bench.compaction import Shape
from logkeep_engine.log.compression import Codec


def test_a_row_says_what_was_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasure, "ASKED", ((0, 0), (9, 100)))
    nothing, some = erasure.measure(Shape("small", 900, 90, 50, 10, 300, Codec.LZ4))
    assert (nothing["keys"], nothing["erased"], nothing["written"]) == (0, 0, 0)
    assert (some["keys"], some["erased"], some["records"]) == (109, 90, 900)
    assert 0 < some["written"] < some["bytes"]
