"""Turns of contenders: which samples count."""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from bench import __main__ as main
from bench import floor, process
from bench.contenders import Sample, Stage
from bench.plan import Turn

_STAGE = cast(Stage, None)


def _turn(*steals: float) -> tuple[Turn, Iterator[Sample]]:
    samples = iter([Sample(2.0, 1.0, 0.5, 10, 1000, 1000, steal=steal) for steal in steals])
    return Turn("floor", lambda _: next(samples), 1), samples


@pytest.mark.parametrize(
    ("steals", "counts"),
    [((0.1,), 0.1), ((0.2,), 0.2), ((0.3, 0.0), 0.0), ((0.3, 0.9, 0.1), 0.1), ((0.3, 0.9, 0.8), 0.8)],
)
def test_a_sample_is_taken_again_if_the_host_kept_the_machine_from_it(steals: tuple[float, ...], counts: float) -> None:
    turn, left = _turn(*steals)
    assert main._undisturbed(turn, _STAGE).steal == counts
    assert not list(left), "it was taken no more often than that"


def test_what_the_host_took_is_read_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert process.stolen() >= 0
    monkeypatch.setattr(Path, "read_text", lambda _: "cpu  1 2 3 4 5 6 7 800 9 10\ncpu0 1 2 3\n")
    assert process.stolen() == 800 / process._TICKS


def test_the_floor_writes_all_of_it(tmp_path: Path) -> None:
    with open(tmp_path / "0.log", "wb", buffering=0) as file:
        assert floor._write(file.fileno(), memoryview(bytes(3 << 20))) == 3 << 20
    assert (tmp_path / "0.log").stat().st_size == 3 << 20
