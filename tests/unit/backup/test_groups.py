"""Backups archive groups of every kind, and tell of positions that they do not archive as they are."""

from collections.abc import Iterable
from typing import cast

from logkeep_engine.archive.catalog.cluster_state import describe_left_out
from logkeep_engine.archive.catalog.facts import GroupEntry
from logkeep_engine.backup.planning.groups import FoundGroups, describe_changed_positions, find_groups
from logkeep_engine.contract.spec import ConsumerGroups
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.group_list import ListedGroup
from logkeep_engine.kafka.groups import SHARE_OFF, GroupPosition, GroupPositions
from logkeep_engine.kafka.topics import PartitionInfo, TopicInfo

TOPIC = TopicInfo("orders", "id", tuple(PartitionInfo(number, 1, (1,)) for number in range(3)), 1, internal=False)
ENDS = {("orders", 0): 10, ("orders", 1): 20}


def at(partition: int, offset: int, group: str = "g", *, share: bool = False) -> GroupEntry:
    return GroupEntry(group, "orders", "id", partition, offset, share=share)


def notes_of(found: list[GroupEntry], archived: list[GroupEntry]) -> list[str]:
    return describe_changed_positions(found, archived, [TOPIC], ENDS)


def test_positions_that_are_archived_as_they_are_are_not_reported() -> None:
    positions = [at(0, 10), at(1, 3), at(0, 5, share=True)]
    assert notes_of(positions, positions) == []


def test_positions_of_a_partition_that_gave_no_answer_are_reported_with_the_partition() -> None:
    assert notes_of([at(2, 5)], []) == []


def test_positions_past_the_end_are_reported_by_number_and_name() -> None:
    (note,) = notes_of([at(0, 50), at(1, 21, "a\n")], [at(0, 10), at(1, 20, "a\n")])
    assert note.startswith("2 positions of consumer groups pointed past the end of what is archived")
    assert "group 'g' has 50 in topic orders partition 0, archived is 10" in note
    assert "group 'a\\n' has 21 in topic orders partition 1, archived is 20" in note


def test_positions_in_an_old_end_of_a_log_are_reported() -> None:
    (note,) = notes_of([at(1, 15)], [at(1, 7)])
    assert note.startswith("1 position of consumer groups pointed to where a log has since been cut off")
    assert note.endswith("group 'g' has 15 in topic orders partition 1, archived is 7")


def test_positions_in_partitions_that_no_topic_has_are_reported() -> None:
    (note,) = notes_of([at(number, 1) for number in range(3, 10)], [])
    assert note.startswith(
        "7 positions of consumer groups pointed into a partition that the topic does not have: not archived"
    )
    assert "group 'g' has 1 in topic orders partition 7; and 2 more" in note
    assert "partition 8" not in note


class Cluster:
    """A cluster whose groups all stand at 7 in partition 0, and that has share groups switched off if `off`."""

    def __init__(self, *listed: ListedGroup, off: bool = False) -> None:
        self._listed = {group.group_id: group for group in listed}
        self._off = off

    def listed_groups(self) -> dict[str, ListedGroup]:
        return self._listed

    def group_offsets(self, names: Iterable[str]) -> GroupPositions:
        return GroupPositions(tuple(GroupPosition(name, "orders", 0, 7, -1, "time") for name in names))

    def share_starts(self, names: Iterable[str]) -> GroupPositions:
        if self._off:
            return GroupPositions((), unreported=tuple(sorted(names)), why=SHARE_OFF)
        return GroupPositions(tuple(GroupPosition(name, "orders", 0, 7, -1, "", share=True) for name in names))

    def found(self, **wanted: tuple[str, ...]) -> FoundGroups:
        return find_groups(cast(ControlPlane, self), ConsumerGroups(**wanted), [TOPIC])


def of_kind(kind: str, *names: str, protocol: str | None = None) -> list[ListedGroup]:
    return [ListedGroup(name, kind if protocol is None else protocol, "Empty", kind) for name in names]


def test_groups_of_every_kind_are_archived() -> None:
    cluster = Cluster(
        *of_kind("classic", "old", protocol="consumer"),
        *of_kind("classic", "simple", protocol=""),
        *of_kind("classic", "workers", protocol="connect"),
        *of_kind("consumer", "new"),
        *of_kind("streams", "counting"),
        *of_kind("share", "queue"),
    )
    found = cluster.found()
    assert {item.group_id: item.share for item in found.entries} == {
        **dict.fromkeys(("old", "simple", "workers", "new", "counting"), False),
        "queue": True,
    }
    assert {item.metadata for item in found.entries if not item.share} == {"time"}
    assert (found.notes, found.left_out) == ((), ())


def test_share_groups_of_a_cluster_that_has_them_switched_off_are_reported_and_the_others_are_archived() -> None:
    shared = of_kind("share", *(f"queue-{number}" for number in range(7)))
    found = Cluster(*shared, *of_kind("classic", "old"), off=True).found()
    assert [item.group_id for item in found.entries] == ["old"]
    names = ", ".join(f"'queue-{number}'" for number in range(5))
    assert found.notes == (f"7 share groups not archived: {names} and 2 more: {SHARE_OFF}",)
    assert found.left_out == tuple((f"queue-{number}", "share", SHARE_OFF) for number in range(7))


def test_groups_of_a_kind_that_is_unknown_are_reported_if_they_are_wanted() -> None:
    cluster = Cluster(*of_kind("mesh", "a\n", "b"), *of_kind("Fabric", "c"), *of_kind("classic", "old"))
    found = cluster.found()
    assert [item.group_id for item in found.entries] == ["old"]
    why = "this version does not know groups of this kind"
    assert list(found.notes) == [
        f"1 fabric group not archived: 'c': {why}",
        f"2 mesh groups not archived: 'a\\n', 'b': {why}",
    ]
    assert describe_left_out(found.left_out) == list(found.notes)
    fewer = cluster.found(exclude=("a.*", "c"))
    assert (fewer.entries, fewer.left_out) == (found.entries, (("b", "mesh", why),))


def test_a_group_id_with_a_line_break_is_chosen_by_a_dot() -> None:
    found = Cluster(*of_kind("classic", "from-secret\n", "plain")).found(include=("from.*", "p.*"))
    assert [item.group_id for item in found.entries] == ["from-secret\n", "plain"]
