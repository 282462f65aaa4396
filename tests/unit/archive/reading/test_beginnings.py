"""Plans of unfinished runs say where archives were meant to begin, which the catalog cannot."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import (
    Coverage,
    Gap,
    GenerationChange,
    GenerationStep,
    Receipt,
    RemovedSegment,
    RunOutcome,
)
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.archive.reading.beginnings import missing_beginnings
from logkeep_engine.backup.model.plan import REASON_RETENTION, BackupPlan, Chunk
from logkeep_engine.cli import app
from logkeep_engine.convert import plan as convert_plan
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import ORDERS, begin, chunk

ID = ORDERS.topic_id


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(f"file://{tmp_path}/archive")


def run(
    storage: Storage,
    run_id: str,
    planned: list[tuple[int, int]],
    done: list[tuple[int, int]],
    *,
    outcome: RunOutcome = RunOutcome.FAILED,
    gaps: tuple[Gap, ...] = (),
) -> Archive:
    """A run whose plan has these chunks of partition 0. The chunks in `done` are committed."""
    with begin(storage, run_id) as writer:
        chunks = tuple(Chunk("orders", ID, 0, start, end, 1, 100) for start, end in planned)
        plan = BackupPlan(run_id, (ORDERS,), (Chunk("orders", ID, 1, 0, 10, 1, 100), *chunks))
        storage.put(f"runs/{run_id}/plan.json", plan.to_json())
        receipts = [chunk(storage, start, end, epoch=writer.epoch) for start, end in done]
        writer.commit(topics=[ORDERS], receipts=[*receipts, *(Receipt(gaps=(gap,)) for gap in gaps)])
        writer.end(outcome)
    return Archive.open(storage)


def beginnings(archive: Archive) -> dict[int, int]:
    found = missing_beginnings(archive, archive.load())
    assert {topic_id for topic_id, _ in found} <= {ID}
    return {partition: start for (_, partition), start in found.items()}


def test_chunk_that_failed_before_one_that_was_committed_is_missed(storage: Storage) -> None:
    archive = run(storage, "one", [(40, 100), (100, 200), (200, 300)], [(200, 300)])
    assert beginnings(archive) == {0: 40}
    assert [(fault.offset, fault.what) for fault in verify(archive).faults] == [
        (
            40,
            "offsets [40, 200) are neither archived nor recorded as lost: a run did not finish, or had "
            "onDataLoss: Fail",
        )
    ]


def test_inspect_shows_it_like_any_other_hole(storage: Storage) -> None:
    run(storage, "one", [(40, 100), (100, 200), (200, 300), (300, 400)], [(100, 200), (300, 400)])
    shown = CliRunner().invoke(app, ["inspect", storage.uri, "--partitions"])
    (row,) = [line for line in shown.stdout.splitlines() if line.startswith("orders") and "100 to 399" in line]
    assert row.rstrip().endswith(" 40 to 99, 200 to 299")
    (topic,) = json.loads(CliRunner().invoke(app, ["inspect", storage.uri, "-o", "json"]).stdout)["topics"]
    assert [part["holes"] for part in topic["partitions"]] == [[[40, 100], [200, 300]], []]


def test_beginning_is_known_also_behind_later_runs(storage: Storage) -> None:
    run(storage, "one", [(40, 100), (100, 200), (200, 300)], [(200, 300)])
    run(storage, "two", [(40, 120), (120, 200)], [(120, 200)])
    archive = run(storage, "three", [(300, 400)], [(300, 400)], outcome=RunOutcome.SUCCEEDED)
    assert beginnings(archive) == {0: 40}


def test_archive_that_began_where_its_plan_did_misses_nothing(storage: Storage) -> None:
    archive = run(storage, "one", [(40, 100), (100, 200), (200, 300)], [(40, 100), (200, 300)])
    assert beginnings(archive) == {}
    assert [fault.offset for fault in verify(archive).faults] == [100]


def test_beginning_that_was_filled_is_missed_no_more(storage: Storage) -> None:
    run(storage, "one", [(0, 100), (100, 200)], [(100, 200)])
    gap = Gap(ID, 0, 0, 50, REASON_RETENTION)
    archive = run(storage, "two", [(50, 100)], [(50, 100)], outcome=RunOutcome.SUCCEEDED, gaps=(gap,))
    assert beginnings(archive) == {}
    assert verify(archive).faults == []


def test_conversion_that_was_killed_misses_its_beginning_too(storage: Storage) -> None:
    archive = run(storage, "one", [], [(100, 200)])
    chunks = [
        convert_plan.ConvertChunk(number, ID, 0, start, start + 100, 10) for number, start in enumerate((0, 100, 200))
    ]
    plan = convert_plan.ConvertPlan("one", "source", "target", {}, (ORDERS,), (), (), tuple(chunks))
    storage.delete(["runs/one/plan.json"])
    storage.put("runs/one/convert-plan.json", plan.to_json())
    assert beginnings(archive) == {0: 0}


def test_plan_of_which_nothing_was_archived_says_nothing(storage: Storage) -> None:
    """It was refused, say, and until the next run Kafka's retention continued."""
    run(storage, "refused", [(0, 200), (200, 400)], [])
    archive = run(storage, "one", [(50, 400)], [(50, 400)], outcome=RunOutcome.SUCCEEDED)
    assert beginnings(archive) == {}


def test_a_refused_plan_says_nothing_when_retention_has_removed_the_first_segments(storage: Storage) -> None:
    run(storage, "refused", [(0, 200), (200, 400)], [])
    done = [(250, 400), (400, 500)]
    archive = run(storage, "one", done, done, outcome=RunOutcome.SUCCEEDED)
    assert beginnings(archive) == {}
    with begin(storage, "two") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        writer.remove([RemovedSegment(ID, 0, 250)])
    assert beginnings(Archive.open(storage)) == {}
    assert verify(Archive.open(storage)).faults == []


def test_first_offset_may_lie_after_a_batch_of_the_chunk_that_failed(storage: Storage) -> None:
    archive = run(storage, "one", [(40, 100), (100, 200), (200, 300)], [(120, 200)])
    assert beginnings(archive) == {0: 40}
    with begin(storage, "one") as writer:  # the next attempt, which has another epoch
        writer.end(RunOutcome.FAILED)
    assert beginnings(archive) == {0: 40}
    archive = run(storage, "two", [(40, 120)], [(40, 120)], outcome=RunOutcome.SUCCEEDED)
    assert beginnings(archive) == {}


def test_first_offset_that_is_settled_without_a_segment_is_enough(storage: Storage) -> None:
    gap = Gap(ID, 0, 120, 200, REASON_RETENTION)
    archive = run(storage, "one", [(40, 100), (100, 200), (200, 300)], [(200, 300)], gaps=(gap,))
    assert beginnings(archive) == {0: 40}


def test_first_offset_inside_a_later_chunk_of_a_plan_of_which_nothing_was_archived_says_nothing(
    storage: Storage,
) -> None:
    run(storage, "refused", [(0, 200), (200, 400)], [])
    archive = run(storage, "one", [(250, 400)], [(250, 400)], outcome=RunOutcome.SUCCEEDED)
    with begin(storage, "third") as writer:
        writer.end(RunOutcome.FAILED)
    assert beginnings(archive) == {}


@pytest.mark.parametrize("plan", [None, b"", b"[]", b"{}", json.dumps({"topics": [], "chunks": [[0, 0, 1]]}).encode()])
def test_plan_that_is_gone_or_none_is_left_out(storage: Storage, plan: bytes | None) -> None:
    archive = run(storage, "one", [(0, 100), (100, 200)], [(100, 200)])
    storage.delete(["runs/one/plan.json"])
    if plan is not None:
        storage.put("runs/one/plan.json", plan)
    assert beginnings(archive) == {}
    assert verify(archive).faults == []


def test_no_plan_is_read_of_an_archive_whose_runs_succeeded(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = run(storage, "one", [(40, 100)], [(40, 100)], outcome=RunOutcome.SUCCEEDED)
    state = archive.load()
    monkeypatch.setattr(type(storage), "read", lambda *_: pytest.fail("a plan was read"))
    assert missing_beginnings(archive, state) == {}


def test_a_generation_begins_where_the_log_did_then_and_misses_nothing_below(storage: Storage) -> None:
    """Compaction has left no segment at its first offsets, so nothing tells of which run they are."""
    run(storage, "one", [(0, 40), (40, 100)], [(0, 40)])
    run(storage, "two", [(40, 100)], [(40, 100)], outcome=RunOutcome.SUCCEEDED)
    with begin(storage, "three") as writer:
        writer.change_generations([GenerationChange(ID, 0, 2, GenerationStep.BEGIN, 50, 100)])
        writer.commit(receipts=[Receipt((Coverage(ID, 0, 50, 100),), generation=2)])
        writer.change_generations([GenerationChange(ID, 0, 2, GenerationStep.ACTIVATE, 50, 100)])
        writer.end(RunOutcome.SUCCEEDED)
    archive = Archive.open(storage)
    assert archive.load().accounted_for(ID, 0) == [(50, 100)]
    assert beginnings(archive) == {}
    assert verify(archive).faults == []
