"""`--s3`: one option for those of requests to S3, of every command that takes an archive's URI."""

import os
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from logkeep_engine.cli import app
from logkeep_engine.contract.names import ENV_S3_OPTIONS
from logkeep_engine.contract.s3_options import ArchiveS3Options, ServerSideEncryption, parse_s3_options
from logkeep_engine.errors import StorageRefused
from logkeep_engine.storage import open_uri
from tests.unit.test_cli_signing import commands


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
        ("payer=me", "payer: is no option"),
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
    CliRunner().invoke(app, ["inspect", f"file://{tmp_path}", "--s3", "requesterPays=true"])
    assert os.environ[ENV_S3_OPTIONS] == "addressing=Path"
