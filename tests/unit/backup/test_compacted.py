"""The part of a backup that is for compacted topics."""

from __future__ import annotations

from typing import Any

import pytest

from logkeep_engine.backup.run import run_backup
from logkeep_engine.contract.run import RunRequest
from logkeep_engine.contract.spec import parse_backup
from logkeep_engine.report import Reporter
from logkeep_engine.tasks import TaskRunner


def no_tasks() -> TaskRunner:
    raise AssertionError("nothing is to be archived")


@pytest.mark.parametrize("dry", [False, True])
@pytest.mark.parametrize("format_name", ["Kafka", "Avro"])
def test_generations_are_refused_before_anything_is_asked(dry: bool, format_name: str, tmp_path: Any) -> None:
    spec = {
        "cluster": {"bootstrapServers": ["127.0.0.1:1"]},
        "topics": {"include": [".*"]},
        "storage": {"uri": f"file://{tmp_path}", "volume": {"claimName": "c"}},
        "format": format_name,
        "compactedTopics": "Generations",
        "dryRun": dry,
    }
    request = RunRequest("KafkaBackup", "b", "ns", "run-1", spec)
    result = run_backup(request, parse_backup(spec), no_tasks, Reporter("run-1"), {})
    told = result.dry_run.refusals[0].message if dry and result.dry_run else result.message
    assert "spec.compactedTopics: this version of Logkeep does not make generations yet" in told
    assert list(tmp_path.iterdir()) == []
