"""Which state of an archive a restore sees, by how the runs before it have ended."""

import json

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.commits import load_commit
from logkeep_engine.archive.catalog.facts import RunOutcome
from logkeep_engine.archive.catalog.writer import begin_run
from logkeep_engine.archive.reading import view
from logkeep_engine.errors import ArchiveMismatch, BrokerUnavailable, LogkeepError
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import CLUSTER, FAST, ORDERS, chunk
from tests.unit.archive.forge import sealed

LOST = "offsets [10, 20) could not be archived"


@pytest.fixture
def storage(tmp_path: object) -> Storage:
    return open_uri(f"file://{tmp_path}/archive")


def run(storage: Storage, run_id: str, start: int, end: int, failure: LogkeepError | None, **more: bool) -> None:
    with begin_run(Archive.create_or_open(storage, CLUSTER), run_id, wait=FAST) as writer:
        writer.commit(topics=[ORDERS], receipts=[chunk(storage, start, end, epoch=writer.epoch)])
        if failure is None:
            writer.end(RunOutcome.SUCCEEDED)
        else:
            writer.give_up(failure, failure.message, **more)


def archived(seen: view.ArchiveView) -> list[tuple[int, int]]:
    return seen.state.accounted_for(ORDERS.topic_id, 0)


def test_what_a_run_has_archived_that_failed_for_the_rest_is_restored(storage: Storage) -> None:
    run(storage, "good", 0, 10, None)
    run(storage, "lossy", 20, 30, BrokerUnavailable(LOST), partial=True)

    seen = view.choose(Archive.open(storage))

    assert archived(seen) == [(0, 10), (20, 30)]
    (warning,) = seen.warnings
    assert "run lossy failed after it had archived all that it could" in warning
    assert LOST in warning


def test_what_a_run_has_archived_before_it_broke_off_is_not_restored(storage: Storage) -> None:
    run(storage, "good", 0, 10, None)
    run(storage, "lossy", 10, 20, BrokerUnavailable(LOST), partial=True)
    run(storage, "broken", 20, 30, BrokerUnavailable("no store"))

    seen = view.choose(Archive.open(storage))

    assert archived(seen) == [(0, 20)]
    assert any("run broken has not succeeded (failed)" in warning for warning in seen.warnings)
    assert any("the state is that of run lossy" in warning for warning in seen.warnings)


def test_an_archive_is_finished_once_a_run_has_tried_everything(storage: Storage) -> None:
    run(storage, "broken", 0, 10, BrokerUnavailable("no store"))
    seen = view.choose(Archive.open(storage))
    assert (seen.finished, archived(seen)) == (False, [(0, 10)])

    run(storage, "lossy", 20, 30, BrokerUnavailable(LOST), partial=True)
    run(storage, "also-broken", 30, 40, BrokerUnavailable("no store"))
    seen = view.choose(Archive.open(storage))
    assert (seen.finished, archived(seen)) == (True, [(0, 10), (20, 30)])
    assert any("run lossy failed after it had archived all that it could" in warning for warning in seen.warnings)


def test_a_success_after_it_is_what_is_restored(storage: Storage) -> None:
    run(storage, "lossy", 0, 10, BrokerUnavailable(LOST), partial=True)
    run(storage, "good", 10, 20, None)

    seen = view.choose(Archive.open(storage))

    assert (archived(seen), seen.warnings) == ([(0, 20)], ())


def test_a_commit_says_that_everything_was_tried_only_where_a_run_failed(storage: Storage) -> None:
    run(storage, "lossy", 0, 10, BrokerUnavailable(LOST), partial=True)
    run(storage, "good", 10, 20, None)

    found = [json.loads(storage.read(info.path)) for info in storage.list("catalog/") if info.path.endswith(".json")]
    ends = [document for document in found if document["kind"] == "End"]

    assert [document["partial"] for document in sorted(ends, key=lambda end: end["commit"])] == [True, False]


def test_a_begin_commit_cannot_say_it(storage: Storage) -> None:
    run(storage, "good", 0, 10, None)
    data = storage.read("catalog/00000000000000000000.json")
    with pytest.raises(ArchiveMismatch, match="partial"):
        load_commit(sealed(json.loads(data) | {"partial": True}), "a commit")
