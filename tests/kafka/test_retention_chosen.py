"""Retention of archives that hold topics which the spec does not choose."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.kafka import KafkaBroker
from tests.command import logkeep
from tests.data.topics import NO_RETENTION, Record, create_topic, delete_topics, produce
from tests.kafka.restores import back_up, bring_back, committed, restore_spec, try_backup
from tests.kafka.test_retention import DAY, NOW, Days


@pytest.fixture
def two(kafka: KafkaBroker, unique: str, tmp_path: Path) -> Days:
    """An archive of two topics, all of whose records are old. Its spec has become that of one of them, with a limit."""
    made = Days(kafka, unique, {"uri": (tmp_path / "archive").as_uri()}, topics={"include": [f"{unique}.*"]})
    create_topic(kafka.bootstrap, f"{unique}-other", 1, NO_RETENTION)
    produce(kafka.bootstrap, f"{unique}-other", [Record(b"k", b"1", NOW - 40 * DAY, [], 0)])
    made.archive(40, 39)
    made.spec |= {"topics": {"include": [unique]}, "retention": {"maxAge": "30d", "grace": "0s"}}
    return made


def names(days: Days) -> set[str]:
    """The topics of which the archive has a segment."""
    state = days.state
    return {state.topics[key[0]].name.removeprefix(days.topic) for key, rows in state.segments.items() if len(rows)}


def planned(days: Days) -> dict[str, Any]:
    """The findings of a dry run of the backup about its retention."""
    before = days.state.commit
    report = try_backup({**days.spec, "dryRun": True}, "dry").dry_run
    assert report is not None
    assert days.state.commit == before
    planned: dict[str, Any] = report.to_dict()["retention"]
    return planned


def test_topics_that_the_spec_does_not_choose_are_left_alone_and_told(two: Days, tmp_path: Path) -> None:
    reported = planned(two)
    assert [(item["topic"], item["segments"]) for item in reported["topicList"]] == [(two.topic, 2)]
    assert reported["topicsUnchosen"] == 1
    assert names(two) == {"", "-other"}

    result = back_up(two.spec, "narrow")

    assert names(two) == {"-other"}
    assert f"retention removed 2 segments, {reported['bytes']} bytes" in result.message
    assert any(
        "leaves 1 topic of the archive alone" in text and f"{two.topic}-other" in text for text in result.warnings
    )
    two.check()
    source = {**restore_spec(two.broker, Path("/")), "source": {"storage": two.storage}}
    assert bring_back(source).outcome == "Succeeded"
    assert [record[2] for record in committed(two.broker, f"{two.topic}-other-copy")] == [b"1"]
    file = tmp_path / "backup.yaml"
    file.write_text(json.dumps({"apiVersion": "logkeep.dev/v1alpha1", "kind": "KafkaBackup",
                                "metadata": {"name": "test"}, "spec": two.spec}))  # fmt: skip
    dry = logkeep("backup", "-f", str(file), "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "would remove nothing" in " ".join(dry.stdout.split())
    assert "leaves 1 topic of the archive alone" in dry.stderr
    done = logkeep("retention", "-f", str(file))
    assert done.returncode == 0, done.stderr
    assert "leaves 1 topic of the archive alone" in done.stderr
    assert names(two) == {"-other"}
    shown = logkeep("retention", "-f", str(file), "--dry-run")
    assert "spec.topics does not choose it" in " ".join(shown.stdout.split())
    two.spec["retention"]["topics"] = "All"
    assert [item["topic"] for item in planned(two)["topicList"]] == [f"{two.topic}-other"]
    file.write_text(file.read_text().replace('"maxAge"', '"topics": "All", "maxAge"'))
    printed = " ".join(logkeep("backup", "-f", str(file), "--dry-run").stdout.split())
    assert "retention would remove 1 segment of 1 topic" in printed
    assert f"{two.topic}-other 1 1 0" in printed
    assert back_up(two.spec, "all").message.startswith("retention removed 1 segment")
    assert names(two) == set()


def test_a_topic_that_has_left_the_cluster_is_chosen_by_its_name(two: Days, kafka: KafkaBroker) -> None:
    two.spec["topics"] = {"include": [f"{two.topic}.*"]}
    delete_topics(kafka.bootstrap, [f"{two.topic}-other"])
    assert {item["topic"] for item in planned(two)["topicList"]} == {two.topic, f"{two.topic}-other"}
    back_up(two.spec, "later")
    assert names(two) == set()
