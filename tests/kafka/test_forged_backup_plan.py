"""The stored plan of a backup is a claim: whoever may write to the bucket could have put it there."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.writer import begin_run
from logkeep_engine.contract.model import replace
from tests.kafka.backing_up import FOR_TEST, WATCH, Backups, Topics, folder_spec

RUN = "run-1"
BEFORE = "it was there before run run-1 had stored a plan"
PLAN = names.run_file(RUN, "plan.json")


@pytest.fixture
def two(topics: Topics, unique: str) -> tuple[str, str]:
    """A topic that the spec chooses and one that it does not, of ten records each."""
    wanted, private = topics.create(f"{unique}-orders"), topics.create(f"{unique}-private")
    for name in (wanted, private):
        topics.produce(name, [b"%d" % number for number in range(10)])
    return wanted, private


def plan_of(backups: Backups, topic: str, folder: Path) -> dict[str, Any]:
    """The plan of a backup of the topic into another archive."""
    elsewhere = replace(backups, storage_spec=folder_spec(folder / "elsewhere"))
    assert elsewhere.run(topic, run_id=RUN).outcome == "Succeeded"
    plan: dict[str, Any] = json.loads(elsewhere.storage.read(PLAN))
    return plan


def begun(backups: Backups, plan: dict[str, Any]) -> dict[str, Any]:
    """The run has begun once, and has stored no plan. Returns the plan with the time of that, which whoever reads the
    catalog knows."""
    archive = Archive.create_or_open(backups.storage, backups.broker.cluster_id, claim=FOR_TEST)
    with begin_run(archive, RUN, wait=WATCH) as writer:
        return plan | {"begun": writer.state.runs[RUN].begin_time}


def put(backups: Backups, plan: dict[str, Any]) -> None:
    backups.storage.put(PLAN, json.dumps(plan).encode())


def archived(backups: Backups) -> dict[str, int]:
    """The records of each topic that the archive has."""
    state = backups.state()
    found = {state.topics[key[0]].name: rows.sums()[0] for key, rows in state.segments.items()}
    return {name: records for name, records in found.items() if records}


@pytest.mark.parametrize(
    ("attempt", "change", "what", "code"),
    [
        (1, lambda plan, _: plan | {"topics": [], "chunks": [], "leaders": "none"}, BEFORE, "StateAltered"),
        (1, lambda plan, _: plan, "a plan from a start that the catalog does not know", "ArchiveDamaged"),
        (2, lambda plan, _: plan, "which spec.topics does not choose", "StateAltered"),
        (
            2,
            lambda plan, wanted: plan | {"topics": [{**plan["topics"][0], "name": wanted}]},
            "has the id of topic",
            "StateAltered",
        ),
        (
            2,
            lambda plan, wanted: plan | {"topics": 7},
            "not a plan of a backup: topics is 7",
            "StateAltered",
        ),
        (
            2,
            lambda plan, _: plan | {"gaps": [["AAAAAAAAAAAAAAAAAAAAAQ", 0, 0, 10, "deleted"]]},
            "it calls records of topic id AAAAAAAAAAAAAAAAAAAAAQ lost, which the archive does not know",
            "StateAltered",
        ),
        (2, lambda plan, _: plan | {"runId": "other"}, "it is the plan of run other", "StateAltered"),
    ],
    ids=[
        "nothing to do",
        "another topic",
        "another topic later",
        "another topic's id",
        "no plan",
        "a topic that nobody knows",
        "another run's",
    ],
)
def test_a_plan_that_somebody_has_put_there_is_not_done(
    backups: Backups,
    two: tuple[str, str],
    tmp_path: Path,
    change: Callable[..., Any],
    what: str,
    attempt: int,
    code: str,
) -> None:
    wanted, private = two
    forged = change(plan_of(backups, private, tmp_path), wanted)
    if attempt == 2:
        forged = begun(backups, forged)
    put(backups, forged)
    result = backups.run(wanted, run_id=RUN)
    assert result.error_code == code, result
    assert what in result.message
    assert archived(backups) == {}
    assert backups.run(wanted, run_id="run-2").outcome == "Succeeded"
    assert archived(backups) == {wanted: 10}


def test_a_plan_that_calls_records_lost_which_are_there_is_not_done(
    backups: Backups, two: tuple[str, str], tmp_path: Path
) -> None:
    plan = plan_of(backups, two[0], tmp_path)
    gap = [plan["topics"][0]["topicId"], 0, 0, 10, "retention"]
    put(backups, begun(backups, plan) | {"chunks": [], "gaps": [gap]})
    result = backups.run(two[0], run_id=RUN, onDataLoss="Record")
    assert result.error_code == "StateAltered", result
    assert "partition 0 has lost the records up to offset 10, and its log begins at offset 0" in result.message


def test_a_plan_of_the_run_itself_is_gone_on_with(backups: Backups, two: tuple[str, str], tmp_path: Path) -> None:
    plan = plan_of(backups, two[0], tmp_path)
    put(backups, begun(backups, plan))
    assert backups.run(two[0], run_id=RUN).outcome == "Succeeded"
    assert archived(backups) == {two[0]: 10}
