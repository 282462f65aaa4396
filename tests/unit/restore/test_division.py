"""The division of records among another number of partitions, as far as it follows from the archive and the plan."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logkeep_engine.contract.restored_topics import Partitioner
from logkeep_engine.errors import ArchiveDamaged, SpecError, TargetUnsuitable
from logkeep_engine.kafka.survey import Ended
from logkeep_engine.log.batch import check_crc, parse_header
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.divider import target_of_record
from logkeep_engine.log.records import Record, decode, encode
from logkeep_engine.log.transactions import Spans
from logkeep_engine.restore.model.offset_map import (
    HEADER_MAX_BYTES,
    OutletSummary,
    PartitionSummary,
    map_blocks,
    read_offset_map,
    stored_summary,
)
from logkeep_engine.restore.model.plan import PartitionPlan, RestorePlan, TopicPlan
from logkeep_engine.restore.positions.moves import translate
from logkeep_engine.restore.sending import stream as task_stream
from logkeep_engine.restore.sending.count import lost, written
from logkeep_engine.restore.sending.division.step import MOST_PAIRS, refuse_many_pairs
from logkeep_engine.restore.sending.division.stream import most_bytes
from logkeep_engine.restore.sending.restore_task import RestoreTask
from logkeep_engine.restore.sending.stream import TaskStream
from logkeep_engine.restore.streams.filter import Outgoing
from logkeep_engine.restore.streams.left_out import LeftOut
from logkeep_engine.restore.streams.merge import BatchStream
from logkeep_engine.restore.streams.records import Batching
from logkeep_engine.storage import open_uri
from tests.data.murmur2 import murmur2, target_of
from tests.examples import scaled
from tests.unit.log.batches import NOON, marker, with_header
from tests.unit.restore.tasks import NOWHERE, task_of
from tests.unit.restore.test_plan import entry

ABORTED = 7
"""So many records of aborted transactions the archive is said to have."""

Content = tuple[int, bytes | None, bytes | None, tuple[tuple[bytes, bytes | None], ...]]


def content(record: Record) -> Content:
    return record.timestamp, record.key, record.value, tuple(record.headers)


def divided(
    batches: Sequence[bytes],
    count: int,
    *,
    aborted: Spans | None = None,
    max_batch_bytes: int = 1 << 20,
    batching: Batching | None = None,
    partitioner: Partitioner = Partitioner.MURMUR2,
) -> tuple[list[list[Outgoing]], TaskStream]:
    """The batches for each of `count` partitions, and the stream that gave them."""

    def archive(_: RestoreTask, done: int, left_out: LeftOut) -> Iterator[Outgoing]:
        left_out.aborted = ABORTED
        found = BatchStream(producer_id=-1, max_bytes=1 << 20, aborted=aborted or Spans(), done=done)
        for data in batches:
            yield from found.add(memoryview(data))
        yield from found.finish()

    parts = tuple(PartitionPlan(0, 100 + target, 0, to=target) for target in range(count))
    plan = {"max_batch_bytes": max_batch_bytes, "divided": True, "partitioner": partitioner, "partitions": parts}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(task_stream, "stream_of", archive)
        made = TaskStream(task_of(plan=plan, batching=batching))
        pairs: list[list[Outgoing]] = [[] for _ in range(count)]
        for batch in made.batches():
            pairs[batch.outlet].append(batch)
    return pairs, made


def records_of(items: Sequence[Outgoing], producer_id: int) -> list[Content]:
    """The records of a pair. Its batches are as a broker takes them, each after the one before."""
    found: list[Content] = []
    for item in items:
        data = memoryview(b"".join(item.data or ()))
        header = parse_header(data)
        check_crc(data, 0, header)
        records = decode(data)
        assert item.index == len(found)
        assert (header.base_offset, header.last_offset_delta, header.record_count) == (0, item.count - 1, item.count)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (producer_id, 0, item.index)
        assert header.attributes == header.codec
        assert header.base_timestamp == records[0].timestamp
        assert header.max_timestamp == max(record.timestamp for record in records)
        assert [record.offset for record in records] == list(range(item.count))
        assert item.size == len(data) == header.size
        found += map(content, records)
    return found


def expected(
    batches: Sequence[bytes], count: int, partitioner: Partitioner = Partitioner.MURMUR2
) -> list[list[Content]]:
    """The records of these batches by partition, in their order."""
    found: list[list[Content]] = [[] for _ in range(count)]
    for data in batches:
        for record in decode(data):
            found[target_of(record.key, record.offset, count, partitioner)].append(content(record))
    return found


_KEYS = st.none() | st.sampled_from([b"", b"a", b"b", b"c"]) | st.binary(max_size=9)
_HEADERS = st.lists(st.tuples(st.sampled_from([b"h", b"x", b"\xff"]), st.none() | st.binary(max_size=4)), max_size=3)
_RECORDS = st.tuples(st.integers(-1, 1 << 42), _KEYS, st.none() | st.binary(max_size=60), _HEADERS)
_BATCHES = st.tuples(st.sampled_from(list(Codec)), st.lists(_RECORDS, min_size=1, max_size=40), st.integers(0, 3))


@settings(max_examples=scaled(150), deadline=None)
@given(
    st.lists(_BATCHES, min_size=1, max_size=12),
    st.integers(1, 9),
    st.sampled_from([200, 1000, 1 << 20]),
    st.sampled_from(Partitioner),
)
def test_the_streams_of_the_pairs_are_the_records_divided_in_their_order(
    history: list[tuple[Codec, list[tuple[int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]], int]],
    count: int,
    max_batch_bytes: int,
    partitioner: Partitioner,
) -> None:
    batches, offset = [], 0
    for codec, rows, gap in history:
        offset += gap
        records = [Record(offset + at, *row[:3], tuple(row[3])) for at, row in enumerate(rows)]
        batches.append(encode(records, codec=codec, base_offset=offset))
        offset += len(rows)
    pairs, made = divided(batches, count, max_batch_bytes=max_batch_bytes, partitioner=partitioner)
    found = [records_of(items, 100 + target) for target, items in enumerate(pairs)]
    assert found == expected(batches, count, partitioner)
    assert made.records == sum(len(rows) for _, rows, _ in history)
    for items in pairs:
        for before, item in pairwise(items):
            assert before.source_end < item.source_end
        for item in items:
            assert item.count == 1 or item.size <= max_batch_bytes
    again, _ = divided(batches, count, max_batch_bytes=max_batch_bytes, partitioner=partitioner)
    assert again == pairs


def test_keys_go_where_javas_producers_send_them() -> None:
    # From Kafka's own UtilsTest.testMurmur2.
    for key, hashed in ((b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536)):
        assert murmur2(key) == hashed % 2**32
        for count in (1, 2, 5, 12):
            found = target_of_record("murmur2", key, 0, count)
            assert found == target_of(key, 0, count) == (hashed & 0x7FFFFFFF) % count
    assert target_of_record("murmur2", b"", 7, 5) == target_of(b"", 7, 5)
    with pytest.raises(ValueError, match="one partition at least"):
        target_of_record("murmur2", b"k", 0, 0)


def test_keys_go_where_librdkafkas_producers_send_them() -> None:
    # From librdkafka's own unit test of its partitioners, which has 17 partitions.
    for key, hashed in ((b"23456", 0xB1B451D7), (b"foobar", 0x9EF61F95)):
        for count in (1, 2, 5, 17):
            assert target_of_record("crc32", key, 0, count) == target_of(key, 0, count, "crc32") == hashed % count
    for anywhere in (b"", None):
        assert {target_of_record("crc32", anywhere, offset, 5) for offset in range(100)} == {0, 1, 2, 3, 4}
    with pytest.raises(ValueError, match="no such partitioner"):
        target_of_record("fnv1a", b"k", 0, 3)


@pytest.mark.parametrize("step", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_records_without_a_key_are_spread_evenly_whatever_offsets_they_have(step: int, count: int) -> None:
    found = Counter(target_of_record("murmur2", None, offset, count) for offset in range(0, 4000 * step, step))
    assert len(found) == count
    assert max(found.values()) < 1.3 * min(found.values())


def test_aborted_records_and_markers_are_in_no_pair() -> None:
    kept = [encode([Record(at, NOON, b"k%d" % at, b"v")], codec=Codec.NONE, base_offset=at) for at in (0, 5)]
    gone = [Record(2, NOON, b"gone", b"v"), Record(3, NOON, None, b"v")]
    aborted = encode(gone, codec=Codec.NONE, base_offset=2, producer_id=9, transactional=True)
    batches = [kept[0], aborted, marker(4, 9, commit=False), kept[1]]
    pairs, made = divided(batches, 3, aborted=Spans([(9, 2, 4)]))
    assert [records_of(items, 100 + target) for target, items in enumerate(pairs)] == expected(kept, 3)
    assert made.records == 2


def test_append_times_become_times_of_records_and_are_counted() -> None:
    plain = encode([Record(at, NOON + at, None, b"v") for at in range(6)], codec=Codec.NONE, base_offset=0)
    stamped = with_header(plain, attributes=0x08, max_timestamp=NOON + 999)
    pairs, made = divided([stamped], 2)
    found = [record for target, items in enumerate(pairs) for record in records_of(items, 100 + target)]
    assert [record[0] for record in found] == [NOON + 999] * 6
    assert (made.append_times, made.left_out.aborted) == (6, ABORTED)


def test_a_batch_has_the_codec_of_its_first_record() -> None:
    batches = [
        encode([Record(at, NOON, b"k", b"v" * 2000)], codec=codec, base_offset=at)
        for at, codec in enumerate([Codec.ZSTD, Codec.LZ4, Codec.LZ4, Codec.NONE])
    ]
    (items,), _ = divided(batches, 1, max_batch_bytes=4500)
    assert [(parse_header(memoryview(item.data[0])).codec, item.count) for item in items if item.data] == [
        (Codec.ZSTD, 2),
        (Codec.LZ4, 2),
    ]


def test_batches_stay_small_and_few_bytes_wait_however_many_partitions_there_are() -> None:
    assert most_bytes(3, 1 << 20) == 256 << 10
    assert all(count * most_bytes(count, 1 << 20) <= 40 << 20 for count in (1, 3, 128, 1000, 5000, 10_000))
    assert most_bytes(2, 2000) < 2000
    rows = [Record(at, NOON, b"%d" % at, random.Random(at).randbytes(500)) for at in range(3000)]
    batches = [encode(rows[at : at + 100], codec=Codec.NONE, base_offset=at) for at in range(0, 3000, 100)]
    pairs, _ = divided(batches, 2)
    assert all(item.size <= (256 << 10) + 61 for items in pairs for item in items)
    assert all(len(items) in (3, 4) for items in pairs)


def test_a_record_that_is_larger_is_a_batch_of_its_own() -> None:
    sizes = [1, 400 << 10, 400 << 10, 1, 1]
    rows = [Record(at, NOON, b"k", bytes(size)) for at, size in enumerate(sizes)]
    (items,), _ = divided([encode(rows, codec=Codec.LZ4, base_offset=0)], 1)
    assert [item.count for item in items] == [1, 1, 1, 2]


def test_of_an_archive_of_records_the_spec_says_how_many_go_together() -> None:
    rows = [Record(at, NOON, None, b"v") for at in range(100)]
    pairs, _ = divided([encode(rows, codec=Codec.NONE, base_offset=0)], 2, batching=Batching(max_records=7))
    assert {item.count for items in pairs for item in items[:-1]} == {7}


def test_records_that_do_not_fit_together_are_damage() -> None:
    rows = [Record(at, NOON, b"k" * 200, b"v" * 9000) for at in (3, 4)]
    short = encode(rows, codec=Codec.NONE, base_offset=3)
    with pytest.raises(ArchiveDamaged, match="archived topic 'orders' partition 0, records from offset 3 on"):
        divided([with_header(short, record_count=3, last_offset_delta=2)], 2)


SUMMARY = PartitionSummary(
    source_topic="orders",
    source_topic_id="id",
    source_partition=1,
    target_topic="copy",
    records=9,
    bytes=700,
    outlets=(OutletSummary(0, 4, 0, 40, 3), OutletSummary(1, 5, 0, 25, 4)),
    append_time_records=2,
    aborted_records=ABORTED,
)


@pytest.mark.parametrize("count", [2, 10_000])
def test_what_is_known_of_a_divided_partition_is_read_whatever_its_size(tmp_path: Path, count: int) -> None:
    storage = open_uri(tmp_path.as_uri())
    many = replace(SUMMARY, outlets=tuple(replace(SUMMARY.outlets[0], partition=at) for at in range(count)))
    data = b"".join(map_blocks(many, None))
    assert (len(data) > HEADER_MAX_BYTES) == (count > 2)
    storage.put("map.json", data)
    assert stored_summary(storage, "map.json") == many
    assert read_offset_map(data, "x").rows == []
    for wrong in (data[: data.index(b"\n")], data.replace(b"[1,4,0,40,3]", b"[1,4,0,40]")):
        storage.put("map.json", wrong)
        with pytest.raises(ArchiveDamaged, match=r"map\.json: not an? offset map"):
            stored_summary(storage, "map.json")


def plan_of(created: bool = True, pairs: int = 2) -> RestorePlan:
    parts = tuple(
        PartitionPlan(source, 70 + 10 * source + to, 0 if created else 5, to=to)
        for source in range(2)
        for to in range(pairs)
    )
    topic = TopicPlan("orders", "id", "copy", created, pairs, 1, 1 << 20, parts, divided=True)
    return RestorePlan("r", "d", "a", 1, "c", (topic,))


def summaries(*outlets: tuple[OutletSummary, ...]) -> dict[tuple[str, int], PartitionSummary]:
    return {
        ("copy", source): replace(SUMMARY, source_partition=source, outlets=found)
        for source, found in enumerate(outlets)
    }


class Leaders:
    """Answers of leaders: their epochs' ends by (partition, epoch), and the ends of their logs."""

    def __init__(self, epochs: dict[tuple[int, int], int], ends: dict[int, int]) -> None:
        self._epochs = epochs
        self._ends = ends

    def epoch_ends(self, wanted: dict[tuple[str, int], int | None]) -> "Leaders":
        self.unknown: dict[tuple[str, int], str] = {}
        self.silent: dict[tuple[str, int], str] = {}
        self.found = {
            (topic, partition): Ended(9, -1 if epoch is None else epoch, self._end(partition, epoch))
            for (topic, partition), epoch in wanted.items()
        }
        return self

    def _end(self, partition: int, epoch: int | None) -> int:
        return self._ends[partition] if epoch is None else self._epochs[partition, epoch]


def lacking(plan: RestorePlan, text: dict[tuple[str, int], PartitionSummary], leaders: Leaders) -> list[int]:
    """The producer ids whose records are not all there."""
    return sorted(target.producer_id for target in lost(leaders, written(plan, text), 1.0))  # type: ignore[arg-type]


def test_what_each_pair_has_written_is_looked_for_in_the_epoch_in_which_it_was() -> None:
    reported = summaries(
        (OutletSummary(0, 4, 0, 4, 3), OutletSummary(1, 0, 0, 0)),
        (OutletSummary(0, 2, 0, 6, 4), OutletSummary(1, 3, 0, 3, 1)),
    )
    whole = {(0, 3): 4, (0, 4): 6, (1, 1): 3}
    for created in (True, False):
        plan = plan_of(created)
        assert lacking(plan, reported, Leaders(whole, {0: 6, 1: 3} if created else {})) == []
        # The leader of epoch 4 lacks what the one of epoch 3 had acknowledged last.
        assert lacking(plan, reported, Leaders({**whole, (0, 3): 3}, {1: 3})) == [70]


def test_a_created_topic_holds_the_records_of_all_pairs_and_no_more() -> None:
    reported = summaries(
        (OutletSummary(0, 4, 0, 4, 3), OutletSummary(1, 0, 0, 0)),
        (OutletSummary(0, 2, 0, 6, 3), OutletSummary(1, 0, 0, 0)),
    )
    with pytest.raises(Exception, match="ends at offset 7 instead of 6: another producer wrote"):
        lacking(plan_of(), reported, Leaders({(0, 3): 7}, {0: 7, 1: 0}))
    with pytest.raises(Exception, match="partition 1 ends at offset 1 instead of 0"):
        lacking(plan_of(), reported, Leaders({(0, 3): 6}, {0: 6, 1: 1}))
    assert lacking(plan_of(), reported, Leaders({(0, 3): 6}, {0: 5, 1: 0})) == [70, 80]


def test_more_pairs_than_a_cluster_should_remember_are_refused() -> None:
    refuse_many_pairs(plan_of())
    with pytest.raises(TargetUnsuitable, match=r"100002 pairs .* most of them are of topic copy"):
        refuse_many_pairs(plan_of(pairs=MOST_PAIRS // 2 + 1))


def test_positions_of_groups_cannot_be_translated() -> None:
    with pytest.raises(SpecError, match="copy has another number of partitions than the archived topic"):
        translate([], plan_of().topics, lambda topic, partition: pytest.fail("asked"), lambda topic, partition: 0)


def test_the_bounds_of_batches_stay_what_they_are() -> None:
    # Whoever changes these changes the batches of runs that are begun: the plan's format must be another one then.
    assert (most_bytes(5, 1 << 20), most_bytes(1000, 1 << 20)) == (262144, 33554)


def test_pairs_without_bytes_take_memory() -> None:
    """So a task does not begin all of many archived partitions with few records at once."""
    few, many = (
        task_of(NOWHERE, entry(), plan={"divided": True, "partitions": tuple(map(outlet, range(count)))}).memory
        for count in (1, 401)
    )
    assert many - few >= 400 * (16 << 10)


def outlet(number: int) -> PartitionPlan:
    return PartitionPlan(0, number, 0, to=number)
