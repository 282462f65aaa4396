"""Incremental verifications read what is new and a share of the rest, and say what they have not read."""

import json
from pathlib import Path

import pytest

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.checkpoint import CheckpointPolicy
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import RunOutcome
from logkeep_engine.archive.maintenance import verify as verifying
from logkeep_engine.archive.maintenance.increments import VerifyCycle
from logkeep_engine.archive.maintenance.segment_check import SegmentCheck, check_all
from logkeep_engine.archive.maintenance.verify import VerifyReport, verify
from logkeep_engine.errors import ArchiveDamaged, StorageUnavailable
from logkeep_engine.storage import Storage, open_uri
from tests.command import logkeep
from tests.unit.archive.build import ORDERS, begin, chunk

ID = ORDERS.topic_id
EACH = CheckpointPolicy(most_commits=1)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(f"file://{tmp_path}/archive")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The base offsets of the segments that were read since the list was cleared."""
    found: list[int] = []

    def checked(storage: Storage, topic: str, entry: SegmentEntry) -> SegmentCheck:
        found.append(entry.base_offset)
        return check_all(storage, topic, entry)

    monkeypatch.setattr(verifying, "check_all", checked)
    return found


def run(storage: Storage, segments: int, **options: object) -> None:
    with begin(storage, f"run-{len(storage.list(names.RUNS))}", **options) as writer:
        writer.commit(topics=[ORDERS])
        for _ in range(segments):
            start = writer.state.next_offset(ID, 0) or 0
            writer.commit(receipts=[chunk(storage, start, start + 10, epoch=writer.epoch)])
        writer.end(RunOutcome.SUCCEEDED)


def increment(storage: Storage, parts: int) -> VerifyReport:
    archive = Archive.open(storage)
    return verify(archive, cycle=VerifyCycle.load(archive, parts))


def segment_of(storage: Storage, base: int) -> str:
    return next(
        info.path for info in storage.list(names.TOPICS) if f"{base:020d}." in info.path and ".log" in info.path
    )


def damage(storage: Storage, base: int) -> bytes:
    path = segment_of(storage, base)
    before = storage.read(path)
    storage.put(path, before[:-1] + bytes([before[-1] ^ 1]))
    return before


def test_the_first_reads_everything_and_each_of_a_cycle_a_share(storage: Storage, reads: list[int]) -> None:
    run(storage, 20)
    run(storage, 1)
    report = increment(storage, 4)
    assert report.unread is not None
    assert (sorted(reads), report.unread.segments, report.segments) == ([*range(0, 210, 10)], 0, 21)
    run(storage, 1)
    seen: list[int] = []
    for number in range(1, 5):
        reads.clear()
        report = increment(storage, 4)
        seen += reads
        assert report.unread is not None
        assert (report.unread.done, report.unread.parts) == (number % 4 + 1, 4)
        assert report.segments + report.unread.segments == 22
        assert report.unread.bytes > 0
        assert report.whole
        assert number > 1 or {200, 210} <= set(reads), "what is new"
    old = [base for base in seen if base < 200]
    assert sorted(old) == [*range(0, 200, 10)], "each once in a cycle"


def test_what_a_run_adds_is_read_by_the_next(storage: Storage, reads: list[int]) -> None:
    run(storage, 3)
    increment(storage, 1000)
    run(storage, 2)
    run(storage, 2)
    reads.clear()
    increment(storage, 1000)
    assert {30, 40, 50, 60} <= set(reads)
    run(storage, 1)
    reads.clear()
    increment(storage, 1000)
    assert 70 in reads
    assert 30 not in reads


def test_a_run_that_continues_is_read_again(storage: Storage, reads: list[int]) -> None:
    run(storage, 2)
    with begin(storage, "going-on") as writer:
        writer.commit(receipts=[chunk(storage, 20, 30, epoch=writer.epoch)])
        increment(storage, 1000)
        writer.commit(receipts=[chunk(storage, 30, 40, epoch=writer.epoch)])
        writer.end(RunOutcome.SUCCEEDED)
    run(storage, 1)
    reads.clear()
    increment(storage, 1000)
    assert {20, 30, 40} <= set(reads)


def test_damage_is_reported_until_it_is_mended(storage: Storage, reads: list[int]) -> None:
    run(storage, 5)
    run(storage, 1)
    before = damage(storage, 20)
    assert not increment(storage, 1000).whole
    run(storage, 1)
    for _ in range(3):
        report = increment(storage, 1000)
        assert {fault.offset for fault in report.faults} == {20}
    storage.put(segment_of(storage, 20), before)
    assert increment(storage, 1000).whole
    reads.clear()
    increment(storage, 1000)
    assert 20 not in reads


def test_an_object_that_is_not_read_must_be_there_in_its_size(storage: Storage) -> None:
    run(storage, 5)
    run(storage, 1)
    increment(storage, 1000)
    gone, short = segment_of(storage, 10), segment_of(storage, 30)
    storage.delete([gone])
    storage.put(short, storage.read(short)[:-1])
    faults = {fault.object.removeprefix(f"{storage.uri}/"): fault.what for fault in increment(storage, 1000).faults}
    assert faults[gone] == "the object is missing"
    assert "the catalog says" in faults[short]


def test_commits_are_read_since_a_checkpoint_that_was_compared_and_all_once_in_a_cycle(storage: Storage) -> None:
    run(storage, 5, checkpoints=EACH)
    first = increment(storage, 3)
    run(storage, 1, checkpoints=EACH)
    second = increment(storage, 3)
    assert first.unread is not None
    assert second.unread is not None
    assert (first.unread.whole_catalog, second.unread.whole_catalog) == (True, False)
    storage.put(names.commit_path(1), b"{}")
    assert increment(storage, 3).whole, "the third of the cycle does not read it"
    assert any("archive format" in fault.what for fault in increment(storage, 3).faults)
    assert any("archive format" in fault.what for fault in increment(storage, 3).faults), "and it is told again"


def test_a_compared_checkpoint_that_was_replaced_is_not_believed(storage: Storage) -> None:
    run(storage, 5, checkpoints=EACH)
    increment(storage, 3)
    info = Archive.open(storage).listing().checkpoints[0][2]
    with begin(storage, "other", checkpoints=EACH) as writer:
        writer.end(RunOutcome.SUCCEEDED)
    storage.put(info.path, storage.read(Archive.open(storage).listing().checkpoints[0][2].path))
    report = increment(storage, 3)
    assert report.unread is not None
    assert report.unread.whole_catalog
    assert [fault.object for fault in report.faults] == [f"{storage.uri}/{info.path}"]


def test_a_verification_that_is_interrupted_is_done_again(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    run(storage, 3)

    def unavailable(*_: object) -> SegmentCheck:
        raise StorageUnavailable("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(verifying, "check_all", unavailable)
        with pytest.raises(StorageUnavailable):
            increment(storage, 2)
    assert storage.list(names.VERIFIED) == []
    report = increment(storage, 2)
    assert (report.segments, report.unread and report.unread.done) == (3, 1)


def test_another_share_begins_a_new_cycle(storage: Storage) -> None:
    run(storage, 3)
    increment(storage, 3)
    report = increment(storage, 5)
    assert report.unread is not None
    assert (report.unread.done, report.unread.parts, report.unread.whole_catalog) == (1, 5, True)


def test_the_place_of_another_archive_is_not_taken(storage: Storage) -> None:
    run(storage, 3)
    increment(storage, 3)
    body = json.loads(storage.read(names.VERIFIED))
    storage.put(names.VERIFIED, json.dumps({**body, "archiveId": "another"}).encode())
    assert increment(storage, 3).segments == 3


@pytest.mark.parametrize("data", [b"", b"[]", b'{"format":2}', b'{"format":1}'])
def test_a_place_that_cannot_be_read_is_named(storage: Storage, data: bytes) -> None:
    run(storage, 1)
    storage.put(names.VERIFIED, data)
    with pytest.raises(ArchiveDamaged, match=r"verified\.json: does not say what was verified"):
        increment(storage, 3)


def test_the_command_says_what_it_has_not_read(storage: Storage) -> None:
    run(storage, 30)
    run(storage, 1)
    assert "whole: " not in logkeep("verify", storage.uri, "--incremental", "--share", "1/7").stdout
    reported = logkeep("verify", storage.uri, "--incremental", "--share", "1/7").stdout
    assert "no fault in what was read: " in reported
    assert "This was verification 2 of 7 of a cycle" in reported
    found = json.loads(logkeep("verify", storage.uri, "--incremental", "--share", "1/7", "-o", "json").stdout)
    assert (found["unread"]["done"], found["unread"]["segments"] > 10) == (3, True)
    assert "unread" not in json.loads(logkeep("verify", storage.uri, "-o", "json").stdout)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--share", "1/7"], "--share has no effect without --incremental"),
        (["--incremental", "--share", "7"], "--share: '7' is not a share like 1/30"),
        (["--incremental", "--share", "1/0"], "--share: '1/0' is not a share like 1/30"),
    ],
)
def test_shares_that_make_no_sense_are_refused(storage: Storage, arguments: list[str], expected: str) -> None:
    run(storage, 1)
    found = logkeep("verify", storage.uri, *arguments)
    assert found.returncode == 2
    assert expected in found.stderr
