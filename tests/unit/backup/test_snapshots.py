"""Snapshots of compacted partitions: when a run makes them, and that a state with one is the state of the log."""

from __future__ import annotations

import copy
import multiprocessing
import os
import shutil
import signal
import threading
from contextlib import nullcontext
from itertools import chain, count, repeat
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import Mock, patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import (
    Branching,
    Coverage,
    GenerationChange,
    GenerationStep,
    Receipt,
    RemovedSegment,
    RunOutcome,
    branch_id,
)
from logkeep_engine.archive.catalog.snapshots import RemovedSnapshot
from logkeep_engine.archive.maintenance import merging
from logkeep_engine.archive.maintenance.inspect import describe
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.archive.moments import iso
from logkeep_engine.archive.reading.partition import open_partition
from logkeep_engine.backup.model.plan import BackupPlan
from logkeep_engine.backup.planning.generations import generation_warnings
from logkeep_engine.backup.run.archive_report import snapshots_of
from logkeep_engine.backup.run.merging import merge_segments
from logkeep_engine.compaction import spreading
from logkeep_engine.contract.archive_format import SegmentSpec
from logkeep_engine.contract.facts.values import time_of
from logkeep_engine.contract.point import PointSpec
from logkeep_engine.errors import SpecError, StorageUnavailable
from logkeep_engine.log import compaction
from logkeep_engine.log.consumed import LogRecord
from logkeep_engine.restore.model import point as points
from logkeep_engine.restore.model.plan import PointPlan
from logkeep_engine.restore.streams.clip import Clip
from logkeep_engine.storage import LocalStorage
from logkeep_engine.storage.local import _LocalWriter
from logkeep_engine.tasks import TaskRunner
from tests.examples import scaled
from tests.unit.archive.build import ORDERS, TIME, Batch, chunk, write_segment
from tests.unit.backup.compacted_topic import KEY, CompactedTopic, Row, last_values, spec_of, spread_all
from tests.unit.convert.converting import converted
from tests.unit.erasure.erasing import Inside
from tests.unit.log.batches import NOON

rows = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c", b"d", b""]), st.none() | st.binary(max_size=8)), min_size=1, max_size=5
)
writes = st.tuples(rows, st.sampled_from([None, None, True, False]), st.integers(1, 3))
runs = st.lists(st.tuples(st.lists(writes, max_size=4), st.booleans()), min_size=1, max_size=4)


@settings(max_examples=scaled(60, light=10))
@given(runs, st.booleans(), st.sampled_from(["0", "86400000"]), st.booleans(), st.data())
def test_snapshot_and_later_log_are_what_a_consumer_has_at_every_point(
    made: list[tuple[list[tuple[list[Row], bool | None, int]], bool]],
    deletes: bool,
    delete_retention: str,
    is_spread: bool,
    data: st.DataObject,
) -> None:
    policy = "compact,delete" if deletes else "compact"
    with TemporaryDirectory() as folder, spread_all() if is_spread else nullcontext():
        topic = CompactedTopic(
            LocalStorage(f"file://{folder}"), {"cleanup.policy": policy, "delete.retention.ms": delete_retention}
        )
        for number, (some, removes) in enumerate(made):
            for written, commits, producer in some:
                found: list[Row] = [(None if deletes and not key else key, value) for key, value in written]
                topic.write(found, producer_id=-1 if commits is None else producer, commits=commits)
            with topic.begin(f"run-{number}") as writer:
                topic.archive(writer)
                writer.end(RunOutcome.SUCCEEDED)
                assert topic.make(writer).notes == []
                held = writer.state.snapshots.get(KEY, [])
                below = [
                    item.base_offset for item in writer.state.segments.get(KEY, ()) if item.base_offset < topic.end
                ]
                if removes and held and not deletes:
                    behind = data.draw(st.sampled_from(held)).end
                    gone = [RemovedSegment(*KEY, base) for base in below if base < behind]
                    old = [RemovedSnapshot(*KEY, item.end) for item in held if item.end < behind]
                    if gone or old:
                        writer.remove(gone, old)
        archive = Archive.open(topic.storage)
        state = archive.load()
        report = verify(archive)
        assert (report.faults, report.orphans) == ([], [])
        kept = state.removed.get(KEY)
        first = 0 if not kept else min(item.end for item in state.snapshots[KEY])
        for end in [*topic.boundaries, None]:
            if end is not None and 0 < end < first:
                with pytest.raises(SpecError, match=f"its state is kept at offset {first} and later"):
                    topic.restored(end)
                continue
            if end is not None and end > topic.archived:
                continue
            restored = topic.restored(end)
            assert last_values((record.key, record.value) for record in restored) == topic.consumed(end)
            for record in restored:
                assert topic.written[record.offset] == (record.key, record.value)
            offsets = [record.offset for record in restored]
            assert offsets == sorted(set(offsets))


def topic_of(tmp_path: Path, **configs: str) -> CompactedTopic:
    return CompactedTopic(LocalStorage(f"file://{tmp_path}"), {"cleanup.policy": "compact", **configs})


def test_a_snapshot_is_made_when_so_much_is_new_that_it_pays(tmp_path: Path) -> None:
    topic = topic_of(tmp_path)
    limits = spec_of(topic.storage.uri, snapshots={"maxRecordBytesBetweenSnapshots": "500", "minCleanableRatio": 0.4})
    counts = []
    for number in range(12):
        value = Random(number).randbytes(300)
        topic.write([(b"k%d" % (number * 8 + at), value[at:]) for at in range(8 if number < 4 else 1)])
        counts.append(topic.back_up(f"run-{number}", limits).count)
    state = Archive.open(topic.storage).load()
    assert [item.end for item in state.snapshots[KEY]] == [
        end for end, count in zip(topic.ends, counts, strict=True) if count
    ]
    assert 1 < sum(counts) < 12
    assert topic.restored()[-1].offset == topic.end - 1


def test_what_a_merge_has_put_before_the_new_records_counts_as_what_it_is(tmp_path: Path) -> None:
    topic = topic_of(tmp_path)
    topic.packed = True
    limits = spec_of(topic.storage.uri, snapshots={"maxRecordBytesBetweenSnapshots": "500", "minCleanableRatio": 0})
    topic.write([(b"k%d" % at, Random(at).randbytes(300)) for at in range(8)])
    assert topic.back_up("run-1", limits).count == 1
    topic.write([(b"k", b"v")])
    with topic.begin("run-2") as writer, patch.object(merging, "chosen", lambda sizes, _: [(0, len(sizes))]):
        topic.archive(writer)
        writer.end(RunOutcome.SUCCEEDED)
        assert merge_segments(writer, SegmentSpec(merge_count=2), Inside, first_task=1).segments == 2
    topic.write([(b"k", b"v")])
    assert topic.back_up("run-3", limits).count == 0
    topic.write([(b"k", Random(9).randbytes(400))])
    assert topic.back_up("run-4", limits).count == 1


@pytest.mark.parametrize(
    "changes", [{"compactedTopics": "Log", "snapshots": None}, {"snapshots": {"maxRecordBytesBetweenSnapshots": "1Gi"}}]
)
def test_no_snapshot_is_made_where_none_is_wanted(tmp_path: Path, changes: dict[str, object]) -> None:
    topic = topic_of(tmp_path)
    topic.write([(b"k", b"v")])
    assert topic.back_up("run-1", spec_of(topic.storage.uri, **changes)).count == 0


@pytest.mark.parametrize("largest", [1 << 30, 1])  # with 1 it cannot be spread, and one task continues
def test_a_partition_whose_keys_take_many_passes_is_spread(tmp_path: Path, largest: int) -> None:
    topic = topic_of(tmp_path)
    topic.write([(b"%d" % (at * 7919 % 900), b"%d" % at) for at in range(3000)])
    sizes = Mock(side_effect=chain([64 * 24 * 3], repeat(1 << 20)))  # of the first task, and of others
    with (
        patch.object(compaction, "_map_bytes", sizes),
        patch.object(compaction, "_block_bytes", lambda: 64 * 24 * 3),
        patch.object(spreading, "_LARGEST", largest),
    ):
        made = topic.back_up("run-1")
    assert (made.count, made.notes) == (1, [])
    assert [len(item.parts(KEY)) for item in Archive.open(topic.storage).load().snapshots[KEY]] == [1]
    found = topic.restored()
    assert len(found) == 900
    assert last_values((record.key, record.value) for record in found) == topic.consumed()
    assert verify(Archive.open(topic.storage)).orphans == []


def test_a_topic_that_only_deletes_gets_none(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, **{"cleanup.policy": "delete"})
    topic.write([(b"k", b"v")])
    assert (topic.back_up("run-1").count, topic.back_up("run-2").notes) == (0, [])


def test_a_partition_that_is_damaged_gets_no_snapshot_and_the_others_get_theirs(tmp_path: Path) -> None:
    topic = topic_of(tmp_path)
    topic.write([(b"k", b"v")])
    with topic.begin("run-1") as writer:
        topic.archive(writer)
        writer.commit(receipts=[chunk(topic.storage, 0, 20, partition=1)])
        writer.end(RunOutcome.SUCCEEDED)
        path = writer.state.segments[KEY][0].stem("orders") + ".log"
        data = bytearray(topic.storage.read(path))
        data[-1] ^= 1
        topic.storage.put(path, bytes(data))
        made = topic.make(writer)
    assert (made.count, str(made)) == (1, "made snapshots of 1 partition")
    assert [note.partition(": ")[0] for note in made.notes] == ["topic orders partition 0 gets no snapshot"]
    assert list(Archive.open(topic.storage).load().snapshots) == [(ORDERS.topic_id, 1)]


def test_a_run_that_was_overtaken_says_so_and_leaves_only_orphans(tmp_path: Path) -> None:
    topic = topic_of(tmp_path)
    topic.write([(b"k", b"v")])
    with topic.begin("run-1") as old:
        topic.archive(old)
        old.end(RunOutcome.SUCCEEDED)
        assert topic.back_up("run-2").count == 1
        made = topic.make(old)
    assert made.count == 0
    assert "Run run-2 has taken over the archive" in made.notes[0]
    report = verify(Archive.open(topic.storage))
    assert (report.faults, len(report.orphans)) == ([], 2)


def test_the_store_is_gone_for_a_moment_and_the_next_run_makes_the_snapshot(tmp_path: Path) -> None:
    topic = topic_of(tmp_path)
    topic.write([(b"k", b"v")])

    def no_runner() -> TaskRunner:
        raise StorageUnavailable("the store does not answer")

    assert topic.back_up("run-1", runner=no_runner).notes == [
        "snapshots could not be made, the next run makes them: the store does not answer"
    ]
    assert (topic.back_up("run-2").count, topic.back_up("run-3").count) == (1, 0)


def test_a_partition_of_which_keys_are_missing_gets_no_snapshot_that_would_hide_it(tmp_path: Path) -> None:
    topic = topic_of(tmp_path)
    for number in range(2):
        topic.write([(b"k%d" % number, b"v")])
        with topic.begin(f"run-{number}") as writer:
            topic.archive(writer)
            writer.end(RunOutcome.SUCCEEDED)
    with topic.begin("run-3") as writer:
        topic.archive(writer)
        writer.end(RunOutcome.SUCCEEDED)
        writer.remove([RemovedSegment(*KEY, 0)])
        (note,) = topic.make(writer).notes
    assert "retention has removed a part of its log, and no snapshot holds the keys of that part" in note
    assert (
        "after offset 1 only"
        in points.plan_point(Archive.open(topic.storage), Archive.open(topic.storage).load(), [ORDERS], None).warnings[
            0
        ]
    )


@pytest.mark.parametrize(
    ("point", "offsets"),
    [
        ({"as_of": iso(NOON + 1)}, [0]),
        ({"as_of": iso(NOON + 2)}, [1]),
        ({"timestamp": iso(NOON + 3)}, [1, 2]),
        ({"timestamp": iso(NOON + 4)}, [1, 2, 3]),
        ({"run": "run-2"}, [1, 2, 3]),
        ({"run": "run-1"}, [1]),
    ],
)
def test_a_point_sees_the_newest_snapshot_before_it(tmp_path: Path, point: dict[str, str], offsets: list[int]) -> None:
    topic = topic_of(tmp_path)
    for number, keys in enumerate((b"aa", b"bc", b"c")):
        topic.write([(keys[at : at + 1], b"v") for at in range(len(keys))])
        topic.back_up(f"run-{number + 1}")
    clip = points.plan_point(
        Archive.open(topic.storage), Archive.open(topic.storage).load(), [ORDERS], PointSpec.model_validate(point)
    ).plan
    assert clip is not None
    state = topic.seen(point=point)
    reader = open_partition(topic.storage, "orders", list(state.segments[KEY]), state.kept(*KEY))
    found = [record.offset for some in reader.records() for record in some if clip_of(clip, record)]
    assert found == offsets


def clip_of(plan: PointPlan, record: LogRecord) -> bool:
    clip = plan.clip(KEY) or Clip()
    return record.offset < clip.stop and (clip.before is None or (record.timestamp or 0) < clip.before)


def test_a_time_of_which_retention_has_left_nothing_is_refused_and_says_from_when_points_are_exact(
    tmp_path: Path,
) -> None:
    topic = topic_of(tmp_path)
    for number in range(3):
        topic.write([(b"k", b"v%d" % number)])
        with topic.begin(f"run-{number}") as writer:
            topic.archive(writer)
            writer.end(RunOutcome.SUCCEEDED)
            topic.make(writer)
            if number == 2:
                writer.remove([RemovedSegment(*KEY, 0)])
    assert [record.value for record in topic.restored()] == [b"v2"]
    (reported,) = snapshots_of(Archive.open(topic.storage).load())
    assert (reported.topic, reported.partitions, reported.records, reported.exact_after) == (
        "orders",
        1,
        1,
        time_of(NOON / 1000),
    )
    for wanted in ({"as_of": iso(NOON)}, {"timestamp": iso(NOON)}):
        with pytest.raises(
            SpecError, match=f"its state is kept at offset 1 and later, which is later than {iso(NOON)}"
        ):
            topic.seen(point=wanted)
    state = topic.seen(point={"as_of": iso(NOON + 1)})
    assert [entry.next_offset for entry in state.segments[KEY]][:1] == [1]


def killed_behind(step: int, topic: CompactedTopic, run_id: str) -> bool:
    """Run a backup in a process that is killed after its write number `step`; False if it made fewer."""

    def back_up() -> None:
        done = count(1)

        def dying(method: Any) -> Any:
            def write(*arguments: Any, **options: Any) -> Any:
                found = method(*arguments, **options)
                if threading.current_thread() is threading.main_thread() and next(done) == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                return found

            return write

        for place, name in ((LocalStorage, "create"), (LocalStorage, "put"), (_LocalWriter, "commit")):
            setattr(place, name, dying(getattr(place, name)))
        topic.back_up(run_id, spec_of(topic.storage.uri, segment={"maxBytes": "1Mi"}))

    process = multiprocessing.get_context("fork").Process(target=back_up)
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def test_a_kill_between_any_two_steps_loses_nothing(tmp_path: Path) -> None:
    kill_between_all_steps(tmp_path, steps=9)


def test_a_kill_between_any_two_steps_of_a_partition_that_is_spread_loses_nothing(tmp_path: Path) -> None:
    with spread_all():
        kill_between_all_steps(tmp_path, steps=12)


def kill_between_all_steps(tmp_path: Path, *, steps: int) -> None:
    begun = topic_of(tmp_path / "begun")
    begun.write([(b"a", b"1"), (b"b", b"1")])
    begun.back_up("run-1")
    for number in range(2):  # the snapshot has two parts
        begun.write([(b"b", None), (b"c%d" % number, Random(number).randbytes(700_000))])
    step = 0
    while True:
        step += 1
        shutil.copytree(tmp_path / "begun", tmp_path / str(step))
        topic = copy.deepcopy(begun)
        topic.storage = LocalStorage(f"file://{tmp_path / str(step)}")
        if not killed_behind(step, topic, "run-2"):
            break
        archive = Archive.open(topic.storage)
        assert verify(archive).faults == []
        state, ended = archive.load(), archive.load().runs.get("run-2")
        done = ended is not None and ended.outcome is RunOutcome.SUCCEEDED
        topic.archived = topic.end if done else 2
        restored = [(record.key, record.value) for record in topic.restored()]
        assert last_values(restored) == topic.consumed(), step
        ends = [item.end for item in state.snapshots[KEY]]
        assert ends in ([2], [2, 6])
        topic.archived = 2
        made = topic.back_up("run-2", spec_of(topic.storage.uri, segment={"maxBytes": "1Mi"}))
        assert made.count == (0 if ends == [2, 6] else 1)
        state = archive.load()
        assert [len(item.parts(KEY)) for item in state.snapshots[KEY]] == [1, 2]
        assert verify(archive).faults == []
        restored = [(record.key, record.value) for record in topic.restored()]
        assert last_values(restored) == topic.consumed(), step
    assert step > steps


def test_a_converted_archive_refuses_points_below_the_snapshot_that_stands_for_its_log(tmp_path: Path) -> None:
    topic, target = topic_of(tmp_path / "source"), LocalStorage(f"file://{tmp_path}/target")
    for number in range(3):
        topic.write([(b"k", b"v%d" % number), (b"only %d" % number, b"v")])
        topic.back_up(f"run-{number}")
    assert converted(topic.storage, target, "Records").generations == {}, "the log is there"
    with topic.begin("run-3") as writer:
        topic.archive(writer)
        writer.end(RunOutcome.SUCCEEDED)
        first, second = writer.state.snapshots[KEY][:2]
        writer.remove([RemovedSegment(*KEY, 0), RemovedSegment(*KEY, first.end)], [RemovedSnapshot(*KEY, first.end)])
    target = LocalStorage(f"file://{tmp_path}/later")
    state = converted(topic.storage, target, "Records")
    assert state.generations[KEY].exact_from == second.end
    ends = {"offsets": [{"topic": "orders", "partition": 0, "offset": second.end - 1}]}
    for storage in (topic.storage, target):
        archive = Archive.open(storage)
        with pytest.raises(SpecError, match=r"exact from offset 4 on|is kept at offset 4 and later"):
            points.plan_point(
                archive, archive.load(), [*archive.load().topics.values()], PointSpec.model_validate(ends)
            )


def test_partitions_without_an_exact_point_are_counted_and_get_no_snapshot(tmp_path: Path) -> None:
    """Retention has taken the log below a snapshot of partition 0, and a branch that snapshot; partition 1 had a
    generation, and its log was cut off below the end with which that had caught up."""
    topic, other = topic_of(tmp_path), (ORDERS.topic_id, 1)
    topic.write([(b"a", b"v"), (b"b", b"v")])
    topic.back_up("run-0")
    topic.write([(b"a", b"w"), (b"b", b"w")])
    topic.back_up("run-1")
    with topic.begin("run-2") as writer:
        sparse = write_segment(topic.storage, [Batch(8, 2).encode()], partition=1, epoch=writer.epoch)
        writer.commit(receipts=[Receipt((Coverage(*other, 0, 10),), (sparse,))])
        writer.commit(receipts=[chunk(topic.storage, 10, 20, partition=1, epoch=writer.epoch)])
        writer.change_generations([GenerationChange(*other, 2, GenerationStep.BEGIN)])
        writer.change_generations([GenerationChange(*other, 2, GenerationStep.ACTIVATE, end=20)])
        writer.end(RunOutcome.SUCCEEDED)
        writer.remove([RemovedSegment(*KEY, 0)], [RemovedSnapshot(*KEY, 2)])
    archive = Archive.open(topic.storage)
    (before,) = snapshots_of(archive.load())
    assert (before.partitions, before.exact_nowhere, before.exact_after) == (1, None, time_of((TIME + 19) / 1000))
    parts = describe(archive.info, archive.load()).topics[0].partitions
    assert [part.exact_from for part in parts] == [4, 20]
    late = PointSpec(timestamp=iso(TIME + 19))
    with pytest.raises(SpecError, match="exact from offset 20 on") as refused:
        points.plan_point(archive, archive.load(), [ORDERS], late)
    assert refused.value.hint.startswith(f"Points later than {iso(TIME + 19)} are exact")
    points.plan_point(archive, archive.load(), [ORDERS], PointSpec(timestamp=iso(TIME + 20)))
    with topic.begin("run-3") as writer:
        writer.branch([Branching(*key, branch_id(key[0], 1), offset) for key, offset in ((KEY, 2), (other, 10))], [])
        writer.commit(receipts=[chunk(topic.storage, 2, 12, epoch=writer.epoch)])
        writer.end(RunOutcome.SUCCEEDED)
        notes = topic.make(writer).notes
    assert [note.partition(" gets no snapshot: ")[0] for note in notes] == [
        "topic orders partition 0",
        "topic orders partition 1",
    ]
    assert "its log was cut off" in notes[1]
    archive = Archive.open(topic.storage)
    (reported,) = snapshots_of(archive.load())
    assert (reported.topic, reported.partitions, reported.exact_after, reported.exact_nowhere) == ("orders", 0, None, 2)
    parts = describe(archive.info, archive.load()).topics[0].partitions
    assert [part.exact_from for part in parts] == [-1, -1]
    plan = BackupPlan("run-3", (ORDERS,), ())
    (warning,) = generation_warnings(plan, archive.load())
    assert "partition 1: the log was cut off below offset 20" in warning
