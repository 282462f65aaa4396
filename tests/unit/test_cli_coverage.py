"""`logkeep coverage` where a broker does not tell everything."""

from pathlib import Path
from typing import Self

import pytest
from typer.testing import CliRunner

from logkeep_engine.cli import app
from logkeep_engine.kafka.topics import TopicInfo

BACKUP = """
apiVersion: logkeep.dev/v1alpha1
kind: KafkaBackup
metadata: {name: orders}
spec:
  cluster: {bootstrapServers: ["kafka:9092"]}
  topics: {include: [orders]}
  storage: {uri: "file:///archive"}
"""


class Busy:
    """A cluster whose broker knows of two topics, and cannot describe them now."""

    def __init__(self, connection: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def cluster_id(self) -> str:
        return "cluster"

    def only(self, cluster_id: str) -> None:
        pass

    def list_topics(self) -> tuple[list[TopicInfo], dict[str, str]]:
        return [], {"orders": "LEADER_NOT_AVAILABLE", "users": "LEADER_NOT_AVAILABLE"}


def test_a_topic_that_cannot_be_described_now_counts_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logkeep_engine.kafka.control.ControlPlane", Busy)
    (tmp_path / "backup.yaml").write_text(BACKUP)
    done = CliRunner().invoke(
        app, ["coverage", "--bootstrap-server", "kafka:9092", "-f", str(tmp_path / "backup.yaml"), "--output", "json"]
    )
    assert (done.exit_code, '"users"' in done.stdout, '"orders",' in done.stdout) == (6, True, False), done.output


def test_a_backup_of_strimzis_that_never_ran_is_left_aside_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logkeep_engine.kafka.control.ControlPlane", Busy)
    said = BACKUP.replace('{bootstrapServers: ["kafka:9092"]}', "{strimzi: {name: prod, listener: tls}}")
    (tmp_path / "backup.yaml").write_text(said)
    done = CliRunner().invoke(
        app, ["coverage", "--bootstrap-server", "kafka:9092", "-f", str(tmp_path / "backup.yaml"), "--output", "json"]
    )
    assert done.exit_code == 6
    assert (
        "orders is ignored: no run has reported which cluster it backs up, and only the operator finds" in done.output
    )
    assert "Strimzi's Kafka prod" in done.output
