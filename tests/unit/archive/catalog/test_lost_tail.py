"""Commits that are gone from the catalog's end are noticed: by `verify`, by readers, and by the next run."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import Layout
from logkeep_engine.archive.catalog.facts import Coverage, Receipt, RemovedSegment, RunOutcome
from logkeep_engine.archive.catalog.writer import Writer
from logkeep_engine.archive.maintenance.leftovers import remove_leftovers
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.archive.reading import view
from logkeep_engine.cli import app
from logkeep_engine.errors import ArchiveDamaged
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import CLUSTER, ORDERS, archive_of, begin, chunk
from tests.unit.archive.maintenance import test_leftovers
from tests.unit.archive.writing.test_record_segments import BOTH, FORMATS

ID = ORDERS.topic_id


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(f"file://{tmp_path}/archive")


def lose(storage: Storage, first: int) -> None:
    """Delete the commits from number `first` on."""
    storage.delete(info.path for info in storage.list(names.CATALOG) if (names.parse_commit(info.path) or 0) >= first)


def a_run(storage: Storage, run_id: str, start: int, end: int) -> Writer:
    """A run that archives [start, end) of partition 0 and succeeds."""
    with begin(storage, run_id) as writer:
        storage.put(names.run_file(run_id, "plan.json"), b"{}")
        writer.commit(topics=[ORDERS], receipts=[chunk(storage, start, end, epoch=writer.epoch)])
        writer.end(RunOutcome.SUCCEEDED)
    return writer


def two_runs(storage: Storage) -> Archive:
    """Commits 0 to 2 are of run one, 3 to 5 of run two."""
    a_run(storage, "one", 0, 100)
    a_run(storage, "two", 100, 200)
    return Archive.open(storage)


def faults(archive: Archive) -> str:
    return "\n".join(str(fault) for fault in verify(archive).faults)


def warnings(archive: Archive) -> str:
    return "\n".join(view.choose(archive).warnings)


@pytest.mark.parametrize("first", [3, 4, 5], ids=["all of the run", "its data", "its end"])
def test_a_lost_tail_is_a_fault_and_the_next_run_steps_over_its_epoch(storage: Storage, first: int) -> None:
    archive = two_runs(storage)
    assert verify(archive).whole
    lose(storage, first)
    assert "run two" in faults(archive)
    assert f"the catalog ends with commit {first - 1}" in faults(archive)
    assert "run two" in warnings(archive)
    with begin(storage, "three") as writer:
        assert writer.epoch == 3, "epoch 2 is of the lost commits"
        assert any("run two" in warning for warning in writer.warnings)
        writer.end(RunOutcome.SUCCEEDED)
    assert "run two" in faults(archive), "and it stays told"
    with begin(storage, "four") as writer:
        assert writer.epoch == 4
        assert writer.warnings == (), "it was stepped over already"
        writer.end(RunOutcome.SUCCEEDED)


def test_the_same_run_begins_above_its_own_lost_epoch_and_the_loss_stays_reported(storage: Storage) -> None:
    archive = two_runs(storage)
    lose(storage, 3)
    with begin(storage, "two") as writer:
        assert writer.epoch == 3
        writer.commit(topics=[ORDERS], receipts=[chunk(storage, 100, 200, epoch=writer.epoch)])
        writer.end(RunOutcome.SUCCEEDED)
    found = faults(archive)
    assert "run two" in found
    assert "epoch 2" in found
    assert "run two" in warnings(archive)


def test_a_removal_that_is_lost_is_reported(storage: Storage) -> None:
    with begin(storage, "one") as writer:
        writer.commit(topics=[ORDERS], receipts=[chunk(storage, 0, 100), chunk(storage, 100, 200)])
        writer.end(RunOutcome.SUCCEEDED)
        entry = writer.state.segments[ID, 0][0]
        writer.remove([RemovedSegment(ID, 0, entry.base_offset)])
        storage.delete(entry.objects("orders"))
        writer.purged([writer.state.commit])
    archive = Archive.open(storage)
    assert verify(archive).whole
    lose(storage, 3)
    assert "has committed up to commit 4" in faults(archive)
    lose(storage, 4)
    assert "run one" in warnings(archive)


def test_segments_of_lost_commits_are_a_fault_though_nothing_of_their_run_is_left(storage: Storage) -> None:
    archive = two_runs(storage)
    lose(storage, 3)
    storage.delete([info.path for info in storage.list("runs/two/")])
    found = faults(archive)
    assert "epoch 2" in found
    assert "3 objects" in found
    assert f"{100:020d}.{2:010d}" in found


def test_a_checkpoint_after_the_last_commit_is_a_fault_and_its_state_is_taken(storage: Storage) -> None:
    archive = two_runs(storage)
    with begin(storage, "three") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        writer.checkpoint()
    lose(storage, 4)
    assert "but the last commit is 3" in faults(archive)
    assert archive.load().coverage == {(ID, 0): [(0, 200)]}, "the checkpoint knows all of it"
    with pytest.raises(ArchiveDamaged, match="Commit 7 is missing"):
        view.choose(archive)


def test_a_damaged_checkpoint_after_the_last_commit_is_stepped_over(storage: Storage) -> None:
    archive = two_runs(storage)
    with begin(storage, "three") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        writer.checkpoint()
    lose(storage, 3)
    storage.put(names.checkpoint_path(7, 3), b"?")
    storage.delete([info.path for info in storage.list("runs/")])
    assert "checkpoint" in warnings(archive)
    with begin(storage, "four") as writer:
        assert writer.epoch == 4


def test_a_run_that_was_killed_before_its_first_commit_has_lost_nothing(storage: Storage) -> None:
    archive = archive_of(storage, chunk(storage, 0, 100))
    beat = json.loads(storage.read(names.run_file("run-1", "heartbeat.json")))
    killed = {**beat, "epoch": 2, "beat": 1, "commit": None}
    storage.put(names.run_file("killed", "heartbeat.json"), json.dumps(killed).encode())
    assert verify(archive).whole
    assert warnings(archive) == ""


def test_a_run_that_begins_while_the_archive_is_looked_at_is_no_lost_tail(storage: Storage) -> None:
    archive = two_runs(storage)
    before = archive.load()
    a_run(storage, "three", 200, 300)
    assert archive.lost_tails(before) == ()


def test_what_is_no_heartbeat_is_left_out(storage: Storage, caplog: pytest.LogCaptureFixture) -> None:
    archive = two_runs(storage)
    beat = json.loads(storage.read(names.run_file("two", "heartbeat.json")))
    odd = [{**beat, **other} for other in ({"epoch": 99999999999}, {"commit": -2}, {"epoch": None}, {"format": 2})]
    odd += [{**beat, "later": 1}, {key: value for key, value in beat.items() if key != "commit"}]
    for number, data in enumerate((b"", b"[]", *(json.dumps(one).encode() for one in odd))):
        storage.put(names.run_file(f"odd-{number}", "heartbeat.json"), data)
    assert verify(archive).whole
    assert caplog.text.count("is not a heartbeat") == 8
    assert "unknown keys ['later']" in caplog.text


def test_a_listing_that_is_late_does_not_hide_commits(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = two_runs(storage)
    real = storage.list
    late = {names.commit_path(number) for number in (4, 5)}
    monkeypatch.setattr(storage, "list", lambda prefix="": [info for info in real(prefix) if info.path not in late])
    assert archive.load().commit == 5
    assert warnings(archive) == ""


@BOTH
def test_objects_of_lost_commits_are_never_removed_as_leftovers(storage: Storage, layout: Layout) -> None:
    """In these formats names have no epoch: the heartbeat is the witness."""
    Archive.create_or_open(storage, CLUSTER, FORMATS[layout])
    with test_leftovers.begin(storage, layout, "lost") as writer:
        entry = test_leftovers.write(storage, layout, 50, 100)
        writer.commit(topics=[ORDERS], receipts=[Receipt((Coverage(ID, 0, 50, 100),), (entry,))])
        writer.end(RunOutcome.SUCCEEDED)
    lose(storage, 0)
    for run_id in ("two", "three"):
        writer = test_leftovers.begin(storage, layout, run_id)
        start = 0 if run_id == "two" else 200
        test_leftovers.succeed(writer, layout, (start, start + 200))
        assert remove_leftovers(writer, [(ID, 0)]) == 0
    assert set(entry.objects("orders")) == set(verify(Archive.open(storage)).orphans)


def test_inspect_warns_and_verify_fails(storage: Storage) -> None:
    two_runs(storage)
    lose(storage, 3)
    shown = CliRunner().invoke(app, ["inspect", storage.uri])
    assert shown.exit_code == 0
    assert "warning: the catalog has lost its last commits: run two" in shown.stderr
    document = json.loads(CliRunner().invoke(app, ["inspect", storage.uri, "--output", "json"]).stdout)
    assert len(document["lostCommits"]) == 1
    verified = CliRunner().invoke(app, ["verify", storage.uri])
    assert verified.exit_code == 6
    assert "run two has committed up to commit 5 at epoch 2" in verified.stdout
