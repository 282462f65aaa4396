"""`--s3`: one option for those of requests to S3, of every command that takes an archive's URI."""

import os
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from logkeep_engine.cli import app
from logkeep_engine.contract.names import ENV_S3_OPTIONS
from logkeep_engine.contract.parsing import parse_s3_options
from logkeep_engine.contract.s3_options import ArchiveS3Options, ServerSideEncryption
from logkeep_engine.errors import StorageRefused
from logkeep_engine.storage import open_uri
from tests.unit.test_cli_signing import commands

DEAD = "http://127.0.0.1:9"


def test_every_command_with_an_endpoint_has_the_option() -> None:
    found = {
        name: {option.name for option in command.params} for name, command in commands(typer.main.get_command(app))
    }
    assert {name for name, options in found.items() if "endpoint" in options} == {
        name for name, options in found.items() if "s3" in options
    }


def test_options_have_the_names_of_the_resource() -> None:
    assert parse_s3_options("") == ArchiveS3Options()
    assert parse_s3_options("serverSideEncryption=aws:kms, kmsKeyId=arn:aws:kms:a:1:key/2,bucketKey=true") == (
        ArchiveS3Options(
            server_side_encryption=ServerSideEncryption.KMS, kms_key_id="arn:aws:kms:a:1:key/2", bucket_key=True
        )
    )


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("requesterPays", "'requesterPays' is not NAME=VALUE"),
        ("payer=me", "payer: unknown field"),
        ("requesterPays=true,requesterPays=false", "requesterPays is there twice"),
        ("requesterPays=perhaps", "requesterPays: Input should be a valid boolean"),
        ("kmsKeyId=a", "kmsKeyId may be set only with serverSideEncryption aws:kms"),
        ("storageClass=GLACIER", "storageClass may not be GLACIER or DEEP_ARCHIVE"),
    ],
)
def test_what_is_no_option_is_refused_by_name(given: str, problem: str) -> None:
    refused = CliRunner().invoke(app, ["inspect", "s3://bucket/a", *(f"--s3={item}" for item in given.split(","))])
    assert refused.exit_code == 2
    assert problem in " ".join(refused.output.replace("│", " ").split())
    with pytest.raises(StorageRefused, match=f"^{ENV_S3_OPTIONS}: ") as no:
        open_uri("s3://bucket/a", environ={ENV_S3_OPTIONS: given})
    assert problem in no.value.message


def test_the_option_is_there_for_the_command_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_S3_OPTIONS, "addressing=Path")
    CliRunner().invoke(app, ["inspect", "s3://bucket/a", "--endpoint", DEAD, "--s3", "requesterPays=true"])
    assert os.environ[ENV_S3_OPTIONS] == "addressing=Path"


@pytest.mark.parametrize(
    ("words", "option", "why"),
    [
        (["inspect", "file:///a", "--s3", "requesterPays=true"], "--s3", "a folder: it is for s3://"),
        (["inspect", "file:///a", "--endpoint", DEAD], "--endpoint", "a folder: it is for s3://, gs://, az://"),
        (["verify", "gs://bucket/a", "--region", "eu-north-1"], "--region", "gs://: it is for s3://"),
        (["storage", "check", "az://a/b", "--s3", "addressing=Path"], "--s3", "az://: it is for s3://"),
        (["log", "dump", "/data/a-0", "gs://bucket/a", "--region", "x"], "--region", "a folder and gs://: it is for"),
        (["log", "diff", "/data/a-0", "/data/b-0", "--endpoint", DEAD], "--endpoint", "a folder: it is for"),
        (["convert", "gs://b/a", "file:///b", "--format", "Avro", "--region", "x"], "--region", "a folder and gs://: "),
        (["convert", "s3://b/a", "gs://b/b", "--format", "Avro", "--target-region", "x"], "--target-region", "gs://: "),
        (
            ["convert", "gs://b/a", "s3://b/b", "--format", "Avro", "--region", "x", "--target-region", "y"],
            "--region",
            "gs://: it is for s3://",
        ),
        (["import", "file:///a", "--region", "x"], "--region", "a folder: it is for s3://"),
    ],
)
def test_an_option_that_no_uri_takes_is_refused(words: list[str], option: str, why: str) -> None:
    done = CliRunner().invoke(app, words)
    said = " ".join(done.stderr.replace("│", " ").split())
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"'{option}': it has no effect on {why}" in said
    assert "Leave it out." in said


def test_an_option_is_for_whichever_uri_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_S3_OPTIONS, "addressing=Path")  # a variable is no option of this command
    for words in (
        ["inspect", f"file://{tmp_path}"],
        [
            "log",
            "diff",
            f"{tmp_path}/a-0",
            "s3://bucket/a",
            "--endpoint",
            DEAD,
            "--region",
            "x",
            "--s3",
            "addressing=Path",
        ],
        ["convert", f"file://{tmp_path}", "s3://bucket/a", "--format", "Avro", "--endpoint", DEAD, "--region", "x"],
        ["log", "dump", f"{tmp_path}/a-0", "ftp://me:secret@host/a", "--region", "x"],
    ):
        done = CliRunner().invoke(app, words)
        assert done.exit_code != 0
        assert "no effect" not in done.output
        assert "secret" not in done.output
