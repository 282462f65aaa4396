"""Backups tell of positions of consumer groups that it does not archive as they are."""

from logkeep_engine.archive.catalog.facts import GroupEntry
from logkeep_engine.backup.groups import told_of_positions
from logkeep_engine.kafka.topics import PartitionInfo, TopicInfo

TOPIC = TopicInfo("orders", "id", tuple(PartitionInfo(number, 1, (1,)) for number in range(3)), 1, internal=False)
ENDS = {("orders", 0): 10, ("orders", 1): 20}


def at(partition: int, offset: int, group: str = "g", *, share: bool = False) -> GroupEntry:
    return GroupEntry(group, "orders", "id", partition, offset, share=share)


def told(found: list[GroupEntry], archived: list[GroupEntry]) -> list[str]:
    return told_of_positions(found, archived, [TOPIC], ENDS)


def test_positions_that_are_archived_as_they_are_are_not_told() -> None:
    positions = [at(0, 10), at(1, 3), at(0, 5, share=True)]
    assert told(positions, positions) == []


def test_positions_of_a_partition_that_gave_no_answer_are_told_with_the_partition() -> None:
    assert told([at(2, 5)], []) == []


def test_positions_past_the_end_are_told_by_number_and_name() -> None:
    (note,) = told([at(0, 50), at(1, 21, "a\n")], [at(0, 10), at(1, 20, "a\n")])
    assert note.startswith("2 positions of consumer groups stood past the end of what is archived")
    assert "group 'g' has 50 in topic orders partition 0, archived is 10" in note
    assert "group 'a\\n' has 21 in topic orders partition 1, archived is 20" in note


def test_positions_in_an_old_end_of_a_log_are_told() -> None:
    (note,) = told([at(1, 15)], [at(1, 7)])
    assert note.startswith("1 position of consumer groups stood where a log has been cut off since")
    assert note.endswith("group 'g' has 15 in topic orders partition 1, archived is 7")


def test_positions_in_partitions_that_no_topic_has_are_told() -> None:
    (note,) = told([at(number, 1) for number in range(3, 10)], [])
    assert note.startswith(
        "7 positions of consumer groups stood in a partition that the topic does not have: not archived"
    )
    assert "group 'g' has 1 in topic orders partition 7; and 2 more" in note
    assert "partition 8" not in note
