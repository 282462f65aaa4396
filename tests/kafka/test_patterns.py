"""A pattern that chooses no group or topic is reported by name: a mistyped one does nothing, and all seems well."""

from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.errors import NothingToRestore, TopicExists
from logkeep_engine.storage import open_uri
from tests.cluster.kafka import KafkaBroker
from tests.command import logkeep
from tests.data.topics import NO_RETENTION, Record, commit_positions, create_topic, produce
from tests.kafka.restores import back_up, backup_spec, bring_back, restore_spec, try_backup
from tests.kafka.test_cli import assert_refused, resource
from tests.kafka.test_restored_groups import run

TYPO = "biling"


class Kept:
    """A topic in which a group of its name stands, and a backup whose spec chooses a group and holds a topic more."""

    def __init__(self, broker: KafkaBroker, topic: str, folder: Path) -> None:
        self.broker, self.topic, self.folder, self.root = broker, topic, folder, folder / "archive"
        create_topic(broker.bootstrap, topic, config=NO_RETENTION)
        produce(broker.bootstrap, topic, [Record(b"k", b"v", 1_700_000_000_000)] * 5)
        commit_positions(broker.bootstrap, topic, {(topic, 0): 2})
        groups = {"include": [topic, TYPO]}
        hold = {"topics": [f"{topic}-audit.*", topic]}
        self.spec = backup_spec(broker, self.root, topic, consumerGroups=groups, retention={"hold": hold})

    @property
    def uri(self) -> str:
        return self.root.as_uri()

    @property
    def hold_warning(self) -> str:
        hold = f"the hold on topics '{self.topic}-audit.*' protects nothing"
        return f"{hold}: it matches the whole name of no archived topic"

    def restoring(self, **groups: Any) -> dict[str, Any]:
        return restore_spec(self.broker, self.root, consumerGroups={"restore": "Translate", **groups})


@pytest.fixture
def kept(kafka: KafkaBroker, unique: str, tmp_path: Path) -> Kept:
    return Kept(kafka, unique, tmp_path)


def test_a_backup_and_its_dry_run_tell_groups_and_holds_that_are_not_there(kept: Kept) -> None:
    group_warning = (
        f"spec.consumerGroups.include[1] '{TYPO}' chooses no consumer group of the cluster that the user may describe"
    )
    dry = try_backup({**kept.spec, "dryRun": True}, "dry-1")
    assert sorted(dry.warnings) == [group_warning, kept.hold_warning]
    assert sorted(back_up(kept.spec).warnings) == [group_warning, kept.hold_warning]
    corrected = {**kept.spec, "consumerGroups": {"include": [kept.topic, ".*"]}, "retention": {}}
    assert back_up(corrected, "backup-2").warnings == ()


def test_a_restore_and_its_dry_run_tell_groups_that_are_not_there(kept: Kept) -> None:
    back_up(kept.spec)
    text = f"spec.consumerGroups.include[0] '{TYPO}' chooses no consumer group of the archive"
    spec = kept.restoring(include=[TYPO, kept.topic])
    assert bring_back({**spec, "dryRun": True}, "dry-1").warnings == (text,)
    result = bring_back(spec)
    assert (result.outcome, result.groups, result.warnings) == ("Succeeded", 1, (text,))
    point = {**spec, "point": {"run": "backup-1"}, "ifTopicExists": "Append"}
    assert f"{text} at spec.point" in bring_back(point, "restore-2").warnings


def test_a_restore_tells_rules_that_rename_nothing(kept: Kept) -> None:
    """A mistyped rule would leave what it is for the name that it has."""
    back_up(kept.spec)
    rule = [{"from": TYPO, "to": "other"}]
    spec = {**kept.restoring(include=[kept.topic], rename=rule), "topics": {"rename": rule}, "dryRun": True}
    assert sorted(bring_back({**spec, "ifTopicExists": "Append"}).warnings) == [
        f"spec.consumerGroups.rename[0] '{TYPO}' renames no consumer group that is restored",
        f"spec.topics.rename[0] '{TYPO}' renames no topic that is restored",
    ]


def test_a_mistyped_rule_is_reported_where_a_topic_is_there_already(kept: Kept) -> None:
    """The hint would have somebody delete the topic that the rule was to leave alone."""
    back_up(kept.spec)
    spec = {**kept.restoring(), "topics": {"rename": [{"from": TYPO, "to": "other"}]}}
    text = f"cluster; spec.topics.rename[0] '{TYPO}' renames no topic that is restored; nothing was written."
    dry = bring_back({**spec, "dryRun": True}).dry_run
    assert dry is not None
    with pytest.raises(TopicExists) as caught:
        bring_back(spec)
    for message in (dry.refusals[0].message, str(caught.value)):
        assert message.startswith(f"topic {kept.topic} already exists on the target {text} Delete them")


def test_a_point_without_positions_of_groups_is_reported(kept: Kept, tmp_path: Path) -> None:
    back_up(kept.spec)
    spec = {**kept.restoring(), "point": {"asOf": "2023-11-15T00:00:00Z"}}
    why = "its consumers begin where auto.offset.reset says: the archive holds no positions of consumer groups"
    text = f"{why} of the time before spec.point"
    assert bring_back({**spec, "dryRun": True}).warnings == (f"no consumer group would be moved, {text}",)
    assert bring_back(spec).warnings == (f"no consumer group was moved, {text}",)
    nothing = "no archived group that is chosen has a position in a restored topic at spec.point$"
    assert_refused(run("reset", tmp_path, spec), nothing)
    done = run("plan", tmp_path, spec)
    assert (done.returncode, done.stderr.strip()) == (0, nothing.rstrip("$"))
    mistyped = f"--include '{kept.topic}' chooses no consumer group of the archive at spec.point$"
    assert_refused(run("plan", tmp_path, spec, "--include", kept.topic), mistyped)


def test_a_point_before_all_records_is_what_to_check(kept: Kept) -> None:
    back_up(kept.spec)
    with pytest.raises(NothingToRestore, match=r"written\. Check spec\.point, spec\.source and spec\.topics\."):
        bring_back({**kept.restoring(), "point": {"asOf": "2020-01-01T00:00:00Z"}})


def test_the_commands_for_groups_refuse_groups_that_are_not_there(kept: Kept, tmp_path: Path) -> None:
    back_up(kept.spec)
    spec = restore_spec(kept.broker, kept.root)
    bring_back(spec)
    what = "chooses no consumer group of the archive$"
    for command in ("plan", "reset"):
        done = run(command, tmp_path, spec, "--include", kept.topic, "--include", TYPO)
        assert_refused(done, f"--include '{TYPO}' {what}")
    mistyped = tmp_path / "mistyped.yaml"
    mistyped.write_text(resource("KafkaRestore", kept.restoring(include=[TYPO])))
    done = logkeep("groups", "plan", "-f", str(mistyped))
    assert_refused(done, rf"spec\.consumerGroups\.include\[0\] '{TYPO}' {what}")
    assert run("reset", tmp_path, spec, "--include", kept.topic).returncode == 0


def test_a_hold_on_topics_that_are_not_there_is_refused(kept: Kept) -> None:
    back_up({**kept.spec, "retention": {}})
    before = Archive.open(open_uri(kept.uri)).load()
    for options in (["--topic", TYPO], ["--topic", kept.topic, "--topic", TYPO]):
        assert_refused(logkeep("hold", kept.uri, *options), f"--topic '{TYPO}' chooses no topic of the archive$")
    assert Archive.open(open_uri(kept.uri)).load().commit == before.commit
    assert_refused(logkeep("hold", kept.uri, "--release"), "--release releases nothing without --topic or --run$")
    done = logkeep("hold", kept.uri, "--topic", f"{kept.topic}.*", "--owner", "test")
    assert (done.returncode, done.stderr) == (0, "")
    assert_refused(
        logkeep("hold", kept.uri, "--topic", TYPO, "--release", "--owner", "test"), f"there is no hold on topics {TYPO}"
    )


def test_retention_and_its_dry_run_tell_holds_that_keep_nothing(kept: Kept, tmp_path: Path) -> None:
    back_up(kept.spec)
    file = tmp_path / "backup.yaml"
    file.write_text(resource("KafkaBackup", {**kept.spec, "retention": {**kept.spec["retention"], "keepRuns": 1}}))
    for options in ([], ["--dry-run"]):
        done = logkeep("retention", "-f", str(file), *options)
        assert (done.returncode, done.stderr) == (0, f"warning: {kept.hold_warning}\n")


def test_a_conversion_of_topics_that_are_not_there_is_refused(kept: Kept, tmp_path: Path) -> None:
    back_up(kept.spec)
    target = tmp_path / "target"
    options = ("--format", "Avro", "--topic", kept.topic, "--topic", TYPO)
    done = logkeep("convert", kept.uri, target.as_uri(), *options)
    assert_refused(done, f"--topic '{TYPO}' chooses no topic of the source")
    assert not target.exists()
