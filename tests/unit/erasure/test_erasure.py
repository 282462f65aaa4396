"""Erasures in archives of all formats: what is gone, what stays, and what a kill leaves."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logkeep_engine.archive.catalog import writer as catalog_writer
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import (
    Coverage,
    GenerationChange,
    GenerationStep,
    GroupEntry,
    Partition,
    Receipt,
    RemovedSegment,
    RunOutcome,
    TopicEntry,
    branch_id,
)
from logkeep_engine.archive.catalog.holds import Hold, HoldKind, HoldOrigin
from logkeep_engine.archive.catalog.lineage import Fork
from logkeep_engine.archive.catalog.packed import SegmentTable
from logkeep_engine.archive.catalog.replacements import Exchange
from logkeep_engine.archive.catalog.writer import begin_run
from logkeep_engine.archive.history.compacted import with_snapshots
from logkeep_engine.archive.maintenance.removal import purge
from logkeep_engine.archive.maintenance.retaining import change_holds
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.archive.reading import view
from logkeep_engine.backup.run.archiving import branch_off
from logkeep_engine.compaction.partition import compact_partition
from logkeep_engine.contract.archive_format import (
    Compatibility,
    Compression,
    DigestAlgorithm,
    FormatName,
    FormatOptions,
)
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import ERASURE
from logkeep_engine.errors import ObjectMissing
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.storage import LocalStorage, ObjectInfo, Storage
from logkeep_engine.toolbox.index import IndexVerdict
from logkeep_engine.toolbox.indexes import survey
from logkeep_engine.toolbox.source import open_source
from tests.examples import scaled
from tests.runners import Context
from tests.unit.archive.build import FAST, ORDERS, write_segment
from tests.unit.compaction.made import setting_of, work_of
from tests.unit.erasure.erasing import (
    ALICE,
    BOB,
    GONE,
    KEY,
    Inside,
    Killed,
    Mortal,
    Seen,
    archive_batches,
    archive_records,
    batch_of,
    copied,
    erase_whole,
    erased,
    records_in,
    seen,
    traces,
    without,
)
from tests.unit.log.batches import marker

FORMATS = pytest.mark.parametrize("format_name", list(FormatName))


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage((tmp_path / "archive").as_uri())


def archived(storage: Storage, format_name: FormatName) -> Archive:
    """Three segments: the key is in the first and the last, and at the ends of the last."""
    keys: list[list[bytes | None]] = [[ALICE, GONE, BOB, None], [ALICE, b"", None, BOB], [GONE, ALICE, BOB, GONE]]
    if format_name is FormatName.KAFKA:
        return archive_batches(
            storage, [[batch_of(4 * at, some, Codec.ZSTD)] for at, some in enumerate(keys)]
        )  # fmt: skip
    some = [[(4 * at + n, key) for n, key in enumerate(item)] for at, item in enumerate(keys)]
    return archive_records(storage, format_name, some)


@FORMATS
def test_records_of_the_key_are_gone_and_all_others_stay(storage: LocalStorage, format_name: FormatName) -> None:
    before = archived(storage, format_name).load()
    expected = without(seen(storage), GONE)
    result = erase_whole(storage, GONE)
    assert seen(storage) == expected
    assert (result.records, result.segments, result.topics, result.partitions) == (3, 2, 1, 1)
    after = Archive.open(storage).load()
    assert (after.coverage, after.removed, after.groups) == (before.coverage, {}, before.groups)
    assert after.segments[KEY][1] == before.segments[KEY][1], "a segment without the key is as it was"


def test_rebuilt_indexes_of_the_records_format_name_what_the_erasure_has_written(storage: LocalStorage) -> None:
    archived(storage, FormatName.RECORDS)
    erase_whole(storage, GONE)
    for where in (storage.uri, f"{storage.uri}/topics/orders".removeprefix("file://")):
        indexes = list(survey(open_source(where)))
        assert len(indexes) == 4
        assert {(index.state, index.faults) for index in indexes} == {(IndexVerdict.GOOD, ())}


def test_rows_are_joined_once_for_all_segments_that_a_commit_replaces(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = archived(storage, FormatName.KAFKA)
    with begin_run(archive, "erase-1", kind=ERASURE, wait=FAST) as writer:
        entries = writer.state.segments[KEY]
        first, middle, last = entries
        calls: list[Partition] = []
        join = SegmentTable.replace_rows

        def counted(table: SegmentTable, key: Partition, *rows: Any) -> None:
            calls.append(key)
            join(table, key, *rows)

        monkeypatch.setattr(SegmentTable, "replace_rows", counted)
        writer.exchange([Exchange(first, None), Exchange(last, replace(last, epoch=writer.epoch))])
        assert calls == [KEY]
        left = replace(last, epoch=writer.epoch, first_epoch=1, last_epoch=1)
        assert list(writer.state.segments[KEY]) == [middle, left]
        assert list(writer.state.unpurged[0].segments[KEY]) == [first, last]
        with pytest.raises(ValueError, match="there is no segment 0"):
            writer.exchange([Exchange(first, None)])


@FORMATS
def test_kill_before_any_change_leaves_a_whole_archive_and_the_next_start_ends_the_same(
    storage: LocalStorage, tmp_path: Path, format_name: FormatName
) -> None:
    archived(storage, format_name)
    before = seen(storage)
    expected = without(before, GONE)
    for left in range(60):
        path = copied(storage, tmp_path / f"copy-{left}")
        mortal = Mortal(path.as_uri(), left)
        try:
            erased(mortal, GONE, runner=Inside())
        except Killed:
            pass
        else:
            assert left > 8, "there are more steps"
            assert seen(mortal) == expected
            return
        reader = LocalStorage(path.as_uri())
        assert [str(fault) for fault in verify(Archive.open(reader)).faults] == []
        assert seen(reader) in (before, expected, *_half(before))
        result = erase_whole(reader, GONE)
        assert seen(reader) == expected
        assert (result.records, result.segments) == (3, 2)
    raise AssertionError("it never comes to its end")


def test_a_hold_on_a_run_keeps_its_records_after_an_erasure_too(storage: LocalStorage) -> None:
    archive = archived(storage, FormatName.KAFKA)
    erase_whole(storage, GONE)
    change_holds(archive, "hold-1", [Hold(HoldKind.RUN, "backup-1", HoldOrigin.COMMAND)], release=False)
    result = erased(storage, ALICE, run_id="erase-2")
    assert result.outcome == "Failed"
    assert "run backup-1" in result.message


def test_removals_of_other_topics_keep_their_grace(storage: LocalStorage) -> None:
    other = replace(ORDERS, name="audit", topic_id="b" * 22)
    archive = archived(storage, FormatName.KAFKA)
    with begin_run(archive, "backup-2", wait=FAST) as writer:
        entry = write_segment(storage, [batch_of(0, [ALICE])], topic=other, epoch=writer.epoch)
        writer.commit(topics=[other], receipts=[Receipt((Coverage(other.topic_id, 0, 0, 1),), (entry,))])
        writer.end(RunOutcome.SUCCEEDED)
        writer.remove([RemovedSegment(other.topic_id, 0, 0)])
    erase_whole(storage, GONE)
    after = Archive.open(storage).load()
    assert [list(item.segments) for item in after.unpurged] == [[(other.topic_id, 0)]]
    assert all(storage.list(path) for path in entry.objects("audit"))


def test_a_commit_that_removed_of_several_topics_keeps_the_grace_of_the_others(storage: LocalStorage) -> None:
    other = replace(ORDERS, name="audit", topic_id="b" * 22)
    archive = archived(storage, FormatName.KAFKA)
    first = archive.load().segments[KEY][0]
    with begin_run(archive, "backup-2", wait=FAST) as writer:
        entry = write_segment(storage, [batch_of(0, [ALICE])], topic=other, epoch=writer.epoch)
        writer.commit(topics=[other], receipts=[Receipt((Coverage(other.topic_id, 0, 0, 1),), (entry,))])
        writer.end(RunOutcome.SUCCEEDED)
        writer.remove([RemovedSegment(other.topic_id, 0, 0), RemovedSegment(*KEY, 0)])
    erase_whole(storage, GONE)
    assert not any(storage.list(path) for path in first.objects("orders"))
    assert all(storage.list(path) for path in entry.objects("audit"))
    with begin_run(archive, "backup-3", wait=FAST) as writer:
        writer.end(RunOutcome.SUCCEEDED)
        purge(writer)
    assert not any(storage.list(path) for path in entry.objects("audit"))
    assert archive.load().unpurged == ()


def test_an_erasure_takes_keys_out_of_what_an_unfinished_run_has_replaced(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_writer, "Timing", lambda: FAST)  # for how long the run that broke off is watched
    archive = archived(storage, FormatName.KAFKA)
    with begin_run(archive, "backup-2", wait=FAST) as writer:
        writer.change_generations([GenerationChange(*KEY, 2, GenerationStep.BEGIN, 0, 12)])
        entry = write_segment(storage, [batch_of(0, [ALICE])], epoch=writer.epoch)
        writer.commit(receipts=[Receipt((Coverage(*KEY, 0, 12),), (entry,), generation=2)])
        writer.change_generations([GenerationChange(*KEY, 2, GenerationStep.ACTIVATE, 0, 12)])
    erase_whole(storage, GONE)
    state = Archive.open(storage).load()
    assert len(state.own_facts(KEY)) == 2
    assert [len(own.rows) > 0 for own in state.own_facts(KEY)] == [True, True]


@pytest.mark.parametrize("partial", [True, False], ids=["tried all", "gave up"])
def test_backups_that_fail_put_no_erasure_off(storage: LocalStorage, partial: bool) -> None:
    """The run before them has removed a segment, and its grace is not over: no restore needs it."""
    archive = archived(storage, FormatName.KAFKA)
    first = archive.load().segments[KEY][0]
    with begin_run(archive, "backup-2", wait=FAST) as writer:
        writer.end(RunOutcome.SUCCEEDED)
        writer.remove([RemovedSegment(*KEY, 0)])
    with begin_run(archive, "backup-3", wait=FAST) as writer:
        writer.end(RunOutcome.FAILED, "records were lost", partial=partial)
    erase_whole(storage, GONE)
    assert not any(storage.list(path) for path in first.objects("orders"))


def test_an_erasure_that_slept_deletes_nothing_of_another_run(storage: LocalStorage, tmp_path: Path) -> None:
    archive = archived(storage, FormatName.KAFKA)

    class Sleepy(LocalStorage):
        """Another run takes over before the topic's folder is listed."""

        def list(self, prefix: str = "") -> list[ObjectInfo]:
            if prefix == "topics/orders/":
                with begin_run(archive, "backup-2", wait=FAST) as writer:
                    entry = write_segment(storage, [batch_of(12, [BOB])], epoch=writer.epoch)
                    writer.commit(receipts=[Receipt((Coverage(*KEY, 12, 13),), (entry,))])
                    writer.end(RunOutcome.SUCCEEDED)
            return super().list(prefix)

    result = erased(Sleepy(storage.uri), GONE, runner=Inside())
    assert (result.outcome, "Another run has taken over" in result.message) == ("Failed", True)
    assert [str(fault) for fault in verify(Archive.open(storage)).faults] == []
    assert len(seen(storage)) == 10


@pytest.mark.parametrize("key", [GONE, b"a-key-that-only-the-generation-has"])
def test_a_generation_that_is_being_read_ends(storage: LocalStorage, key: bytes) -> None:
    archive = archived(storage, FormatName.KAFKA)
    expected = without(seen(storage), key)
    with begin_run(archive, "backup-2", wait=FAST) as writer:
        writer.change_generations([GenerationChange(*KEY, 2, GenerationStep.BEGIN, 0, 12)])
        entry = write_segment(storage, [batch_of(0, [ALICE, key])], epoch=writer.epoch)
        writer.commit(receipts=[Receipt((Coverage(*KEY, 0, 2),), (entry,), generation=2)])
        writer.end(RunOutcome.SUCCEEDED)
    erase_whole(storage, key)
    assert seen(storage) == expected
    after = Archive.open(storage).load()
    assert after.generations[KEY].passive is None


def _half(before: list[Any]) -> list[list[Any]]:
    """The records that a kill between two commits leaves."""
    return [[item for item in before if item[2] != GONE or item[0] > 3]]


@FORMATS
def test_same_run_again_does_nothing_and_says_the_same(storage: LocalStorage, format_name: FormatName) -> None:
    archived(storage, format_name)
    first = erase_whole(storage, GONE)
    listed = {(info.path, info.modified) for info in storage.list()}
    again = erased(storage, GONE)
    assert (again.outcome, again.records, again.segments) == ("Succeeded", first.records, first.segments)
    assert {(info.path, info.modified) for info in storage.list()} == listed


@FORMATS
def test_key_after_key_can_be_erased_from_the_same_segments(storage: LocalStorage, format_name: FormatName) -> None:
    archived(storage, format_name)
    left = seen(storage)
    for number, key in enumerate((GONE, ALICE, BOB)):
        erase_whole(storage, key, run_id=f"erase-{number}")
        left = without(left, key)
        assert seen(storage) == left
    assert [item[2] for item in left] == [None, b"", None]


@FORMATS
def test_empty_key_is_a_key_and_no_key_is_none(storage: LocalStorage, format_name: FormatName) -> None:
    archived(storage, format_name)
    expected = without(seen(storage), b"")
    assert erase_whole(storage, b"").records == 1
    assert seen(storage) == expected


@FORMATS
def test_older_state_has_the_records_of_the_key_no_more(storage: LocalStorage, format_name: FormatName) -> None:
    archive = archived(storage, format_name)
    old = archive.load()
    expected = without(seen(storage), GONE)
    with begin_run(archive, "backup-2", wait=FAST) as writer:
        writer.end(RunOutcome.SUCCEEDED)
    erase_whole(storage, GONE)
    erase_whole(storage, ALICE, run_id="erase-2")
    newest = archive.load()
    found = view.at_end_of(archive, newest, "backup-1")
    assert found is not None
    assert records_in(storage, found.state) == without(expected, ALICE)
    assert found.state.commit == old.commit


def test_segment_of_nothing_but_the_key_goes_and_its_offsets_stay_archived(storage: LocalStorage) -> None:
    archive = archive_batches(storage, [[batch_of(0, [ALICE])], [batch_of(1, [GONE, GONE])], [batch_of(3, [BOB])]])
    erase_whole(storage, GONE)
    state = archive.load()
    assert [entry.base_offset for entry in state.segments[KEY]] == [0, 3]
    assert (state.coverage[KEY], state.removed) == ([(0, 4)], {})


def test_topic_of_nothing_but_the_key_is_an_empty_topic(storage: LocalStorage) -> None:
    archive = archive_batches(storage, [[batch_of(0, [GONE])]])
    erase_whole(storage, GONE)
    assert (dict(archive.load().segments), seen(storage)) == ({}, [])


def test_other_batches_of_a_segment_stay_byte_for_byte(storage: LocalStorage) -> None:
    batches = [batch_of(0, [ALICE, BOB], Codec.LZ4), batch_of(2, [ALICE, GONE], producer_id=7, base_sequence=3)]
    batches += [batch_of(4, [GONE]), batch_of(5, [BOB]), batch_of(6, [GONE])]
    archive = archive_batches(storage, [batches])
    (before,) = archive.load().segments[KEY]
    erase_whole(storage, GONE)
    (entry,) = archive.load().segments[KEY]
    log = storage.read(entry.stem("orders") + ".log")
    assert log.startswith(batches[0])
    assert batches[3] in log
    assert (entry.base_offset, entry.next_offset, entry.records, entry.batches) == (0, 7, 4, 4)
    assert (entry.epoch, before.epoch) == (2, 1)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.parametrize("digest", list(DigestAlgorithm))
def test_segments_stay_compressed_as_they_were(
    storage: LocalStorage, codec: Codec, compression: Compression, digest: DigestAlgorithm
) -> None:
    content = [batch_of(at, [ALICE, GONE, BOB] * 20, codec) for at in range(0, 600, 60)]
    archive = archive_batches(storage, [content], compression=compression, digest=digest)
    (before,) = archive.load().segments[KEY]
    expected = without(seen(storage), GONE)
    erase_whole(storage, GONE)
    (entry,) = archive.load().segments[KEY]
    assert seen(storage) == expected
    assert entry.codecs == before.codecs
    assert entry.digest.algorithm is digest
    assert bool(entry.files.stored_bytes) == bool(before.files.stored_bytes)


def test_key_of_a_mebibyte(storage: LocalStorage) -> None:
    large = bytes(range(256)) * 4096
    archive_batches(storage, [[batch_of(0, [ALICE, large, large + b"!"], Codec.SNAPPY)]])
    expected = without(seen(storage), large)
    assert len(expected) == 2
    result = erased(storage, large)
    assert (result.outcome, result.records, seen(storage)) == ("Succeeded", 1, expected)


def test_transactions_end_as_they_did(storage: LocalStorage) -> None:
    def some(offset: int, keys: list[bytes | None], producer: int) -> bytes:
        return batch_of(offset, keys, producer_id=producer, transactional=True)

    first = [some(0, [ALICE, GONE], 1), some(2, [GONE], 2), some(3, [BOB], 3), marker(4, 1, commit=True)]
    second = [marker(5, 2, commit=False), some(6, [GONE], 3), marker(7, 3, commit=False), some(8, [ALICE], 2)]
    third = [some(9, [GONE, BOB], 2), marker(11, 2, commit=True)]
    indexes = [[AbortedTxn(2, 2, 2, 2), AbortedTxn(3, 3, 3, 3)], [AbortedTxn(2, 2, 5, 6), AbortedTxn(3, 3, 7, 8)], []]
    archive_batches(storage, [first, second, third], aborted=indexes)
    assert [item[0] for item in seen(storage)] == [0, 1, 8, 9, 10]
    erase_whole(storage, GONE)
    assert [item[0] for item in seen(storage)] == [0, 8, 10]


def test_branches_lose_the_key_too_and_so_do_the_copies_in_their_place(storage: LocalStorage) -> None:
    archive = archive_batches(
        storage,
        [[batch_of(0, [ALICE, GONE])], [batch_of(2, [GONE, BOB]), batch_of(4, [GONE, BOB])], [batch_of(6, [GONE])]],
    )
    branch = branch_id(ORDERS.topic_id, 1)
    with begin_run(archive, "backup-2", wait=FAST) as writer:
        branch_off(writer, [Fork(*KEY, 4, 7, branch)])
        writer.end(RunOutcome.SUCCEEDED)
    state = view.choose(archive).state
    whole = records_in(storage, state.with_branch(ORDERS.topic_id, branch))
    newest = seen(storage)
    assert (len(whole), len(newest)) == (7, 4)
    erase_whole(storage, GONE)
    state = view.choose(archive).state
    assert records_in(storage, state.with_branch(ORDERS.topic_id, branch)) == without(whole, GONE)
    assert seen(storage) == without(newest, GONE)
    found = view.at_end_of(archive, archive.load(), "backup-1")
    assert found is not None
    assert records_in(storage, found.state) == without(whole, GONE)


@pytest.mark.parametrize("max_bytes", [1 << 20, 400], ids=["one part", "several parts"])
def test_snapshots_of_compacted_partitions_lose_the_key_too(storage: LocalStorage, max_bytes: int) -> None:
    keys = [ALICE, GONE, BOB, ALICE, b"carol-carol", GONE]
    compacted = replace(ORDERS, configs={"cleanup.policy": "compact"})
    log_of = [[batch_of(at, [key], leader_epoch=0)] for at, key in enumerate(keys)]
    archive = archive_batches(storage, log_of, topics=[compacted])
    with begin_run(archive, "backup-2", wait=FAST) as writer:
        writer.end(RunOutcome.SUCCEEDED)
        setting = setting_of(storage, epoch=writer.epoch, max_bytes=max_bytes)
        work = work_of(writer.state.segments[KEY], end=6)
        writer.snapshot([compact_partition(setting, work, Context()).snapshot])
    held = archive.load().snapshots[KEY][0]
    assert (len(held.parts(KEY)) > 1) is (max_bytes < 1 << 20)

    def of_snapshot() -> list[Seen]:
        return records_in(storage, with_snapshots(view.choose(archive).state))

    before, log = of_snapshot(), seen(storage)
    assert sorted(item[2] or b"" for item in before) == sorted({ALICE, GONE, BOB, b"carol-carol"})
    erase_whole(storage, GONE)
    assert of_snapshot() == without(before, GONE)
    assert seen(storage) == without(log, GONE)
    erase_whole(storage, ALICE, b"carol-carol", run_id="erase-2")
    assert of_snapshot() == without(before, GONE, ALICE, b"carol-carol")
    (after,) = archive.load().snapshots[KEY]
    assert (after.end, after.leader_epoch, after.time) == (held.end, held.leader_epoch, held.time)
    assert len(after.parts(KEY)) == len(held.parts(KEY))


def test_other_incarnations_of_the_name_lose_it_and_other_topics_do_not(storage: LocalStorage) -> None:
    again = TopicEntry("orders", "bbbbbbbbbbbbbbbbbbbbb_", 1, 1)
    other = TopicEntry("others", "ccccccccccccccccccccc_", 1, 1)
    archive_batches(storage, [[batch_of(0, [ALICE, GONE])]])
    archive_batches(storage, [[batch_of(0, [GONE, BOB])]], run_id="backup-2", topics=[again], topic=again)
    archive_batches(storage, [[batch_of(0, [GONE, BOB])]], run_id="backup-3", topics=[other], topic=other)
    assert erased(storage, GONE).records == 2
    assert {path.split("/")[1] for path in traces(storage, GONE)} == {"others"}
    assert [item[2] for item in seen(storage, (again.topic_id, 0))] == [BOB]


def test_objects_that_no_commit_names_go_too(storage: LocalStorage) -> None:
    archive_batches(storage, [[batch_of(0, [ALICE])]])
    storage.put(f"topics/orders/{ORDERS.topic_id}/partition=0/{9:020d}.{1:010d}.log", batch_of(9, [GONE]))
    assert traces(storage, GONE)
    erase_whole(storage, GONE)


def test_what_a_killed_writer_has_left_in_a_folder_goes_too(storage: LocalStorage) -> None:
    archive_batches(storage, [[batch_of(0, [ALICE])]])
    writer = storage.writer(f"topics/orders/{ORDERS.topic_id}/partition=0/{9:020d}.{1:010d}.log")
    writer.write(batch_of(9, [GONE]))
    other = storage.writer("topics/orders2/x.log")
    other.write(batch_of(9, [GONE]))
    erase_whole(storage, ALICE)
    files = [path for path in Path(storage.uri.removeprefix("file://")).rglob("*") if path.is_file()]
    assert [path.parent.name for path in files if GONE in path.read_bytes()] == ["orders2"]
    other.abort()
    with pytest.raises(ObjectMissing):
        writer.commit()


def test_groups_and_the_view_of_a_restore_stay_as_the_last_backup_left_them(storage: LocalStorage) -> None:
    archive = archive_batches(storage, [[batch_of(0, [ALICE, GONE])]])
    group = GroupEntry("readers", "orders", *KEY, 2)
    with begin_run(archive, "backup-2", wait=FAST) as writer:
        writer.end(RunOutcome.SUCCEEDED, groups=[group])
    with begin_run(archive, "backup-3", wait=FAST) as writer:
        writer.end(RunOutcome.FAILED, "it failed")
    erase_whole(storage, GONE)
    chosen = view.choose(archive)
    assert (chosen.state.groups, chosen.finished) == ((group,), True)
    assert archive.load().groups == (group,)


def test_archive_without_a_finished_backup_is_not_finished_by_an_erasure(storage: LocalStorage) -> None:
    archive = archive_batches(storage, [[batch_of(0, [ALICE, GONE])]])
    number = max(archive.listing().commits)
    storage.delete([f"catalog/{number:020d}.json"])
    assert not view.choose(archive).finished
    # The heartbeat of the run tells that commits are lost: this erasure is refused.
    result = erased(storage, GONE)
    assert (result.outcome, result.error_code) == ("Failed", "ArchiveDamaged")


def test_damaged_segment_fails_the_erasure_and_the_others_are_done(storage: LocalStorage) -> None:
    archive = archive_batches(storage, [[batch_of(0, [ALICE, GONE])], [batch_of(2, [ALICE, BOB])]])
    entry = archive.load().segments[KEY][1]
    path = entry.stem("orders") + ".log"
    data = bytearray(storage.read(path))
    data[-1] ^= 1
    storage.put(path, bytes(data))
    result = erased(storage, GONE)
    assert (result.outcome, result.error_code) == ("Failed", "ArchiveDamaged")
    assert "1 segment of topic 'orders' cannot be read to the end" in result.message
    assert path in result.message
    assert traces(storage, GONE) == []
    assert archive.load().runs["erase-1"].outcome is RunOutcome.FAILED


def test_audit_entry_tells_everything_but_the_keys(storage: LocalStorage) -> None:
    archive = archived(storage, FormatName.KAFKA)
    erase_whole(storage, GONE, b"nobody-has-this-key", asked_by="ticket 4711")
    found = json.loads(storage.read("runs/erase-1/erasure.json"))
    assert (found["topic"], found["keys"], found["records"], found["segments"]) == ("orders", 2, 3, 2)
    assert (found["askedBy"], found["archiveId"]) == ("ticket 4711", archive.info.archive_id)
    assert found["bytes"] > 0
    assert found["ended"] >= found["begun"] > 0


def test_unknown_topic_is_refused_and_nothing_is_written(storage: LocalStorage) -> None:
    archived(storage, FormatName.KAFKA)
    listed = storage.list()
    result = erased(storage, GONE, topic="order")
    assert (result.error_code, result.exit_code) == ("NoTopicMatches", 2)
    assert "has no topic 'order'" in result.message
    assert storage.list() == listed


@pytest.mark.parametrize("compatibility", list(Compatibility))
def test_avro_objects_keep_their_schema_and_codec(storage: LocalStorage, compatibility: Compatibility) -> None:
    options = FormatOptions(compatibility=compatibility)
    archive = archive_records(storage, FormatName.AVRO, [[(0, GONE), (1, ALICE), (2, BOB)]], options)
    (before,) = archive.load().segments[KEY]
    header = storage.read(before.stem("orders") + ".data")[:200]
    erase_whole(storage, GONE)
    (entry,) = archive.load().segments[KEY]
    assert storage.read(entry.stem("orders") + ".data")[:200] == header
    assert (entry.base_offset, entry.next_offset) == (1, 3)


keys = st.sampled_from([None, b"", ALICE, BOB, GONE, b"other" * 30])
some_batches = st.lists(
    st.tuples(st.lists(keys, min_size=1, max_size=6), st.sampled_from(list(Codec)), st.integers(0, 3)),
    min_size=1,
    max_size=8,
)


@settings(max_examples=scaled(60, light=12))
@given(some_batches, st.lists(st.sampled_from([b"", ALICE, BOB, GONE]), min_size=1, max_size=3, unique=True))
def test_restore_after_an_erasure_is_the_model_without_the_keys(
    tmp_path_factory: pytest.TempPathFactory, content: list[tuple[list[bytes | None], Codec, int]], wanted: list[bytes]
) -> None:
    storage = LocalStorage((tmp_path_factory.mktemp("model") / "archive").as_uri())
    segments: list[list[bytes]] = [[]]
    at = 0
    for some, codec, gap in content:
        segments[-1].append(batch_of(at, some, codec))
        at += len(some) + gap
        if gap == 3:
            segments.append([])
    archive_batches(storage, [batches for batches in segments if batches])
    model = without(seen(storage), *wanted)
    result = erased(storage, *wanted)
    assert (result.outcome, seen(storage)) == ("Succeeded", model)
    report = verify(Archive.open(storage))
    assert ([str(fault) for fault in report.faults], report.orphans) == ([], [])
