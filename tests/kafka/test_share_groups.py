"""Share groups (KIP-932) of a real broker: a backup archives where they begin, and a restore sets it."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import Layout
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.restore_spec import parse_restore
from logkeep_engine.errors import SpecError
from logkeep_engine.kafka.configs import GROUP
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.groups import SHARE_OFF, STAYS, GroupAdmin, GroupPosition
from logkeep_engine.kafka.resource_configs import ResourceConfig
from logkeep_engine.kafka.share_groups import DELETE
from logkeep_engine.restore.positions.moves import PositionOutcome
from logkeep_engine.restore.run.group_commands import Changed, open_groups
from logkeep_engine.storage import open_uri
from tests.cluster.kafka import STEADY, KafkaBroker
from tests.cluster.process import wait_until
from tests.command import logkeep
from tests.data.topics import NO_RETENTION, Record, commit_positions, create_topic, produce, wait_until_led
from tests.kafka.raw import eventually
from tests.kafka.record_archives import group, topic_entry, write_archive
from tests.kafka.restores import back_up, backup_spec, bring_back, restore_spec
from tests.kafka.test_cli import assert_refused
from tests.kafka.test_restore_formats import numbered
from tests.kafka.test_restore_groups import TRANSLATE, positions, rows, warned
from tests.kafka.test_restored_groups import run, said

pytestmark = pytest.mark.since("4.2")


@pytest.fixture(scope="module")
def sharing() -> Iterator[KafkaBroker]:
    """A broker whose share groups nobody else sees."""
    with KafkaBroker(overrides=STEADY) as broker:
        # The coordinator of this topic knows no topics before the metadata changes once more.
        create_topic(broker.bootstrap, "__share_group_state", 1, {"cleanup.policy": "delete"})
        create_topic(broker.bootstrap, "one-more-change")
        yield broker


def starts(broker: KafkaBroker, group: str) -> tuple[GroupPosition, ...]:
    return ControlPlane(KafkaConnection((broker.bootstrap,))).share_starts([group]).offsets


def begin_to_share(broker: KafkaBroker, group: str, topic: str) -> None:
    """Let a member of a share group read in the topic until the group has a start there, and leave."""
    records = [Record(None, b"x", 1_700_000_000_000)] * 5
    produce(broker.bootstrap, topic, records)
    consumer = ("org.apache.kafka.tools.consumer.ConsoleShareConsumer", "--bootstrap-server", broker.bootstrap)
    command = [*broker._java("WARN"), *consumer, "--topic", topic, "--group", group]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as member:
        try:

            def has_begun() -> bool:  # with the first record that is read
                produce(broker.bootstrap, topic, records)
                return bool(starts(broker, group))

            wait_until(has_begun, 120, "the share group to begin")
        finally:
            member.terminate()
    control = ControlPlane(KafkaConnection((broker.bootstrap,)))
    wait_until(lambda: not control.listed_groups()[group].has_members, 120, "the member to leave")


@pytest.fixture(scope="module")
def queue(sharing: KafkaBroker) -> str:
    """A topic, and a share group of its name that has read in it and has no members any more."""
    topic = "queue"
    create_topic(sharing.bootstrap, topic, config=NO_RETENTION)
    begin_to_share(sharing, topic, topic)
    return topic


def test_a_backup_archives_where_share_groups_begin(sharing: KafkaBroker, queue: str, tmp_path: Path) -> None:
    commit_positions(sharing.bootstrap, "plain", {(queue, 0): 2})
    reported = {(item.partition, item.offset) for item in starts(sharing, queue)}
    back_up(backup_spec(sharing, tmp_path, queue))
    archived = Archive.open(open_uri(tmp_path.as_uri())).load()
    found = {(item.partition, item.offset) for item in archived.groups if item.share}
    assert found == reported
    assert {item.group_id for item in archived.groups if item.share} == {queue}
    assert [(item.group_id, item.offset) for item in archived.groups if not item.share] == [("plain", 2)]
    shown = logkeep("inspect", tmp_path.as_uri())
    assert f"{queue} (share group)" in shown.stdout
    groups = json.loads(logkeep("inspect", tmp_path.as_uri(), "-o", "json").stdout)["groups"]
    assert [(group["groupId"], group["share"]) for group in groups] == [("plain", False), (queue, True)]


def test_a_restore_sets_where_share_groups_begin(sharing: KafkaBroker, queue: str, tmp_path: Path) -> None:
    """Kafka 4.1 answers that all went well, and sets nothing: tests/unit/kafka/test_share_groups.py has its answer."""
    (begins,) = [item.offset for item in starts(sharing, queue) if item.topic == queue]
    back_up(backup_spec(sharing, tmp_path, queue, consumerGroups={"include": [queue]}))
    result = bring_back(restore_spec(sharing, tmp_path, consumerGroups=TRANSLATE))
    assert (result.outcome, result.groups, result.warnings) == ("Succeeded", 1, ())
    assert [item.offset for item in starts(sharing, queue) if item.topic == f"{queue}-copy"] == [begins]
    assert {row[6] for row in rows(tmp_path)} == {"set"}


def work(broker: KafkaBroker, group: str, topic: str, enough: Callable[[list[str]], bool], output: Path) -> list[str]:
    """Let a member of a share group work until the values that it has taken are enough. Returns them, sorted."""
    consumer = ("org.apache.kafka.tools.consumer.ConsoleShareConsumer", "--bootstrap-server", broker.bootstrap)
    command = [*broker._java("WARN"), *consumer, "--topic", topic, "--group", group]
    with output.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL) as member:
        try:
            wait_until(lambda: enough(sorted(output.read_text().split())), 120, f"group {group} to do its work")
        finally:
            member.terminate()
    control = ControlPlane(KafkaConnection((broker.bootstrap,)))
    wait_until(lambda: not control.listed_groups()[group].has_members, 120, "the member to leave")
    return sorted(output.read_text().split())


def test_a_restored_share_group_continues_with_the_records_that_were_not_done(
    sharing: KafkaBroker, tmp_path: Path
) -> None:
    """In a partition that it had begun, and in one that it had not: there it begins where its configuration says."""
    control = ControlPlane(KafkaConnection((sharing.bootstrap,)))
    reset = ResourceConfig(GROUP, "workers", "share.auto.offset.reset", "earliest")
    assert control.set_resource_configs([reset]) == []
    eventually(lambda: reset in (control.resource_configs().items or ()))

    def write(partition: int, *values: str) -> None:
        records = [Record(None, value.encode(), 1_700_000_000_000, [], partition) for value in values]
        produce(sharing.bootstrap, "jobs", records)

    def begins_at_3(_: list[str]) -> bool:
        """Whether the group begins after the first records. Its coordinator learns that with the next ones."""
        found = {item.offset for item in starts(sharing, "workers")}
        if found == {0}:
            write(0, "d")
        return bool(found) and min(found) >= 3

    create_topic(sharing.bootstrap, "jobs", 1, NO_RETENTION)
    write(0, "a", "b", "c")
    work(sharing, "workers", "jobs", begins_at_3, tmp_path / "out")
    (begins,) = [item.offset for item in starts(sharing, "workers")]
    admin = AdminClient({"bootstrap.servers": sharing.bootstrap})
    for done in admin.create_partitions([NewPartitions("jobs", 2)]).values():
        done.result(30)
    wait_until_led(sharing.bootstrap, "jobs", [1])
    write(0, "e")
    write(1, "f")
    groups = {**TRANSLATE, "include": ["workers"], "rename": [{"from": "(.*)", "to": r"copy.\1"}]}
    root = tmp_path / "archive"
    back_up(backup_spec(sharing, root, "jobs"))
    spec = restore_spec(sharing, root, consumerGroups=groups)
    dry = bring_back({**spec, "dryRun": True}, "dry-1")
    assert (dry.dry_run is not None and dry.dry_run.refusals, dry.warnings) == ((), ())
    assert reset._replace(name="copy.workers") not in (control.resource_configs().items or ())
    result = bring_back(spec)
    assert (result.outcome, result.groups, result.warnings) == ("Succeeded", 1, ())
    eventually(lambda: reset._replace(name="copy.workers") in (control.resource_configs().items or ()))
    assert [(item.partition, item.offset) for item in starts(sharing, "copy.workers")] == [(0, begins)]
    again = work(sharing, "copy.workers", "jobs-copy", lambda values: {"e", "f"} <= set(values), tmp_path / "again")
    assert (set(again) <= {"d", "e", "f"}, again[-2:]) == (True, ["e", "f"])


class TakenBack:
    """A restore of a share group and a consumer group into two partitions, which `logkeep groups` takes back."""

    def __init__(self, broker: KafkaBroker, root: Path, topic: str, *, exists: bool = False) -> None:
        self.broker, self.root, self.topic, self.copy, self.group = broker, root, topic, f"{topic}-copy", f"{topic}-s"
        self.spec = restore_spec(broker, root, consumerGroups=TRANSLATE)
        if exists:
            create_topic(broker.bootstrap, self.copy, 2, NO_RETENTION)
            self.spec["ifTopicExists"] = "Append"
        entry = topic_entry(topic, 2)
        shared = [replace(group(self.group, entry, 6 + 2 * number, number), share=True) for number in range(2)]
        groups = [*shared, group(f"{topic}-c", entry, 6)]
        write_archive(root, Layout.RECORDS, entry, {0: numbered(10, step=2), 1: numbered(10, step=2)}, groups=groups)

    def found(self) -> dict[int, int]:
        assert {item.topic for item in starts(self.broker, self.group)} <= {self.copy}
        return {item.partition: item.offset for item in starts(self.broker, self.group)}

    def restore(self, positions: int) -> None:
        assert bring_back(self.spec).groups == positions

    def begin(self, partition: int, offset: int) -> None:
        wanted = GroupPosition(self.group, self.copy, partition, offset, -1, "", share=True)
        assert ControlPlane(KafkaConnection((self.broker.bootstrap,))).set_group_offsets([wanted]) == []

    def asked(self, command: str) -> "subprocess.CompletedProcess[str]":
        return run(command, self.root, self.spec, "-o", "json")

    def rolled_back(self) -> Changed:
        """The rollback in this process."""
        spec = parse_restore(self.spec)
        with open_groups(spec, "restore-1", os.environ) as opened:
            return opened.rollback(spec.consumer_groups)

    def refuse_more(self) -> None:
        assert_refused(self.asked("rollback"), "has changed no position of a consumer group that was not rolled back")


def test_a_rollback_deletes_start_offsets_that_were_not_there(
    sharing: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    restored = TakenBack(sharing, tmp_path, unique)
    restored.restore(3)
    assert restored.found() == {0: 3, 1: 4}
    rows = said(restored.asked("rollback"))["positions"]
    assert {(row["now"], row["offset"], row["outcome"]) for row in rows} == {(3, None, "set"), (4, None, "set")}
    assert (restored.found(), positions(sharing, f"{unique}-c")) == ({}, {})
    restored.refuse_more()


def test_a_rollback_sets_start_offsets_that_were_there_and_deletes_the_others_of_their_topic(
    sharing: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    restored = TakenBack(sharing, tmp_path, unique, exists=True)
    del restored.spec["consumerGroups"]
    restored.begin(0, 1)
    restored.restore(0)
    said(restored.asked("reset"))
    assert restored.found() == {0: 3, 1: 4}
    said(restored.asked("rollback"))
    assert restored.found() == {0: 1}


def test_a_rollback_continues_and_ends_where_a_start_offset_cannot_be_deleted(
    sharing: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    """The restore has left the other partition of the topic alone, and so does the rollback."""
    restored = TakenBack(sharing, tmp_path, unique, exists=True)
    restored.begin(0, 1)
    restored.restore(2)
    done = restored.asked("rollback")
    assert done.returncode == 5
    assert "error: the cluster has refused 1 of 2 positions, which stay" in done.stderr
    reported = {row["group"]: (row["outcome"], row["reason"]) for row in json.loads(done.stdout)["positions"]}
    assert reported[f"{unique}-c"] == ("set", "")
    (outcome, reason) = reported[restored.group]
    assert (outcome, reason in STAYS, "another partition has one" in reason) == ("refused", True, True)
    assert (restored.found(), positions(sharing, f"{unique}-c")) == ({0: 1, 1: 4}, {})
    restored.refuse_more()


def power_cut(*_: Any) -> Any:
    raise RuntimeError("power cut")


def test_a_rollback_of_a_reset_that_died_leaves_start_offsets_alone_that_the_group_has_by_itself(
    sharing: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restored = TakenBack(sharing, tmp_path, unique, exists=True)
    reset = parse_restore(restored.spec).consumer_groups
    del restored.spec["consumerGroups"]
    restored.restore(0)
    with (
        monkeypatch.context() as patch,
        open_groups(parse_restore(restored.spec), "restore-1", os.environ) as opened,
    ):
        patch.setattr(GroupAdmin, "set_group_offsets", power_cut)
        with pytest.raises(RuntimeError, match="power cut"):
            opened.reset(reset)
    restored.begin(0, 2)  # by itself
    restored.begin(1, 4)  # as the reset was to set it: nothing tells them apart, and it stays with the other one
    done = restored.asked("rollback")
    assert done.returncode == 5
    rows = json.loads(done.stdout)["positions"]
    reported = {(row["group"], row["partition"]): (row["outcome"], row["reason"]) for row in rows}
    assert reported[restored.group, 0] == ("kept", "the group has offset 2 now, not offset 3 of the change")
    assert (reported[restored.group, 1][0], reported[restored.group, 1][1] in STAYS) == ("refused", True)
    assert restored.found() == {0: 2, 1: 4}
    restored.refuse_more()


def test_a_rollback_that_died_after_its_deletion_sets_the_start_offsets_that_went_along(
    sharing: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restored = TakenBack(sharing, tmp_path, unique, exists=True)
    del restored.spec["consumerGroups"]
    restored.begin(0, 1)
    restored.restore(0)
    said(restored.asked("reset"))
    with monkeypatch.context() as patch:
        patch.setattr(GroupAdmin, "set_group_offsets", power_cut)
        with pytest.raises(RuntimeError, match="power cut"):
            restored.rolled_back()
    assert restored.found() == {}
    said(restored.asked("rollback"))
    assert restored.found() == {0: 1}
    restored.refuse_more()


@pytest.fixture
def no_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers that do not know the request which deletes start offsets."""
    speaks = GroupAdmin._speaks
    monkeypatch.setattr(GroupAdmin, "_speaks", lambda self, call: call.api_key != DELETE and speaks(self, call))


@pytest.mark.usefixtures("no_deletion")
def test_a_rollback_ends_where_brokers_have_no_request_to_delete_start_offsets(
    sharing: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    restored = TakenBack(sharing, tmp_path, unique)
    restored.restore(3)
    found = restored.rolled_back()
    assert (found.refused, restored.found(), positions(sharing, f"{unique}-c")) == (2, {0: 3, 1: 4}, {})
    reasons = {item.reason for item in found.positions if item.outcome is PositionOutcome.REFUSED}
    assert reasons <= STAYS
    assert "DeleteShareGroupOffsets" in reasons.pop()
    with pytest.raises(SpecError, match="has changed no position of a consumer group that was not rolled back"):
        restored.rolled_back()


@pytest.mark.usefixtures("no_deletion")
def test_a_rollback_of_start_offsets_that_somebody_has_deleted_has_nothing_to_do(
    sharing: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    restored = TakenBack(sharing, tmp_path, unique)
    restored.restore(3)
    command = ("--bootstrap-server", sharing.bootstrap, "--delete", "--group", restored.group)
    sharing.tool("org.apache.kafka.tools.consumer.group.ShareGroupCommand", *command)
    assert restored.rolled_back().refused == 0
    restored.refuse_more()


def test_where_share_groups_are_switched_off_everything_else_is_done(
    sharing: KafkaBroker, queue: str, tmp_path: Path
) -> None:
    """A cluster that was upgraded has the feature off, and may still list share groups: it is the last of these tests
    that needs them."""
    on, off = tmp_path / "on", tmp_path / "off"
    commit_positions(sharing.bootstrap, "plain", {(queue, 0): 2})
    assert back_up(backup_spec(sharing, on, queue)).warnings == ()
    downgrade = ("--bootstrap-server", sharing.bootstrap, "downgrade", "--feature", "share.version=0")
    sharing.tool("org.apache.kafka.tools.FeatureCommand", *downgrade)
    control = ControlPlane(KafkaConnection((sharing.bootstrap,)))
    wait_until(lambda: not control.features().get("share.version"), 60, "the feature to be off")
    assert control.listed_groups()[queue].is_share

    result = back_up(backup_spec(sharing, off, queue, consumerGroups={"include": [queue, "plain"]}))
    text = f"1 share group not archived: {queue!r}: {SHARE_OFF}"
    assert (result.outcome, result.warnings) == ("Succeeded", (text,))
    archived = Archive.open(open_uri(off.as_uri())).load()
    assert {(item.group_id, item.offset) for item in archived.groups} == {("plain", 2)}

    spec = restore_spec(sharing, on, suffix="-off", consumerGroups=TRANSLATE)
    would = f"1 share group would get no start offset: {queue!r}: {SHARE_OFF}"
    dry = bring_back({**spec, "dryRun": True}, "dry-1")
    assert dry.dry_run is not None
    assert (dry.dry_run.refusals, would in dry.warnings) == ((), True)
    result = bring_back(spec)
    assert (result.outcome, result.groups, would in result.warnings) == ("Succeeded", 1, True)
    assert warned(
        result, f"share group {queue!r}: 1 position not set", "kafka-features.sh upgrade --feature share.version=1"
    )
    assert {row[0]: row[6] for row in rows(on)} == {"plain": "set", queue: "refused"}

    spec = restore_spec(sharing, off, suffix="-of-off", consumerGroups=TRANSLATE)
    result = bring_back(spec)
    assert (result.outcome, result.groups, text in result.warnings) == ("Succeeded", 1, True)


def test_brokers_without_share_groups_have_none(kafka: KafkaBroker, unique: str) -> None:
    create_topic(kafka.bootstrap, unique)
    commit_positions(kafka.bootstrap, unique, {(unique, 0): 2})
    listed = ControlPlane(KafkaConnection((kafka.bootstrap,))).listed_groups()
    assert (listed[unique].commits_positions, listed[unique].is_share) == (True, False)
    assert not any(group.is_share for group in listed.values())
