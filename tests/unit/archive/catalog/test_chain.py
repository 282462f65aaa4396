"""Commits are a chain: whoever alters, replaces, reorders or drops one breaks it, and readers name the break."""

import json
import shutil
from pathlib import Path

import pytest

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog import bundle, checkpoint
from logkeep_engine.archive.catalog.anchor import newest
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.checkpoint import CheckpointPolicy
from logkeep_engine.archive.catalog.claim import ArchiveClaim
from logkeep_engine.archive.catalog.facts import RunOutcome
from logkeep_engine.archive.maintenance import bundling
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.contract.anchor import Anchor
from logkeep_engine.errors import ArchiveDamaged, ArchiveRolledBack
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import ORDERS, begin, chunk
from tests.unit.archive.forge import altered, later, rewritten, sealed

BROKEN = r"commit {} does not follow the commit before it: it names {}, and that is {}\. One of the two was altered"
HASH = "[0-9a-f]{64}"
OFTEN = CheckpointPolicy(commits=1, min_bytes=1, most_commits=1)
LATE = 10**15


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """An archive of three runs, nine commits, without a checkpoint."""
    made = open_uri(f"file://{tmp_path}/archive")
    for number in range(3):
        archived(made, f"run-{number}", number * 10)
    return made


@pytest.fixture
def bundles(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """The same in bundles of four commits, whose own objects are gone."""
    monkeypatch.setattr(names, "BUNDLED", 4)
    writer = begin(storage, "bundler", checkpoints=OFTEN)
    writer.end(RunOutcome.SUCCEEDED)
    while bundling.bundle_old_commits(writer, lambda: LATE) != bundling.BundlingDone():
        pass
    listing = writer.archive.listing()
    storage.delete([info.path for _, _, info in listing.checkpoints])
    assert (sorted(listing.bundles), sorted(listing.commits)) == ([0, 1], [8, 9, 10])
    return storage


def archived(storage: Storage, run_id: str, start: int, **options: object) -> None:
    with begin(storage, run_id, **options) as writer:
        writer.commit(topics=[ORDERS], receipts=[chunk(storage, start, start + 10, epoch=writer.epoch)])
        writer.end(RunOutcome.SUCCEEDED)


def refused(storage: Storage, what: str, path: str = "") -> None:
    """Every reader refuses the catalog, and a verification names the same object first."""
    with pytest.raises(ArchiveDamaged, match=what) as caught:
        Archive.open(storage).load()
    assert path in caught.value.message
    with pytest.raises(ArchiveDamaged, match=what):
        begin(storage, "next")
    fault = verify(Archive.open(storage)).faults[0]
    assert path in f"{fault.object}: {fault.what}"


@pytest.mark.parametrize("number", range(8))
def test_a_commit_that_was_altered_under_a_hash_of_its_own_breaks_the_chain_after_it(
    storage: Storage, number: int
) -> None:
    altered(storage, number, later)
    refused(storage, BROKEN.format(number + 1, HASH, HASH), names.commit_path(number + 1))


def test_a_commit_of_another_history_breaks_the_chain(storage: Storage, tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "archive", tmp_path / "other")
    other = open_uri(f"file://{tmp_path}/other")
    for place in (storage, other):
        archived(place, "run-3", 30)
        archived(place, "run-4", 40)
    storage.put(names.commit_path(10), other.read(names.commit_path(10)))
    refused(storage, BROKEN.format(10, HASH, HASH), names.commit_path(10))


def test_commits_in_another_order_break_the_chain(storage: Storage) -> None:
    first, second = (json.loads(storage.read(names.commit_path(number))) for number in (4, 5))
    storage.put(names.commit_path(4), sealed(second | {"commit": 4}))
    storage.put(names.commit_path(5), sealed(first | {"commit": 5}))
    refused(storage, BROKEN.format(4, HASH, HASH), names.commit_path(4))


def test_a_commit_that_was_taken_out_breaks_the_chain_also_if_the_others_move_up(storage: Storage) -> None:
    for number in range(4, 8):
        document = json.loads(storage.read(names.commit_path(number + 1)))
        storage.put(names.commit_path(number), sealed(document | {"commit": number}))
    storage.delete([names.commit_path(8)])
    refused(storage, BROKEN.format(4, HASH, HASH), names.commit_path(4))


@pytest.mark.parametrize(("number", "previous"), [(0, "f" * 64), (3, "")])
def test_only_the_first_commit_stands_on_nothing(storage: Storage, number: int, previous: str) -> None:
    altered(storage, number, lambda found: found.update(previous=previous))
    names_it, there = (previous, "none") if previous else ("none", HASH)
    refused(storage, BROKEN.format(number, names_it, there), names.commit_path(number))


@pytest.mark.parametrize("previous", ["x", "F" * 64, "f" * 63, None, 1])
def test_what_a_commit_stands_on_is_a_hash(storage: Storage, previous: object) -> None:
    altered(storage, 3, lambda found: found.update(previous=previous))
    refused(storage, "which is not a SHA-256", names.commit_path(3))


def test_a_bundle_of_another_history_is_named(bundles: Storage) -> None:
    path = names.bundle_path(1)
    lines = [data for _, data in Archive.open(bundles).read_chain(range(4, 8))]
    hashes = [json.loads(line)["sha256"] for line in lines]
    archive_id = Archive.open(bundles).info.archive_id

    bundles.put(path, bundle.dump(archive_id, 4, lines, "f" * 64, hashes[-1]))
    refused(bundles, f"its first commit stands on {HASH}, and it says {'f' * 64}", path)
    bundles.put(path, bundle.dump(archive_id, 4, lines, json.loads(lines[0])["previous"], "f" * 64))
    refused(bundles, f"its last commit has the hash {hashes[-1]}, and it says {'f' * 64}", path)
    swapped = [sealed(json.loads(lines[0]) | {"previous": "f" * 64}), *lines[1:]]
    bundles.put(path, bundle.dump(archive_id, 4, swapped, "f" * 64, hashes[-1]))
    refused(bundles, BROKEN.format(4, "f" * 64, HASH), path)
    last = [*lines[:-1], sealed(json.loads(lines[-1]) | {"time": 1})]
    ends = json.loads(lines[0])["previous"], json.loads(last[-1])["sha256"]
    bundles.put(path, bundle.dump(archive_id, 4, last, *ends))
    refused(bundles, BROKEN.format(8, hashes[-1], HASH), names.commit_path(8))


def test_no_bundle_is_made_of_a_broken_chain(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "BUNDLED", 4)
    writer = begin(storage, "bundler", checkpoints=OFTEN)
    writer.end(RunOutcome.SUCCEEDED)
    altered(storage, 3, later)
    with pytest.raises(ArchiveDamaged, match=BROKEN.format(4, HASH, HASH)):
        bundling.bundle_old_commits(writer, lambda: LATE)
    assert writer.archive.listing().bundles == {}


def test_no_commit_is_deleted_whose_bundle_the_next_one_does_not_stand_on(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "BUNDLED", 4)
    begin(storage, "first", checkpoints=OFTEN).end(RunOutcome.SUCCEEDED)
    writer = begin(storage, "bundler", checkpoints=OFTEN)
    writer.end(RunOutcome.SUCCEEDED)
    lines = [storage.read(names.commit_path(number)) for number in range(3)]
    forged = sealed(json.loads(storage.read(names.commit_path(3))) | {"time": 1})
    archive_id = writer.archive.info.archive_id
    digest = json.loads(forged)["sha256"]
    storage.put(names.bundle_path(0), bundle.dump(archive_id, 0, [*lines, forged], "", digest))
    with pytest.raises(ArchiveDamaged, match=BROKEN.format(4, HASH, digest)):
        bundling.bundle_old_commits(writer, lambda: LATE)
    assert len(writer.archive.listing().removable) == 4


@pytest.mark.parametrize("behind", [0, 1])
def test_a_checkpoint_of_another_history_is_left_out(
    storage: Storage, behind: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It says another hash of its commit than that commit has, or the next one stands on."""
    archive = Archive.open(storage)
    state = archive.load_at(8 - behind)
    before = state.sha256
    state.sha256 = "f" * 64
    del state.runs["run-1"]
    path = names.checkpoint_path(8 - behind, 3)
    storage.put(path, checkpoint.dump(state, archive.info.archive_id))
    found = archive.load()
    assert (found.commit, list(found.runs)) == (8, ["run-0", "run-1", "run-2"])
    assert f"{path} is left out: it does not belong to the commits that are there" in caplog.text
    assert archive.load_at(8 - behind).sha256 == before
    (fault,) = verify(archive).faults
    assert (fault.object, fault.what) == (f"{storage.uri}/{path}", "it is not the fold of the commits")
    archived(storage, "run-3", 30)
    storage.delete([path])
    assert verify(archive).whole, "what was committed stands on the commits, and not on the checkpoint"


def test_a_checkpoint_whose_commit_is_lost_is_all_that_there_is(storage: Storage) -> None:
    with begin(storage, "run-3", checkpoints=OFTEN) as writer:
        writer.end(RunOutcome.SUCCEEDED)
    storage.delete([names.commit_path(11), names.commit_path(10)])
    assert Archive.open(storage).load().sha256 == writer.state.sha256


def test_commits_between_an_anchor_and_the_checkpoint_are_followed(storage: Storage) -> None:
    known = Anchor(2, Archive.open(storage).load_at(2).sha256)
    archived(storage, "run-3", 30, checkpoints=OFTEN)
    claim = ArchiveClaim(known)
    assert Archive.open(storage, claim).load().commit == 11
    altered(storage, 4, later)
    with pytest.raises(ArchiveDamaged, match=BROKEN.format(5, HASH, HASH)):
        Archive.open(storage, claim).load()


def test_a_checkpoint_of_other_commits_than_the_anchor_is_noticed(storage: Storage) -> None:
    """All commits after the anchor were rewritten, and the checkpoints are of the old ones: or the other way
    round."""
    known = Anchor(2, Archive.open(storage).load_at(2).sha256)
    archived(storage, "run-3", 30, checkpoints=OFTEN)
    for _, _, info in Archive.open(storage).listing().checkpoints[1:]:
        storage.delete([info.path])
    last = newest(Archive.open(storage).load())
    rewritten(storage, 4, later)
    assert Archive.open(storage, ArchiveClaim(known)).load().commit == 11
    with pytest.raises(ArchiveRolledBack, match="up to commit 11"):
        Archive.open(storage, ArchiveClaim(last)).load()
