"""A log cut or damaged anywhere ends after its last valid batch, and its indexes say the same."""

import io
from pathlib import Path

import pytest

from logkeep_engine.log import recovery
from logkeep_engine.log.batch import Codec, walk
from logkeep_engine.log.recovery import Recovery, recover, scan
from logkeep_engine.log.segment import AbortedTxn, pack_txn_entry, read_txn_index
from tests.unit.log.batches import NOON, batch, build_indexes, marker, positions

LOG = [
    batch(20, 2),
    batch(22, 3, codec=Codec.LZ4, producer_id=4, transactional=True),
    marker(25, 4, commit=False),
    batch(26, timestamp=NOON + 9),
]
STARTS = [*positions(LOG), len(b"".join(LOG))]
NEXT = [20, 22, 25, 26, 27]
NAME = "00000000000000000020"


def segment(folder: Path, log: bytes, **others: bytes) -> Path:
    for suffix, content in {"log": log, **others}.items():
        (folder / f"{NAME}.{suffix}").write_bytes(content)
    return folder / f"{NAME}.log"


def assert_whole(path: Path, batches: int, interval: int) -> None:
    """The files hold exactly the first `batches` of LOG and what belongs to them."""
    log = b"".join(LOG[:batches])
    assert path.read_bytes() == log
    index, timeindex = build_indexes(log, 20, index_interval_bytes=interval)
    assert path.with_suffix(".index").read_bytes() == index
    assert path.with_suffix(".timeindex").read_bytes() == timeindex
    txnindex = path.with_suffix(".txnindex")
    if batches >= 3:
        assert read_txn_index(txnindex.read_bytes()) == [AbortedTxn(4, 22, 25, 26)]
    else:
        assert not txnindex.exists()
    assert sorted(p.suffix for p in path.parent.iterdir()) == sorted(
        [".log", ".index", ".timeindex", *([".txnindex"] if batches >= 3 else [])]
    )


def test_log_cut_at_every_byte_ends_after_the_last_whole_batch(tmp_path: Path) -> None:
    log = b"".join(LOG)
    for cut in range(len(log) + 1):
        path = segment(tmp_path, log[:cut], index=b"stale", txnindex=b"")
        found = recover(path, index_interval_bytes=100)
        whole = sum(start <= cut for start in STARTS[1:])
        assert (found.valid_bytes, found.next_offset, found.batches) == (STARTS[whole], NEXT[whole], whole)
        assert found.cut_bytes == cut - STARTS[whole]
        assert bool(found.reason) is bool(found.cut_bytes)
        assert_whole(path, whole, 100)


def test_flipped_byte_ends_the_log_before_its_batch(tmp_path: Path) -> None:
    log = b"".join(LOG)
    for at in range(len(log)):
        hit = max(i for i, start in enumerate(STARTS[:-1]) if start <= at)
        within = at - STARTS[hit]
        if within < 8 or 12 <= within < 16:
            continue  # base offset and leader epoch are outside of the CRC; see the next test
        damaged = bytearray(log)
        damaged[at] ^= 0x20
        found = scan(io.BytesIO(damaged), base_offset=20)
        assert (found.valid_bytes, found.next_offset, found.batches) == (STARTS[hit], NEXT[hit], hit), at
        assert found.reason


def test_offsets_that_do_not_rise_end_the_log(tmp_path: Path) -> None:
    found = recover(segment(tmp_path, LOG[0] + batch(21)))
    assert (found.valid_bytes, found.next_offset, found.cut_bytes) == (STARTS[1], 22, len(batch(21)))
    assert found.reason == "The batch at offset 21 is after offset 21."
    assert scan(io.BytesIO(batch(19)), base_offset=20).valid_bytes == 0


@pytest.mark.parametrize(
    ("offset", "end_offset", "reason"),
    [
        (20 + 2**31 - 1, None, ""),
        (20 + 2**31, None, f"The batch at offset {20 + 2**31} is too far above the segment's base offset 20."),
        (30, 31, ""),
        (30, 30, "The batch at offset 30 reaches into the next segment, which begins at 30."),
    ],
)
def test_offsets_that_the_segment_cannot_hold_end_the_log(
    tmp_path: Path, offset: int, end_offset: int | None, reason: str
) -> None:
    found = recover(segment(tmp_path, LOG[0] + batch(offset)), end_offset=end_offset, index_interval_bytes=0)
    assert (found.reason, found.batches) == (reason, 1 if reason else 2)


def test_a_batch_that_is_only_partly_below_the_next_segment_ends_the_log() -> None:
    assert scan(io.BytesIO(batch(20, 3)), base_offset=20, end_offset=22).batches == 0
    assert scan(io.BytesIO(batch(20, 3)), base_offset=20, end_offset=23).batches == 1


def test_gaps_between_batches_are_no_damage() -> None:
    assert scan(io.BytesIO(batch(3) + batch(1000)), base_offset=0).next_offset == 1001


def test_empty_log_is_valid(tmp_path: Path) -> None:
    assert recover(segment(tmp_path, b"")) == Recovery(0, 20, 0, 0, "")


def test_zeros_of_a_preallocated_file_are_cut(tmp_path: Path) -> None:
    path = segment(tmp_path, b"".join(LOG) + bytes(500))
    found = recover(path)
    assert (found.valid_bytes, found.cut_bytes) == (STARTS[-1], 500)
    assert_whole(path, 4, 4096)


def test_a_crash_after_the_cut_leaves_no_index_of_what_was_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker makes an index that it misses, and trusts one that is there."""
    path = segment(tmp_path, b"".join(LOG)[:-3], index=b"stale", timeindex=b"stale", txnindex=b"")

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(recovery, "replace_file", fail)
    with pytest.raises(KeyboardInterrupt):
        recover(path, index_interval_bytes=100)
    monkeypatch.undo()
    assert path.stat().st_size == STARTS[3]
    assert not path.with_suffix(".index").exists()
    assert not path.with_suffix(".timeindex").exists()
    recover(path, index_interval_bytes=100)
    assert_whole(path, 3, 100)


def test_running_again_changes_nothing(tmp_path: Path) -> None:
    path = segment(tmp_path, b"".join(LOG)[:-3])
    recover(path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    assert recover(path).cut_bytes == 0
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


@pytest.mark.parametrize("block", [12, 61, 100, 1000])
def test_blocks_smaller_than_batches_give_the_same(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    log = b"".join([*LOG, batch(27, 40), batch(67)])
    expected = scan(io.BytesIO(log), base_offset=20)
    assert (expected.next_offset, expected.batches, expected.valid_bytes) == (68, 6, len(log))
    monkeypatch.setattr(recovery, "_BLOCK", block)
    seen: list[bytes] = []
    found = scan(
        io.BytesIO(log),
        base_offset=20,
        on_batches=lambda buf, headers: seen.extend(bytes(buf[at : at + header.size]) for at, header in headers),
    )
    assert found == expected
    assert seen == [log[at : at + header.size] for at, header in walk(log)]
    for cut in range(len(log) - 200, len(log)):
        assert scan(io.BytesIO(log[:cut]), base_offset=20).valid_bytes <= cut


def test_transaction_that_began_earlier_keeps_its_first_offset(tmp_path: Path) -> None:
    log = marker(20, 4, commit=False) + batch(21)
    known = AbortedTxn(4, 3, 20, 21)
    path = segment(tmp_path, log, txnindex=pack_txn_entry(known) + pack_txn_entry(AbortedTxn(4, 21, 99, 100)))
    recover(path)
    assert read_txn_index(path.with_suffix(".txnindex").read_bytes()) == [known]
    recover(path, open_transactions={4: 7})
    assert read_txn_index(path.with_suffix(".txnindex").read_bytes()) == [AbortedTxn(4, 7, 20, 21)]
