"""Format 1: what is read is written again byte by byte, what a newer version wrote is refused by name."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog import commits, documents
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.checkpoint import CheckpointPolicy
from logkeep_engine.archive.catalog.facts import RunOutcome
from logkeep_engine.errors import ArchiveDamaged, ArchiveMismatch
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import ORDERS, begin, chunk

OFTEN = CheckpointPolicy(commits=1, min_bytes=1, most_commits=1)


@pytest.fixture
def written(tmp_path: Path) -> Storage:
    """Two runs: commits 0 to 2, with a checkpoint at the end, and commits 3 to 6, without one."""
    storage = open_uri(f"file://{tmp_path}/archive")
    with begin(storage, "nightly-1", checkpoints=OFTEN) as writer:
        writer.commit(topics=[ORDERS], receipts=[chunk(storage, 0, 20)])
        writer.end(RunOutcome.SUCCEEDED)
    with begin(storage, "nightly-2") as writer:
        writer.commit(receipts=[chunk(storage, 20, 26, epoch=2)])
        writer.commit(receipts=[chunk(storage, 5, 15, partition=1, epoch=2)])
        writer.end(RunOutcome.FAILED)
    return storage


def test_what_is_read_is_written_again_byte_by_byte(written: Storage) -> None:
    archive = Archive.open(written)
    assert documents.dump_info(archive.info) == written.read("archive.json")
    for number in range(7):
        assert commits.dump_commit(archive.read_commit(number)) == written.read(names.commit_path(number))


def test_a_newer_archive_is_refused_by_its_format(written: Storage) -> None:
    written.put("archive.json", written.read("archive.json").replace(b'"format": 1', b'"format": 2'))
    with pytest.raises(ArchiveMismatch) as caught:
        Archive.open(written)
    assert caught.value.message.endswith("archive.json: description of an archive of format 2; this version reads 1.")
    assert caught.value.hint == "Another version of Logkeep wrote it: use that version."


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
    written: Storage, change: Callable[[dict[str, Any]], None], what: str
) -> None:
    _rewrite(written, 5, change)
    with pytest.raises(ArchiveMismatch, match=rf"0{{19}}5\.json: {what}.*use that version or a later one"):
        Archive.open(written).load()


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
def test_a_commit_that_cannot_be_is_damage(
    written: Storage, change: Callable[[dict[str, Any]], None], what: str
) -> None:
    _rewrite(written, 5, change)
    with pytest.raises(ArchiveDamaged, match=what):
        Archive.open(written).load()


def test_a_newer_checkpoint_is_refused(written: Storage) -> None:
    path = names.checkpoint_path(2, 1)
    written.put(path, written.read(path).replace(b'{"format":1,', b'{"format":2,'))
    with pytest.raises(ArchiveMismatch, match=r"\.checkpoint: archive format 2"):
        Archive.open(written).load()
