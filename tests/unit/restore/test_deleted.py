"""A run tells of the records that targets have deleted since they were restored."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from logkeep_engine.kafka.control import Bounds
from logkeep_engine.kafka.survey import Answers
from logkeep_engine.restore.model.offset_map import OutletSummary, PartitionSummary
from logkeep_engine.restore.model.plan import NO_TASK, PartitionPlan, RestorePlan, TopicPlan
from logkeep_engine.restore.sending.count import Where, describe_deleted

APPENDED = TopicPlan(
    "orders", "o" * 22, "copy", False, 3, 0, 1000, (PartitionPlan(0, 1, 50), PartitionPlan(1, 2, 0)), target_id="t" * 22
)
SAME = TopicPlan(
    "payments", "p" * 22, "same", True, 2, 3, 1000, (PartitionPlan(0, 3, 0, 40, 60), PartitionPlan(1, NO_TASK, 0))
)
ENDS = {("copy", 0): (50, 150), ("copy", 1): (0, 10), ("same", 0): (0, 60)}


def outlet(partition: int, start: int, end: int) -> OutletSummary:
    return OutletSummary(partition, end - start, start, end, epoch=1)


def warnings_of(starts: dict[Where, int], silent: dict[Where, str] | None = None) -> list[str]:
    summaries = {
        where: PartitionSummary(
            "orders",
            "o" * 22,
            where[1],
            where[0],
            end - start,
            99,
            (outlet(where[1], start, end),),
        )
        for where, (start, end) in ENDS.items()
    }

    def bounds(asked: Iterable[Where]) -> Answers[Bounds]:
        assert set(asked) == set(ENDS)
        return Answers({where: Bounds(start, 1000) for where, start in starts.items()}, {}, silent or {})

    control: Any = SimpleNamespace(bounds=bounds)
    plan = RestorePlan("restore-1", "digest", "archive", 1, "cluster", (APPENDED, SAME))
    return list(describe_deleted(control, plan, summaries))


def test_logs_that_start_where_they_did_have_all() -> None:
    assert warnings_of({("copy", 0): 0, ("copy", 1): 0, ("same", 0): 40}) == []
    assert warnings_of({("copy", 0): 50}) == []


def test_what_is_gone_is_counted_by_topic() -> None:
    """Also what somebody else has written after the records of the run may be gone."""
    copy, same = warnings_of({("copy", 0): 51, ("copy", 1): 400, ("same", 0): 47})
    assert copy.startswith("topic copy has deleted up to 11 records of this restore: its retention does not keep them")
    assert same.startswith("topic same has deleted up to 7 records of this restore")


def test_what_cannot_be_seen_is_reported() -> None:
    (warning,) = warnings_of({("copy", 1): 0}, {("copy", 0): "no leader"})
    assert warning == (
        "it is unknown whether targets have deleted records of this restore, first in topic copy partition 0: no leader"
    )
