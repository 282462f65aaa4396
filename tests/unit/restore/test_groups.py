"""Which position a consumer group gets after a restore, and what the restore says about it."""

import json
from collections.abc import Iterable
from typing import cast

import pytest

from logkeep_engine.archive.catalog.facts import GroupEntry
from logkeep_engine.contract.spec import ConsumerGroups
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.groups import SHARE_OFF, GroupPositions
from logkeep_engine.restore.model.offset_map import OffsetMap, OffsetPlace, OutletSummary, PartitionSummary
from logkeep_engine.restore.model.plan import NO_TASK, PartitionPlan, TopicPlan
from logkeep_engine.restore.positions import moves as group_moves
from logkeep_engine.restore.positions import report as group_report
from logkeep_engine.restore.positions.groups import check_groups
from logkeep_engine.restore.positions.moves import Move, Moved, PositionOutcome

TOPIC_ID = f"{1:022d}"
TOPIC = TopicPlan(
    "orders", TOPIC_ID, "copy", False, 2, 0, 1000, (PartitionPlan(0, 71, 40), PartitionPlan(1, NO_TASK, 9))
)
# Source offsets 10-14 and 20-24, behind 40 records that were there before.
MAP = OffsetMap(
    PartitionSummary("orders", TOPIC_ID, 0, "copy", 10, 99, (OutletSummary(0, 10, 40, 50),)), [10, 20], [40, 45], [5, 5]
)


def at(offset: int, partition: int = 0, group_id: str = "g", topic_id: str = TOPIC_ID) -> GroupEntry:
    return GroupEntry(group_id, "orders", topic_id, partition, offset, 4, "note")


def translated(*entries: GroupEntry) -> list[Move]:
    read: list[tuple[str, int]] = []

    def read_map(topic: str, partition: int) -> OffsetMap:
        read.append((topic, partition))
        return MAP

    moves = group_moves.translate(entries, [TOPIC], read_map, lambda topic_id, partition: 26 if partition == 0 else 0)
    assert len(read) == len(set(read))
    assert all(where == ("copy", 0) for where in read)
    return moves


class TestTranslate:
    @pytest.mark.parametrize(
        ("offset", "target", "place", "beyond"),
        [
            (0, 40, OffsetPlace.GAP, False),
            (10, 40, OffsetPlace.RECORD, False),
            (14, 44, OffsetPlace.RECORD, False),
            (15, 45, OffsetPlace.GAP, False),
            (24, 49, OffsetPlace.RECORD, False),
            (25, 50, OffsetPlace.END, False),
            (26, 50, OffsetPlace.END, False),
            (27, 50, OffsetPlace.END, True),
        ],
    )
    def test_a_position_is_that_of_the_next_record(
        self, offset: int, target: int, place: OffsetPlace, beyond: bool
    ) -> None:
        (move,) = translated(at(offset))
        assert (move.offset, move.place, move.beyond) == (target, place, beyond)
        position = move.position
        assert (position.group_id, position.topic, position.partition, position.offset) == ("g", "copy", 0, target)
        assert (position.leader_epoch, position.metadata) == (-1, "note")

    def test_in_a_partition_without_records_it_is_where_the_target_ended(self) -> None:
        (move,) = translated(at(0, 1))
        assert (move.offset, move.place, move.beyond) == (9, OffsetPlace.END, False)

    def test_all_of_a_partition_share_one_map_and_keep_their_order(self) -> None:
        moves = translated(at(24), at(0, 1, "h"), at(10, 0, "h"), at(11))
        assert [(move.group.group_id, move.offset) for move in moves] == [("g", 49), ("h", 9), ("h", 40), ("g", 41)]

    def test_what_is_not_restored_is_left_out(self) -> None:
        assert translated(at(10, topic_id="x" * 22), at(10, 2)) == []


def test_groups_are_chosen_by_their_whole_name() -> None:
    entries = [at(1, group_id=name) for name in ("app", "app-2", "other", "app")]
    assert group_moves.select(entries, ConsumerGroups()) == entries
    chosen = group_moves.select(entries, ConsumerGroups(include=("app.*", "o"), exclude=("app-2",)))
    assert [entry.group_id for entry in chosen] == ["app", "app"]


class TestNothingToMove:
    START = "no consumer group was moved, its consumers begin where auto.offset.reset says: "

    def test_in_an_archive_without_groups(self) -> None:
        expected = f"{self.START}the archive holds no positions of consumer groups"
        assert group_report.nothing_to_move([], ConsumerGroups()) == expected
        reported = group_report.nothing_to_move([], ConsumerGroups(), at_point=True)
        assert reported.endswith("no positions of consumer groups of the time before spec.point")

    def test_for_a_name_that_no_archived_group_has(self) -> None:
        entries = [at(1, group_id=name) for name in ("shop", "billing", "shop")]
        expected = (
            f"{self.START}no archived group matches spec.consumerGroups.include and is not excluded; "
            "archived are 'billing', 'shop'"
        )
        for wanted in (
            ConsumerGroups(include=("biling",)),
            ConsumerGroups(exclude=(".*",)),
            ConsumerGroups(include=()),
        ):
            assert group_report.nothing_to_move(entries, wanted) == expected

    def test_of_groups_that_read_other_topics(self) -> None:
        expected = (
            f"{self.START}no archived group that spec.consumerGroups chooses has a position in a restored topic; "
            "archived are 'g'"
        )
        assert group_report.nothing_to_move([at(1, topic_id="x" * 22)], ConsumerGroups()) == expected

    def test_names_twenty_of_many(self) -> None:
        entries = [at(1, group_id=f"g{number:02d}") for number in range(23)]
        reported = group_report.nothing_to_move(entries, ConsumerGroups(include=("h.*",)))
        assert reported.endswith("'g18', 'g19' and 3 more")
        assert group_report.nothing_to_move(entries[:20], ConsumerGroups(include=("h.*",))).endswith("'g18', 'g19'")


def moved(
    outcome: PositionOutcome = PositionOutcome.SET, reason: str = "", *, group_id: str = "g", **more: object
) -> Moved:
    fields: dict[str, object] = {"place": OffsetPlace.RECORD, "beyond": False, **more}
    members = bool(fields.pop("members", False))
    move = Move(at(10, group_id=group_id), "copy", 40, fields["place"], fields["beyond"])  # type: ignore[arg-type]
    return Moved(move, outcome, reason, members)


class TestWarnings:
    def test_nothing_to_say(self) -> None:
        assert group_report.warnings([moved(), moved(place=OffsetPlace.END)], "doc") == []

    def test_moved_positions_are_counted(self) -> None:
        gap, beyond = moved(place=OffsetPlace.GAP), moved(place=OffsetPlace.END, beyond=True)
        kept = moved(PositionOutcome.KEPT, "x", place=OffsetPlace.GAP)
        found = group_report.warnings([gap, gap, beyond, kept], "doc")
        assert any(
            text.startswith("2 positions of consumer groups pointed to an offset without a record") for text in found
        )
        assert any(text.startswith("1 position of consumer groups pointed past the archived end") for text in found)

    def test_positions_that_were_not_set_name_group_topic_and_reason(self) -> None:
        live = moved(PositionOutcome.REFUSED, "UNKNOWN_MEMBER_ID", group_id="live", members=True)
        wrong = moved(PositionOutcome.REFUSED, "TOPIC_AUTHORIZATION_FAILED", group_id="wrong")
        kept = moved(PositionOutcome.KEPT, "the group has offset 3 in the target", group_id="kept")
        found = group_report.warnings([live, live, wrong, kept], "s3://b/doc")
        assert found[0].startswith(
            "consumer group 'live': 2 positions not set, first topic copy partition 0 (UNKNOWN_MEMBER_ID): "
            "the group has members"
        )
        assert "TOPIC_AUTHORIZATION_FAILED" in found[1]
        assert "(the group has offset 3 in the target): the group has other positions there" in found[2]
        assert all("s3://b/doc" in text for text in found)

    def test_what_is_in_a_name_writes_no_line_of_its_own(self) -> None:
        name = "g\n\x1b[2J"
        kept = moved(PositionOutcome.KEPT, "why", group_id=name)
        found = group_report.warnings([kept], "doc")
        found.append(group_report.nothing_to_move([at(1, group_id=name)], ConsumerGroups(include=("h",))))
        for text in found:
            assert repr(name) in text
            assert text.isprintable()

    def test_many_groups_are_cut_short(self) -> None:
        many = [
            moved(PositionOutcome.REFUSED, "UNKNOWN_MEMBER_ID", group_id=f"g{at:03d}", members=True)
            for at in range(300)
        ]
        found = group_report.warnings(many, "doc")
        assert len(found) == 6
        assert found[-1] == "295 more consumer groups like the one before: see doc"


def test_the_report_has_a_row_for_every_position() -> None:
    items = [moved(), moved(PositionOutcome.KEPT, "why", group_id="é", place=OffsetPlace.GAP)]
    document = json.loads(b"".join(group_report.report(items)))
    assert document == {
        "format": 1,
        "columns": ["group", "topic", "partition", "sourceOffset", "targetOffset", "at", "outcome", "reason"],
        "rows": [["g", "copy", 0, 10, 40, "record", "set", ""], ["é", "copy", 0, 10, 40, "gap", "kept", "why"]],
    }
    assert json.loads(b"".join(group_report.report([])))["rows"] == []


class Cluster:
    """A cluster that has share groups switched off."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[str]]] = []

    def group_offsets(self, names: Iterable[str]) -> GroupPositions:
        self.asked.append(("positions", list(names)))
        return GroupPositions(())

    def share_starts(self, names: Iterable[str]) -> GroupPositions:
        self.asked.append(("starts", list(names)))
        return GroupPositions((), unreported=tuple(names), why=SHARE_OFF)

    def share_groups_off(self) -> str:
        return SHARE_OFF

    def warnings_of(self, *entries: GroupEntry, unseen: bool = False) -> list[str]:
        return check_groups(cast(ControlPlane, self), entries, {TOPIC_ID}, unseen=unseen)


def share(group_id: str, topic_id: str = TOPIC_ID) -> GroupEntry:
    return GroupEntry(group_id, "orders", topic_id, 0, 5, share=True)


@pytest.mark.parametrize("unseen", [False, True])
def test_share_groups_that_the_target_does_not_take_are_reported_before_anything_is_written(unseen: bool) -> None:
    cluster = Cluster()
    reported = cluster.warnings_of(at(10), share("b"), share("a\n"), share("other", "x" * 22), unseen=unseen)
    assert reported == [f"2 share groups would get no start offset: 'a\\n', 'b': {SHARE_OFF}"]
    assert cluster.asked == ([] if unseen else [("positions", ["g"]), ("starts", ["a\n", "b"])])


def test_without_share_groups_nobody_asks_for_them() -> None:
    cluster = Cluster()
    assert cluster.warnings_of(at(10)) == []
    assert cluster.asked == [("positions", ["g"])]
    assert cluster.warnings_of(at(10), unseen=True) == []


def test_a_share_group_that_was_refused_is_told_what_switches_it_on() -> None:
    move = Move(share("queue"), "copy", 5, OffsetPlace.RECORD, beyond=False)
    (reported,) = group_report.warnings([Moved(move, PositionOutcome.REFUSED, SHARE_OFF)], "the document")
    assert reported.startswith(f"share group 'queue': 1 position not set, first topic copy partition 0 ({SHARE_OFF}): ")
    assert "kafka-features.sh upgrade --feature share.version=1" in reported
    assert "logkeep groups reset" in reported
