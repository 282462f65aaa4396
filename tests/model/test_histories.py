"""Random histories of an archive: every kept point through every reader is right, but for faults that are known.

A history that fails prints itself short, to be pasted into `test_known`.
"""

import pytest

from tests.examples import number
from tests.model.actions import Backup, Erase, Write, history, random_history
from tests.model.asking import Fault
from tests.model.known import KNOWN, known
from tests.model.play import first_fault, play, shrunk
from tests.model.world import Settings


def is_new(fault: Fault) -> bool:
    return not known(fault)


@pytest.mark.deep
def test_no_history_has_a_new_fault() -> None:
    for seed in range(number(120, deep=5000)):
        fault = first_fault(random_history(seed), is_new)
        if fault is not None:
            short = shrunk(random_history(seed), is_new)
            pytest.fail(f"seed {seed}: {first_fault(short, is_new)}\n{short}")


def test_a_seed_is_a_history() -> None:
    assert str(random_history(7)) == str(random_history(7))
    assert str(random_history(7)) != str(random_history(8))


def test_a_history_prints_itself_as_it_is_pasted() -> None:
    reported = history(Settings("compact"), Write("ab"), Backup(dies=3))
    assert str(reported) == "history(\n    Settings(policy='compact'),\n    Write(),\n    Backup(dies=3),\n)"


def test_known_faults_have_names_of_their_own() -> None:
    assert len({item.name for item in KNOWN}) == len(KNOWN)


def test_a_reader_that_leaves_records_out_is_found_and_made_short(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = play(history(Settings(), Write("abc"), Backup()))
    assert list(whole) == []
    monkeypatch.setattr("tests.model.restoring.stream_of", lambda task, done: iter(()))
    short = shrunk(history(Settings(max_age=3), Write("ab"), Write("c"), Backup(), Erase("d"), Backup()), is_new)
    assert str(short) == str(history(Settings(), Write(), Backup()))
