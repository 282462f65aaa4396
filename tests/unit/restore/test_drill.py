"""Sampled drills: every partition has its turn, whatever happens between two of them."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from logkeep_engine.archive.catalog.facts import Gap, Partition, Receipt, TopicEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.errors import ArchiveDamaged
from logkeep_engine.restore.model.drill_cycle import DrillCycle
from logkeep_engine.restore.model.drill_scope import MAX_NAME, DrillScope
from logkeep_engine.restore.model.selection import Choice
from logkeep_engine.restore.run.drill_topics import OpenDrill
from logkeep_engine.restore.streams.same import Extent, Extents
from logkeep_engine.storage.local import LocalStorage
from tests.unit.archive.build import ORDERS, archive_of, chunk


def partitions(count: int, topic: str = "a") -> list[Partition]:
    return [(topic, number) for number in range(count)]


def cycle(share: float = 0.05) -> DrillCycle:
    return DrillCycle("team/drill", "archive", share)


@pytest.mark.parametrize(
    ("count", "share", "part", "runs"),
    [(200, 0.05, 10, 20), (30, 0.05, 2, 15), (3, 0.05, 1, 3), (1, 0.0001, 1, 1), (7, 1.0, 7, 1), (100, 0.07, 7, 15)],
)
def test_each_partition_is_drilled_once_within_the_runs_that_are_reported(
    count: int, share: float, part: int, runs: int
) -> None:
    found, drilled = cycle(share), list[Partition]()
    for _ in range(runs):
        sample = found.sample(partitions(count))
        assert (sample.cycle, len(sample.chosen) <= part) == (1, True)
        drilled += sample.chosen
        found = found.after(sample)
    assert (found.part(count), found.runs(count)) == (part, runs)
    assert sorted(drilled) == partitions(count)
    assert found.sample(partitions(count)).cycle == 2


def test_a_part_that_has_failed_is_taken_again() -> None:
    found = cycle(0.5)
    first = found.sample(partitions(10))
    assert found.sample(partitions(10)) == first
    assert found.after(first).sample(partitions(10)).chosen.isdisjoint(first.chosen)


def test_each_cycle_and_each_resource_has_an_order_of_its_own() -> None:
    found = cycle(0.1)
    orders = [one.sample(partitions(100)).chosen for one in (found, found.following(), replace(found, resource="b"))]
    assert len(set(orders)) == 3


def test_partitions_that_come_and_go_within_a_cycle() -> None:
    """A topic that is archived since is drilled in the same cycle; one that is gone holds nothing up."""
    numbers = random.Random(7)
    found, there, drilled = cycle(0.1), partitions(40), list[Partition]()
    while (sample := found.sample(there)).cycle == 1:
        drilled += sample.chosen
        found = found.after(sample)
        there = [key for key in there if numbers.random() > 0.02]
        if len(drilled) == 20:
            there += partitions(5, "b")
    assert len(drilled) == len(set(drilled))
    assert set(there) <= set(drilled)


def test_the_next_run_finds_what_was_drilled(tmp_path: Path) -> None:
    storage, found = LocalStorage(tmp_path.as_uri()), cycle(0.5)
    assert found.load(storage) == found
    after = found.after(found.sample(partitions(4)))
    after.store(storage)
    assert found.load(storage) == after
    assert replace(found, resource="other").load(storage).done == frozenset()
    storage.put(found.path, b'{"format": 1}')
    with pytest.raises(ArchiveDamaged, match="not a cycle of drills: key 'cycle' is missing"):
        found.load(storage)


def test_a_long_name_is_cut_and_stays_another_one() -> None:
    scope = DrillScope("logkeep-drill-", "3f9a1c2e5b7d")
    choices = [Choice(TopicEntry(letter * 249, letter * 22, 1, 1, {}), "") for letter in "ab"]
    choices += [
        Choice(TopicEntry("a" * 248 + "b", "c" * 22, 1, 1, {}), ""),
        Choice(TopicEntry("x", "x" * 22, 1, 1), ""),
    ]
    _, named = scope.narrowed(ArchiveState(), choices)
    names = [choice.target for choice in named]
    assert len(set(names)) == 4
    assert all(name.startswith("logkeep-drill-3f9a1c2e5b7d-") and len(name) <= MAX_NAME for name in names)
    assert "logkeep-drill-3f9a1c2e5b7d-x" in names


def test_a_sampled_drill_knows_nothing_of_the_partitions_of_other_drills(tmp_path: Path) -> None:
    storage = LocalStorage(f"file://{tmp_path}")
    lost = Receipt(gaps=tuple(Gap(ORDERS.topic_id, partition, 0, 10, "retention") for partition in range(2)))
    archive = archive_of(storage, lost, *(chunk(storage, 10, 20, partition=partition) for partition in range(2)))
    scope = DrillScope("logkeep-drill-", "3f9a1c2e5b7d", cycle(0.5))
    archived, (choice,) = scope.narrowed(archive.load(), [Choice(ORDERS, "")])
    assert choice.source == ORDERS
    assert scope.sample is not None
    (drilled,) = scope.sample.chosen
    other = (ORDERS.topic_id, 1 - drilled[1])
    assert archived.segments.get(drilled)
    assert not archived.segments.get(other)
    assert set(archived.gaps) == {drilled}
    assert Extents(archived).of(*other) == Extent(0, 0)


SCOPE = DrillScope("logkeep-drill-", "3f9a1c2e5b7d")
NOTE = OpenDrill("r", "team/drill", "k", SCOPE, 1.0, {f"{SCOPE.beginning}orders": "id"})


def test_a_note_comes_back_as_it_was() -> None:
    assert OpenDrill.from_json(NOTE.to_json(), f"file:///archive/{NOTE.path}") == NOTE


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"topics": {"orders": "id"}}, "names of topics that do not belong to the drill"),
        ({"token": ""}, "a token that no drill makes"),
        ({"token": "3f9a1c2e5b7d/../../topics"}, "a token that no drill makes"),
        ({"token": "3F9A1C2E5B7D"}, "a token that no drill makes"),
        ({"runId": "../../topics"}, "is not a file name"),
        ({"runId": "another"}, "a run or a token that is not in the name of the object"),
        ({"topics": ["orders"]}, "topics is a list of 1, not an object"),
    ],
)
def test_a_note_that_no_drill_has_written_is_refused(change: dict[str, object], expected: str) -> None:
    note = json.dumps({**json.loads(NOTE.to_json()), **change})
    with pytest.raises(ArchiveDamaged, match=f"not a note of a drill's topics: .*{expected}") as refused:
        OpenDrill.from_json(note.encode(), f"file:///archive/{NOTE.path}")
    assert "delete the object" in refused.value.hint


def test_the_mark_of_a_topic_is_that_of_one_attempt_of_one_resource() -> None:
    scopes = [DrillScope("p.", token, owner=owner) for token in ("0" * 12, "1" * 12) for owner in ("a/x", "b/x")]
    marks = [scope.mark["message.timestamp.after.max.ms"] for scope in scopes]
    assert len(set(marks)) == 4
    assert all(0 < int(mark) < 2**63 - 1 for mark in marks)
