"""Whoever may write to the archive, or to the place of a restore's state, orders nothing: what lies there is a claim.

Each test puts something there that a run would have believed, and looks at the topics of a real broker.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.archive.catalog.run_note import RunNote
from logkeep_engine.contract.restore_spec import RestoreGroups, parse_restore
from logkeep_engine.contract.run import RunRequest, RunResult
from logkeep_engine.errors import LogkeepError, StateAltered, TargetChanged, TopicExists
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.report import Reporter
from logkeep_engine.restore.model.drill_scope import DrillScope
from logkeep_engine.restore.model.plan import spec_digest
from logkeep_engine.restore.planning.restored_before import RestoreKey
from logkeep_engine.restore.run.drill_topics import DrillTopics, OpenDrill
from logkeep_engine.restore.run.entry import run_of
from logkeep_engine.restore.run.group_commands import open_groups
from logkeep_engine.storage import LocalStorage
from tests.cluster.kafka import KafkaBroker
from tests.data.topics import create_topic, delete_topics, produce, topic_names
from tests.kafka.raw import eventually
from tests.kafka.restores import ThreadRunner, back_up, backup_spec, bring_back, committed, restore_spec, topic_settings
from tests.kafka.test_drill import drill_spec, drilled, killed, names, remembered
from tests.kafka.test_restore_groups import commit, positions
from tests.kafka.test_restore_shape import numbered, topic_id

Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def live(kafka: KafkaBroker, unique: str) -> str:
    """A topic that no restore and no drill may touch."""
    create_topic(kafka.bootstrap, f"{unique}-payments", 1, {"retention.ms": "123456789"})
    produce(kafka.bootstrap, f"{unique}-payments", numbered(5))
    return f"{unique}-payments"


@pytest.fixture
def root(kafka: KafkaBroker, unique: str, tmp_path: Path) -> Path:
    """The archive of a topic of ten records."""
    create_topic(kafka.bootstrap, unique, 1, {"retention.ms": "-1"})
    produce(kafka.bootstrap, unique, numbered(10))
    back_up(backup_spec(kafka, tmp_path / "archive", unique))
    return tmp_path / "archive"


def cluster_of(root: Path) -> str:
    return str(json.loads((root / "archive.json").read_bytes())["clusterId"])


def archive_of(root: Path) -> str:
    return str(json.loads((root / "archive.json").read_bytes())["archiveId"])


def put(path: Path, body: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body if isinstance(body, bytes) else json.dumps(body).encode())


class TestDrillNotes:
    """`runs/open-drills/...` says which topics an attempt has left. Case 12."""

    @pytest.fixture
    def prefix(self, unique: str) -> str:
        return f"{unique}-drill."

    def forge(self, root: Path, topics: dict[str, str], prefix: str, **more: Any) -> Path:
        token = "0123456789ab"
        note = OpenDrill("x", "team/drill", cluster_of(root), DrillScope(prefix, token), 1.0, topics)
        path = root / note.path
        put(path, {**json.loads(note.to_json()), **more})
        return path

    def test_the_id_of_a_live_topic_under_the_name_of_a_drill_deletes_nothing(
        self, kafka: KafkaBroker, root: Path, prefix: str, live: str
    ) -> None:
        forged = self.forge(root, {f"{prefix}0123456789ab-anything": topic_id(kafka, live)}, prefix)
        with pytest.raises(StateAltered, match=f"{forged.name}: it says .* which is the id of topic '{live}'; nothing"):
            drilled(drill_spec(kafka, root, prefix))
        assert len(committed(kafka, live)) == 5
        forged.unlink()
        assert drilled(drill_spec(kafka, root, prefix)).outcome == "Succeeded"

    def test_a_topic_of_a_right_name_and_id_without_the_mark_stays(
        self, kafka: KafkaBroker, root: Path, prefix: str
    ) -> None:
        name = f"{prefix}0123456789ab-orders"
        create_topic(kafka.bootstrap, name)
        forged = self.forge(root, {name: topic_id(kafka, name)}, prefix)
        found = drilled(drill_spec(kafka, root, prefix))
        assert f"topics of run x do not carry its mark and were left: {name}" in " ".join(found.warnings)
        assert (names(kafka, prefix), forged.exists()) == ([name], True)

    def test_topics_of_another_prefix_than_the_spec_has_stay(
        self, kafka: KafkaBroker, root: Path, unique: str, prefix: str
    ) -> None:
        """The prefix of the note is the beginning of a live topic's name, and its mark was set on that topic, too."""
        scope = DrillScope(f"{unique}-live-", "0123456789ab", owner="team/drill")
        name = f"{scope.beginning}orders"
        create_topic(kafka.bootstrap, name, 1, scope.mark)
        self.forge(root, {name: topic_id(kafka, name)}, f"{unique}-live-")
        found = drilled(drill_spec(kafka, root, prefix))
        assert f"has left topics of another prefix, to be deleted by hand: {name}" in " ".join(found.warnings)
        assert name in topic_names(kafka.bootstrap)

    def test_the_note_of_another_resource_under_the_own_name_does_not_delete_its_topics(
        self, kafka: KafkaBroker, root: Path, prefix: str
    ) -> None:
        killed(drill_spec(kafka, root, prefix), "run.restore_open_partitions")
        left = names(kafka, prefix)
        (note,) = remembered(root)
        (path,) = (root / "runs" / "open-drills").glob("*.json")
        put(path, {**note, "resource": "team/another"})
        found = drilled(drill_spec(kafka, root, prefix), "drill-2", name="another")
        assert "do not carry its mark and were left" in " ".join(found.warnings)
        assert names(kafka, prefix) == left

    def test_a_note_does_not_delete_objects_of_the_archive(self, kafka: KafkaBroker, root: Path, prefix: str) -> None:
        self.forge(root, {}, prefix, runId="../topics")
        before = {path for path in root.rglob("*") if path.is_file()}
        with pytest.raises(LogkeepError, match="not a note of a drill's topics"):
            drilled(drill_spec(kafka, root, prefix))
        assert before <= {path for path in root.rglob("*") if path.is_file()}

    def test_a_topic_that_has_lost_its_mark_is_named_by_the_drill_itself(
        self, kafka: KafkaBroker, root: Path, prefix: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        genuine = DrillTopics.delete

        def unmarked(topics: DrillTopics, control: ControlPlane) -> list[str]:
            for name in names(kafka, prefix):
                control.alter_topic_configs(name, {}, topics.drill.scope.mark)
            return genuine(topics, control)

        monkeypatch.setattr(DrillTopics, "delete", unmarked)
        found = drilled(drill_spec(kafka, root, prefix))
        (left,) = names(kafka, prefix)
        assert f"topics of run drill-1 do not carry its mark and were left: {left}" in " ".join(found.warnings)


class TestPlans:
    """`restore-plan.json` says what goes where, and what is deleted before. Case 13."""

    def planned(self, kafka: KafkaBroker, root: Path, spec: dict[str, Any], change: Change) -> None:
        """Let the run `first` make a plan, and put it there changed, as that of the run `second`, which nobody has
        begun."""
        bring_back(spec, "first")
        copies = [
            topic["target"] for topic in json.loads((root / "runs/first/restore-plan.json").read_bytes())["topics"]
        ]
        delete_topics(kafka.bootstrap, copies)
        eventually(lambda: not set(copies) & topic_names(kafka.bootstrap))
        plan = json.loads((root / "runs/first/restore-plan.json").read_bytes())
        plan["runId"] = "second"
        change(plan)
        put(root / "runs/second/restore-plan.json", plan)

    def test_a_topic_that_the_spec_does_not_name_is_not_deleted(
        self, kafka: KafkaBroker, root: Path, live: str
    ) -> None:
        spec = restore_spec(kafka, root)
        self.planned(kafka, root, spec, lambda plan: plan["topics"][0].update(replaces=topic_id(kafka, live)))
        with pytest.raises(StateAltered, match=r"it replaces .*-copy, but spec\.ifTopicExists is Fail"):
            bring_back(spec, "second")
        assert len(committed(kafka, live)) == 5

    def test_the_id_of_another_topic_under_a_confirmed_name_is_not_deleted(
        self, kafka: KafkaBroker, root: Path, unique: str, live: str
    ) -> None:
        spec = restore_spec(kafka, root, ifTopicExists="Replace", confirm=[f"{unique}-copy"])
        self.planned(kafka, root, spec, lambda plan: plan["topics"][0].update(replaces=topic_id(kafka, live)))
        with pytest.raises(
            StateAltered, match=f"has the id .*, which is the id of topic '{live}'; nothing was deleted"
        ):
            bring_back(spec, "second")
        assert len(committed(kafka, live)) == 5

    def test_a_topic_that_is_not_confirmed_any_more_is_not_deleted(
        self, kafka: KafkaBroker, root: Path, unique: str
    ) -> None:
        copy = f"{unique}-copy"
        spec = restore_spec(kafka, root, ifTopicExists="Replace", confirm=[copy])

        def change(plan: dict[str, Any]) -> None:
            create_topic(kafka.bootstrap, copy)
            plan["topics"][0]["replaces"] = topic_id(kafka, copy)

        self.planned(kafka, root, spec, change)
        another = {**spec, "confirm": [f"{unique}-other"]}
        with pytest.raises(StateAltered, match=rf"it replaces {copy}, which spec\.confirm does not name"):
            bring_back(another, "second")
        assert copy in topic_names(kafka.bootstrap)

    def test_records_go_to_no_live_topic(self, kafka: KafkaBroker, root: Path, live: str) -> None:
        spec = restore_spec(kafka, root)

        def change(plan: dict[str, Any]) -> None:
            plan["topics"][0].update(target=live, created=False, replicationFactor=0, targetId=topic_id(kafka, live))

        self.planned(kafka, root, spec, change)
        with pytest.raises(StateAltered, match=f"it appends to {live}, but spec.ifTopicExists is Fail"):
            bring_back(spec, "second")
        append = {**spec, "ifTopicExists": "Append"}
        plan = json.loads((root / "runs/second/restore-plan.json").read_bytes())
        put(root / "runs/second/restore-plan.json", {**plan, "specDigest": spec_digest(parse_restore(append))})
        with pytest.raises(StateAltered, match=f"it restores {live}, which the spec does not choose like this"):
            bring_back(append, "second")
        assert len(committed(kafka, live)) == 5

    def test_a_restore_that_would_restore_nothing_does_not_succeed(self, kafka: KafkaBroker, root: Path) -> None:
        spec = restore_spec(kafka, root)
        self.planned(kafka, root, spec, lambda plan: plan["topics"][0]["partitions"][0].__setitem__(1, -1))
        with pytest.raises(StateAltered, match="another list of what goes to which partition"):
            bring_back(spec, "second")

    def test_a_run_that_resumes_deletes_only_what_its_own_spec_confirms(
        self, kafka: KafkaBroker, root: Path, unique: str
    ) -> None:
        """The plan is a forged one, or that of a run which was killed before it had deleted anything: nobody can tell
        these apart, so the spec must say it."""
        copy = f"{unique}-copy"
        resume = restore_spec(kafka, root, ifTopicExists="Resume")

        def change(plan: dict[str, Any]) -> None:
            create_topic(kafka.bootstrap, copy)
            produce(kafka.bootstrap, copy, numbered(3))
            plan["topics"][0]["replaces"] = topic_id(kafka, copy)

        self.planned(kafka, root, restore_spec(kafka, root), change)
        settings = RestoreKey.of(parse_restore(resume), archive_of(root), cluster_of(root))
        put(root / settings.path, {"format": 1, "runId": "second"})
        RunNote(LocalStorage(root.as_uri()), "second").end()
        with pytest.raises(TopicExists, match=rf"{copy}: to be replaced, but not named in spec\.confirm"):
            bring_back(resume, "third")
        assert len(committed(kafka, copy)) == 3
        with pytest.raises(LogkeepError, match=rf"spec\.confirm: {unique}: no topic is restored under this name"):
            bring_back({**resume, "confirm": [copy, unique]}, "third")
        assert bring_back({**resume, "confirm": [copy]}, "third").records == 10
        assert len(committed(kafka, copy)) == 10

    def test_a_plan_that_another_run_has_made_is_not_taken_over_if_it_is_strange(
        self, kafka: KafkaBroker, root: Path, live: str
    ) -> None:
        resume = restore_spec(kafka, root, ifTopicExists="Resume")
        self.planned(kafka, root, restore_spec(kafka, root), lambda plan: plan["topics"][0].update(target=live))
        settings = RestoreKey.of(parse_restore(resume), archive_of(root), cluster_of(root))
        put(root / settings.path, {"format": 1, "runId": "second"})
        RunNote(LocalStorage(root.as_uri()), "second").end()
        with pytest.raises(StateAltered, match=rf"runs/second/restore-plan\.json: it restores {live}"):
            bring_back(resume, "third")
        assert not (root / "runs/second/taken-over.json").exists(), "it was not even claimed"
        assert len(committed(kafka, live)) == 5


class TestNotesOfWhatIsDone:
    """`result.json`, `runs/of-*`, `runs/begun-*`, `counted.json`, offset maps: success is a claim."""

    def asked(self, root: Path, spec: dict[str, Any], run_id: str) -> RunResult:
        request = RunRequest(
            kind="KafkaRestore",
            name="r",
            namespace="team",
            run_id=run_id,
            spec=spec,
            remembered_as="KafkaRestore team/r",
        )
        return run_of(request, parse_restore(spec), ThreadRunner, Reporter(run_id), os.environ).perform_or_raise()

    def success(self, root: Path, run_id: str, **more: Any) -> None:
        result = RunResult(
            run_id=run_id,
            kind="KafkaRestore",
            outcome="Succeeded",
            exit_code=0,
            start_time=1.0,
            end_time=2.0,
            archive_id=archive_of(root),
            **more,
        )
        put(root / "runs" / run_id / "result.json", result.to_json().encode())

    def test_a_forged_result_of_the_run_itself_is_no_success(self, kafka: KafkaBroker, root: Path) -> None:
        self.success(root, "restore-1", records=10)
        with pytest.raises(LogkeepError, match=r"restore-plan\.json is gone"):
            bring_back(restore_spec(kafka, root))

    def test_a_forged_note_that_a_restore_was_done_is_no_success(
        self, kafka: KafkaBroker, root: Path, unique: str
    ) -> None:
        spec = restore_spec(kafka, root)
        assert bring_back(spec, "genuine").records == 10
        asked = RestoreKey("KafkaRestore team/r", spec_digest(parse_restore(spec)), archive_of(root), cluster_of(root))
        put(root / asked.path, {"format": 1, "runId": "forged"})
        self.success(root, "forged", records=0)
        plan = json.loads((root / "runs/genuine/restore-plan.json").read_bytes())
        put(root / "runs/forged/restore-plan.json", {**plan, "runId": "forged", "topics": []})
        with pytest.raises(StateAltered, match=f"it leaves out {unique}-copy, which the spec chooses"):
            self.asked(root, spec, "second")
        put(root / "runs/forged/restore-plan.json", {**plan, "runId": "forged"})
        assert self.asked(root, spec, "third").earlier_run == "forged", "the cluster has all that it says"
        delete_topics(kafka.bootstrap, [f"{unique}-copy"])
        eventually(lambda: f"{unique}-copy" not in topic_names(kafka.bootstrap))
        create_topic(kafka.bootstrap, f"{unique}-copy")
        produce(kafka.bootstrap, f"{unique}-copy", numbered(4))
        with pytest.raises(TargetChanged, match="ends at offset 4, not at 10 or later"):
            self.asked(root, spec, "fourth")

    def test_notes_that_everything_is_counted_let_no_live_topic_be_configured(
        self, kafka: KafkaBroker, root: Path, unique: str
    ) -> None:
        """A whole state is forged: a plan, maps, and a note of the counted records, for a live topic of the target's
        name. The spec says Fail, and the topic keeps its configuration."""
        copy = f"{unique}-copy"
        spec = restore_spec(kafka, root)
        with pytest.raises(ConnectionAbortedError):
            bring_back(spec, "restore-1", runner=ThreadRunner(before=_dies))
        delete_topics(kafka.bootstrap, [copy])
        eventually(lambda: copy not in topic_names(kafka.bootstrap))
        create_topic(kafka.bootstrap, copy, 1, {"retention.ms": "123456789", "cleanup.policy": "compact"})
        produce(kafka.bootstrap, copy, numbered(20))
        put(
            root / "runs/restore-1/counted.json",
            {"format": 1, "partitions": 1, "topicIds": {copy: topic_id(kafka, copy)}},
        )
        summary = {
            "format": 1,
            "source": {"topic": unique, "topicId": topic_id(kafka, unique), "partition": 0},
            "target": {"topic": copy, "partitions": [[0, 10, 0, 10, 0]]},
            "records": 10,
            "bytes": 1,
            "appendTimeRecords": 0,
            "abortedRecords": 0,
            "rows": [],
        }
        text = json.dumps(summary).removesuffix("[]}") + "[\n[0,0,10]\n]}\n"
        put(root / f"runs/restore-1/offset-maps/{copy}/0.json", text.encode())
        found = bring_back(spec, "restore-1")
        assert "its configuration is not the one that this restore has given it" in " ".join(found.warnings)
        assert topic_settings(kafka, copy) == {"retention.ms": "123456789", "cleanup.policy": "compact"}
        assert len(committed(kafka, copy)) == 20

    def test_a_map_that_says_that_nothing_went_to_a_partition_is_not_used(
        self, kafka: KafkaBroker, root: Path, unique: str
    ) -> None:
        spec = restore_spec(kafka, root)
        with pytest.raises(ConnectionAbortedError):
            bring_back(spec, runner=ThreadRunner(before=_dies))
        summary = {
            "format": 1,
            "source": {"topic": unique, "topicId": topic_id(kafka, unique), "partition": 0},
            "target": {"topic": f"{unique}-copy", "partitions": [[0, 0, 0, 0, -1]]},
            "records": 0,
            "bytes": 0,
            "appendTimeRecords": 0,
            "abortedRecords": 0,
            "rows": [],
        }
        path = root / f"runs/restore-1/offset-maps/{unique}-copy/0.json"
        put(path, (json.dumps(summary).removesuffix("]}") + "\n]}\n").encode())
        with pytest.raises(StateAltered, match="says that 0 records went there: the archive has 10"):
            bring_back(spec)
        path.unlink()
        assert bring_back(spec).records == 10

    def test_notes_that_lie_there_before_a_run_has_a_plan_count_for_nothing(
        self, kafka: KafkaBroker, root: Path, unique: str
    ) -> None:
        put(root / "runs/restore-1/counted.json", {"format": 1, "partitions": 1, "topicIds": {}})
        put(root / "runs/restore-1/verification.json", b'{"outcome": "Verified"}')
        found = bring_back(restore_spec(kafka, root, verify="Full"))
        assert found.verification is not None
        assert (found.records, found.verification.outcome, found.verification.records) == (10, "Verified", 10)
        assert len(committed(kafka, f"{unique}-copy")) == 10


def _dies(item: Any) -> None:
    if type(item) is tuple:  # the tasks that restore, after the check of the archive
        raise ConnectionAbortedError


class TestGroupChanges:
    """`group-changes/...` says which positions groups had before, and offset maps where they go."""

    def test_a_rollback_leaves_groups_and_topics_alone_that_the_restore_does_not_bring(
        self, kafka: KafkaBroker, root: Path, unique: str, live: str
    ) -> None:
        commit(kafka, f"{unique}-victim", live, 3)
        commit(kafka, f"{unique}-own", unique, 4)
        back_up(backup_spec(kafka, root, unique), "backup-2")
        spec = restore_spec(kafka, root, consumerGroups={"restore": "Translate", "include": [f"{unique}-own"]})
        assert bring_back(spec).groups == 1
        change = root / "runs/restore-1/group-changes/0000.json"
        genuine = json.loads(change.read_bytes())
        for row in (
            [f"{unique}-victim", live, 0, False, 0, -1, "", None, ""],
            [f"{unique}-victim", f"{unique}-copy", 0, False, 0, -1, "", None, ""],
            [f"{unique}-own", live, 0, False, 0, -1, "", None, ""],
            [f"{unique}-own", f"{unique}-copy", 7, False, 0, -1, "", None, ""],
        ):
            put(change, {**genuine, "rows": [*genuine["rows"], row]})
            with (
                open_groups(parse_restore(spec), "restore-1", os.environ) as run,
                pytest.raises(StateAltered, match="this restore moves no such group in such a topic; no position"),
            ):
                run.rollback(parse_restore(spec).consumer_groups)
        assert positions(kafka, f"{unique}-victim") == {(live, 0): (3, "noted")}
        assert positions(kafka, f"{unique}-own")[f"{unique}-copy", 0][0] == 4
        put(change, genuine)
        with open_groups(parse_restore(spec), "restore-1", os.environ) as run:
            assert len(run.rollback(RestoreGroups(include=(f"{unique}-own",), restore="Translate")).positions) == 1  # type: ignore[arg-type]
        assert (f"{unique}-copy", 0) not in positions(kafka, f"{unique}-own")

    def test_a_group_is_not_set_after_what_was_restored(self, kafka: KafkaBroker, root: Path, unique: str) -> None:
        commit(kafka, f"{unique}-own", unique, 4)
        back_up(backup_spec(kafka, root, unique), "backup-2")
        spec = restore_spec(kafka, root)
        assert bring_back(spec).records == 10
        path = root / f"runs/restore-1/offset-maps/{unique}-copy/0.json"
        path.write_bytes(path.read_bytes().replace(b"[0,0,10]", b"[0,900,10]"))
        with (
            open_groups(parse_restore(spec), "restore-1", os.environ) as run,
            pytest.raises(StateAltered, match="it maps offset 4 to 904, outside of what was restored"),
        ):
            run.reset(RestoreGroups(restore="Translate"))  # type: ignore[arg-type]
        assert (f"{unique}-copy", 0) not in positions(kafka, f"{unique}-own")


def test_a_state_in_a_bucket_of_its_own_is_out_of_reach_of_who_writes_the_archive(
    kafka: KafkaBroker, root: Path, unique: str, live: str, tmp_path: Path
) -> None:
    """The documented set-up: what somebody puts beside the archive is not looked at."""
    state = {"uri": (tmp_path / "state").as_uri()}
    spec = restore_spec(kafka, root, state=state)
    result = RunResult(
        run_id="restore-1",
        kind="KafkaRestore",
        outcome="Succeeded",
        exit_code=0,
        start_time=1.0,
        end_time=2.0,
        archive_id=archive_of(root),
    )
    put(root / "runs/restore-1/result.json", result.to_json().encode())
    assert bring_back(spec).records == 10
    assert len(committed(kafka, f"{unique}-copy")) == 10
