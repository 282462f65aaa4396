"""Packed segments behave as sorted lists of entries do."""

import pickle
from bisect import insort

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logkeep_engine.archive.catalog.entry import KafkaFiles, Layout, SegmentEntry, SegmentTimes
from logkeep_engine.archive.catalog.facts import Coverage, Receipt
from logkeep_engine.archive.catalog.fields import CODECS
from logkeep_engine.archive.catalog.packed import PackedSegments, SegmentBatch, SegmentTable, pack
from logkeep_engine.archive.catalog.receipts import ReceiptCheck
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.names import MAX_EPOCH
from logkeep_engine.contract.archive_format import DigestAlgorithm
from logkeep_engine.digest import Digest
from tests.unit.archive.build import ORDERS, changed
from tests.unit.archive.catalog.test_state import entry

ID = ORDERS.topic_id
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
COUNT = st.integers(0, (1 << 32) - 1)
HASH = st.binary(min_size=32, max_size=32).map(bytes.hex)
DIGEST = st.builds(Digest, st.sampled_from(DigestAlgorithm), HASH)


@st.composite
def entries(draw: st.DrawFn) -> SegmentEntry:
    base = draw(st.integers(0, 1 << 40))
    found = SegmentEntry(
        topic_id=draw(st.sampled_from([ID, "b" * 22])),
        partition=draw(st.integers(0, 2)),
        epoch=draw(st.integers(1, MAX_EPOCH)),
        attempt=draw(COUNT),
        base_offset=base,
        next_offset=base + draw(st.integers(1, 1 << 40)),
        records=draw(st.integers(0, 1 << 40)),
        batches=draw(st.integers(1, 1 << 40)),
        bytes=draw(st.integers(1, 1 << 40)),
        digest=draw(DIGEST),
        codecs=draw(st.dictionaries(st.sampled_from(CODECS), st.integers(1, (1 << 32) - 1))),
        max_batch_bytes=draw(COUNT),
        transactional=draw(st.booleans()),
        control=draw(st.booleans()),
        gaps=draw(st.booleans()),
        legacy=draw(st.booleans()),
        times=SegmentTimes(draw(INT64), draw(INT64), draw(st.booleans())),
        files=KafkaFiles(
            index_bytes=draw(COUNT),
            timeindex_bytes=draw(COUNT),
            txnindex_bytes=draw(COUNT),
            txnindex_sha256=draw(st.one_of(st.just(""), st.just("0" * 64), HASH)),
            stored_bytes=draw(st.integers(0, 1 << 40)),
        ),
    )
    layout = draw(st.sampled_from(Layout))
    if layout is Layout.AVRO:
        sequence, width = draw(st.integers(0, 1 << 62)), draw(st.integers(0, 20))
        return changed(found, layout=layout, sequence=sequence, sequence_width=width)
    if layout is Layout.SNAPSHOT:
        end, leader_epoch, part = draw(st.integers(0, 1 << 62)), draw(COUNT), draw(COUNT)
        return changed(found, layout=layout, end=end, leader_epoch=leader_epoch, part=part)
    return changed(found, layout=layout)


@settings(deadline=None)
@given(st.lists(entries(), max_size=12, unique_by=lambda item: (item.topic_id, item.partition, item.base_offset)))
def test_a_table_is_what_sorted_lists_are(added: list[SegmentEntry]) -> None:
    table, lists = SegmentTable(), dict[tuple[str, int], list[SegmentEntry]]()
    for item in added:
        table.add(item)
        insort(lists.setdefault((item.topic_id, item.partition), []), item, key=lambda one: one.base_offset)
    assert dict(table) == lists
    assert table.count == len(added)
    for key, expected in lists.items():
        view = table[key]
        assert list(view) == [view[at] for at in range(len(view))] == expected
        assert (view[-1], view[:2], pickle.loads(pickle.dumps(view))) == (expected[-1], expected[:2], expected)
        for item in expected:
            assert view.position(item.base_offset) == expected.index(item)


@given(st.lists(entries(), min_size=1, max_size=5))
def test_a_batch_says_what_its_entries_say(added: list[SegmentEntry]) -> None:
    batch = SegmentBatch([(item.topic_id, item.partition) for item in added], b"".join(map(pack, added)))
    assert batch == added
    assert batch.sums() == (sum(item.records for item in added), sum(item.bytes for item in added))
    assert [row for _, row in batch.rows()] == [pack(item) for item in added]


def test_a_view_sees_what_comes_later_and_may_be_read_meanwhile() -> None:
    table = SegmentTable()
    table.add(entry(0, 10))
    view = table[ID, 0]
    reading = iter(view)
    assert next(reading) == entry(0, 10)
    table.add(entry(10, 20))
    assert (list(reading), len(view)) == ([], 2)
    with pytest.raises(IndexError, match="segment 2 of 2"):
        view[2]


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"codecs": {"brotli": 1}}, "segment with codecs brotli"),
        ({"digest": Digest(DigestAlgorithm.SHA256, "ab")}, "'ab' is not a SHA-256"),
        ({"digest": Digest(DigestAlgorithm.BLAKE3, "")}, "'' is not a BLAKE3"),
        ({"digest": Digest(DigestAlgorithm.BLAKE3, "z" * 64)}, "non-hexadecimal"),
        ({"records": 1 << 63}, "segment 10: "),
        ({"index_bytes": 1 << 32}, "segment 10: "),
    ],
)
def test_what_no_row_can_hold_is_refused_before_it_is_committed(wrong: dict[str, object], what: str) -> None:
    other = changed(entry(10, 20), **wrong)
    with pytest.raises(ValueError, match=what):
        SegmentTable().add(other)
    state = ArchiveState()
    state.add_facts([ORDERS], (), (), ())
    why = ReceiptCheck(state, ()).why_not(Receipt((Coverage(ID, 0, 10, 20),), (other,)), 1)
    assert why is not None
    assert what in why


def test_rows_out_of_order_or_cut_short_are_refused() -> None:
    table = SegmentTable()
    one, other = pack(entry(0, 10)), pack(entry(10, 20))
    with pytest.raises(ValueError, match="not in order"):
        table.set_rows((ID, 0), other + one)
    with pytest.raises(ValueError, match="405 bytes of segment rows"):
        table.set_rows((ID, 0), (one + other)[:-1])
    table.set_rows((ID, 0), one + other)
    assert table[ID, 0] == [entry(0, 10), entry(10, 20)]


class _Counting(PackedSegments):
    looked = 0

    def _base(self, index: int) -> int:
        _Counting.looked += 1
        return super()._base(index)


def test_a_segment_is_found_without_looking_at_all_of_its_partition() -> None:
    rows = b"".join(pack(entry(base, base + 1)) for base in range(4096))
    assert _Counting((ID, 0), rows).position(4000) == 4000
    assert _Counting.looked <= 13


def test_a_segment_across_an_offset_is_cut_there() -> None:
    table = SegmentTable()
    for base in (0, 10, 20):
        table.add(entry(base, base + 10))
    (key,) = table
    spans = [
        [(item.base_offset, item.next_offset) for item in table[key].since(offset)] for offset in (0, 10, 15, 30, 99)
    ]
    assert spans == [[(0, 10), (10, 20), (20, 30)], [(10, 20), (20, 30)], [(15, 20), (20, 30)], [], []]
    assert [item.next_offset for item in table[key].since(15).since(17)] == [20, 30], "and once more"
    assert table[key].since(15).since(17)[0].base_offset == 17
