"""Which storage a URI or a resource names, and that no secret is repeated."""

import pickle
import traceback
from pathlib import Path

import pytest

from logkeep_engine.contract.names import ENV_SIGNING_DIR, STATE_KEYS
from logkeep_engine.contract.storage import ArchiveSpec, StorageSpec
from logkeep_engine.errors import CredentialsMissing, StorageRefused
from logkeep_engine.storage import LocalStorage, open_storage, open_uri
from logkeep_engine.storage.s3 import S3Storage


def test_uris_decide_what_is_opened() -> None:
    assert isinstance(open_uri("file:///a/b/"), LocalStorage)
    s3 = open_uri("s3://bucket/pre/fix/", endpoint="http://user:secret@host:9000")
    assert isinstance(s3, S3Storage)
    assert repr(s3) == "S3Storage('s3://bucket/pre/fix', endpoint='http://host:9000')"
    assert repr(open_uri("gs://bucket/pre/")) == "GcsStorage('gs://bucket/pre', endpoint='Google Cloud Storage')"
    azure = open_uri("az://container/pre/", endpoint="https://account.blob.core.windows.net")
    assert repr(azure) == "AzureStorage('az://container/pre', endpoint='https://account.blob.core.windows.net')"
    for uri in ("b2://bucket", "file://host/path", "/path", "s3:///prefix", "gs:///prefix", "az:///prefix"):
        with pytest.raises(StorageRefused, match="is not a storage URI"):
            open_uri(uri)


@pytest.mark.parametrize(
    "uri",
    [
        "s3://AKIAKEY:hunter2@bucket/p",
        "s3://AKIAKEY:hun/hunter2@bucket/p",
        "s3://AKIAKEY:hun?hunter2@bucket/p",
        "s3://AKIAKEY@bucket/p",
        "s3://AKIAKEY%3Ahunter2%40bucket/p",
        "file://AKIAKEY:hunter2@host/p",
        "gs://AKIAKEY:hunter2@bucket/p",
        "az://AKIAKEY:hunter2@bucket/p",
        "b2://AKIAKEY:hunter2@bucket/p",
    ],
)
def test_a_login_in_a_uri_is_refused_and_not_repeated(uri: str) -> None:
    with pytest.raises(StorageRefused, match=r"Credentials come from the environment \(AWS_ACCESS_KEY_ID") as refused:
        open_uri(uri)
    _assert_unreported(refused.value)


@pytest.mark.parametrize(
    "uri",
    [
        "s3://AKIAKEY:[hunter2@bucket/p",
        "s3://AKIAKEY:hunter2@b\u2100cket/p",
        "s3:/AKIAKEY:hunter2@bucket/p",
        "AKIAKEY:hunter2@bucket/p",
        "/p?AKIAKEY=hunter2",
        "b2://bucket/#hunter2",
    ],
)
def test_what_is_no_uri_is_not_repeated_if_it_may_hold_a_secret(uri: str) -> None:
    with pytest.raises(StorageRefused, match=r"What was given is not a storage URI\. Write s3://") as refused:
        open_uri(uri)
    _assert_unreported(refused.value)


@pytest.mark.parametrize("rest", ["?AKIAKEY=hunter2", "#hunter2", "?", "/?AKIAKEY=hunter2#hunter2"])
def test_what_would_be_dropped_of_a_uri_is_refused_and_not_repeated(rest: str) -> None:
    with pytest.raises(
        StorageRefused, match=r"^s3://bucket/p/?: a storage URI has no part .* Credentials come from"
    ) as refused:
        open_uri(f"s3://bucket/p{rest}")
    _assert_unreported(refused.value)


def _assert_unreported(error: StorageRefused) -> None:
    text = "".join(traceback.format_exception(error))
    assert "AKIAKEY" not in text
    assert "hunter2" not in text


@pytest.mark.parametrize("name", ["a@b", "a:b", "a?b", "a#b", "a%b", "@", "a b"])
def test_a_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    open_uri((tmp_path / name).as_uri()).put("object", b"1")
    assert (tmp_path / name / "object").read_bytes() == b"1"
    if name in ("a@b", "a:b", "@"):
        assert open_uri(f"file://{tmp_path}/{name}").read("object") == b"1"
    if name in ("a?b", "a#b"):
        with pytest.raises(
            StorageRefused, match=f"^file://{tmp_path}/a: a storage URI has no part .* write %3F and %23"
        ):
            open_uri(f"file://{tmp_path}/{name}")


@pytest.mark.parametrize("endpoint", ["AKIAKEY:hunter2@host:9000", "http://AKIAKEY:hunter2@-host-:9000"])
def test_a_login_in_an_endpoint_is_not_reported(endpoint: str) -> None:
    s3 = open_uri("s3://bucket", endpoint, environ={"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key"})
    with pytest.raises(StorageRefused, match=r"Invalid endpoint: (http://)?-?host-?:9000") as refused:
        s3.check()
    assert "AKIAKEY" not in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_secret_that_did_not_arrive_is_said_by_variable_and_key() -> None:
    spec = StorageSpec.model_validate({"uri": "s3://bucket", "credentials": {"secretRef": {"name": "keys"}}})
    with pytest.raises(CredentialsMissing) as caught:
        open_storage(spec, {"AWS_ACCESS_KEY_ID": "id"})
    assert str(caught.value) == (
        "storage.credentials.secretRef names Secret 'keys', but AWS_SECRET_ACCESS_KEY is not in the environment. "
        "A command does not read Secrets: set the variables."
    )
    assert isinstance(open_storage(spec, {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key"}), S3Storage)


def test_the_keys_of_a_state_are_variables_of_their_own() -> None:
    spec = StorageSpec.model_validate({"uri": "s3://bucket", "credentials": {"secretRef": {"name": "writer"}}})
    archives = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key"}
    with pytest.raises(CredentialsMissing) as caught:
        open_storage(spec, archives, secret_keys=STATE_KEYS)
    assert str(caught.value).startswith(
        "state.credentials.secretRef names Secret 'writer', but LOGKEEP_STATE_ACCESS_KEY_ID and "
        "LOGKEEP_STATE_SECRET_ACCESS_KEY are not in the environment."
    )
    shared = StorageSpec.model_validate({"uri": "s3://bucket"})
    assert isinstance(open_storage(shared, archives, secret_keys=STATE_KEYS), S3Storage)


def test_a_pickle_holds_no_credentials() -> None:
    s3 = open_uri("s3://bucket", environ={"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "hush-hush"})
    pickled = pickle.dumps(s3)
    assert b"hush" not in pickled
    assert b"AKID" not in pickled


@pytest.mark.parametrize("folder", [None, "", "/nowhere"])
def test_an_archive_that_is_signed_is_not_opened_without_the_folder_of_its_keys(folder: str | None) -> None:
    spec = ArchiveSpec.model_validate({"uri": "file:///a", "signing": {"secretRef": {"name": "archive-keys"}}})
    environ = {} if folder is None else {ENV_SIGNING_DIR: folder}
    with pytest.raises(CredentialsMissing, match=r"storage\.signing names the keys of the archive, but "):
        open_storage(spec, environ)


def test_an_archive_that_is_signed_is_opened_with_the_folder_of_its_keys(tmp_path: Path) -> None:
    spec = ArchiveSpec.model_validate({"uri": "file:///a", "signing": {"secretRef": {"name": "archive-keys"}}})
    assert open_storage(spec, {ENV_SIGNING_DIR: str(tmp_path)}).uri == "file:///a"
