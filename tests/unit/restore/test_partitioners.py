"""By which partitioner the records of an archived topic lie, and what a division makes of that."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import Coverage, Receipt, RunOutcome, TopicEntry
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.restore_spec import KafkaRestoreSpec
from logkeep_engine.contract.restored_topics import Partitioner
from logkeep_engine.errors import StateAltered, TargetUnsuitable
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.records import Record, encode
from logkeep_engine.report import Reporter
from logkeep_engine.restore.model.context import Planned, RestoreContext
from logkeep_engine.restore.planning.planner import RestorePlanner
from logkeep_engine.restore.sending.division.partitioners import refuse_other_partitioners, with_partitioners
from logkeep_engine.storage import LocalStorage
from tests.data.murmur2 import target_of
from tests.kafka.restores import ThreadRunner
from tests.unit.archive.build import CLUSTER, ORDERS, TIME, begin, write_segment
from tests.unit.restore.test_derived import Target, parsed

Chooses = Callable[[bytes | None, int], int]
NAME = "file:///state/runs/r/restore-plan.json"
KEYS = [b"key-%d" % number for number in range(60)]


def by(partitioner: str, count: int = 3) -> Chooses:
    return lambda key, offset: target_of(key, offset, count, partitioner)


def by_hand(key: bytes | None, offset: int) -> int:
    return len(key or b"") % 3 if offset % 2 else offset % 3


def archive_with(
    root: Path, *histories: tuple[Chooses, Iterable[bytes | None]], count: int = 3, apart: int = 1
) -> Archive:
    """An archive of a topic. Each history is a run of its own: who wrote, and the keys. The offsets
    of a partition are so far `apart`."""
    topic, ends = replace(ORDERS, partitions=count), [0] * count
    storage = LocalStorage(root.as_uri())
    for run, (chooses, keys) in enumerate(histories):
        with begin(storage, f"run-{run}") as writer:
            logs: list[list[Record]] = [[] for _ in range(count)]
            for number, key in enumerate(keys):
                partition = chooses(key, number)
                logs[partition].append(Record(ends[partition], TIME, key, b"v"))
                ends[partition] += apart
            receipts = [_receipt(storage, topic, partition, log, writer.epoch) for partition, log in enumerate(logs)]
            writer.commit(topics=[topic], receipts=[receipt for receipt in receipts if receipt is not None])
            writer.end(RunOutcome.SUCCEEDED)
    return Archive.open(storage)


def _receipt(storage: Any, topic: TopicEntry, partition: int, log: list[Record], epoch: int) -> Receipt | None:
    if not log:
        return None
    batch = encode(log, codec=Codec.NONE, base_offset=log[0].offset)
    entry = write_segment(storage, [batch], topic=topic, partition=partition, epoch=epoch)
    return Receipt((Coverage(topic.topic_id, partition, log[0].offset, log[-1].offset + 1),), (entry,))


def spec_of(**topics: Any) -> KafkaRestoreSpec:
    return parsed(topics={"partitionCount": 7, **topics})


def context(archive: Archive, spec: KafkaRestoreSpec) -> RestoreContext:
    nothing: Any = None
    target: Any = Target()
    return RestoreContext("r", spec, archive, nothing, CLUSTER, target, nothing, ThreadRunner, Reporter("r"))


def sketched(run: RestoreContext) -> Planned:
    return RestorePlanner(run).sketch()


def chosen(archive: Archive, **topics: Any) -> tuple[Partitioner | None, str]:
    """The partitioner of the topic in the plan, and what is told of it."""
    run = context(archive, spec_of(**topics))
    planned, reported = with_partitioners(run, sketched(run))
    return planned.plan.topics[0].partitioner, "; ".join(reported)


@pytest.mark.parametrize("partitioner", Partitioner)
def test_a_topic_is_divided_by_the_partitioner_by_which_it_lies(tmp_path: Path, partitioner: Partitioner) -> None:
    archive = archive_with(tmp_path, (by(partitioner), [*KEYS, None, b"", *KEYS]))
    found, reported = chosen(archive)
    assert found is partitioner
    assert f"records follow {partitioner}, the default of" in reported
    assert "topic orders (of 60 keys that were looked at, " in reported
    assert f"60 where {partitioner} puts them" in reported
    assert chosen(archive, partitioner=partitioner.value) == (partitioner, reported)


@pytest.mark.parametrize("partitioner", Partitioner)
def test_a_spec_that_says_another_one_is_refused(tmp_path: Path, partitioner: Partitioner) -> None:
    (other,) = set(Partitioner) - {partitioner}
    archive = archive_with(tmp_path, (by(partitioner), KEYS))
    with pytest.raises(
        TargetUnsuitable, match=f"partitioner is {other}, but .* not distributed like this: topic orders .of 60"
    ):
        chosen(archive, partitioner=other.value)


def test_the_newest_records_count(tmp_path: Path) -> None:
    """The topic had two partitions once, and was written by Java."""
    old = [(by("murmur2", 2), [*KEYS, *(b"old-%d" % at for at in range(500))])]
    archive = archive_with(
        tmp_path, *old, *[(by("crc32"), [b"%d-%d" % (run, at) for at in range(400)]) for run in range(3)]
    )
    assert chosen(archive)[0] is Partitioner.CRC32


def test_a_few_that_lie_elsewhere_do_not_count(tmp_path: Path) -> None:
    crc32 = by("crc32")
    archive = archive_with(tmp_path, (lambda key, at: (crc32(key, at) + (at % 20 == 0)) % 3, KEYS))
    found, reported = chosen(archive)
    assert found is Partitioner.CRC32
    assert "57 where crc32 puts them" in reported


def test_records_that_lie_by_neither_are_divided_as_the_spec_says_and_else_refused(tmp_path: Path) -> None:
    archive = archive_with(tmp_path, (by_hand, KEYS))
    with pytest.raises(TargetUnsuitable, match=r"follow neither murmur2 nor crc32: topic orders .*; nothing was") as no:
        chosen(archive)
    assert "Set spec.topics.partitioner to the partitioner that the producers will use" in no.value.hint
    for partitioner in Partitioner:
        found, reported = chosen(archive, partitioner=partitioner.value)
        assert found is partitioner
        assert f"follow neither murmur2 nor crc32, and are divided by {partitioner}, the default of" in reported


def test_of_one_partition_nothing_can_be_seen(tmp_path: Path) -> None:
    archive = archive_with(tmp_path, (by("crc32", 1), KEYS), count=1)
    found, reported = chosen(archive)
    assert found is Partitioner.MURMUR2
    assert "is unknown which partitioner records follow" in reported
    assert "topic orders (it has one partition)" in reported
    assert chosen(archive, partitioner="crc32") == (Partitioner.CRC32, "")


def test_without_keys_nothing_is_reported(tmp_path: Path) -> None:
    archive = archive_with(tmp_path, (by("murmur2"), [None, b""] * 30))
    assert chosen(archive) == (Partitioner.MURMUR2, "")


def test_where_no_key_is_among_the_newest_that_is_reported(tmp_path: Path) -> None:
    archive = archive_with(tmp_path, (by("crc32"), KEYS), (lambda _, at: at % 3, [None] * 15_300))
    found, reported = chosen(archive)
    assert found is Partitioner.MURMUR2
    assert "is unknown which partitioner records follow" in reported
    assert "of 0 keys that were looked at" in reported
    assert chosen(archive, partitioner="crc32") == (Partitioner.CRC32, "")


def test_a_handful_of_keys_proves_nothing(tmp_path: Path) -> None:
    keys = [key for key in KEYS if by("murmur2")(key, 0) != by("crc32")(key, 0)]
    few = archive_with(tmp_path / "few", (by("murmur2"), keys[:4]))
    assert "is unknown which partitioner records follow" in chosen(few)[1]
    assert chosen(few, partitioner="crc32") == (Partitioner.CRC32, "")
    assert chosen(archive_with(tmp_path / "five", (by("crc32"), keys[:5])))[0] is Partitioner.CRC32


def test_where_most_offsets_have_no_record_more_of_them_are_looked_at(tmp_path: Path) -> None:
    """The log was compacted."""
    archive = archive_with(tmp_path, (by("crc32"), KEYS), apart=3_000)
    found, reported = chosen(archive)
    assert found is Partitioner.CRC32
    assert "of 60 keys that were looked at" in reported


def test_how_the_records_lie_in_segments_changes_nothing(tmp_path: Path) -> None:
    """The newest keys lie by both, and those of before by one of them."""
    both = [key for key in (b"k%d" % at for at in range(2000)) if by("murmur2")(key, 0) == by("crc32")(key, 0)]
    only = [key for key in (b"k%d" % at for at in range(2000)) if key not in both]
    histories = [only[:200], *(both[:60] for _ in range(4))]
    small = archive_with(tmp_path / "small", *((by("crc32"), keys) for keys in histories))
    merged = archive_with(tmp_path / "merged", (by("crc32"), [key for keys in histories for key in keys]))
    assert chosen(small) == chosen(merged)
    assert chosen(small)[0] is Partitioner.CRC32


def test_what_is_damaged_says_nothing(tmp_path: Path) -> None:
    archive = archive_with(tmp_path, (by("crc32"), KEYS))
    for log in tmp_path.rglob("*.log"):
        log.write_bytes(log.read_bytes()[:-3])
    assert chosen(archive) == (Partitioner.MURMUR2, "")


def stored(archive: Archive, partitioner: Partitioner | None) -> Planned:
    planned = sketched(context(archive, spec_of()))
    topics = tuple(replace(topic, partitioner=partitioner) for topic in planned.plan.topics)
    return replace(planned, plan=replace(planned.plan, topics=topics))


@pytest.mark.parametrize(
    ("said", "wanted", "refused"),
    [
        (Partitioner.CRC32, {}, False),
        (Partitioner.CRC32, {"partitioner": "crc32"}, False),
        (Partitioner.MURMUR2, {}, True),
        (Partitioner.MURMUR2, {"partitioner": "crc32"}, True),
        (None, {}, True),
    ],
)
def test_a_stored_plan_is_held_to_the_spec_and_the_records(
    tmp_path: Path, said: Partitioner | None, wanted: dict[str, Any], refused: bool
) -> None:
    archive = archive_with(tmp_path, (by("crc32"), KEYS))
    run, planned = context(archive, spec_of(**wanted)), stored(archive, said)
    if not refused:
        refuse_other_partitioners(run, planned, NAME)
        return
    with pytest.raises(
        StateAltered, match=f"^{NAME}: it divides topic 'orders' by {said}, and not by crc32; it was not used"
    ):
        refuse_other_partitioners(run, planned, NAME)


def test_a_stored_plan_counts_where_the_records_do_not_say(tmp_path: Path) -> None:
    archive = archive_with(tmp_path, (by_hand, KEYS))
    for partitioner in Partitioner:
        refuse_other_partitioners(context(archive, spec_of()), stored(archive, partitioner), NAME)
    with pytest.raises(StateAltered, match="by None, and not by a partitioner"):
        refuse_other_partitioners(context(archive, spec_of()), stored(archive, None), NAME)
