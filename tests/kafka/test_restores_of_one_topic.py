"""Two restores write to one topic, and one or both of them hold it: what one lets go is also the other's."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from logkeep_engine.contract.spec import parse_restore
from logkeep_engine.errors import TargetUnsuitable
from logkeep_engine.restore.held_topics import ReleaseOutcome, release
from logkeep_engine.restore.opening import open_run
from tests.cluster.kafka import KafkaBroker
from tests.data.topics import NO_RETENTION, create_topic
from tests.kafka.raw import eventually
from tests.kafka.restores import bring_back, committed, topic_settings
from tests.kafka.test_restore_retention import DAY, HELD, filled, released, spec_of


def test_the_second_is_refused_until_the_first_is_released(
    kafka: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, copy = tmp_path / "archive", f"{unique}-copy"
    filled(kafka, unique, root, **NO_RETENTION)
    create_topic(kafka.bootstrap, copy, 1, {"retention.ms": str(2 * DAY)})
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
    monkeypatch.setattr("logkeep_engine.restore.held_topics.time.time", lambda: now() + 7200)
    with open_run(parse_restore(first), "restore-1", os.environ) as context:
        assert [item.outcome for item in release(context, in_time=True)] == [ReleaseOutcome.NOT_HELD]
    assert topic_settings(kafka, copy) == HELD
    assert len(committed(kafka, copy)) == there >= 300


def test_a_topic_that_keeps_all_by_itself_stays_as_it_is(kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
    root, copy = tmp_path / "archive", f"{unique}-copy"
    filled(kafka, unique, root, **NO_RETENTION)
    create_topic(kafka.bootstrap, copy, 1, HELD)
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
    root, copy = tmp_path / "archive", f"{unique}-copy"
    filled(kafka, unique, root, **NO_RETENTION)
    create_topic(kafka.bootstrap, copy, 1, {"retention.ms": str(2 * DAY)})
    first = {**spec_of(kafka, root, "Hold"), "ifTopicExists": "Append"}
    assert bring_back(first).warnings == ()
    second = {**spec_of(kafka, root, retention), "ifTopicExists": "Append"}
    for result in (bring_back({**second, "dryRun": True}, "dry-1"), bring_back(second, "restore-2")):
        (told,) = result.warnings
        assert told.startswith(f"another restore holds these topics: {copy} (run restore-1). Once they are released")
    assert len(committed(kafka, copy)) == 600
    released(first, root)
    eventually(lambda: committed(kafka, copy) == [])  # as it was told
