"""A KafkaBackup that was deleted and created again, as a restore of the Kubernetes cluster does: its archive is another
one's until somebody hands it over, and then it continues."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.backup.run.backup_run import run_backup
from logkeep_engine.contract.run import RunRequest, RunResult
from logkeep_engine.contract.spec import parse_backup
from logkeep_engine.report import Reporter
from logkeep_engine.storage import open_uri
from tests.cluster.kafka import KafkaBroker
from tests.kafka.backing_up import WATCH, Topics, numbers
from tests.kafka.restores import ThreadRunner, backup_spec


def backed_up(spec: dict[str, Any], run_id: str, uid: str, **more: Any) -> RunResult:
    request = RunRequest(
        kind="KafkaBackup", name="nightly", namespace="team-a", uid=uid, run_id=run_id, spec=spec, **more
    )
    return run_backup(request, parse_backup(spec), ThreadRunner, Reporter(run_id), os.environ, timing=WATCH)


def test_its_archive_is_refused_until_it_is_taken_over_and_then_continues(
    kafka: KafkaBroker, topics: Topics, unique: str, tmp_path: Path
) -> None:
    topics.create(unique)
    topics.produce(unique, numbers(100))
    spec = backup_spec(kafka, tmp_path, unique)
    first = backed_up(spec, "first", "uid-1")
    assert (first.outcome, first.records) == ("Succeeded", 100)
    topics.produce(unique, numbers(20))

    refused = backed_up(spec, "second", "uid-2")
    assert (refused.outcome, refused.error_code) == ("Failed", "ArchiveOwned")
    assert Archive.open(open_uri(tmp_path.as_uri())).load().commit == first.commit, "nothing was written"
    named = re.search(r"logkeep\.dev/take-over=(\S+)", refused.message)
    assert named is not None, refused.message
    assert named[1] == first.anchor

    taken = backed_up(spec, "third", "uid-2", take_over=named[1])
    assert (taken.outcome, taken.records, taken.archive_id) == ("Succeeded", 20, first.archive_id)
    assert backed_up(spec, "fourth", "uid-2", anchor=taken.anchor).outcome == "Succeeded"
