"""The catalog: one writer, commits in order, nothing half done whatever dies when."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.checkpoint import CheckpointPolicy
from logkeep_engine.archive.catalog.facts import Coverage, GroupEntry, Receipt, RunOutcome
from logkeep_engine.archive.catalog.writer import Timing, Writer
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.errors import (
    ArchiveBusy,
    ArchiveDamaged,
    ArchiveFenced,
    ArchiveMismatch,
    ArchiveMissing,
    ReceiptRefused,
    StorageRefused,
    StorageUnavailable,
)
from logkeep_engine.storage import LocalStorage, ObjectInfo, Storage, open_uri
from tests.threads import at_once
from tests.unit.archive.build import CLUSTER, FAST, ORDERS, PATIENT, archive_of, begin, chunk

ID = ORDERS.topic_id
GROUP = GroupEntry("billing", "orders", ID, 0, 17, 3, "m")


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(f"file://{tmp_path}/archive")


def test_a_run_is_what_the_next_reader_sees(storage: Storage) -> None:
    with begin(storage) as writer:
        assert (writer.epoch, writer.state.commit) == (1, 0)
        done = writer.commit(topics=[ORDERS], receipts=[chunk(storage, 0, 50), chunk(storage, 0, 30, partition=1)])
        assert (done.number, done.ignored) == (1, ())
        assert Archive.open(storage).load().groups == ()
        assert writer.end(RunOutcome.SUCCEEDED, "done", [GROUP]) == 2
    state = Archive.open(storage).load()
    assert (state.commit, state.epoch, state.groups) == (2, 1, (GROUP,))
    assert state.topics == {ID: ORDERS}
    assert state.coverage == {(ID, 0): [(0, 50)], (ID, 1): [(0, 30)]}
    assert [entry.records for entry in state.segments[ID, 0]] == [50]
    run = state.runs["run-1"]
    assert (run.outcome, run.message, run.records, run.segments) == (RunOutcome.SUCCEEDED, "done", 80, 2)
    assert run.end_time is not None
    assert run.begin_time <= run.end_time


def test_groups_of_both_kinds_are_read_from_commits_and_checkpoints(storage: Storage) -> None:
    groups = (GROUP, GroupEntry("queue", "orders", ID, 0, 11, share=True))
    with begin(storage, checkpoints=CheckpointPolicy(commits=1)) as writer:
        writer.end(RunOutcome.SUCCEEDED, groups=groups)
    assert Archive.open(storage).load().groups == groups
    storage.delete([info.path for _, _, info in Archive.open(storage).listing().checkpoints])
    assert Archive.open(storage).load().groups == groups


def test_groups_of_a_failed_run_stay_unseen_and_those_before_stay(storage: Storage) -> None:
    with begin(storage) as writer:
        writer.end(RunOutcome.SUCCEEDED, groups=[GROUP])
    with begin(storage, "run-2") as writer:
        writer.end(RunOutcome.FAILED, "broker gone", [GroupEntry("other", "orders", ID, 0, 99)])
    state = Archive.open(storage).load()
    assert state.groups == (GROUP,)
    assert state.runs["run-2"].outcome is RunOutcome.FAILED


def test_a_repeated_receipt_is_left_out_and_said(storage: Storage) -> None:
    receipt = chunk(storage, 0, 50)
    with begin(storage) as writer:
        writer.commit(topics=[ORDERS], receipts=[receipt])
        again = chunk(storage, 0, 50, attempt=1)
        done = writer.commit(receipts=[again, chunk(storage, 50, 60)])
        assert done.ignored == ((again, "its offsets are archived already"),)
        assert writer.commit(receipts=[again]).number is None
        twice = chunk(storage, 60, 70)
        assert len(writer.commit(receipts=[twice, twice]).ignored) == 1
        assert [entry.base_offset for entry in writer.state.segments[ID, 0]] == [0, 50, 60]


def test_a_receipt_that_contradicts_the_archive_commits_nothing(storage: Storage) -> None:
    with begin(storage) as writer:
        writer.commit(topics=[ORDERS], receipts=[chunk(storage, 0, 50)])
        with pytest.raises(
            ReceiptRefused, match=r"partition 0 offsets \[40, 60\): an earlier commit accounts for some of them"
        ):
            writer.commit(receipts=[chunk(storage, 0, 10, partition=1), chunk(storage, 40, 60)])
        with pytest.raises(ReceiptRefused, match="was written at epoch 9, not 1"):
            writer.commit(receipts=[chunk(storage, 50, 60, epoch=9)])
        assert writer.state.commit == 1
    assert Archive.open(storage).load().commit == 1


def test_an_archive_belongs_to_one_cluster(storage: Storage) -> None:
    Archive.create_or_open(storage, CLUSTER)
    with pytest.raises(ArchiveMismatch) as caught:
        Archive.create_or_open(storage, "other")
    assert str(caught.value) == (
        f"The archive at {storage.uri} belongs to Kafka cluster {CLUSTER}, not to other. "
        "Use another storage.uri for this cluster, or correct cluster.bootstrapServers."
    )


def test_no_archive_is_said_and_not_made_by_readers(storage: Storage) -> None:
    with pytest.raises(ArchiveMissing, match="There is no archive at file://"):
        Archive.open(storage)
    assert storage.list() == []


def test_a_catalog_without_archive_json_is_not_made_a_new_archive(storage: Storage) -> None:
    archive_of(storage, chunk(storage, 0, 10))
    storage.delete(["archive.json"])
    with pytest.raises(ArchiveDamaged, match=r"archive\.json is missing, but catalog/ has objects"):
        Archive.create_or_open(storage, CLUSTER)


class _Overwriting(LocalStorage):
    """A store that does not know If-None-Match, as some S3 servers do not: it replaces."""

    def create(self, path: str, data: bytes) -> None:
        self.put(path, data)


def test_a_store_without_conditional_writes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageRefused, match="overwrites an object that it was asked only to create"):
        Archive.create_or_open(_Overwriting(f"file://{tmp_path}"), CLUSTER)


def test_a_dead_run_is_taken_over_after_watching_it(storage: Storage) -> None:
    dead = begin(storage, "dead")
    dead.commit(topics=[ORDERS], receipts=[chunk(storage, 0, 10)])
    dead.close()
    with begin(storage, "next") as writer:
        assert writer.epoch == 2
        assert writer.state.next_offset(ID, 0) == 10
        assert writer.state.runs["dead"].outcome is RunOutcome.TAKEN_OVER
        assert writer.state.runs["dead"].message == "run next continued at epoch 2"
        with pytest.raises(ArchiveFenced) as caught:
            dead.commit(receipts=[chunk(storage, 10, 20)])
        assert caught.value.message == (
            f"Run next has taken over the archive at {storage.uri}: it wrote commit 2 at epoch 2, "
            "run dead is at epoch 1."
        )
        with pytest.raises(ArchiveFenced):
            dead.end(RunOutcome.SUCCEEDED)
        writer.commit(receipts=[chunk(storage, 10, 20, epoch=2)])
        writer.end(RunOutcome.SUCCEEDED)
    assert Archive.open(storage).load().next_offset(ID, 0) == 20


def test_a_live_run_keeps_its_archive(storage: Storage) -> None:
    with begin(storage, "alive") as writer:
        with pytest.raises(ArchiveBusy, match=r"is being written by run alive, started at 20\d\d-.*Z\."):
            begin(storage, "next", wait=PATIENT)
        writer.end(RunOutcome.SUCCEEDED)
    with begin(storage, "next") as other:
        assert other.epoch == 2


def test_the_same_run_continues_at_once(storage: Storage) -> None:
    first = begin(storage, "run")
    first.commit(topics=[ORDERS], receipts=[chunk(storage, 0, 10)])
    with begin(storage, "run", wait=Timing(watch=3600)) as second:
        assert (second.epoch, second.state.runs["run"].attempts) == (2, 2)
        with pytest.raises(ArchiveFenced, match="Run run has taken over"):
            first.commit(receipts=[chunk(storage, 10, 20)])
        second.commit(receipts=[chunk(storage, 10, 20, epoch=2)])
        second.end(RunOutcome.SUCCEEDED)
    first.close()
    run = Archive.open(storage).load().runs["run"]
    assert (run.records, run.segments, run.outcome) == (20, 2, RunOutcome.SUCCEEDED)


def test_of_many_runs_that_begin_at_once_one_begins(storage: Storage) -> None:
    started: list[Writer] = []
    refused: list[ArchiveBusy] = []

    def run(number: int) -> None:
        try:
            started.append(begin(storage, f"run-{number}", wait=PATIENT))
        except ArchiveBusy as error:
            refused.append(error)

    try:
        at_once(5, run)
        assert (len(started), len(refused)) == (1, 4)
        assert {started[0].run_id in error.message for error in refused} == {True}
    finally:
        for writer in started:  # a heartbeat that continues would disturb the tests behind this one
            writer.close()
    assert Archive.open(storage).load().commit == 0


class _Overtaken(LocalStorage):
    """A folder where another run makes the archive, and begins, right before the catalog is listed first."""

    overtake: Callable[[], object] | None = None

    def list(self, prefix: str = "") -> list[ObjectInfo]:
        overtake, self.overtake = self.overtake, None
        if prefix == names.CATALOG and overtake is not None:
            overtake()
        return super().list(prefix)


def test_a_run_that_is_overtaken_while_it_makes_the_archive_finds_the_other_one(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/archive"
    others: list[Writer] = []
    storage = _Overtaken(uri)
    storage.overtake = lambda: others.append(begin(open_uri(uri), "run-1", wait=PATIENT))
    try:
        with pytest.raises(ArchiveBusy, match="run-1"):
            begin(storage, "run-2", wait=PATIENT)
    finally:
        others[0].close()


class _Flaky(LocalStorage):
    """A folder behind a connection that breaks before or after the store has done what it was asked."""

    fail: str = ""

    def create(self, path: str, data: bytes) -> None:
        fail, self.fail = self.fail, ""
        if fail == "before":
            raise StorageUnavailable(f"{path}: timed out")
        super().create(path, data)
        if fail == "after":
            raise StorageUnavailable(f"{path}: timed out")
        if fail == "repeated":
            super().create(path, data)


def test_a_commit_whose_answer_was_lost_and_that_was_sent_again_counts_once(tmp_path: Path) -> None:
    storage = _Flaky(f"file://{tmp_path}")
    with begin(storage) as writer:
        storage.fail = "repeated"
        assert writer.commit(topics=[ORDERS], receipts=[chunk(storage, 0, 10)]).number == 1
        assert writer.commit(receipts=[chunk(storage, 10, 20)]).number == 2
    assert Archive.open(storage).load().next_offset(ID, 0) == 20


@pytest.mark.parametrize("fail", ["before", "after"])
def test_a_commit_of_unknown_fate_is_settled_by_the_next_call(tmp_path: Path, fail: str) -> None:
    storage = _Flaky(f"file://{tmp_path}")
    with begin(storage) as writer:
        receipt = chunk(storage, 0, 10)
        storage.fail = fail
        with pytest.raises(StorageUnavailable):
            writer.commit(topics=[ORDERS], receipts=[receipt])
        done = writer.commit(topics=[ORDERS], receipts=[receipt, chunk(storage, 10, 20)])
        assert (done.number, len(done.ignored)) == (2, 1)
        storage.fail = fail
        with pytest.raises(StorageUnavailable):
            writer.end(RunOutcome.SUCCEEDED, groups=[GROUP])
        assert writer.end(RunOutcome.SUCCEEDED, groups=[GROUP]) == 3
    state = Archive.open(storage).load()
    assert (state.commit, state.next_offset(ID, 0), state.groups) == (3, 20, (GROUP,))


def _busy_archive(storage: Storage, commits: int, policy: CheckpointPolicy) -> None:
    with begin(storage, checkpoints=policy) as writer:
        writer.commit(topics=[ORDERS])
        for number in range(commits):
            writer.commit(receipts=[chunk(storage, number * 10, number * 10 + 10)])
        writer.end(RunOutcome.SUCCEEDED, groups=[GROUP])


def test_checkpoints_say_what_the_commits_say(storage: Storage) -> None:
    _busy_archive(storage, 10, CheckpointPolicy(commits=4))
    archive = Archive.open(storage)
    listing = archive.listing()
    assert [number for number, _, _ in listing.checkpoints] == [11, 7, 3]
    with_checkpoint = vars(archive.load())
    storage.delete([info.path for _, _, info in listing.checkpoints])
    assert vars(archive.load()) == with_checkpoint
    assert with_checkpoint["commit"] == 12


def test_a_damaged_checkpoint_is_left_out(storage: Storage) -> None:
    _busy_archive(storage, 10, CheckpointPolicy(commits=4))
    archive = Archive.open(storage)
    expected = vars(archive.load())
    for _, _, info in archive.listing().checkpoints:
        data = bytearray(storage.read(info.path))
        data[-10] ^= 1
        storage.put(info.path, bytes(data))
        assert vars(archive.load()) == expected


def test_commits_under_a_checkpoint_are_not_read(storage: Storage) -> None:
    _busy_archive(storage, 10, CheckpointPolicy(commits=4))
    archive = Archive.open(storage)
    expected = vars(archive.load())
    storage.delete([names.commit_path(number) for number in range(11)])
    assert vars(archive.load()) == expected


class _NoCheckpoints(LocalStorage):
    def put(self, path: str, data: bytes) -> None:
        if path.endswith(".checkpoint"):
            raise StorageUnavailable(f"{path}: timed out")
        super().put(path, data)


def test_a_checkpoint_that_cannot_be_written_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    storage = _NoCheckpoints(f"file://{tmp_path}")
    _busy_archive(storage, 5, CheckpointPolicy(commits=2))
    assert Archive.open(storage).load().next_offset(ID, 0) == 50
    assert "no checkpoint after commit" in caplog.text


def test_small_commits_do_not_rewrite_a_large_checkpoint() -> None:
    policy = CheckpointPolicy(commits=64, min_bytes=1000)
    assert not policy.due(63, 900, 0)
    assert policy.due(64, 900, 0)
    assert policy.due(1, 1000, 0)
    assert not policy.due(64, 1000, 80_000)
    assert policy.due(64, 10_000, 80_000)
    assert policy.due(3, 80_000, 80_000)
    assert not policy.due(0, 0, 0)


def test_a_missing_commit_is_named(storage: Storage) -> None:
    _busy_archive(storage, 5, CheckpointPolicy())
    storage.delete([names.commit_path(3)])
    with pytest.raises(ArchiveDamaged, match=r"Commit 3 is missing: .*/0{19}3\.json does not exist"):
        Archive.open(storage).load()


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda data: data[:-5], "it is not complete JSON"),
        (lambda data: b"", r"it is not complete JSON \(0 bytes\)"),
        (lambda data: data.replace(b'"records"', b'"rekords"'), "its SHA-256 does not match its content"),
        (lambda data: data.replace(b",0,10,", b",0,11,"), "its SHA-256 does not match its content"),
        (lambda data: data[:-77] + b"}", "its own SHA-256 is missing"),
    ],
)
def test_an_altered_commit_is_named(storage: Storage, damage: Callable[[bytes], bytes], what: str) -> None:
    archive = archive_of(storage, chunk(storage, 0, 10))
    path = names.commit_path(1)
    before = storage.read(path)
    assert damage(before) != before
    storage.put(path, damage(before))
    with pytest.raises(ArchiveDamaged, match=rf"catalog/00000000000000000001\.json: {what}"):
        archive.load()


def test_a_commit_in_the_place_of_another_is_named(storage: Storage) -> None:
    archive = archive_of(storage, chunk(storage, 0, 10))
    storage.put(names.commit_path(2), storage.read(names.commit_path(1)))
    with pytest.raises(ArchiveDamaged, match=r"0002\.json holds commit 1 of archive .*, not commit 2 of"):
        archive.load()


def test_after_every_write_of_a_run_the_archive_is_whole(tmp_path: Path) -> None:
    """A kill between any two steps leaves what is there after the step: every state must load and continue."""

    class Photographed(LocalStorage):
        shots = 0

        def create(self, path: str, data: bytes) -> None:
            super().create(path, data)
            self.shoot()

        def put(self, path: str, data: bytes) -> None:
            super().put(path, data)
            self.shoot()

        def put_all(self, objects: Mapping[str, bytes]) -> None:
            for path, data in objects.items():  # a kill may leave any of them behind
                self.put(path, data)

        def shoot(self) -> None:
            shutil.copytree(tmp_path / "live", tmp_path / f"shot-{self.shots}")
            self.shots += 1

    storage = Photographed(f"file://{tmp_path}/live")
    quiet = Timing(heartbeat=3600, watch=0.1, poll=0.05)
    with begin(storage, wait=quiet, checkpoints=CheckpointPolicy(commits=2)) as writer:
        writer.commit(topics=[ORDERS])
        for number in range(4):
            writer.commit(receipts=[chunk(storage, number * 10, number * 10 + 10)])
        writer.end(RunOutcome.SUCCEEDED, groups=[GROUP])
    assert storage.shots > 15
    seen: list[int] = []
    for shot in range(1, storage.shots):
        copy = open_uri(f"file://{tmp_path}/shot-{shot}")
        with begin(copy, "next", wait=quiet) as other:
            at = other.state.next_offset(ID, 0) or 0
            seen.append(at)
            other.commit(topics=[ORDERS], receipts=[chunk(copy, at, 60, epoch=other.epoch)])
            other.end(RunOutcome.SUCCEEDED)
        assert verify(Archive.open(copy)).faults == []
    assert seen == sorted(seen)
    assert set(seen) == {0, 10, 20, 30, 40}


_RUN_FOREVER = """
import sys
from logkeep_engine.archive.catalog.writer import CheckpointPolicy
from logkeep_engine.storage import open_uri
from tests.unit.archive.build import ORDERS, PATIENT, begin, chunk
storage = open_uri(sys.argv[1])
writer = begin(storage, sys.argv[2], wait=PATIENT, checkpoints=CheckpointPolicy(commits=3))
print("begun", flush=True)
at = writer.state.next_offset(ORDERS.topic_id, 0) or 0
while True:
    writer.commit(topics=[ORDERS], receipts=[chunk(storage, at, at + 10, epoch=writer.epoch)])
    at += 10
    print(at, flush=True)
"""


def _start(storage: Storage, run_id: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", _RUN_FOREVER, storage.uri, run_id],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_a_killed_writer_loses_nothing_it_has_committed(storage: Storage) -> None:
    last = 0
    for milliseconds in (50, 90, 140):
        process = _start(storage, "killed")
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        process.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(milliseconds / 1000)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        report = verify(Archive.open(storage))
        assert report.faults == []
        state = Archive.open(storage).load()
        assert (state.next_offset(ID, 0) or 0) > last
        last = state.next_offset(ID, 0) or 0
        assert report.records == last
    assert state.runs["killed"].attempts == 3


def test_of_two_processes_one_writes(storage: Storage) -> None:
    Archive.create_or_open(storage, CLUSTER)
    processes = [_start(storage, "one"), _start(storage, "two")]
    outputs = []
    try:
        for process in processes:
            assert process.stdout is not None
            outputs.append(process.stdout.readline())
        assert sorted(outputs) == [b"", b"begun\n"]
    finally:
        for process in processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
    state = Archive.open(storage).load()
    assert len(state.runs) == 1


def test_a_heartbeat_beats_and_stops(storage: Storage) -> None:
    path = names.run_file("run-1", "heartbeat.json")
    beats = set()
    with begin(storage) as writer:
        deadline = threading.Event()
        for _ in range(1500):
            beats.add(storage.read(path))
            if len(beats) >= 3:
                break
            deadline.wait(0.02)
        writer.end(RunOutcome.SUCCEEDED)
    assert len(beats) >= 3
    last = storage.read(path)
    deadline.wait(3 * FAST.heartbeat)
    assert storage.read(path) == last


def test_a_topic_that_did_not_change_is_not_committed_again(storage: Storage) -> None:
    with begin(storage) as writer:
        writer.commit(topics=[ORDERS])
        assert writer.commit(topics=[ORDERS]).number is None
        assert writer.commit(receipts=[Receipt((Coverage(ID, 0, 0, 5),))]).number == 2
