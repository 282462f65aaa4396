"""Exit code 2 of a restore says that nothing was written to the cluster. A refusal after that is 5."""

from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.contract.names import ExitCode
from logkeep_engine.contract.run import RunResult
from logkeep_engine.errors import LogkeepError, StorageRefused, TargetChanged, TopicExists
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.groups import GroupPosition
from logkeep_engine.kafka.topics import NewTopicPlan
from logkeep_engine.restore.run import restoring as run
from logkeep_engine.restore.topics.targets import CreatedTopics
from logkeep_engine.storage import LocalStorage
from tests.cluster.kafka import KafkaBroker
from tests.data.topics import create_topic, produce
from tests.kafka.restores import back_up, backup_spec, bring_back, restore_spec
from tests.kafka.test_verify_restored import numbered


@pytest.fixture
def spec(kafka: KafkaBroker, unique: str, tmp_path: Path) -> dict[str, Any]:
    """The restore of a topic of which everything is archived."""
    create_topic(kafka.bootstrap, unique)
    produce(kafka.bootstrap, unique, numbered(10))
    back_up(backup_spec(kafka, tmp_path, unique))
    return restore_spec(kafka, tmp_path)


def refused(spec: dict[str, Any], error: type[LogkeepError], root: Path) -> int:
    """The exit code of a restore that is refused, and that its result has, too."""
    with pytest.raises(error) as found:
        bring_back(spec)
    result = RunResult.from_json((root / "runs/restore-1/result.json").read_bytes())
    assert (result.error_code, result.exit_code) == (error.code, found.value.exit_code)
    return found.value.exit_code


def changed(*_: Any, **__: Any) -> Any:
    raise TargetChanged("somebody has deleted records")


def test_a_topic_that_was_there_is_refused_before_anything_is_written(
    kafka: KafkaBroker, unique: str, spec: dict[str, Any], tmp_path: Path
) -> None:
    create_topic(kafka.bootstrap, f"{unique}-copy")
    assert refused(spec, TopicExists, tmp_path) == ExitCode.REFUSED


def test_what_is_refused_after_records_were_sent_has_another_exit_code(
    spec: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(run, "count_all", changed)
        assert refused(spec, TargetChanged, tmp_path) == ExitCode.INCOMPLETE
        assert refused(spec, TargetChanged, tmp_path) == ExitCode.INCOMPLETE
    assert bring_back(spec).exit_code == ExitCode.OK


def test_a_result_that_cannot_be_stored_does_not_say_that_nothing_was_written(
    spec: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = LocalStorage.put

    def refuse(self: LocalStorage, path: str, data: bytes) -> None:
        if path.endswith("/result.json"):
            raise StorageRefused("it may not be written")
        put(self, path, data)

    monkeypatch.setattr(LocalStorage, "put", refuse)
    with pytest.raises(StorageRefused) as found:
        bring_back(spec)
    assert found.value.exit_code == ExitCode.INCOMPLETE


def test_a_run_that_continues_may_have_written_before(
    spec: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CreatedTopics, "create", changed)
    assert refused(spec, TargetChanged, tmp_path) == ExitCode.REFUSED
    assert refused(spec, TargetChanged, tmp_path) == ExitCode.INCOMPLETE


def test_a_topic_that_was_created_is_a_change_though_another_one_is_refused(kafka: KafkaBroker, unique: str) -> None:
    good, bad = NewTopicPlan(unique, 1, 1), NewTopicPlan(f"{unique}-bad", 1, 1, {"retention.ms": "never"})
    with ControlPlane(KafkaConnection((kafka.bootstrap,))) as control:
        with pytest.raises(LogkeepError):
            control.create_topics([bad])
        assert control.refused_topics([good, bad]).keys() == {bad.name}
        assert not control.changed
        with pytest.raises(LogkeepError):
            control.create_topics([good, bad])
        assert control.changed


def test_other_changes_of_the_cluster_are_known_once_it_has_confirmed_them(kafka: KafkaBroker, unique: str) -> None:
    create_topic(kafka.bootstrap, unique)
    connection = KafkaConnection((kafka.bootstrap,))
    with ControlPlane(connection) as control:
        with pytest.raises(LogkeepError):
            control.alter_topic_configs(unique, {"retention.ms": "never"})
        assert not control.changed
        control.alter_topic_configs(unique, {"retention.ms": "1000000"})
        assert control.changed
    with ControlPlane(connection) as control:
        topic_id = control.topic_ids([unique])[unique]
        assert not control.changed
        control.set_group_offsets([GroupPosition(f"{unique}-group", unique, 0, 0, -1, "")])
        assert control.changed
    with ControlPlane(connection) as control:
        control.delete_topic_ids({unique: topic_id})
        assert control.changed
