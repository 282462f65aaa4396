"""A partition is compacted into a snapshot, and readers see of it what a dict of the keys says."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.reading.damage import Damage
from logkeep_engine.archive.reading.partition import open_damaged, open_partition
from logkeep_engine.errors import ArchiveDamaged
from logkeep_engine.log.batch import parse_header, walk
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.records import ControlType, control_type, decode, encode
from logkeep_engine.storage.local import LocalStorage
from tests.examples import scaled
from tests.unit.archive.build import ORDERS, verify_segment, write_segment
from tests.unit.compaction.made import DAY, compact, plain, row
from tests.unit.log.batches import NOON, marker


def state_of(storage: LocalStorage, entries: Sequence[SegmentEntry]) -> dict[bytes | None, bytes]:
    """The last value of each key that a consumer of committed records has at the end."""
    found: dict[bytes | None, bytes] = {}
    for records in open_partition(storage, ORDERS.name, entries).records():
        for record in records:
            if record.value is None:
                found.pop(record.key, None)
            else:
                found[record.key] = record.value
    return found


def test_a_snapshot_is_what_kip_630_says(tmp_path: Path) -> None:
    storage = LocalStorage(f"file://{tmp_path}")
    log = [plain([row(at, b"k%d" % (at % 3), b"v%d" % at)]) for at in range(9)]
    done = compact(storage, [write_segment(storage, log)])
    (part,) = done.snapshot.parts
    (path, size), (index, _) = part.objects(ORDERS.name).items()
    assert path == (
        f"topics/orders/{ORDERS.topic_id}/partition=0/snapshots/0000000007/00000000000000000009-0000000004.checkpoint"
    )
    assert index.endswith("/00000000000000000009-0000000004.index")
    data = storage.read(path)
    assert len(data) == size
    found = list(walk(data))
    (header_at, header), *middle, (footer_at, footer) = found
    assert [data[at : at + each.size] for at, each in middle] == log[-3:]
    assert header.is_control
    assert footer.is_control
    assert control_type(data, header_at) is ControlType.SNAPSHOT_HEADER
    assert control_type(data, footer_at) is ControlType.SNAPSHOT_FOOTER
    assert decode(data, header_at)[0].value == bytes(2) + (NOON + 8).to_bytes(8, "big") + bytes(1)
    assert decode(data, footer_at)[0].value == bytes(3)
    assert (done.snapshot.end, done.snapshot.leader_epoch, done.snapshot.time) == (9, 4, NOON + 8)
    assert (done.records, done.tombstones) == (3, 0)
    assert verify_segment(storage, ORDERS.name, part) == []


rows = st.tuples(st.integers(0, 6), st.one_of(st.none(), st.binary(max_size=30)), st.integers(1, 3))


@settings(max_examples=scaled(60))
@given(st.lists(st.lists(rows, min_size=1, max_size=6), min_size=2, max_size=12), st.data())
def test_snapshot_and_later_log_are_the_state(
    log: list[list[tuple[int, bytes | None, int]]], data: st.DataObject
) -> None:

    with TemporaryDirectory() as folder:
        storage = LocalStorage(f"file://{folder}")
        offset, batches = 0, []
        for some in log:
            records = []
            for key, value, gap in some:
                offset += gap
                records.append(row(offset, b"key %d" % key, value))
            batches.append(plain(records, data.draw(st.sampled_from(Codec))))
        cuts = sorted(data.draw(st.sets(st.integers(1, len(batches) - 1), max_size=3)) | {0, len(batches)})
        entries = [write_segment(storage, batches[at:to]) for at, to in pairwise(cuts)]
        max_bytes = data.draw(st.sampled_from([300, 1 << 30]))
        last = None
        for number, entry in enumerate(entries):
            done = compact(storage, [entry], last, now=NOON + number * DAY, attempt=number, max_bytes=max_bytes)
            last = done.snapshot
            parts = last.parts
            assert state_of(storage, [*parts, *entries[number + 1 :]]) == state_of(storage, entries)
            assert sum(part.records for part in parts) == done.records
            for part in parts:
                assert verify_segment(storage, ORDERS.name, part) == []
                assert part.bytes <= max_bytes or part.batches == 1
            found = [record for some in open_partition(storage, ORDERS.name, parts).records() for record in some]
            for start in (0, found[0].offset, found[-1].offset, found[-1].offset + 1) if found else ():
                again = [
                    record for some in open_partition(storage, ORDERS.name, parts).records(start) for record in some
                ]
                assert again == [record for record in found if record.offset >= start]


def test_records_of_aborted_transactions_go_and_those_of_others_need_no_marker(tmp_path: Path) -> None:
    storage = LocalStorage(f"file://{tmp_path}")
    rows = [row(at, b"k%d" % at, b"v") for at in range(4)]
    log = [
        encode(rows[:2], codec=Codec.NONE, base_offset=0, producer_id=1, base_sequence=0, transactional=True),
        encode(rows[2:], codec=Codec.NONE, base_offset=2, producer_id=2, base_sequence=0, transactional=True),
        marker(4, 1, commit=False),
        marker(5, 2, commit=True),
    ]
    done = compact(storage, [write_segment(storage, log)])
    assert state_of(storage, done.snapshot.parts) == {b"k2": b"v", b"k3": b"v"}
    assert done.snapshot.end == 6
    assert open_partition(storage, ORDERS.name, done.snapshot.parts).transactions.aborted == []
    assert verify_segment(storage, ORDERS.name, done.snapshot.parts[0]) == []


def test_a_snapshot_in_which_nothing_is_left_says_so(tmp_path: Path) -> None:
    storage = LocalStorage(f"file://{tmp_path}")
    first = compact(storage, [write_segment(storage, [plain([row(3, b"k", None)])])])
    assert (first.records, first.tombstones) == (1, 1)
    later = write_segment(storage, [marker(5, 1, commit=True)], epoch=2)
    done = compact(storage, [later], first.snapshot, now=NOON + 2 * DAY, attempt=1)
    assert (done.records, done.tombstones) == (0, 0)
    (part,) = done.snapshot.parts
    assert (part.base_offset, part.next_offset, part.records) == (5, 6, 0)
    assert verify_segment(storage, ORDERS.name, part) == []
    assert list(open_partition(storage, ORDERS.name, [part]).records()) == []


def test_each_attempt_has_names_of_its_own(tmp_path: Path) -> None:
    storage = LocalStorage(f"file://{tmp_path}")
    dirty = [write_segment(storage, [plain([row(at, b"k", b"v")]) for at in range(5)])]
    one, other = (compact(storage, dirty, attempt=attempt).snapshot.parts[0] for attempt in (0, 1))
    assert not one.objects(ORDERS.name).keys() & other.objects(ORDERS.name).keys()
    assert replace(one, attempt=1) == other


@pytest.mark.parametrize("at", ["header", "batch", "footer", "end"])
def test_damage_of_a_part_is_found_where_it_is(tmp_path: Path, at: str) -> None:
    storage = LocalStorage(f"file://{tmp_path}")
    dirty = [write_segment(storage, [plain([row(at, b"k%d" % at, b"v" * 40)], Codec.NONE) for at in range(5)])]
    (part,) = compact(storage, dirty).snapshot.parts
    path = next(iter(part.objects(ORDERS.name)))
    data = bytearray(storage.read(path))
    positions = [position for position, _ in walk(data)]
    if at == "end":
        del data[-3:]
    else:
        data[positions[{"header": 0, "batch": 2, "footer": -1}[at]] + 70] ^= 1
    (tmp_path / path).write_bytes(data)
    with pytest.raises(ArchiveDamaged, match="checkpoint"):
        list(open_partition(storage, ORDERS.name, [part]).batches())
    (damage,) = verify_segment(storage, ORDERS.name, part)
    assert damage.lost == ((1, 2) if at == "batch" else None)
    found = open_damaged(storage, ORDERS.name, [part]).records()
    offsets = [record.offset for some in found if not isinstance(some, Damage) for record in some]
    assert offsets == ([0, 2, 3, 4] if at == "batch" else [0, 1, 2, 3, 4])


def test_a_damaged_segment_is_named(tmp_path: Path) -> None:
    storage = LocalStorage(f"file://{tmp_path}")
    entry = write_segment(storage, [plain([row(at, b"k", b"v")]) for at in range(5)])
    path = next(iter(entry.objects(ORDERS.name)))
    data = bytearray(storage.read(path))
    data[-1] ^= 1
    (tmp_path / path).write_bytes(data)
    with pytest.raises(ArchiveDamaged, match=f"{entry.stem(ORDERS.name)}.log"):
        compact(storage, [entry])
    assert not list(tmp_path.rglob("*.checkpoint"))
    assert parse_header(data).base_offset == 0
