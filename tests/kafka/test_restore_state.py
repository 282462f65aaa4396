"""Where a restore keeps its state: an archive that may only be read is restored, and a run finds its own again."""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.contract.model import replace
from logkeep_engine.contract.run import RunRequest
from logkeep_engine.contract.storage import StorageSpec
from logkeep_engine.errors import SpecError, StateRefused
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.storage import open_storage
from tests.cluster.kafka import KafkaBroker
from tests.cluster.s3 import S3Server
from tests.data.compare import compare_topics
from tests.data.topics import Record, create_topic, produce
from tests.kafka.restores import ThreadRunner, back_up, backup_spec, bring_back, restore_spec, start_driver
from tests.runners import Job

pytestmark = pytest.mark.usefixtures("storage_environment")

# The rights that a restore needs on the archive and on the place of its state, as docs/security.md says.
READ = (["s3:GetObject"], "/*"), (["s3:ListBucket"], "")
WRITE = ["s3:PutObject", "s3:AbortMultipartUpload", "s3:DeleteObject"]


class OneTaskOnly(ThreadRunner):
    """The driver is gone after the first partitions."""

    def perform(self, job: Job) -> None:
        if job.name != "restore_partitions":
            return super().perform(job)
        assert len(job.work) > 1
        super().perform(replace(job, work=job.work[:1]))
        raise ConnectionAbortedError


def place(s3: S3Server, bucket: str, prefix: str, **more: Any) -> dict[str, Any]:
    return {"uri": f"s3://{bucket}/{prefix}", "endpoint": s3.endpoint, "region": s3.region, **more}


def paths(s3: S3Server, storage: Mapping[str, Any]) -> set[str]:
    """The paths that lie there, as the owner sees them."""
    keys = {"AWS_ACCESS_KEY_ID": s3.access_key, "AWS_SECRET_ACCESS_KEY": s3.secret_key}
    spec = StorageSpec.model_validate({key: value for key, value in storage.items() if key != "credentials"})
    return {info.path for info in open_storage(spec, keys).list()}


def filled(kafka: KafkaBroker, topic: str) -> None:
    """300 records in two partitions."""
    create_topic(kafka.bootstrap, topic, 2)
    recent = int(time.time() * 1000) - 3_600_000
    produce(kafka.bootstrap, topic, (Record(b"k%d" % n, b"v%d" % n, recent + n, [], n % 2) for n in range(300)))


@pytest.fixture
def archive(kafka: KafkaBroker, s3: S3Server, bucket: str, unique: str, tmp_path: Path) -> dict[str, Any]:
    """An archive of the topic `unique`."""
    filled(kafka, unique)
    storage = place(s3, bucket, "kafka")
    back_up({**backup_spec(kafka, tmp_path, unique), "storage": storage})
    return storage


def log_in(monkeypatch: pytest.MonkeyPatch, prefix: str, user: tuple[str, str]) -> None:
    """This process, and those that it starts, have the user's keys."""
    monkeypatch.setenv(f"{prefix}_ACCESS_KEY_ID", user[0])
    monkeypatch.setenv(f"{prefix}_SECRET_ACCESS_KEY", user[1])


def restore_of(kafka: KafkaBroker, tmp_path: Path, archive: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**restore_spec(kafka, tmp_path), "source": {"storage": archive}, **more}


def topics(kafka: KafkaBroker) -> set[str]:
    with ControlPlane(KafkaConnection((kafka.bootstrap,))) as control:
        return {topic.name for topic in control.topics()}


def test_an_archive_that_may_only_be_read_is_restored_with_its_state_elsewhere(
    kafka: KafkaBroker,
    s3: S3Server,
    bucket: str,
    archive: dict[str, Any],
    unique: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = s3.create_bucket(f"{unique}-state")
    log_in(monkeypatch, "AWS", s3.create_user(bucket, *READ))
    log_in(monkeypatch, "LOGKEEP_STATE", s3.create_user(other, *READ, (WRITE, "/*")))
    state = place(s3, other, "restores", credentials={"secretRef": {"name": "writer"}})
    spec = restore_of(kafka, tmp_path, archive, state=state, spark={"executor": {"instances": 2}})
    before = paths(s3, archive)

    with pytest.raises(ConnectionAbortedError):
        bring_back(spec, runner=OneTaskOnly())
    assert "runs/restore-1/restore-plan.json" in paths(s3, state)
    # Goes on in processes of their own, which have nothing but their environment; and with other settings.
    spec |= {"spark": {"executor": {"instances": 1}}, "limits": {"bytesPerSecond": "10Mi"}}
    request = tmp_path / "request.json"
    request.write_text(
        RunRequest(kind="KafkaRestore", name="test", namespace="", run_id="restore-1", spec=spec).to_json()
    )
    assert start_driver(request, spark=True).wait(240) == 0, (tmp_path / "driver.log").read_text()

    end = json.loads((tmp_path / "end").read_text())
    assert (end["outcome"], end["records"]) == ("Succeeded", 300)
    assert end["offsetMap"] == f"{state['uri']}/runs/restore-1/offset-maps"
    comparison = compare_topics(kafka.bootstrap, unique, f"{unique}-copy")
    assert comparison.equal, str(comparison)
    assert paths(s3, archive) == before, "nothing was written beside the archive"
    assert {f"runs/restore-1/offset-maps/{unique}-copy/{partition}.json" for partition in (0, 1)} <= paths(s3, state)
    assert bring_back(spec).records == 300, "a run that has succeeded is known by its state"


def test_keys_that_may_only_read_are_told_of_before_anything_is_done(
    kafka: KafkaBroker,
    s3: S3Server,
    bucket: str,
    archive: dict[str, Any],
    unique: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log_in(monkeypatch, "AWS", s3.create_user(bucket, *READ))
    for state, where, advice in (
        ({}, "next to the archive", "Name a storage that may be written in spec.state"),
        ({"state": place(s3, bucket, "state")}, "in spec.state", "to write s3:PutObject"),
    ):
        runner = ThreadRunner()
        with pytest.raises(StateRefused, match=f"The restore cannot keep its state {where}: .*AccessDenied") as refused:
            bring_back(restore_of(kafka, tmp_path, archive, **state), runner=runner)
        assert advice in refused.value.hint
        assert runner.functions == [], "the archive was not even checked"
    assert f"{unique}-copy" not in topics(kafka)


def test_one_pair_of_keys_may_read_the_archive_and_write_the_state(
    kafka: KafkaBroker,
    s3: S3Server,
    bucket: str,
    archive: dict[str, Any],
    unique: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log_in(monkeypatch, "AWS", s3.create_user(bucket, *READ, (WRITE, "/state/*")))
    state = place(s3, bucket, "state")
    result = bring_back(restore_of(kafka, tmp_path, archive, state=state))
    assert (result.outcome, result.records) == ("Succeeded", 300)
    assert "runs/restore-1/result.json" in paths(s3, state)


def test_a_run_that_was_begun_beside_the_archive_stays_there(kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
    filled(kafka, unique)
    root, state = tmp_path / "archive", tmp_path / "state"
    back_up(backup_spec(kafka, root, unique))
    spec = restore_spec(kafka, root, spark={"executor": {"instances": 2}})
    with pytest.raises(ConnectionAbortedError):
        bring_back(spec, runner=OneTaskOnly())
    with pytest.raises(SpecError, match=r"spec\.state: run restore-1 was started without it"):
        bring_back({**spec, "state": {"uri": state.as_uri()}})
    assert not state.exists()
    with pytest.raises(SpecError, match="was started with another spec"):
        bring_back({**spec, "topics": {**spec["topics"], "exclude": ["none"]}})
    # The same place by another name of the field is the same place.
    result = bring_back({**spec, "state": {"uri": f"{root.as_uri()}/"}, "limits": {"bytesPerSecond": "64Mi"}})
    assert (result.outcome, result.records) == ("Succeeded", 300)
    comparison = compare_topics(kafka.bootstrap, unique, f"{unique}-copy")
    assert comparison.equal, str(comparison)


def test_nothing_is_written_to_a_folder_whose_restores_keep_their_state_elsewhere(
    kafka: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    filled(kafka, unique)
    root, state = tmp_path / "archive", tmp_path / "state"
    back_up(backup_spec(kafka, root, unique))
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    result = bring_back(restore_spec(kafka, root, state={"uri": state.as_uri()}))
    assert (result.outcome, result.records) == ("Succeeded", 300)
    assert result.offset_map == f"{state.as_uri()}/runs/restore-1/offset-maps"
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before
    assert os.listdir(state) == ["runs"]
