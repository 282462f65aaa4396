"""`logkeep storage check` on a folder, and on what a file names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from logkeep_engine.cli import app
from logkeep_engine.contract.spec import API_VERSION


def check(*options: str, **more: Any) -> Result:
    return CliRunner().invoke(app, ["storage", "check", *options], **more)


def archive(uri: str, name: str = "lake") -> dict[str, Any]:
    return made("KafkaArchive", {"storage": {"uri": uri}}, name)


def made(kind: str, spec: dict[str, Any], name: str = "x") -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


CLUSTER = {"cluster": {"bootstrapServers": ["kafka:9092"]}}
BACKUP = {**CLUSTER, "topics": {"include": ["orders"]}}
BY_NAME = {"archiveRef": {"name": "lake"}}


def written(folder: Path, *documents: object) -> str:
    file = folder / "resources.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    return str(file)


@pytest.mark.parametrize("below", ["typo", "deep/typo"])
def test_a_folder_that_is_missing_is_not_made(tmp_path: Path, below: str) -> None:
    done = check((tmp_path / below).as_uri())
    assert done.exit_code == 2
    assert f"{(tmp_path / below).as_uri()}: there is no folder {tmp_path / below}." in done.stderr
    assert "Correct the name, or make the folder if it is right." in done.stderr
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    assert "is not a folder" in check((tmp_path / "file").as_uri()).stderr


def test_an_empty_folder_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logkeep_engine.storage.check.PART_BYTES", 1 << 20)
    done = check(tmp_path.as_uri())
    assert done.exit_code == 0, done.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "documents",
    [
        [archive("URI")],
        [made("KafkaBackup", {**BACKUP, "storage": {"uri": "URI"}})],
        [made("KafkaRestore", {**CLUSTER, "source": {"storage": {"uri": "URI"}}})],
        [
            made("KafkaBackup", {**BACKUP, **BY_NAME}),
            archive("URI"),
            made("KafkaRestore", {**CLUSTER, "source": BY_NAME}),
            {"apiVersion": "v1", "kind": "Secret"},
        ],
        [archive("URI"), archive("URI", "again")],
    ],
    ids=["archive", "backup", "restore", "by name", "twice the same"],
)
def test_the_place_is_the_one_that_the_file_names(
    tmp_path: Path, documents: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logkeep_engine.storage.check.PART_BYTES", 1 << 20)
    folder = tmp_path / "folder"
    folder.mkdir()
    text = yaml.safe_dump_all(documents).replace("URI", folder.as_uri())
    done = check("-f", "-", input=text)
    assert done.exit_code == 0, done.output
    assert f"writes below {folder.as_uri()}/checks/" in done.stderr


@pytest.mark.parametrize(
    ("documents", "said"),
    [
        ([{"kind": "Secret"}], "resources.yaml: holds no KafkaArchive, KafkaBackup or KafkaRestore"),
        ([], "resources.yaml: holds no document"),
        ([archive("s3://backups/b"), archive("s3://backups/c")], "resources.yaml: its resources name several places"),
        (
            [made("KafkaBackup", {**BACKUP, **BY_NAME})],
            "spec.archiveRef: only the operator can look up a KafkaArchive; write spec.storage, as in its spec",
        ),
        (
            [made("KafkaRestore", {**CLUSTER, "source": {"backupRef": {"name": "nightly"}}})],
            "spec.source.backupRef: only the operator can look up a KafkaBackup",
        ),
        (
            [archive("s3://backups/b", "pond"), made("KafkaBackup", {**BACKUP, **BY_NAME}, "nightly")],
            "resources.yaml: KafkaBackup nightly names KafkaArchive lake, which the file does not hold",
        ),
        ([archive("s3:/a")], "spec.storage.uri: must be s3://"),
        ([made("KafkaArchive", {})], "spec.storage: required"),
    ],
    ids=[
        "nothing of ours",
        "nothing",
        "two places",
        "a reference",
        "a backup",
        "another archive",
        "no URI",
        "no storage",
    ],
)
def test_a_file_without_one_place_is_refused(tmp_path: Path, documents: list[Any], said: str) -> None:
    done = check("-f", written(tmp_path, *documents))
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())


@pytest.mark.parametrize("option", ["--endpoint", "--region", "--s3"])
def test_what_the_resource_says_no_option_says(tmp_path: Path, option: str) -> None:
    value = {"--endpoint": "http://127.0.0.1:1", "--region": "x", "--s3": "requesterPays=true"}[option]
    done = check("-f", written(tmp_path, archive("s3://backups/b")), option, value)
    assert done.exit_code == 2
    shown = " ".join(done.output.split())
    assert option in shown
    assert "the resource in the file says it. Leave it out." in shown


def test_either_a_uri_or_a_file_is_given(tmp_path: Path) -> None:
    for options in ((), ("s3://backups/b", "-f", written(tmp_path, archive("s3://backups/b")))):
        done = check(*options)
        assert done.exit_code == 2
        assert "Give either a URI or a file." in done.stderr
