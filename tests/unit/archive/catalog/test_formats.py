"""Golden archives: what version 1 wrote is read for good, what a newer version wrote is refused."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.archive import names
from logkeep_engine.archive.care.kept_digests import DigestsPlace
from logkeep_engine.archive.care.record_digests import digests_of
from logkeep_engine.archive.care.verify import verify
from logkeep_engine.archive.catalog import commits, documents
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.cluster_state import ClusterState, read_cluster_state, state_path
from logkeep_engine.archive.catalog.facts import Gap, GroupEntry, RunOutcome
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.reading.outcomes import aborted_in
from logkeep_engine.errors import ArchiveDamaged, ArchiveMismatch
from logkeep_engine.log.transactions import Spans
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import ORDERS, TIME

FORMATS = Path(__file__).parents[3] / "formats"
ID = ORDERS.topic_id


@pytest.fixture
def golden() -> Storage:
    return open_uri(f"file://{FORMATS}/archive-v1")


@pytest.fixture
def copy(tmp_path: Path) -> Storage:
    shutil.copytree(FORMATS / "archive-v1", tmp_path / "copy")
    return open_uri(f"file://{tmp_path}/copy")


def _check(state: ArchiveState) -> None:
    assert (state.commit, state.epoch) == (6, 2)
    assert state.topics == {ID: ORDERS}
    assert state.coverage == {(ID, 0): [(0, 26)], (ID, 1): [(5, 15)]}
    assert state.gaps == {(ID, 1): [Gap(ID, 1, 0, 5, "deleted by retention before it was read")]}
    assert state.groups == (GroupEntry("billing", "orders", ID, 0, 17, 3, "m"),)
    assert [run.outcome for run in state.runs.values()] == [RunOutcome.SUCCEEDED, RunOutcome.FAILED]
    first, second = state.segments[ID, 0]
    assert (first.base_offset, first.next_offset, first.records, first.codecs) == (0, 20, 20, {"none": 2})
    assert (second.records, second.transactional, second.control, second.files.txnindex_bytes) == (5, True, True, 34)


def test_version_1_is_read_with_and_without_its_checkpoint(golden: Storage, copy: Storage) -> None:
    _check(Archive.open(golden).load())
    copy.delete([info.path for _, _, info in Archive.open(copy).listing().checkpoints])
    _check(Archive.open(copy).load())


def test_version_1_is_whole(golden: Storage) -> None:
    archive = Archive.open(golden)
    report = verify(archive)
    assert (report.faults, report.orphans, report.segments, report.records) == ([], [], 3, 35)
    state = archive.load()
    aborted, outcomes = aborted_in(golden, "orders", state.segments[ID, 0], state.kept(ID, 0))
    assert [(txn.producer_id, txn.first_offset, txn.last_offset) for txn in aborted] == [(7, 20, 25)]
    assert outcomes.disagreements == ()


def test_what_is_read_is_written_again_byte_by_byte(golden: Storage) -> None:
    archive = Archive.open(golden)
    assert documents.dump_info(archive.info) == golden.read("archive.json")
    for number in range(7):
        assert commits.dump_commit(archive.read_commit(number)) == golden.read(names.commit_path(number))


# ---- archive-v1-users: the cluster's state, a share group, leader epochs, digests of records


@pytest.fixture
def users() -> Storage:
    return open_uri(f"file://{FORMATS}/archive-v1-users")


def test_the_state_of_a_cluster_is_read_for_good(users: Storage) -> None:
    archive = Archive.open(users)
    ends = [commit for commit in map(archive.read_commit, range(6)) if commit.cluster_state is not None]
    found = [read_cluster_state(archive, end) for end in ends]
    assert found == [
        ClusterState(
            "nightly-1",
            TIME + 1000,
            acls=(
                ("TOPIC", "orders", "LITERAL", "User:alice", "*", "READ", "ALLOW"),
                ("CLUSTER", "kafka-cluster", "LITERAL", "User:mallory", "*", "ALTER", "DENY"),
            ),
            quotas=(((("user", "alice"), ("client-id", None)), "producer_byte_rate", 1048576.0),),
            users=(("alice", "SCRAM-SHA-512", 8192),),
        ),
        ClusterState(
            "nightly-2",
            TIME + 2000,
            acls=(),
            users=(),
            reasons={"quotas": "CLUSTER_AUTHORIZATION_FAILED: Cluster authorization failed."},
        ),
    ]
    for state in found:
        assert state is not None
        assert state.to_json() == users.read(state_path(state.run_id))
    for number in range(6):
        assert commits.dump_commit(archive.read_commit(number)) == users.read(names.commit_path(number))


def test_share_groups_and_leader_epochs_are_read_with_and_without_checkpoints(users: Storage, tmp_path: Path) -> None:
    shutil.copytree(FORMATS / "archive-v1-users", tmp_path / "copy")
    copy = open_uri(f"file://{tmp_path}/copy")
    checkpoints = [info.path for _, _, info in Archive.open(copy).listing().checkpoints]
    assert checkpoints
    copy.delete(checkpoints)
    for storage in (users, copy):
        state = Archive.open(storage).load()
        assert state.groups == (
            GroupEntry("billing", "orders", ID, 0, 17, 0, "m"),
            GroupEntry("fleet", "orders", ID, 1, 9, 0, "", share=True),
        )
        assert state.epochs[ID, 0] == [(0, 0)]
        report = verify(Archive.open(storage))
        assert (report.faults, report.orphans, report.segments, report.records) == ([], [], 3, 50)


@pytest.mark.parametrize("partition", [0, 1])
def test_kept_digests_are_those_that_are_made_now(users: Storage, tmp_path: Path, partition: int) -> None:
    """A target is proved by digests that any earlier version has kept."""
    state = Archive.open(users).load()
    entries = state.segments[ID, partition]
    aborted = Spans.of(aborted_in(users, "orders", entries, state.kept(ID, partition))[0])
    place = DigestsPlace(users, "orders", ID, partition)
    kept = place.load()
    assert [kept[entry.base_offset].fits(entry, aborted) for entry in entries] == [True] * len(entries)
    made = [digests_of(users, "orders", entry, aborted) for entry in entries]
    assert list(kept.values()) == made
    again = DigestsPlace(open_uri(f"file://{tmp_path}/again"), "orders", ID, partition)
    again.keep(made)
    assert again.storage.read(again.path) == users.read(place.path)


# ---- what is newer


def test_a_newer_archive_is_refused_by_its_format() -> None:
    with pytest.raises(ArchiveMismatch) as caught:
        Archive.open(open_uri(f"file://{FORMATS}/archive-v2"))
    assert caught.value.message.endswith(
        "archive-v2/archive.json: archive format 2, this version of Logkeep reads and writes format 1."
    )
    assert caught.value.hint == "It was written by a newer Logkeep: use that version or a later one."


def _rewrite(storage: Storage, number: int, change: Callable[[dict[str, Any]], None]) -> None:
    document = json.loads(storage.read(names.commit_path(number)))
    del document["sha256"]
    change(document)
    body = json.dumps(document, separators=(",", ":")).encode()
    storage.put(names.commit_path(number), body[:-1] + b',"sha256":"%s"}' % hashlib.sha256(body).hexdigest().encode())


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda commit: commit.update(format=2), "archive format 2, this version of Logkeep reads and writes format 1"),
        (lambda commit: commit.update(folded=[]), "unknown keys folded"),
        (lambda commit: commit.update(kind="Compact"), "a commit of kind 'Compact'"),
        (lambda commit: commit["segments"]["columns"].append("x"), "unknown columns .* of segments"),
    ],
)
def test_what_a_newer_version_added_to_a_commit_is_refused(
    copy: Storage, change: Callable[[dict[str, Any]], None], what: str
) -> None:
    _rewrite(copy, 5, change)
    with pytest.raises(ArchiveMismatch, match=rf"0{{19}}5\.json: {what}.*use that version or a later one"):
        Archive.open(copy).load()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda commit: commit.pop("token"), "KeyError: 'token'"),
        (lambda commit: commit["coverage"]["rows"][0].append(1), "TypeError"),
        (lambda commit: commit["coverage"]["rows"][0].__setitem__(3, 0), r"\[5, 0\) is not a range of offsets"),
        (lambda commit: commit.update(epoch=1), "which is not the writer"),
        (lambda commit: commit.update(archiveId="other"), "of archive other, not commit 5 of"),
        (lambda commit: commit.update(commit=4), "holds commit 4"),
    ],
)
def test_a_commit_that_cannot_be_is_damage(copy: Storage, change: Callable[[dict[str, Any]], None], what: str) -> None:
    _rewrite(copy, 5, change)
    with pytest.raises(ArchiveDamaged, match=what):
        Archive.open(copy).load()


def test_a_newer_checkpoint_is_refused(copy: Storage) -> None:
    path = names.checkpoint_path(2, 1)
    copy.put(path, copy.read(path).replace(b'{"format":1,', b'{"format":2,'))
    with pytest.raises(ArchiveMismatch, match=r"\.checkpoint: archive format 2"):
        Archive.open(copy).load()
