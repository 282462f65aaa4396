"""A driver runs the request that its Job was made for, and no other."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import KEY_EXECUTOR_TEMPLATE, KEY_REQUEST
from logkeep_engine.contract.request_files import mounted_files, request_hash
from logkeep_engine.contract.run import RunRequest, RunResult
from logkeep_engine.errors import RequestReplaced, SpecError
from logkeep_engine.spark import driver
from logkeep_engine.spark.driver import TEMPLATE_KEY, read_request

REQUEST = RunRequest(
    kind="KafkaBackup", name="nightly", namespace="team", run_id="r1", spec={"topics": {"include": ["x"]}}
)
TEMPLATE = json.dumps({"spec": {"containers": [{"name": "executor"}]}})


def mounted(folder: Path, **files: str) -> Path:
    """A ConfigMap as the kubelet mounts it: links into a folder of its own."""
    data = folder / "..2026_11_27"
    data.mkdir(parents=True)
    (folder / "..data").symlink_to(data.name)
    template = replace(REQUEST, spark_conf={TEMPLATE_KEY: str(folder / KEY_EXECUTOR_TEMPLATE)})
    for name, text in {KEY_REQUEST: template.to_json(), KEY_EXECUTOR_TEMPLATE: TEMPLATE, **files}.items():
        (data / name).write_text(text)
        (folder / name).symlink_to(f"..data/{name}")
    return folder / KEY_REQUEST


def test_the_request_of_the_job_is_read_and_sparks_template_is_a_copy(tmp_path: Path) -> None:
    path = mounted(tmp_path)
    with contextlib.ExitStack() as stack:
        request = read_request(path, request_hash(mounted_files(tmp_path)), stack)
        assert (request.run_id, request.spec) == ("r1", REQUEST.spec)
        copy = Path(request.spark_conf[TEMPLATE_KEY])
        assert copy.parent != tmp_path
        (tmp_path / KEY_EXECUTOR_TEMPLATE).write_text("another")
        assert copy.read_text() == TEMPLATE
    assert not copy.exists()


@pytest.mark.parametrize("name", [KEY_REQUEST, KEY_EXECUTOR_TEMPLATE, "kafka-ca.crt", "more"])
def test_no_file_of_a_request_may_be_another_one(name: str, tmp_path: Path) -> None:
    ours = mounted(tmp_path / "ours", **{"kafka-ca.crt": "ours"})
    wanted = request_hash(mounted_files(ours.parent))
    text = replace(REQUEST, spec={"topics": {"include": ["y"]}}).to_json() if name == KEY_REQUEST else "{}"
    theirs = mounted(tmp_path / "theirs", **{"kafka-ca.crt": "ours"} | {name: text})
    with contextlib.ExitStack() as stack, pytest.raises(RequestReplaced) as raised:
        read_request(theirs, wanted, stack)
    found = request_hash(mounted_files(theirs.parent))
    said = str(raised.value)
    assert said.startswith(
        f"The run request in {theirs.parent} is not the one that this Job was made for: its SHA-256 "
    )
    assert f" is {found}, and the Job says {wanted}." in said


def test_files_cannot_lend_each_other_their_bytes() -> None:
    assert request_hash({"a": b"bc", "d": b""}) != request_hash({"a": b"b", "cd": b""})
    assert request_hash({"a": b"", "b": b""}) != request_hash({"a": b"b"})


def test_a_folder_without_the_request_is_reported(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("x")
    wanted = request_hash(mounted_files(tmp_path))
    with contextlib.ExitStack() as stack, pytest.raises(SpecError, match="cannot be read"):
        read_request(tmp_path / KEY_REQUEST, wanted, stack)


def test_a_driver_with_another_request_ends_as_refused_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, reported = mounted(tmp_path / "request"), tmp_path / "told"
    monkeypatch.setenv(driver.ENV_TERMINATION_LOG, str(reported))
    monkeypatch.setattr(driver, "_set_up_logging", lambda: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("logkeep_engine.interrupt.on", lambda *_, **__: None)
    code = driver.main(["--request", str(path), "--request-hash", "0" * 64, "--run-id", "r1"])
    assert code == 2
    result = RunResult.from_json(reported.read_text())
    assert (result.run_id, result.outcome, result.error_code) == ("r1", "Failed", "RequestReplaced")
    assert "is not the one that this Job was made for" in result.message
