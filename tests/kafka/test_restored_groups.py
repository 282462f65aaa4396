"""`logkeep groups`, rename, and what a restore does before and after it sets positions, on a real broker."""

import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.archive.catalog.entry import Layout
from logkeep_engine.contract.restore_spec import parse_restore
from logkeep_engine.errors import BrokerUnavailable, PositionsDiffer, SpecError
from logkeep_engine.kafka.groups import GroupAdmin, GroupPosition, NotSet
from logkeep_engine.restore.positions.changes import ChangeLog
from logkeep_engine.restore.run.group_commands import open_groups
from tests.cluster.kafka import KafkaBroker
from tests.command import logkeep
from tests.data.topics import create_topic, delete_topics, topic_names
from tests.kafka.record_archives import group, topic_entry, write_archive
from tests.kafka.restores import back_up, backup_spec, bring_back, committed, restore_spec, transactions
from tests.kafka.test_cli import assert_refused, resource
from tests.kafka.test_restore_formats import numbered
from tests.kafka.test_restore_groups import TRANSLATE, commit, member, positions, rows, warned

SetPositions = Any


def archive(root: Path, topic: str, positions: dict[str, int], partitions: int = 1) -> None:
    """An archive of records at the offsets 0, 2, ... 18, and of groups."""
    entry = topic_entry(topic, partitions)
    groups = [group(name, entry, offset) for name, offset in positions.items()]
    write_archive(root, Layout.RECORDS, entry, {0: numbered(10, step=2)}, groups=groups)


def run(command: str, root: Path, spec: dict[str, Any], *options: str) -> "subprocess.CompletedProcess[str]":
    file = root / "restore.yaml"
    file.write_text(resource("KafkaRestore", spec))
    return logkeep("groups", command, "-f", str(file), "--run-id", "restore-1", *options)


def said(done: "subprocess.CompletedProcess[str]") -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def changes(root: Path, number: int = 0) -> list[list[Any]]:
    document = json.loads((root / "runs" / "restore-1" / "group-changes" / f"{number:04d}.json").read_text())
    found: list[list[Any]] = document["rows"]
    return found


class TestReadBack:
    def test_a_position_that_is_another_one_afterwards_fails_the_restore(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        copy = f"{unique}-copy"
        archive(tmp_path, unique, {unique: 6, f"{unique}-b": 8})
        ours: SetPositions = GroupAdmin.set_group_offsets

        def somebody_commits(self: GroupAdmin, offsets: Iterable[GroupPosition]) -> list[NotSet]:
            refused: list[NotSet] = ours(self, offsets)
            commit(kafka, unique, copy, 9)
            return refused

        monkeypatch.setattr(GroupAdmin, "set_group_offsets", somebody_commits)
        what = f"consumer group '{unique}', topic {copy} partition 0: offset 3 was set, but the cluster has offset 9"
        with pytest.raises(PositionsDiffer, match=what):
            bring_back(restore_spec(kafka, tmp_path, consumerGroups=TRANSLATE))
        assert [row[6] for row in sorted(rows(tmp_path))] == ["different", "set"]
        assert json.loads((tmp_path / "runs/restore-1/result.json").read_text())["outcome"] == "Failed"

    def test_a_position_that_was_not_set_at_all_fails_the_restore(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        archive(tmp_path, unique, {unique: 6})
        monkeypatch.setattr(GroupAdmin, "set_group_offsets", lambda self, offsets: list(offsets)[:0])
        with pytest.raises(PositionsDiffer, match="offset 3 was set, but the cluster has no position"):
            bring_back(restore_spec(kafka, tmp_path, consumerGroups=TRANSLATE))


class TestEarlierPositions:
    def test_are_written_down_before_the_first_is_set_and_survive_a_restart(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        copy = f"{unique}-copy"
        archive(tmp_path, unique, {unique: 6, f"{unique}-b": 8})
        spec = restore_spec(kafka, tmp_path, consumerGroups=TRANSLATE)
        wanted = [[unique, copy, 0, False, None, -1, "", 3, ""], [f"{unique}-b", copy, 0, False, None, -1, "", 4, ""]]
        ours: SetPositions = GroupAdmin.set_group_offsets

        def power_cut(self: GroupAdmin, offsets: Iterable[GroupPosition]) -> list[NotSet]:
            assert sorted(changes(tmp_path)) == wanted
            ours(self, list(offsets)[:1])  # in the middle of it
            raise RuntimeError("power cut")

        with monkeypatch.context() as patch:
            patch.setattr(GroupAdmin, "set_group_offsets", power_cut)
            with pytest.raises(RuntimeError, match="power cut"):
                bring_back(spec)
        assert bring_back(spec).groups == 2
        assert sorted(changes(tmp_path)) == wanted
        for row in said(run("rollback", tmp_path, spec, "-o", "json"))["positions"]:
            assert (row["offset"], row["outcome"]) == (None, "set")
        assert positions(kafka, unique) == positions(kafka, f"{unique}-b") == {}

    def test_of_a_restore_that_was_resumed_are_those_before_the_first_run(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        archive(tmp_path, unique, {unique: 6})
        spec = restore_spec(kafka, tmp_path, consumerGroups=TRANSLATE)

        def power_cut(*_: Any) -> None:
            raise RuntimeError("power cut")

        with monkeypatch.context() as patch:
            patch.setattr("logkeep_engine.restore.run.restoring.restore_cluster_state", power_cut)
            with pytest.raises(RuntimeError, match="power cut"):
                bring_back(spec)
        assert positions(kafka, unique) != {}
        spec["ifTopicExists"] = "Resume"
        bring_back(spec, "restore-2")
        found = said(run("rollback", tmp_path, spec, "--run-id", "restore-2", "-o", "json"))["positions"]
        assert [(row["offset"], row["outcome"]) for row in found] == [(None, "set")]
        assert positions(kafka, unique) == {}

    def test_of_groups_that_a_restore_leaves_alone_are_not_taken_back(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        copy = f"{unique}-copy"
        create_topic(kafka.bootstrap, copy, 1, {"retention.ms": "-1"})
        commit(kafka, unique, copy, 0)
        archive(tmp_path, unique, {unique: 6})
        spec = restore_spec(kafka, tmp_path, ifTopicExists="Append", consumerGroups=TRANSLATE)
        assert bring_back(spec).groups == 0
        assert_refused(run("rollback", tmp_path, spec), "run restore-1 has changed no position of a consumer group")
        assert positions(kafka, unique) == {(copy, 0): (0, "noted")}

    def test_are_those_that_a_later_start_has_left_alone_no_more(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first start has written down what it then could not set."""
        copy, ours, busy = f"{unique}-copy", f"{unique}-ours", f"{unique}-busy"
        archive(tmp_path, unique, {unique: 6, ours: 8, busy: 4})
        spec = restore_spec(kafka, tmp_path, consumerGroups=TRANSLATE)

        def down(*_: Any) -> None:
            raise BrokerUnavailable("the coordinator is down", hint="")

        with monkeypatch.context() as patch:
            patch.setattr(GroupAdmin, "set_group_offsets", down)
            with pytest.raises(BrokerUnavailable):
                bring_back(spec)
        assert {row[0] for row in changes(tmp_path)} == {unique, ours, busy}
        commit(kafka, unique, copy, 9)
        with member(kafka, busy, copy):
            result = bring_back(spec)
        assert warned(result, f"consumer group '{unique}': 1 position not set", "which were left as they are")
        assert warned(result, f"consumer group '{busy}': 1 position not set", "the group has members")
        commit(kafka, busy, copy, 7)
        assert [row["group"] for row in said(run("rollback", tmp_path, spec, "-o", "json"))["positions"]] == [ours]
        assert positions(kafka, ours) == {}
        assert positions(kafka, unique) == {(copy, 0): (9, "noted")}
        assert positions(kafka, busy) == {(copy, 0): (7, "noted")}


class TestReset:
    def test_sets_positions_later_and_rollback_takes_them_back(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        copy = f"{unique}-copy"
        archive(tmp_path, unique, {f"{unique}-a": 6, f"{unique}-b": 7, f"{unique}-c": 8})
        spec = restore_spec(kafka, tmp_path)
        assert bring_back(spec).groups == 0
        commit(kafka, f"{unique}-a", copy, 1)
        chosen = ("--include", f"{unique}-.*", "--exclude", ".*-c")
        found = said(run("reset", tmp_path, spec, *chosen, "-o", "json"))
        assert [(row["group"], row["now"], row["offset"], row["outcome"]) for row in found["positions"]] == [
            (f"{unique}-a", 1, 3, "set"),
            (f"{unique}-b", None, 4, "set"),
        ]
        assert positions(kafka, f"{unique}-a") == {(copy, 0): (3, "")}
        assert positions(kafka, f"{unique}-c") == {}
        commit(kafka, f"{unique}-b", copy, 9)
        typo = run("rollback", tmp_path, spec, "--include", "biling")
        assert_refused(typo, "--include 'biling' chooses no consumer group of the archive$")
        part = run("rollback", tmp_path, spec, "--include", f"{unique}-a")
        left = rf"0001\.json\) has positions of groups that --include and --exclude do not choose: '{unique}-b'; no"
        assert_refused(part, left)
        found = said(run("rollback", tmp_path, spec, "-o", "json"))
        assert [(row["group"], row["now"], row["offset"]) for row in found["positions"]] == [
            (f"{unique}-a", 3, 1),
            (f"{unique}-b", 9, None),
        ]
        assert positions(kafka, f"{unique}-a") == {(copy, 0): (1, "noted")}
        assert positions(kafka, f"{unique}-b") == {}
        assert_refused(run("rollback", tmp_path, spec), "has changed no position of a consumer group that was not")

    def test_into_a_topic_that_was_deleted_since_is_refused(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        copy = f"{unique}-copy"
        archive(tmp_path, unique, {unique: 6})
        spec = restore_spec(kafka, tmp_path)
        bring_back(spec)
        delete_topics(kafka.bootstrap, [copy])
        text = f"TargetChanged: run restore-1 has restored {copy}, but the cluster no longer has it"
        for again in (False, True):
            for command in ("plan", "reset"):
                assert_refused(run(command, tmp_path, spec), text)
            if not again:
                create_topic(kafka.bootstrap, copy)
        assert positions(kafka, unique) == {}

    def test_of_groups_with_members_is_refused_by_name_and_changes_nothing(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        copy, busy = f"{unique}-copy", f"{unique}-busy"
        archive(tmp_path, unique, {busy: 6, f"{unique}-idle": 8})
        spec = restore_spec(kafka, tmp_path, consumerGroups=TRANSLATE)
        assert bring_back(spec).groups == 2
        commit(kafka, f"{unique}-idle", copy, 1)
        with member(kafka, busy, copy):
            for command in ("reset", "rollback"):
                done = run(command, tmp_path, spec)
                assert_refused(done, f"consumer groups have members, and no position was changed: '{busy}'$")
            row = said(run("plan", tmp_path, spec, "-o", "json"))["positions"][0]
            assert (row["group"], row["outcome"]) == (busy, "set")
        assert positions(kafka, f"{unique}-idle") == {(copy, 0): (1, "noted")}
        assert not (tmp_path / "runs/restore-1/group-changes/0001.json").exists()

    def test_needs_a_run_that_has_succeeded_and_groups(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        archive(tmp_path, unique, {unique: 6})
        spec = restore_spec(kafka, tmp_path)
        assert_refused(run("reset", tmp_path, spec), "this restore has no run restore-1: .*restore-plan.json")
        bring_back(spec)
        assert_refused(run("reset", tmp_path, spec, "--exclude", ".*"), "no archived group that is chosen has")
        assert_refused(
            run("reset", tmp_path, spec, "--include", "("), r"--include '\(' is not a valid regular expression: "
        )
        other = {**spec, "topics": {**spec["topics"], "exclude": ["x"]}}
        assert_refused(run("reset", tmp_path, other), "run restore-1 was started with another spec")
        (tmp_path / "runs/restore-1/result.json").unlink()
        assert_refused(run("reset", tmp_path, spec), "run restore-1 has not succeeded")


class TestRollbackOfAResetThatDied:
    """The change is written down, and it is unknown what of it was made."""

    @pytest.mark.parametrize("made", [0, 1, 4])
    def test_takes_back_what_was_set_and_leaves_alone_what_the_groups_have_by_themselves(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: int
    ) -> None:
        copy, groups = f"{unique}-copy", [f"{unique}-{name}" for name in "abcd"]
        first, idle, gone_on, new = groups
        archive(tmp_path, unique, dict.fromkeys(groups, 6))
        spec = restore_spec(kafka, tmp_path)
        bring_back(spec)
        for group_id in groups[:3]:
            commit(kafka, group_id, copy, 1)
        ours: SetPositions = GroupAdmin.set_group_offsets

        def power_cut(self: GroupAdmin, offsets: Iterable[GroupPosition]) -> list[NotSet]:
            ours(self, list(offsets)[:made])
            raise RuntimeError("power cut")

        parsed = parse_restore({**spec, "consumerGroups": TRANSLATE})
        with monkeypatch.context() as patch, open_groups(parse_restore(spec), "restore-1", os.environ) as opened:
            patch.setattr(GroupAdmin, "set_group_offsets", power_cut)
            with pytest.raises(RuntimeError, match="power cut"):
                opened.reset(parsed.consumer_groups)
        assert positions(kafka, first)[copy, 0][0] == (3 if made else 1)
        commit(kafka, gone_on, copy, 7)
        commit(kafka, new, copy, 8)
        done = run("rollback", tmp_path, spec, "-o", "json")
        assert done.returncode == 5
        found = {row["group"]: (row["offset"], row["outcome"]) for row in json.loads(done.stdout)["positions"]}
        assert found == {first: (1, "set"), idle: (1, "set"), gone_on: (1, "kept"), new: (None, "kept")}
        assert [positions(kafka, group_id)[copy, 0][0] for group_id in groups] == [1, 1, 7, 8]
        assert_refused(run("rollback", tmp_path, spec), "has changed no position of a consumer group that was not")

    def test_of_groups_that_have_all_gone_on_changes_nothing_and_says_so(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        copy = f"{unique}-copy"
        archive(tmp_path, unique, {unique: 6})
        spec = restore_spec(kafka, tmp_path, consumerGroups=TRANSLATE)
        bring_back(spec)

        def power_cut(*_: Any) -> list[NotSet]:
            raise RuntimeError("power cut")

        with monkeypatch.context() as patch, open_groups(parse_restore(spec), "restore-1", os.environ) as opened:
            patch.setattr(GroupAdmin, "set_group_offsets", power_cut)
            with pytest.raises(RuntimeError, match="power cut"):
                opened.reset(parse_restore(spec).consumer_groups)
        commit(kafka, unique, copy, 9)
        done = run("rollback", tmp_path, spec)
        assert done.returncode == 2
        assert "error: the rollback has left alone 1 of 1 position: the groups are no longer" in done.stderr
        assert positions(kafka, unique) == {(copy, 0): (9, "noted")}
        said(run("rollback", tmp_path, spec, "-o", "json"))  # of the restore, which is known to have set it
        assert positions(kafka, unique) == {}
        assert_refused(run("rollback", tmp_path, spec), "has changed no position of a consumer group that was not")

    def test_is_done_again_where_it_has_died_itself(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The positions are those of before by then, and nothing says that they were taken back."""
        copy = f"{unique}-copy"
        archive(tmp_path, unique, {f"{unique}-a": 6, f"{unique}-b": 8})
        spec = restore_spec(kafka, tmp_path)
        bring_back(spec)
        commit(kafka, f"{unique}-a", copy, 1)
        said(run("reset", tmp_path, spec, "-o", "json"))

        def power_cut(*_: Any) -> None:
            raise RuntimeError("power cut")

        with monkeypatch.context() as patch, open_groups(parse_restore(spec), "restore-1", os.environ) as opened:
            patch.setattr(ChangeLog, "note_rolled_back", power_cut)
            with pytest.raises(RuntimeError, match="power cut"):
                opened.rollback(parse_restore({**spec, "consumerGroups": TRANSLATE}).consumer_groups)
        found = said(run("rollback", tmp_path, spec, "-o", "json"))["positions"]
        assert [(row["now"], row["offset"], row["outcome"]) for row in found] == [(1, 1, "set"), (None, None, "set")]
        assert positions(kafka, f"{unique}-a") == {(copy, 0): (1, "noted")}
        assert positions(kafka, f"{unique}-b") == {}
        assert_refused(run("rollback", tmp_path, spec), "has changed no position of a consumer group that was not")


class TestPlan:
    def test_says_the_record_and_the_target_of_a_restore_that_has_ended_and_of_one_that_has_not(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        # Offsets: 0-9, marker 10, aborted 11-15, marker 16, 17-36, marker 37.
        copy = f"{unique}-copy"
        create_topic(kafka.bootstrap, unique)
        transactions(kafka, unique, [10, -5, 20])
        for at in (4, 13, 38):
            commit(kafka, f"{unique}-{at:02d}", unique, at)
        back_up(backup_spec(kafka, tmp_path, unique, consumerGroups={"include": [f"{unique}-.*"]}))
        spec = restore_spec(kafka, tmp_path, consumerGroups=TRANSLATE)
        source = {record[0]: record for record in committed(kafka, unique)}
        file = tmp_path / "restore.yaml"
        file.write_text(resource("KafkaRestore", spec))
        before = said(logkeep("groups", "plan", "-f", str(file), "-o", "json"))
        bring_back(spec)
        result = tmp_path / "runs/restore-1/result.json"
        ended = said(run("plan", tmp_path, spec, "-o", "json"))["positions"]
        assert [(row["sourceOffset"], row["targetOffset"], row["at"], row["now"]) for row in ended] == [
            (4, 4, "record", 4),
            (13, 10, "gap", 10),
            (38, 30, "end", 30),
        ]
        found = [row["record"] and (row["record"]["offset"], row["record"]["timestamp"]) for row in ended]
        assert found == [(4, source[4][4]), (17, source[17][4]), None]
        assert ended[0]["record"]["key"] == "kept"
        assert {row["topic"] for row in ended} == {copy}
        assert before == {"runId": None, "positions": [{**row, "now": None} for row in ended]}
        # Without the result and the maps it is counted from the archive.
        result.unlink()
        (tmp_path / f"runs/restore-1/offset-maps/{copy}/0.json").unlink()
        assert said(run("plan", tmp_path, spec, "-o", "json"))["positions"] == ended
        table = run("plan", tmp_path, spec, "--no-records").stdout.splitlines()
        assert table[0].split() == ["group", "topic", "partition", "source", "target", "now", "outcome"]
        assert table[2].split() == [f"{unique}-13", copy, "0", "13", "10", "10", "set"]
        assert not list((tmp_path / "runs/restore-1").glob("group-changes/0001*"))


class TestRename:
    def test_gives_groups_other_names(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        copy = f"{unique}-copy"
        archive(tmp_path, unique, {f"{unique}-a": 6, f"{unique}-b": 8})
        rename = [{"from": "(.*)-a", "to": r"again-\1"}, {"from": ".*", "to": f"rest-{unique}"}]
        spec = restore_spec(kafka, tmp_path, consumerGroups={**TRANSLATE, "rename": rename})
        assert bring_back(spec).groups == 2
        assert positions(kafka, f"again-{unique}") == {(copy, 0): (3, "")}
        assert positions(kafka, f"rest-{unique}") == {(copy, 0): (4, "")}
        assert positions(kafka, f"{unique}-a") == {}

    def test_of_two_groups_to_one_name_is_refused_before_anything_is_written(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        archive(tmp_path, unique, {f"{unique}-a": 6, f"{unique}-b": 8})
        wanted = {**TRANSLATE, "rename": [{"from": ".*", "to": "one"}]}
        with pytest.raises(SpecError, match=f"rename: groups '{unique}-a' and '{unique}-b' would both become 'one'"):
            bring_back(restore_spec(kafka, tmp_path, consumerGroups=wanted))
        assert f"{unique}-copy" not in topic_names(kafka.bootstrap)


def test_a_member_that_joins_at_the_last_moment_is_reported(
    kafka: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of groups is a moment old: the coordinator has the last word."""
    elsewhere = f"{unique}-elsewhere"
    create_topic(kafka.bootstrap, elsewhere)
    archive(tmp_path, unique, {unique: 6})
    monkeypatch.setattr(GroupAdmin, "listed_groups", lambda self: {})
    with member(kafka, unique, elsewhere):
        result = bring_back(restore_spec(kafka, tmp_path, consumerGroups=TRANSLATE))
    assert warned(result, f"consumer group '{unique}': 1 position not set", "UNKNOWN_MEMBER_ID", "groups reset")
    assert changes(tmp_path) == []
