"""An anchor that is kept outside of the bucket shows that commits are gone from it, or were altered."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.anchor import newest
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.checkpoint import CheckpointPolicy
from logkeep_engine.archive.catalog.claim import ArchiveClaim, Owner, anchor_of, claim_of, consent_of
from logkeep_engine.archive.catalog.facts import RunOutcome
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.writer import begin_run
from logkeep_engine.archive.maintenance.bundling import BundlingDone, bundle_old_commits
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.cli import app
from logkeep_engine.contract.anchor import Anchor
from logkeep_engine.contract.run import RunRequest
from logkeep_engine.errors import ArchiveMissing, ArchiveRolledBack, SpecError
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import CLUSTER, FAST, ORDERS, begin, chunk
from tests.unit.archive.forge import altered, later, rewritten

OWNER = Owner("team", "nightly", "uid-1")
OFTEN = CheckpointPolicy(commits=1, min_bytes=1, most_commits=1)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(f"file://{tmp_path}/archive")


def a_run(storage: Storage, run_id: str, start: int, **options: object) -> Anchor:
    """A run that archives ten offsets from `start` on; returns the anchor of the archive then."""
    with begin(storage, run_id, **options) as writer:
        writer.commit(topics=[ORDERS], receipts=[chunk(storage, start, start + 10, epoch=writer.epoch)])
        writer.end(RunOutcome.SUCCEEDED)
    anchor = newest(writer.state)
    assert anchor is not None
    return anchor


def read(storage: Storage, anchor: Anchor, consent: str | None = None) -> ArchiveState:
    return Archive.open(storage, ArchiveClaim(anchor, consent=consent)).load()


def test_each_commit_names_the_hash_of_the_one_before_and_the_anchor_is_that_of_the_newest(storage: Storage) -> None:
    anchor = a_run(storage, "one", 0)
    previous = ""
    for number in range(3):
        data = storage.read(names.commit_path(number))
        document = json.loads(data)
        assert document["previous"] == previous
        previous = document["sha256"]
        assert hashlib.sha256(data[: data.rindex(b',"sha256"')] + b"}").hexdigest() == previous
    assert str(anchor) == f"2:{previous}"
    assert Anchor.parse(str(anchor)) == anchor


def test_an_archive_that_continues_has_the_commit_that_was_known(storage: Storage) -> None:
    known = a_run(storage, "one", 0)
    for number in range(1, 5):
        a_run(storage, f"run-{number}", number * 10)
        assert read(storage, known).commit == 2 + 3 * number


def test_the_newest_hash_is_the_same_with_and_without_checkpoints_and_bundles(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "BUNDLED", 4)
    anchors = [a_run(storage, f"run-{number}", number * 10, checkpoints=OFTEN) for number in range(8)]
    archive = Archive.open(storage)
    writer = begin(storage, "bundler", checkpoints=OFTEN)
    writer.end(RunOutcome.SUCCEEDED)
    while bundle_old_commits(writer, lambda: 10**15) != BundlingDone():
        pass
    assert len(archive.listing().bundles) > 3
    assert archive.listing().checkpoints
    for anchor in anchors:
        assert read(storage, anchor).commit == writer.state.commit
        assert archive.load_at(anchor.commit).sha256 == anchor.sha256
    storage.delete([info.path for _, _, info in archive.listing().checkpoints])
    assert archive.load().sha256 == writer.state.sha256
    for anchor in anchors:
        read(storage, anchor)


def test_an_archive_that_was_rolled_back_is_refused(storage: Storage, tmp_path: Path) -> None:
    earlier = a_run(storage, "one", 0)
    shutil.copytree(tmp_path / "archive", tmp_path / "old")
    known = a_run(storage, "two", 10)
    shutil.rmtree(tmp_path / "archive")
    shutil.copytree(tmp_path / "old", tmp_path / "archive")
    before = {info.path: storage.read(info.path) for info in storage.list()}
    with pytest.raises(ArchiveRolledBack) as caught:
        read(storage, known)
    assert caught.value.message == (
        f"The archive at {storage.uri} ends with commit 2, and it had commit 5: it was rolled back, or replaced "
        f"(known: {known}; now: {earlier})."
    )
    assert f"logkeep.dev/take-over={earlier}" in caught.value.hint
    assert f"spec.source.expectCommit: {earlier}" in caught.value.hint
    with pytest.raises(ArchiveRolledBack):
        begin_with(storage, "three", ArchiveClaim(known))
    assert {info.path: storage.read(info.path) for info in storage.list()} == before, "nothing was written"


def begin_with(storage: Storage, run_id: str, claim: ArchiveClaim) -> Any:
    return begin_run(Archive.create_or_open(storage, CLUSTER, claim=claim), run_id, wait=FAST)


@pytest.mark.parametrize("number", range(6))
def test_a_history_that_was_rewritten_from_a_commit_on_is_seen_wherever_it_begins(
    storage: Storage, number: int
) -> None:
    a_run(storage, "one", 0)
    known = a_run(storage, "two", 10)
    rewritten(storage, number, later)
    assert verify(Archive.open(storage)).whole, "without an anchor nobody sees it"
    with pytest.raises(ArchiveRolledBack, match="up to commit 5 is not the one that was known"):
        read(storage, known)
    (fault,) = verify(Archive.open(storage), anchor=known).faults
    assert "up to commit 5 is not the one that was known" in str(fault)


def test_what_comes_after_the_anchor_may_be_any(storage: Storage) -> None:
    """The status may be older than the catalog: what was committed since is not held against it."""
    known = a_run(storage, "one", 0)
    a_run(storage, "two", 10)
    rewritten(storage, 4, later)
    assert read(storage, known).commit == 5


def test_a_run_trusts_its_checkpoint_and_verify_reads_all_commits(storage: Storage) -> None:
    """This is what an anchor does not show to a run: a commit that was altered before the checkpoint."""
    a_run(storage, "one", 0, checkpoints=OFTEN)
    known = a_run(storage, "two", 10, checkpoints=OFTEN)
    altered(storage, 1, later)
    assert read(storage, known).commit == 5, "the state is that of the checkpoint, as it was"
    for anchor in (None, known):
        faults = [str(fault) for fault in verify(Archive.open(storage), anchor=anchor).faults]
        assert any("commit 2 does not follow the commit before it" in fault for fault in faults)


def test_an_anchor_before_the_checkpoint_is_found_in_the_commits(storage: Storage) -> None:
    known = a_run(storage, "one", 0)
    a_run(storage, "two", 10, checkpoints=OFTEN)
    assert read(storage, known).commit == 5
    with pytest.raises(ArchiveRolledBack, match="up to commit 2"):
        read(storage, Anchor(2, "0" * 64))


def test_an_archive_that_is_gone_is_not_made_again(storage: Storage, tmp_path: Path) -> None:
    known = a_run(storage, "one", 0)
    shutil.rmtree(tmp_path / "archive")
    (tmp_path / "archive").mkdir()
    with pytest.raises(ArchiveRolledBack) as caught:
        begin_with(storage, "two", ArchiveClaim(known))
    assert caught.value.message.startswith(f"There is no archive at {storage.uri} now; it had commit 2")
    assert "take-over=new" in caught.value.hint
    assert storage.list() == []
    with pytest.raises(ArchiveMissing):
        Archive.open(storage, ArchiveClaim(known, consent="new"))
    for _ in range(2):  # a second attempt of the run has the same request
        begin_with(storage, "two", ArchiveClaim(known, consent="new")).close()
    with pytest.raises(ArchiveRolledBack):
        begin_with(storage, "three", ArchiveClaim(known))


def test_an_archive_of_which_only_the_first_object_is_left_is_begun_again(storage: Storage, tmp_path: Path) -> None:
    """The hint named `new`, and `new` was refused."""
    known = a_run(storage, "one", 0)
    shutil.rmtree(tmp_path / "archive" / "catalog")
    with pytest.raises(ArchiveRolledBack) as caught:
        begin_with(storage, "two", ArchiveClaim(known, OWNER))
    assert "has no commit" in caught.value.message
    assert "take-over=new (" in caught.value.hint
    for _ in range(2):  # a second attempt of the run has the same request
        begin_with(storage, "two", ArchiveClaim(known, OWNER, consent="new")).close()
    with pytest.raises(ArchiveRolledBack):
        begin_with(storage, "three", ArchiveClaim(known, OWNER))


@pytest.mark.parametrize("seen", ["new", f"41:{'9' * 64}"])
def test_a_consent_may_have_words_after_it(seen: str) -> None:
    """A value is used once: without them nobody could consent to the same thing a second time."""
    for text in (seen, f"{seen} again", f"{seen} Fri Nov 27 22:33:26 UTC 2026"):
        claim = claim_of(
            RunRequest(kind="KafkaBackup", name="n", namespace="team", run_id="r", spec={}, uid="u", take_over=text)
        )
        assert (claim.consent, claim.said) == (seen, text)
    for text in (f"{seen} ", f"{seen}again", f" {seen}", f"{seen} a\nb", f"{seen} {'x' * 65}", f"{seen} \u202e"):
        with pytest.raises(SpecError, match="is neither the number of a commit"):
            consent_of(text)


def test_another_archive_in_its_place_is_refused(storage: Storage, tmp_path: Path) -> None:
    known = a_run(storage, "one", 0)
    shutil.rmtree(tmp_path / "archive")
    a_run(storage, "one", 0)
    with pytest.raises(ArchiveRolledBack, match="up to commit 2 is not the one"):
        read(storage, known)
    with pytest.raises(ArchiveRolledBack):
        begin_with(storage, "two", ArchiveClaim(known, consent="new"))


def test_a_consent_names_the_newest_commit_and_lets_the_same_run_begin_again(storage: Storage) -> None:
    seen = a_run(storage, "one", 0)
    known = Anchor(107, "f" * 64)
    stale = Anchor(1, Archive.open(storage).load_at(1).sha256)
    with pytest.raises(ArchiveRolledBack, match=f"The consent {stale} does not name its newest commit"):
        begin_with(storage, "two", ArchiveClaim(known, consent=str(stale)))
    claim = ArchiveClaim(known, OWNER, consent=str(seen))
    assert read(storage, known, str(seen)).commit == 2
    begin_with(storage, "two", claim).close()  # killed
    begin_with(storage, "two", claim).close()
    assert json.loads(storage.read(names.ARCHIVE))["takenOver"] == str(seen)


@pytest.mark.parametrize(
    "text", ["", "new", "-1:" + "0" * 64, "1:" + "0" * 63, "01:" + "0" * 64, "1:" + "G" * 64, "41"]
)
def test_what_is_no_anchor_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"--expect-commit: '.*' is not a commit's number and its SHA-256"):
        anchor_of(text, "--expect-commit")


def test_what_is_no_consent_is_refused() -> None:
    with pytest.raises(SpecError, match="take-over: 'yes' is neither the number of a commit with its SHA-256"):
        consent_of("yes")
    assert consent_of("new") == "new"


def test_inspect_prints_the_anchor_that_verify_takes(storage: Storage) -> None:
    known = a_run(storage, "one", 0)
    shown = CliRunner().invoke(app, ["inspect", storage.uri, "-o", "json"])
    assert json.loads(shown.stdout)["anchor"] == str(known)
    assert str(known) in CliRunner().invoke(app, ["inspect", storage.uri]).stdout
    good = CliRunner().invoke(app, ["verify", storage.uri, "--expect-commit", str(known)])
    assert (good.exit_code, good.stdout.splitlines()[-1][:6]) == (0, "whole:")
    bad = CliRunner().invoke(app, ["verify", storage.uri, "--expect-commit", f"9:{known.sha256}"])
    assert bad.exit_code == 6
    assert "ends with commit 2, and it had commit 9: it was rolled back, or replaced" in bad.stdout
    wrong = CliRunner().invoke(app, ["verify", storage.uri, "--expect-commit", "9"])
    assert wrong.exit_code == 2


def test_an_incremental_verification_with_an_anchor_reads_all_commits(storage: Storage) -> None:
    a_run(storage, "one", 0, checkpoints=OFTEN)
    known = a_run(storage, "two", 10, checkpoints=OFTEN)
    for _ in range(2):
        assert CliRunner().invoke(app, ["verify", storage.uri, "--incremental"]).exit_code == 0
    altered(storage, 1, later)
    arguments = ["verify", storage.uri, "--incremental", "--expect-commit", str(known)]
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 6
    assert "commit 2 does not follow the commit before it" in found.stdout
