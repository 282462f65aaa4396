"""Transactions across a fork and across the end of a snapshot. Random histories have none: their transactions have one
batch each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import Coverage, Receipt, RunOutcome, TopicEntry, branch_id
from logkeep_engine.archive.catalog.lineage import Fork
from logkeep_engine.archive.catalog.writer import begin_run
from logkeep_engine.archive.maintenance import merging
from logkeep_engine.archive.maintenance.points import KeepRules
from logkeep_engine.archive.maintenance.retaining import RetentionRules, retain
from logkeep_engine.archive.maintenance.retention import RetentionLimits
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.archive.moments import iso
from logkeep_engine.archive.writing.packs import TaskPacks
from logkeep_engine.backup.run.archiving import branch_off
from logkeep_engine.backup.run.merging import merge_segments
from logkeep_engine.backup.run.snapshots import make_snapshots
from logkeep_engine.contract.archive_format import SegmentSpec
from logkeep_engine.contract.model import replace
from logkeep_engine.errors import SpecError
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.records import Record, encode
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.report import Reporter
from logkeep_engine.storage import LocalStorage, Storage
from tests.examples import scaled
from tests.model.asking import Asked
from tests.model.restoring import started
from tests.model.store import MemoryStore
from tests.model.world import QUICK, all_chosen
from tests.unit.archive.build import CLUSTER, write_segment
from tests.unit.backup.compacted_topic import spec_of, spread_all
from tests.unit.convert.converting import converted
from tests.unit.erasure.erasing import Inside
from tests.unit.log.batches import NOON, batch, marker

TOPIC = TopicEntry("orders", "aaaaaaaaaaaaaaaaaaaaa_", 1, 3, {"cleanup.policy": "delete"})
TABLE = TopicEntry(TOPIC.name, TOPIC.topic_id, 1, 3, {"cleanup.policy": "compact"})
KEY = (TOPIC.topic_id, 0)
PLACE = {"topic": TOPIC.name, "partition": 0}
P = 77


def data(at: int, count: int, producer: int = -1) -> bytes:
    sequence = at if producer >= 0 else -1
    return batch(at, count, producer_id=producer, transactional=producer >= 0, base_sequence=sequence)


def memory() -> MemoryStore:
    return MemoryStore("file:///model/archive", lambda: 1_700_000_000.0)


def archive(
    store: Storage,
    run_id: str,
    parts: Sequence[tuple[list[bytes], list[AbortedTxn]]],
    *,
    topic: TopicEntry = TOPIC,
    fork: int = 0,
    snapshot: bool = False,
    alone: bool = False,
    made_of_them: int = 1,
) -> None:
    """A run that archives segments, after the log was cut off at `fork`, if that is not 0. It makes a `snapshot`, and
    retention removes the log below (`alone`)."""
    with begin_run(Archive.create_or_open(store, CLUSTER), run_id, wait=QUICK) as writer:
        if fork:
            end = writer.state.accounted_for(*KEY)[-1][1]
            branch_off(writer, [Fork(*KEY, fork, end, branch_id(KEY[0], 1))])
        packs = TaskPacks(store, writer.epoch, 0, 0)
        made = [
            write_segment(store, batches, topic=topic, epoch=writer.epoch, aborted=aborted, packs=packs)
            for batches, aborted in parts
        ]
        packs.commit()
        ranges = (Coverage(*KEY, made[0].base_offset, made[-1].next_offset),)
        writer.commit(topics=[topic], receipts=[Receipt(ranges, tuple(made))])
        writer.end(RunOutcome.SUCCEEDED)
        if snapshot:
            assert make_snapshots(writer, spec_of(store.uri), Reporter(run_id), Inside, None).count == made_of_them
        if alone:
            assert retain(writer, RetentionRules(RetentionLimits(), KeepRules(runs=1), 0)).removed.segments


def restored(store: Storage, offset: int | None = None, run_id: str = "restore-1") -> list[int]:
    """The offsets of the records that a restore sends."""
    point = None if offset is None else {"offsets": [{**PLACE, "offset": offset}]}
    return [row[0] for row in started(store, Asked("x", {}, point), run_id).rows.get(KEY, [])]


def forked(first: Sequence[tuple[list[bytes], list[AbortedTxn]]]) -> MemoryStore:
    """An archive of these segments, whose log was cut off at 10: the producer continues there, and commits at 12."""
    store = memory()
    archive(store, "run-1", first)
    archive(store, "run-2", [([data(10, 2, P), marker(12, P, commit=True), data(13, 2)], [])], fork=10)
    return store


BELOW = [data(0, 5), data(5, 5, P)]
ABORTED = [data(10, 5, P), marker(15, P, commit=False), data(16, 2)]
COMMITTED = [data(10, 5, P), marker(15, P, commit=True), data(16, 2)]


def test_a_transaction_continues_after_a_fork_where_segments_end_there() -> None:
    store = forked([(BELOW, [AbortedTxn(P, 5, 9, 5)]), (ABORTED, [AbortedTxn(P, 5, 15, 5)])])
    assert restored(store) == [*range(12), 13, 14]


def test_a_transaction_continues_after_a_fork_within_a_segment() -> None:
    """It was aborted in the part that was cut off, and is committed since: its first records come, too."""
    store = forked([([*BELOW, *ABORTED], [AbortedTxn(P, 5, 15, 5)])])
    assert restored(store) == [*range(12), 13, 14]


def test_a_point_in_a_transaction_that_continues_after_a_fork_has_nothing_of_it() -> None:
    store = forked([([*BELOW, *COMMITTED], [])])
    assert restored(store, 11) == [*range(5)]


def test_verify_says_nothing_of_transactions_that_were_cut_off() -> None:
    """The index names the second transaction as aborted, and the marker on the other side is of the first one."""
    first = [*BELOW, marker(10, P, commit=False), data(11, 2, P), data(13, 2)]
    store = forked([(first, [AbortedTxn(P, 5, 10, 5), AbortedTxn(P, 11, 12, 11)])])
    report = verify(Archive.open(store))
    assert (report.whole, report.disagreements) == (True, [])


def end_within_a_transaction(store: Storage, *, alone: bool = False) -> None:
    """Make an archive whose first run ended at the stable offset 2, since another transaction had begun there."""
    archive(store, "run-1", [([data(0, 1), data(1, 1, P)], [])], topic=TABLE, snapshot=True, alone=alone)
    rest = [data(2, 1, P + 1), data(3, 1, P), marker(4, P, commit=True), marker(5, P + 1, commit=True), data(6, 1)]
    archive(store, "run-2", [(rest, [])], topic=TABLE)


def test_a_point_in_a_transaction_has_nothing_of_it_where_a_snapshot_ends_within_it() -> None:
    store = memory()
    end_within_a_transaction(store)
    assert restored(store, 4) == [0]
    assert restored(store, 5, "restore-2") == [0, 1, 3]


def test_a_converted_archive_has_a_transaction_whole_where_a_snapshot_ends_within_it(
    tmp_path: Path,
) -> None:
    source, target = (LocalStorage((tmp_path / name).as_uri()) for name in ("source", "target"))
    end_within_a_transaction(source, alone=True)
    converted(source, target, "Kafka")
    assert restored(target, 4) == [0]
    assert restored(target, 5, "restore-2") == [0, 1, 3]


def test_a_conversion_after_a_merge_takes_the_markers_of_transactions_that_it_has_begun(tmp_path: Path) -> None:
    """The target lacks a slice of the merged segment, with the markers of what it has already."""
    source, target = (LocalStorage((tmp_path / name).as_uri()) for name in ("source", "target"))
    archive(source, "run-1", [([data(0, 1), data(1, 1, P), data(2, 1, P + 1)], [AbortedTxn(P + 1, 2, 2, 2)])])
    converted(source, target, "Kafka")
    rest = [marker(3, P, commit=True), data(4, 1, P + 1), marker(5, P + 1, commit=False), data(6, 1, P)]
    archive(source, "run-2", [([*rest, data(7, 1), marker(8, P, commit=True)], [AbortedTxn(P + 1, 2, 5, 2)])])
    with (
        patch.object(merging, "chosen", all_chosen),
        begin_run(Archive.open(source), "run-3", wait=QUICK) as writer,
    ):
        writer.end(RunOutcome.SUCCEEDED)
        assert merge_segments(writer, SegmentSpec(merge_count=2), Inside, first_task=1).into == 1
    converted(source, target, "Kafka", run_id="convert-2")
    for end, expected in enumerate(([0], [0], [0], [0, 1], [0, 1], [0, 1], [0, 1], [0, 1, 7], [0, 1, 6, 7]), 1):
        assert restored(source, end, f"restore-{end}") == restored(target, end, f"restore-{end}") == expected, end


@pytest.mark.parametrize("spread", [False, True], ids=["alone", "spread"])
def test_a_deleted_key_stays_deleted_where_compaction_has_taken_the_marker_of_a_transaction(spread: bool) -> None:
    """A broker drops a marker, once all records of its transaction were overwritten: no snapshot waits for it."""
    topic = replace(TABLE, configs={**TABLE.configs, "delete.retention.ms": "0"})
    begun = encode(
        [Record(1, NOON, b"k1", b"v")], codec=Codec.NONE, base_offset=1, producer_id=P + 1, transactional=True
    )
    deleted, other = (
        encode([Record(at, NOON, key, value)], codec=Codec.NONE, base_offset=at)
        for at, key, value in ((5, b"k0", None), (6, b"k2", b"v"))
    )
    store = memory()
    with spread_all() if spread else nullcontext():
        archive(store, "run-1", [([data(0, 1, P)], [])], topic=topic, snapshot=True)
        # What was at 2 and 3, the marker and a later value, was compacted away.
        archive(store, "run-2", [([begun, marker(4, P + 1, commit=True), deleted], [])], topic=topic, snapshot=True)
        archive(store, "run-3", [([other], [])], topic=topic, snapshot=True)
    assert _values(store, "newest", {}) == {b"k1": 1, b"k2": 6}


@pytest.mark.parametrize("snapshot", [False, True], ids=["log", "snapshot"])
def test_a_marker_after_a_snapshot_decides_against_the_list_of_a_fetch(snapshot: bool) -> None:
    store = memory()
    archive(store, "run-1", [([data(0, 1, P)], [])], topic=TABLE, snapshot=snapshot)
    # Another transaction has begun at 1, where the first run ended. No list says that this one was aborted.
    rest = [data(1, 1, P + 1), marker(2, P, commit=False), marker(3, P + 1, commit=True)]
    archive(store, "run-2", [(rest, [])], topic=TABLE)
    assert restored(store) == [1]


@pytest.mark.parametrize("damaged", range(5))
def test_what_is_whole_is_restored_where_a_segment_with_a_fork_is_damaged_in_a_transaction(damaged: int) -> None:
    store = memory()
    lost = [data(at, 1, P) for at in range(5)]
    archive(store, "run-1", [([*lost, marker(5, P, commit=True)], [])])
    archive(store, "run-2", [([marker(3, P, commit=True)], [])], fork=3)
    path = min(path for path in store.objects if path.startswith("packs/"))
    stored = bytearray(store.objects[path].data)
    stored[sum(map(len, lost[:damaged])) + 62] ^= 1
    store.keep(path, bytes(stored))
    asked = Asked("x", {}, skips_damage=True)
    assert [row[0] for row in started(store, asked, "restore-1").rows[KEY]] == [at for at in range(3) if at != damaged]


def test_no_snapshot_decides_an_abort_whose_marker_lies_after_its_end() -> None:
    """The log is cut off there, and the producer commits the transaction in the log that continues."""
    store = memory()
    first, ahead = [data(0, 1), data(1, 1, P)], [AbortedTxn(P, 1, 1, 1)]
    archive(store, "run-1", [(first, ahead)], topic=TABLE, snapshot=True, made_of_them=0)
    rest = [data(2, 1, P + 1), marker(3, P, commit=False), marker(4, P + 1, commit=True)]
    archive(store, "run-2", [(rest, [AbortedTxn(P, 1, 3, 1)])], topic=TABLE)
    archive(store, "run-3", [([data(2, 1), marker(3, P, commit=True)], [])], topic=TABLE, fork=2)
    assert restored(store) == [0, 1, 2]


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_point_is_refused_where_a_broker_has_compacted_by_a_transaction_that_it_leaves_out(snapshot: bool) -> None:
    """The run ended at the stable offset 3. The value at 1 was gone by then, since that at 2 was committed at 4."""
    store = memory()
    one, later = (
        encode([Record(at, NOON, b"k1", b"v")], codec=Codec.NONE, base_offset=at, producer_id=P, transactional=True)
        for at in (2, 6)
    )
    archive(store, "run-1", [([data(0, 1), one], [])], topic=TABLE, snapshot=snapshot)
    rest = [data(3, 1, P + 1), marker(4, P, commit=True), marker(5, P + 1, commit=True), later]
    archive(store, "run-2", [([*rest, marker(7, P, commit=True)], [])], topic=TABLE)
    for end in (3, 4):
        with pytest.raises(SpecError, match="within the transaction of producer 77 that begins at offset 2"):
            restored(store, end, f"restore-{end}")
    assert restored(store, 5, "restore-5") == [0, 2]
    assert restored(store, 6, "restore-6") == [0, 2, 3]


class Writing(NamedTuple):
    """A batch of a record with one of few keys, by one of few producers (0: of no transaction), or the end of the
    transaction that the producer has open. `run` and `snapshot`: a run comes after it, with a snapshot."""

    producer: int
    key: int
    commits: bool | None
    run: bool
    snapshot: bool


writings = st.builds(
    Writing,
    st.integers(0, 3),
    st.integers(0, 2),
    st.sampled_from([None, None, True, True, False]),
    st.sampled_from([True, False, False]),
    st.booleans(),
)


@settings(max_examples=scaled(60, light=20))
@given(st.lists(writings, min_size=3, max_size=24), st.booleans())
def test_at_each_point_a_table_has_the_last_values_of_transactions_that_were_committed_below(
    some: list[Writing], spread: bool
) -> None:
    store = memory()
    log = _log_of(some)
    archived = runs = 0
    for at, item in enumerate(some):
        if not (item.run or at + 1 == len(some)):
            continue
        end = log.stable(at + 1)
        if end > archived:
            runs += 1
            with spread_all() if spread else nullcontext():
                made = 0 if log.aborts_behind(end) else 1
                some_of_it = [log.segment(archived, end)]
                archive(store, f"run-{runs}", some_of_it, topic=TABLE, snapshot=item.snapshot, made_of_them=made)
            archived = end
    for end in range(1, archived + 1):
        expected = log.values(end, end if end < archived else len(some))
        assert not expected or _values(store, f"offset-{end}", {"offsets": [{**PLACE, "offset": end}]}) == expected, end
        expected = log.values_before(end, archived)
        assert not expected or _values(store, f"time-{end}", {"timestamp": iso(NOON + end)}) == expected, end


@dataclass
class Log:
    """A log: its batches, and of each transaction the producer, the offsets of its records and of its marker, and how
    it ended."""

    batches: list[bytes] = field(default_factory=list)
    rows: list[tuple[int, int, int]] = field(default_factory=list)
    """Offset, key, number of the transaction (-1: none)."""
    ended: dict[int, tuple[int, bool]] = field(default_factory=dict)
    """Offset of the marker and whether it commits, by the number of the transaction."""
    producers: list[int] = field(default_factory=list)

    def first(self, transaction: int) -> int:
        return next(at for at, _, of in self.rows if of == transaction)

    def aborts_behind(self, end: int) -> bool:
        """Whether a transaction with records below `end` is aborted by a marker after that."""
        return any(self.first(item) < end <= at and not commits for item, (at, commits) in self.ended.items())

    def stable(self, end: int) -> int:
        """The last stable offset when the log had this end."""
        undecided = [
            self.first(item)
            for item in range(len(self.producers))
            if self.first(item) < end and (item not in self.ended or self.ended[item][0] >= end)
        ]
        return min(undecided, default=end)

    def segment(self, start: int, end: int) -> tuple[list[bytes], list[AbortedTxn]]:
        """The batches of a segment, and its index as a fetch brings it: of each aborted transaction that has records
        there."""
        aborted = []
        for item, (at, commits) in self.ended.items():
            inside = [row for row, _, of in self.rows if of == item and start <= row < end]
            if not commits and (inside or start <= at < end):
                last = at if start <= at < end else inside[-1]
                aborted.append(AbortedTxn(self.producers[item], self.first(item), last, self.first(item)))
        return self.batches[start:end], sorted(aborted, key=lambda item: item.last_offset)

    def values(self, end: int, known: int) -> dict[bytes, int]:
        """The offset of the last record of each key below `end` whose transaction is committed below `known`. At its
        own end an archive has what was decided by then: the markers may lie after it."""
        committed = {item for item, (at, commits) in self.ended.items() if commits and at < known}
        return {b"k%d" % key: at for at, key, of in self.rows if at < end and (of < 0 or of in committed)}

    def values_before(self, time: int, archived: int) -> dict[bytes, int]:
        """The same of records before a time (ms after NOON, which is their offset): that of a transaction is the time
        of its latest record that is archived."""
        late = {of for at, _, of in self.rows if time <= at < archived}
        committed = {item for item, (_, commits) in self.ended.items() if commits and item not in late}
        return {b"k%d" % key: at for at, key, of in self.rows if at < time and (of < 0 or of in committed)}


def _log_of(some: Sequence[Writing]) -> Log:
    log, begun, sequences = Log(), dict[int, int](), dict[int, int]()
    for at, item in enumerate(some):
        producer = P + item.producer
        if item.commits is not None and item.producer in begun:
            log.ended[begun.pop(item.producer)] = at, item.commits
            log.batches.append(marker(at, producer, commit=item.commits))
            continue
        number = -1
        if item.producer:
            if item.producer not in begun:
                begun[item.producer] = len(log.producers)
                log.producers.append(producer)
            number = begun[item.producer]
        sequences[producer] = sequences.get(producer, -1) + 1
        log.batches.append(
            encode(
                [Record(at, NOON + at, b"k%d" % item.key, b"v%d" % at)],
                codec=Codec.NONE,
                base_offset=at,
                producer_id=producer if item.producer else -1,
                transactional=item.producer > 0,
                base_sequence=sequences[producer] if item.producer else -1,
            )
        )
        log.rows.append((at, item.key, number))
    return log


def _values(store: Storage, name: str, point: dict[str, Any]) -> dict[bytes, int]:
    """Restore to a point and return what a table has then: the offset of the last record of each key."""
    rows = started(store, Asked("x", {}, point), f"restore-{name}").rows.get(KEY, [])
    return {key: at for at, _, key, _ in rows if key is not None}
