"""Notes about what is done are held to the plan and to the archive."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.archive.catalog.facts import Coverage, TopicEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.errors import StateAltered
from logkeep_engine.restore.model.context import Planned
from logkeep_engine.restore.model.offset_map import OffsetMapBuilder, OutletSummary, PartitionSummary, map_blocks
from logkeep_engine.restore.model.plan import PartitionPlan, RestorePlan, TopicPlan
from logkeep_engine.restore.model.state import RestoreState
from logkeep_engine.restore.positions.groups import opener
from logkeep_engine.restore.sending.evidence import lacking, refuse_other_maps
from logkeep_engine.storage import LocalStorage
from tests.unit.restore.test_plan import entry

TOPIC = TopicEntry("orders", "o" * 22, 1, 1)
OUTLET = OutletSummary(0, 10, 0, 10)
DONE = PartitionSummary("orders", "o" * 22, 0, "copy", 10, 500, (OUTLET,))


def planned(*, transactional: bool = False, divided: bool = False) -> Planned:
    archived = ArchiveState()
    segment = entry(topic_id=TOPIC.topic_id)
    if transactional:
        segment = entry(topic_id=TOPIC.topic_id, transactional=True)
    archived.add_facts([TOPIC], [Coverage(TOPIC.topic_id, 0, 0, 10)], [segment], ())
    parts = tuple(PartitionPlan(0, 7 + to, 0, to=to) for to in range(2)) if divided else (PartitionPlan(0, 7, 0),)
    topic = TopicPlan("orders", "o" * 22, "copy", True, len(parts), 1, 1 << 20, parts, divided=divided)
    return Planned(RestorePlan("r", "d", "a", 1, "k", (topic,)), archived, fresh=False)


@pytest.fixture
def state(tmp_path: Path) -> RestoreState:
    return RestoreState(LocalStorage(tmp_path.as_uri()), "r")


def test_a_map_of_the_plan_is_taken(state: RestoreState) -> None:
    refuse_other_maps(planned(), [DONE], state)
    refuse_other_maps(planned(), [], state)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"target_topic": "payments"}, "of topic 'payments' partition 0, which the restore does not write to"),
        ({"outlets": (replace(OUTLET, partition=1),)}, "partition 1, which the restore does not write to"),
        ({"source_topic": "other"}, "it is of another archived partition"),
        ({"source_topic_id": "x" * 22}, "it is of another archived partition"),
        ({"source_partition": 1}, "it is of another archived partition"),
        ({"records": 0}, "says that 0 records went there: the archive has 10"),
        ({"records": 11}, "says that 11 records went there: the archive has 10"),
        ({"outlets": (replace(OUTLET, start=5),)}, "it begins at offset 5, not at 0"),
        ({"outlets": (replace(OUTLET, end=-1),)}, "it begins at offset 0, not at 0"),
    ],
)
def test_a_map_that_says_otherwise_is_not_used(state: RestoreState, change: dict[str, Any], expected: str) -> None:
    with pytest.raises(StateAltered, match=f"an offset map is .*{expected}; it was not used") as refused:
        refuse_other_maps(planned(), [replace(DONE, **change)], state)
    assert "spec.state" in refused.value.hint


def test_how_many_records_transactions_have_left_is_not_known(state: RestoreState) -> None:
    refuse_other_maps(planned(transactional=True), [replace(DONE, records=3)], state)
    assert lacking(planned(transactional=True), ends({("copy", 0): 0})) == ""


def ends(found: dict[tuple[str, int], int]) -> Any:
    class Control:
        def latest_offsets(self, _: Any) -> dict[tuple[str, int], int]:
            return found

    return Control()


def test_a_target_must_reach_as_far_as_the_archive_takes_it() -> None:
    assert lacking(planned(), ends({("copy", 0): 10})) == ""
    assert lacking(planned(), ends({("copy", 0): 9})) == "topic 'copy' partition 0 ends at offset 9, not at 10 or later"
    assert lacking(planned(), ends({})) == "topic 'copy' partition 0 ends at offset 0, not at 10 or later"
    divided = planned(divided=True)
    assert lacking(divided, ends({("copy", 0): 4, ("copy", 1): 6})) == ""
    assert lacking(divided, ends({("copy", 0): 4, ("copy", 1): 5})) == "topic 'copy' holds 9 of the 10 records"


def stored(state: RestoreState, summary: PartitionSummary, target: int) -> None:
    with OffsetMapBuilder() as builder, state.storage.writer(state.map_path("copy", 0)) as writer:
        builder.source(0, summary.records)
        builder.target(target, summary.records)
        for block in map_blocks(summary, builder):
            writer.write(block)


def test_positions_go_only_to_what_was_restored(state: RestoreState) -> None:
    topics = planned().plan.topics
    stored(state, DONE, 0)
    assert opener(state, topics)("copy", 0).find(4).target == 4
    stored(state, DONE, 1_000_000)
    with pytest.raises(StateAltered, match=r"copy/0\.json: it maps offset 4 to 1000004, outside of what was restored"):
        opener(state, topics)("copy", 0).find(4)
    for other in (
        replace(DONE, target_topic="payments"),
        replace(DONE, source_partition=3),
        replace(DONE, outlets=(replace(OUTLET, start=3),)),
    ):
        stored(state, other, 0)
        with pytest.raises(StateAltered, match=r"copy/0\.json: it is the offset map of another partition"):
            opener(state, topics)("copy", 0)
