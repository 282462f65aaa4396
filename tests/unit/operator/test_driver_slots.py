"""Places: who runs and who waits, as looks and snapshots have found them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from logkeep_operator.api import Key
from logkeep_operator.driver_slots import DriverSlots
from logkeep_operator.settings import Concurrency
from tests.unit.operator.world import START

A, B, C = (Key("KafkaBackup", "team", name) for name in "abc")


def places(most: int = 1) -> DriverSlots:
    made = DriverSlots(Concurrency(most), [None])
    made.counted(None, [], made.mark())
    return made


def test_a_place_is_taken_once() -> None:
    shared = places(3)
    keys = [Key("KafkaBackup", "team", f"n{number}") for number in range(40)]
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda who: who in shared.enter(who, START).running, keys))
    assert sum(found) == 3


def test_who_leaves_lets_the_next_begin() -> None:
    shared = places()
    assert A in shared.enter(A, START).running
    assert B not in shared.enter(B, START).running
    assert C not in shared.enter(C, START + timedelta(seconds=1)).running
    assert shared.due() == []
    shared.leave(A)
    assert shared.due() == [B]
    assert C not in shared.enter(C, START + timedelta(seconds=1)).running, "it is not its turn"
    assert B in shared.enter(B, START).running


def test_a_look_that_failed_holds_up_no_others() -> None:
    shared = places()
    shared.wait(A, START, shared.mark())
    shared.wait(B, START + timedelta(seconds=1), shared.mark())
    assert shared.due() == [A]
    shared.stand_back(A)
    assert shared.due() == [B]


def test_nobody_begins_until_every_namespace_was_looked_at_or_cannot_be_read() -> None:
    shared = DriverSlots(Concurrency(1), ["one", "two"])
    assert A not in shared.enter(A, START).running
    shared.counted("one", [A], shared.mark())
    assert shared.due() == []
    shared.not_counted("two")
    assert shared.due() == [A]


def test_a_snapshot_that_is_older_than_a_look_changes_nothing() -> None:
    shared = places()
    mark = shared.mark()
    shared.enter(A, START)
    shared.found(A, running=False, mark=mark)
    shared.leave(A, mark)
    shared.counted(None, [], mark)
    assert shared.turns().running == {A}
    shared.found(A, running=False)
    shared.found(A, running=True, mark=mark)
    assert shared.turns().running == frozenset()


def test_five_runs_of_one_namespace_do_not_hold_all_places() -> None:
    shared = DriverSlots(Concurrency(5), [None])
    hogs = [Key("KafkaBackup", "hog", f"n{number}") for number in range(7)]
    shared.counted(None, [*hogs, A], shared.mark())
    assert sum(who in shared.enter(who, START).running for who in hogs) == 3
    assert A in shared.enter(A, START + timedelta(hours=1)).running
    assert shared.due() == []
    shared.counted(None, hogs, shared.mark() + 1)
    assert shared.due() == hogs[3:5], "the other namespace has no resource any more"


def test_a_namespace_that_was_not_yet_listed_counts_when_its_run_waits() -> None:
    shared = DriverSlots(Concurrency(2), [None])
    hogs = [Key("KafkaBackup", "hog", f"n{number}") for number in range(3)]
    shared.counted(None, hogs[:1], shared.mark())
    assert hogs[0] in shared.enter(hogs[0], START).running
    shared.wait(A, START + timedelta(hours=1), shared.mark())
    assert hogs[1] not in shared.enter(hogs[1], START).running
    assert A in shared.enter(A, START + timedelta(hours=1)).running


def test_who_is_gone_holds_no_place() -> None:
    shared = places()
    shared.enter(A, START)
    shared.enter(B, START)
    shared.counted("other", [], shared.mark())
    assert shared.turns().running == {A}
    shared.counted("team", [B], shared.mark())
    assert (shared.turns().running, shared.due()) == (frozenset(), [B])
    shared.forget(B)
    assert shared.due() == []
