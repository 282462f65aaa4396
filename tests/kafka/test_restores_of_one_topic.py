"""Two restores write to one topic, and one or both of them hold it: what one lets go is also the other's."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.contract.restore_spec import parse_restore
from logkeep_engine.errors import TargetUnsuitable
from logkeep_engine.restore.run.opening import open_run
from logkeep_engine.restore.run.releasing import ReleaseOutcome, release
from tests.cluster.kafka import KafkaBroker
from tests.data.topics import NO_RETENTION, create_topic
from tests.kafka.raw import eventually
from tests.kafka.restores import ThreadRunner, bring_back, committed, topic_settings
from tests.kafka.test_restore_retention import DAY, HELD, filled, released, spec_of
from tests.runners import Job


def archived_beside(kafka: KafkaBroker, unique: str, folder: Path, configs: Mapping[str, str]) -> tuple[Path, str]:
    """Make an archive of 300 records, and a topic of these configs to which they can be appended."""
    root, copy = folder / "archive", f"{unique}-copy"
    filled(kafka, unique, root, **NO_RETENTION)
    create_topic(kafka.bootstrap, copy, 1, configs)
    return root, copy


def test_the_second_is_refused_until_the_first_is_released(
    kafka: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, copy = archived_beside(kafka, unique, tmp_path, {"retention.ms": str(2 * DAY)})
    second = {**spec_of(kafka, root, "Hold"), "ifTopicExists": "Append"}
    first = {**second, "topics": {**second["topics"], "holdFor": "1h"}}
    assert bring_back(first).records == 300
    with pytest.raises(TargetUnsuitable) as error:
        bring_back(second, "restore-2")
    assert f"another restore holds these topics already: {copy} (run restore-1)" in error.value.message
    dry = bring_back({**second, "dryRun": True}, "dry-1")
    assert dry.dry_run is not None
    assert [f"{copy} (run restore-1)" in refusal.message for refusal in dry.dry_run.refusals] == [True]
    assert "Released" in released(first, root)
    assert topic_settings(kafka, copy) == {"retention.ms": str(2 * DAY)}
    assert bring_back(second, "restore-2").warnings == ()
    there = len(committed(kafka, copy))
    now = time.time  # the time of the first is over in an hour
    monkeypatch.setattr("logkeep_engine.restore.run.releasing.time.time", lambda: now() + 7200)
    with open_run(parse_restore(first), "restore-1", os.environ) as context:
        assert [item.outcome for item in release(context, in_time=True)] == [ReleaseOutcome.NOT_HELD]
    assert topic_settings(kafka, copy) == HELD
    assert len(committed(kafka, copy)) == there >= 300


def test_a_topic_that_keeps_all_by_itself_stays_as_it_is(kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
    root, copy = archived_beside(kafka, unique, tmp_path, HELD)
    spec = {**spec_of(kafka, root, "Hold"), "ifTopicExists": "Append"}
    (warning,) = bring_back(spec).warnings
    assert f"retention.bytes=-1 already, which their release leaves: {copy}" in warning
    released(spec, root)
    assert topic_settings(kafka, copy) == HELD
    assert len(committed(kafka, copy)) == 300


@pytest.mark.parametrize("retention", ["Apply", "Refuse"])
def test_one_that_holds_nothing_is_warned_of_the_release_of_the_other(
    kafka: KafkaBroker, unique: str, tmp_path: Path, retention: str
) -> None:
    root, copy = archived_beside(kafka, unique, tmp_path, {"retention.ms": str(2 * DAY)})
    first = {**spec_of(kafka, root, "Hold"), "ifTopicExists": "Append"}
    assert bring_back(first).warnings == ()
    second = {**spec_of(kafka, root, retention), "ifTopicExists": "Append"}
    for result in (bring_back({**second, "dryRun": True}, "dry-1"), bring_back(second, "restore-2")):
        (reported,) = result.warnings
        assert reported.startswith(
            f"another restore holds these topics: {copy} (run restore-1). Once they are released"
        )
    assert len(committed(kafka, copy)) == 600
    released(first, root)
    eventually(lambda: committed(kafka, copy) == [])  # as it was told


def killed(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


def begin_and_die(spec: Mapping[str, Any], run_id: str, at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a run that has its plan, and dies before its topics are held: `at` is what it does not come to."""
    with monkeypatch.context() as patch:
        patch.setattr(at, killed)
        with pytest.raises(KeyboardInterrupt):
            bring_back(spec, run_id)


BEFORE_ITS_NOTE = "logkeep_engine.restore.run.restoring.hold_existing"
BEHIND_ITS_NOTE = "logkeep_engine.kafka.control.ControlPlane.alter_topic_configs"


def test_the_second_is_refused_while_a_release_of_the_first_is_not_at_its_end(
    kafka: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, copy = archived_beside(kafka, unique, tmp_path, {"retention.ms": str(2 * DAY)})
    spec = {**spec_of(kafka, root, "Hold"), "ifTopicExists": "Append"}
    bring_back(spec)
    with monkeypatch.context() as patch, open_run(parse_restore(spec), "restore-1", os.environ) as context:
        patch.setattr("logkeep_engine.restore.run.releasing.note_released", killed)
        with pytest.raises(KeyboardInterrupt):
            release(context)
    assert topic_settings(kafka, copy) == {"retention.ms": str(2 * DAY)}
    with pytest.raises(TargetUnsuitable, match=rf"holds these topics already: {copy} \(run restore-1\)"):
        bring_back(spec, "restore-2")
    assert "ReleasedBefore" in released(spec, root)
    assert bring_back(spec, "restore-2").held_topics is not None
    assert "NotHeld" in released(spec, root)
    assert topic_settings(kafka, copy) == HELD


@pytest.mark.parametrize("at", [BEFORE_ITS_NOTE, BEHIND_ITS_NOTE])
def test_a_run_that_is_started_again_holds_no_topic_that_another_one_holds_since(
    kafka: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    root, copy = archived_beside(kafka, unique, tmp_path, {"retention.ms": str(90 * DAY)})
    spec = {**spec_of(kafka, root, "Hold"), "ifTopicExists": "Append"}
    begin_and_die(spec, "restore-2", at, monkeypatch)
    assert bring_back(spec).held_topics is not None
    with pytest.raises(TargetUnsuitable, match=rf"{copy} \(run restore-1\); nothing more was written"):
        bring_back(spec, "restore-2")
    assert len(committed(kafka, copy)) == 300
    released(spec, root)
    assert bring_back(spec, "restore-2").held_topics is not None
    assert len(committed(kafka, copy)) == 600
    released(spec, root, run_id="restore-2")
    assert topic_settings(kafka, copy) == {"retention.ms": str(90 * DAY)}


class Beside(ThreadRunner):
    """Another run is started when all records are there."""

    def __init__(self, spec: Mapping[str, Any], run_id: str) -> None:
        super().__init__()
        self._spec = spec
        self._run_id = run_id

    def perform(self, job: Job) -> None:
        super().perform(job)
        if job.name == "restore_partitions":
            bring_back(self._spec, self._run_id)


def test_of_two_that_hold_a_topic_at_once_the_first_release_leaves_it_alone(
    kafka: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, copy = archived_beside(kafka, unique, tmp_path, {"retention.ms": str(2 * DAY)})
    spec = {**spec_of(kafka, root, "Hold"), "ifTopicExists": "Append"}
    begin_and_die(spec, "restore-2", BEHIND_ITS_NOTE, monkeypatch)
    assert bring_back(spec, runner=Beside(spec, "restore-2")).held_topics is not None
    assert len(committed(kafka, copy)) == 600
    assert "NotHeld" in released(spec, root)
    assert topic_settings(kafka, copy) == HELD
    assert "Released" in released(spec, root, run_id="restore-2")
    assert topic_settings(kafka, copy) == {"retention.ms": str(2 * DAY)}
