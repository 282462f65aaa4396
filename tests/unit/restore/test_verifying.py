"""One partition of a target is read back and compared, whatever happens to its log meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from logkeep_engine.archive.catalog.entry import Layout, SegmentTimes
from logkeep_engine.archive.maintenance.record_digests import (
    RecordTimes,
    SegmentDigests,
    StretchDigest,
    packed_stretches,
    unpacked_stretches,
)
from logkeep_engine.compare.aligning import AHEAD
from logkeep_engine.compare.sources import ComparedRecords
from logkeep_engine.contract.archive_format import DigestAlgorithm
from logkeep_engine.contract.model import replace
from logkeep_engine.digest import Digest
from logkeep_engine.errors import CorruptBatch
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.fetched import Fetched
from logkeep_engine.kafka.queries import EpochEnd
from logkeep_engine.log.batch import MAX_OFFSET
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.consumed import PlainRecord
from logkeep_engine.log.records import Record, encode
from logkeep_engine.log.rows import RecordDigest, Rows, as_rows
from logkeep_engine.restore.model.plan import PartitionPlan
from logkeep_engine.restore.streams.clip import Clip
from logkeep_engine.restore.streams.straddling import Straddling
from logkeep_engine.restore.verification import sources
from logkeep_engine.restore.verification import task as verification
from logkeep_engine.restore.verification.idle import idle_partitions
from logkeep_engine.restore.verification.sources import RestoredRecords
from logkeep_engine.restore.verification.task import Verdict, VerifiedPartition, VerifyTask, _Verification
from logkeep_engine.storage import open_uri
from logkeep_engine.tasks import TaskProgress
from tests.runners import Context
from tests.unit.restore.tasks import task_of

TIME = 1_700_000_000_000
OURS = 9
STRETCH = 2000


def record(number: int, offset: int, value: bytes = b"") -> PlainRecord:
    return PlainRecord(offset, TIME + number, 0, b"k%d" % number, value or b"v%d" % number, ())


class Log:
    """A partition's log, and the leader that answers for it."""

    def __init__(self, numbers: Sequence[int], *, then: Callable[[Log], None] = lambda log: None) -> None:
        self.records = [record(number, offset) for offset, number in enumerate(numbers)]
        self.epochs = {5: len(self.records)}
        self.begins = 0
        self.broken = False
        self._then: Callable[[Log], None] | None = then

    def cut(self, end: int, more: Sequence[int] = ()) -> None:
        """Another leader has less, and gets other records."""
        self.records = self.records[:end]
        self.epochs = {5: end, 6: end + len(more)}
        self.records += [record(number, end + at) for at, number in enumerate(more)]

    async def epoch_end(self, topic: str, partition: int, epoch: int | None = None) -> EpochEnd:
        asked = max(self.epochs) if epoch is None else epoch
        return EpochEnd(0, asked, self.epochs[asked])

    async def start_offset(self, topic: str, partition: int) -> int:
        return self.begins

    async def end_offset(self, topic: str, partition: int, *, committed: bool) -> int:
        return len(self.records)

    async def log_end(self, topic: str, partition: int) -> int:
        return len(self.records)

    async def stream(
        self, topic: str, partition: int, start: int, end: int, *, max_bytes: int, topic_id: None, committed: bool
    ) -> AsyncGenerator[Fetched, None]:
        for at in range(start // 500 * 500, end, 500):
            some = [Record(r.offset, r.timestamp or 0, r.key, r.value, ()) for r in self.records[at : at + 500]]
            data = bytearray(encode(some, codec=Codec.ZSTD, base_offset=at, producer_id=OURS, producer_epoch=0))
            if self.broken:
                data[-1] ^= 1
            yield Fetched(memoryview(data), at + len(some), end, end, 0)
        then, self._then = self._then, None
        if then is not None:
            then(self)


class Archived(ComparedRecords):
    """The records of an archive, in the place of `RestoredRecords`."""

    def __init__(self, records: Sequence[PlainRecord]) -> None:
        self._records = records

    async def rows(self, start: int, stop: int = MAX_OFFSET) -> AsyncGenerator[Rows, None]:
        for at in range(start, min(stop, len(self._records)), 700):
            yield as_rows(self._records[at : min(at + 700, stop)])


def stretches(records: Sequence[PlainRecord]) -> Iterator[StretchDigest]:
    for at in range(0, len(records), STRETCH):
        digest, some = RecordDigest(offsets=False), records[at : at + STRETCH]
        digest.note(as_rows(some))
        yield StretchDigest.of(at, at + len(some), digest)


def verified(
    archived: int, log: Log, tmp_path: Path, claimed: Callable[[int, StretchDigest], StretchDigest] | None = None
) -> VerifiedPartition:
    """The log beside an archive of so many records. `claimed` alters the digests that were kept of it, by number."""
    records = [record(number, number) for number in range(archived)]
    plan = {"target": "copy", "partitions": (PartitionPlan(3, OURS, 0),)}
    restored = task_of(open_uri(tmp_path.as_uri()), plan=plan, topic_id="x", partition=3)
    kept = list(stretches(records))
    if claimed is not None:
        kept = [claimed(number, stretch) for number, stretch in enumerate(kept)]
    task = VerifyTask(restored, packed_stretches(kept))

    async def verify() -> VerifiedPartition:
        context = Context(0)
        with ThreadPoolExecutor(1) as pool:
            client = cast(RawClient, log)
            one = _Verification(task, client, pool, TaskProgress(context), context, asyncio.Lock())
            one._wanted = cast(RestoredRecords, Archived(records))
            return await one.run()

    return asyncio.run(verify())


def differences_of(found: VerifiedPartition) -> list[tuple[str, int | None, int | None, int]]:
    return [(item.kind.value, item.source_offset, item.target_offset, item.records) for item in found.differences]


def test_packed_stretches_are_the_same() -> None:
    some = tuple(stretches([record(number, number) for number in range(STRETCH + 1)]))
    assert len(packed_stretches(some)) == 2 * 72
    assert unpacked_stretches(packed_stretches(some)) == some


def test_what_is_equal_is_verified(tmp_path: Path) -> None:
    found = verified(5000, Log(range(5000)), tmp_path)
    assert (found.verdict, found.records, found.expected, found.stretches) == (Verdict.VERIFIED, 5000, 5000, 3)


@pytest.mark.parametrize("more", [[], range(10_000, 10_300)], ids=["shorter", "grown again"])
def test_a_log_that_is_cut_off_while_it_is_read_has_lost_records(tmp_path: Path, more: Sequence[int]) -> None:
    log = Log(range(5000), then=lambda log: log.cut(4700, more))
    found = verified(5000, log, tmp_path)
    assert found.verdict is Verdict.DIFFERENT
    kind = "Changed" if more else "Lost"
    assert differences_of(found)[0][:2] == (kind, 4700)


def test_a_log_that_is_cut_off_again_and_again_is_not_verified(tmp_path: Path) -> None:
    log = Log(range(5000))
    log.epochs = {5: 4000}
    found = verified(5000, log, tmp_path)
    assert found.verdict is Verdict.NOT_VERIFIED
    assert "was cut off each time" in found.reasons[-1]


def test_a_log_whose_beginning_goes_while_it_is_read_is_not_verified(tmp_path: Path) -> None:
    def removed(log: Log) -> None:
        log.begins = 40

    found = verified(5000, Log(range(5000), then=removed), tmp_path)
    assert found.verdict is Verdict.NOT_VERIFIED
    assert found.reasons == ("the target's log begins at offset 40: everything before it is gone",)


def test_a_damaged_batch_of_the_target_is_named_with_its_place(tmp_path: Path) -> None:
    log = Log(range(600))
    log.broken = True
    with pytest.raises(CorruptBatch, match="The target, topic 'copy' partition 3: The batch at offset 0"):
        verified(600, log, tmp_path)


def test_the_fields_of_a_changed_record_are_named(tmp_path: Path) -> None:
    log = Log(range(5000))
    log.records[4321] = log.records[4321]._replace(key=b"x", value=b"y")
    found = verified(5000, log, tmp_path)
    assert [item.fields for item in found.differences] == [("key", "value")]
    assert (found.records, found.stretches) == (5000, 3)


@pytest.mark.parametrize(("start", "count"), [(0, 1001), (100, 1500), (1000, 9000), (2000, 7500), (0, 11_999)])
def test_records_that_are_lost_are_called_so_however_many_they_are(tmp_path: Path, start: int, count: int) -> None:
    log = Log([*range(start), *range(start + count, 12_000)])
    found = verified(12_000, log, tmp_path)
    assert found.verdict is Verdict.DIFFERENT
    assert {item.kind.value for item in found.differences} == {"Lost"}
    assert differences_of(found) == [("Lost", start, None, count)]
    assert found.records == 12_000 - count


@pytest.mark.parametrize(("at", "count"), [(0, 1001), (100, 1500), (2000, 9000), (700, 4000)])
def test_records_that_were_added_are_called_so_however_many_they_are(tmp_path: Path, at: int, count: int) -> None:
    log = Log([*range(at), *range(50_000, 50_000 + count), *range(at, 6000)])
    found = verified(6000, log, tmp_path)
    assert found.verdict is Verdict.DIFFERENT
    assert differences_of(found) == [("Added", None, at, count)]
    assert found.records == 6000 + count


def test_each_of_several_differences_is_named_for_itself(tmp_path: Path) -> None:
    log = Log([*range(1000), *range(9000, 10_000), *range(60_000, 65_000), *range(10_000, 12_000)])
    log.records[5] = log.records[5]._replace(value=b"other")
    found = verified(12_000, log, tmp_path)
    assert differences_of(found) == [("Changed", 5, 5, 1), ("Lost", 1000, None, 8000), ("Added", None, 2000, 5000)]


def test_of_very_many_changes_the_first_are_named(tmp_path: Path) -> None:
    found = verified(6000, Log([number + 50_000 for number in range(6000)]), tmp_path)
    assert differences_of(found) == [("Changed", number, number, 1) for number in range(20)]
    assert found.compared_until == 2000


# ---- partitions to which nothing is restored


@pytest.mark.parametrize("more", [1, 2 * AHEAD])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_digests_that_name_more_records_than_there_are_are_wrong_and_not_the_target(
    tmp_path: Path, number: int, more: int
) -> None:
    def claimed(at: int, stretch: StretchDigest) -> StretchDigest:
        return replace(stretch, records=stretch.records + more) if at == number else stretch

    found = verified(5000, Log(range(5000)), tmp_path, claimed)
    assert (found.verdict, found.records, differences_of(found)) == (Verdict.NOT_VERIFIED, 5000, [])
    assert found.reasons == (
        f"the digests of the archive's offsets {number * STRETCH} to {min((number + 1) * STRETCH, 5000) - 1} are not "
        "those of its records: delete them, and verify again",
    )
    log = Log([*range(4900), *range(9000, 9100 + 3 * AHEAD)])
    found = verified(5000, log, tmp_path, claimed)
    assert found.verdict is Verdict.DIFFERENT
    assert differences_of(found)[0] == ("Changed", 4900, 4900, 1)


@pytest.mark.parametrize("fewer", [1, 700, STRETCH])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_digests_that_name_fewer_records_than_there_are_are_wrong_and_not_the_target(
    tmp_path: Path, number: int, fewer: int
) -> None:
    def claimed(at: int, stretch: StretchDigest) -> StretchDigest:
        if at != number:
            return stretch
        digest, left = RecordDigest(offsets=False), range(stretch.start, max(stretch.start, stretch.end - fewer))
        if left:
            digest.note(as_rows([record(offset, offset) for offset in left]))
        return StretchDigest.of(stretch.start, stretch.end, digest)

    found = verified(5000, Log(range(5000)), tmp_path, claimed)
    assert (found.verdict, found.records, differences_of(found)) == (Verdict.NOT_VERIFIED, 5000, [])
    assert all("are not those of its records: delete them, and verify again" in text for text in found.reasons)
    log = Log([*range(4900), *range(4950, 5000)])
    found = verified(5000, log, tmp_path, claimed)
    assert found.verdict is Verdict.DIFFERENT
    assert differences_of(found) == [("Lost", 4900, None, 50)]
    found = verified(5000, Log(range(5010)), tmp_path, claimed)
    assert found.verdict is Verdict.DIFFERENT
    assert differences_of(found) == [("Added", None, 5000, 10)]


@pytest.mark.parametrize("lost", [True, False])
def test_where_the_search_for_what_both_sides_have_ends_the_differences_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    monkeypatch.setattr(verification, "_STRETCHES_SEARCHED", 1)
    monkeypatch.setattr(verification, "STRETCH_RECORDS", STRETCH)
    more = [] if lost else range(50_000, 59_000)
    found = verified(12_000, Log([*range(1000), *more, *range(10_000 if lost else 1000, 12_000)]), tmp_path)
    assert found.verdict is Verdict.DIFFERENT
    assert differences_of(found)[0][:2] == ("Changed", 1000)
    (reason,) = found.reasons
    assert "no more than about 2000 records were searched for it: records that are called changed there may" in reason


def idle(
    ends: dict[tuple[str, int], int], *, caveat: str = "", created: bool = True, to: int = 0
) -> tuple[list[Any], int]:
    parts = [SimpleNamespace(partition=number, target=to + number, begins=2 * number) for number in range(2)]
    topic = SimpleNamespace(source="orders", target="copy", created=created, partitions=parts)
    planned = SimpleNamespace(plan=SimpleNamespace(topics=[topic]), segments=lambda topic, partition: ())
    control = SimpleNamespace(latest_offsets=lambda wanted: {where: ends[where] for where in wanted if where in ends})
    context = SimpleNamespace(control=control)
    caveats = {("orders", 1): (caveat,)} if caveat else {}
    found, empty = idle_partitions(cast(Any, context), cast(Any, planned), caveats)
    return [(item.target, item.partition, item.verdict, item.reason) for item in found], empty


AS_THEY_MUST_BE = {("copy", 0): 0, ("copy", 1): 2}


def test_an_empty_partition_that_is_gone_is_not_equal() -> None:
    assert idle(AS_THEY_MUST_BE) == ([], 2)
    gone = [("copy", 1, Verdict.DIFFERENT, "the partition is gone")]
    assert idle({("copy", 0): 0}) == (gone, 1)
    short = [("copy", 1, Verdict.DIFFERENT, "its log ends at offset 1, not at 2")]
    assert idle({("copy", 0): 0, ("copy", 1): 1}) == (short, 1)


def test_an_empty_partition_with_records_of_others_is_not_verified() -> None:
    reason = "500 offsets are used where the archive has no record: others have written to it"
    assert idle({("copy", 0): 500, ("copy", 1): 2}) == ([("copy", 0, Verdict.NOT_VERIFIED, reason)], 1)


def test_an_empty_partition_is_looked_for_where_the_restore_has_mapped_it() -> None:
    mapped = {("copy", 7): 0, ("copy", 8): 2}
    assert idle(mapped, to=7) == ([], 2)
    gone = [("copy", 8, Verdict.DIFFERENT, "the partition is gone")]
    assert idle({("copy", 7): 0, ("copy", 1): 2}, to=7) == (gone, 1)


@pytest.mark.parametrize("created", [True, False])
def test_a_partition_of_which_the_archive_has_lost_everything_is_not_verified(created: bool) -> None:
    lost = [("copy", 1, Verdict.NOT_VERIFIED, "all is lost")]
    assert idle(AS_THEY_MUST_BE, caveat="all is lost", created=created) == (lost, int(created))


# ---- what is read of the archive


class Segments:
    """A reader of two record segments, which must not be asked for a third list of records."""

    def records(self, start: int) -> Iterator[list[PlainRecord]]:
        yield [record(number, number) for number in range(start, 10)]
        yield [record(number, number) for number in range(10, 20)]
        raise AssertionError("it was read on to the end of the segment")


def test_nothing_is_read_after_the_offsets_that_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = SimpleNamespace(base_offset=0, next_offset=1000, layout=Layout.RECORDS)
    task = SimpleNamespace(segments=(entry,), clip=None, storage=None, topic="orders", damaged=())
    monkeypatch.setattr(sources, "open_partition", lambda *_, **__: Segments())
    rows = list(RestoredRecords(cast(Any, task)).read(4, 10))
    assert [one.offset for part in rows for one in part] == list(range(4, 10))


def test_a_segment_is_read_once_for_all_of_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [record(number, number) for number in range(5 * STRETCH)]
    task = SimpleNamespace(segments=(), survey=None, clip=None, damaged=())
    asked = []

    def rows(self: RestoredRecords, start: int, stop: int) -> Iterator[Rows]:
        asked.append((start, stop))
        for at in range(0, len(records), 1500):
            yield as_rows(records[at : at + 1500])

    monkeypatch.setattr(RestoredRecords, "read", rows)
    whole = tuple(stretches(records))
    digest = Digest(DigestAlgorithm.BLAKE3, "")
    known = SegmentDigests(0, len(records), digest, (), whole, RecordTimes())
    found = RestoredRecords(cast(Any, task)).of(known)
    joined = RecordDigest(offsets=False)
    joined.note(as_rows(records))
    assert [StretchDigest.of(0, len(records), joined)] == list(found.stretches)
    assert sum(count for _, count, _ in found.times.buckets) == len(records)
    assert asked == [(0, len(records))]


OPEN_OVER_IT = (7, 15, 40)
BESIDE_IT = (7, 0, 9)


@pytest.mark.parametrize(
    ("clip", "span", "wanted"),
    [
        (None, None, "all"),
        (Clip(end=20), None, "all"),
        (Clip(end=19), None, "some"),
        (Clip(end=20), OPEN_OVER_IT, "some"),
        (Clip(end=20), BESIDE_IT, "all"),
        (Clip(before=TIME + 20), None, "all"),
        (Clip(before=TIME + 20), OPEN_OVER_IT, "some"),
        (Clip(before=TIME + 20), BESIDE_IT, "all"),
        (Clip(before=TIME + 19), None, "some"),
        (Clip(before=TIME + 11), None, "some"),
        (Clip(before=TIME + 10), None, "none"),
        (Clip(since=TIME + 10), None, "all"),
        (Clip(since=TIME + 11), None, "some"),
        (Clip(since=TIME + 19), None, "some"),
        (Clip(since=TIME + 20), None, "none"),
        (Clip(since=TIME + 20), OPEN_OVER_IT, "some"),
        (Clip(since=TIME + 20), BESIDE_IT, "none"),
        (Clip(since=TIME, before=TIME + 20), None, "all"),
        (Clip(since=TIME, before=TIME + 10), None, "none"),
    ],
)
def test_a_segment_is_read_only_where_a_point_divides_it(
    monkeypatch: pytest.MonkeyPatch, clip: Clip | None, span: tuple[int, int, int] | None, wanted: str
) -> None:
    records = [record(offset, offset) for offset in range(10, 20)]
    digest = RecordDigest(offsets=False)
    digest.note(as_rows(records))
    stretch = StretchDigest.of(10, 20, digest)
    digests = SegmentDigests(10, 20, Digest(DigestAlgorithm.BLAKE3, ""), (), (stretch,), RecordTimes.of(digest))
    times = SegmentTimes(TIME + 10, TIME + 19)
    segments = tuple(SimpleNamespace(base_offset=base, transactional=True, times=times) for base in (0, 10))
    spans = Straddling([span] if span else [], [span] if span else [])
    monkeypatch.setattr(RestoredRecords, "across", property(lambda self: spans))
    found = RestoredRecords(cast(Any, SimpleNamespace(segments=segments, clip=clip, damaged=()))).known_of(digests)
    if wanted == "none":
        assert found is not None
        assert [(item.start, item.end, item.records) for item in found.stretches] == [(10, 20, 0)]
        assert found.times == RecordTimes()
    else:
        assert found == (digests if wanted == "all" else None)
