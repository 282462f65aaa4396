"""Paths of the Kubernetes API are made of names only, and an answer is compared with the question."""

from __future__ import annotations

import re
from typing import Any

import pytest

from logkeep_engine.contract.backup_run_spec import KafkaBackupRunSpec
from logkeep_engine.contract.objects import (
    NotAName,
    OtherObject,
    api_path,
    check_item,
    check_list,
    check_object,
    is_name,
    is_namespace,
)
from logkeep_engine.contract.parsing import SpecInvalid, parse_model
from logkeep_engine.contract.references import CaRef, StoreSecretRef
from logkeep_engine.contract.restore_spec import parse_restore
from logkeep_engine.contract.spec import parse_backup
from tests.unit.operator.world import backup_spec, restore_spec

TRAPS = (
    "..",
    ".",
    "",
    "../../team-b/kafkabackups/nightly",
    "../../../../../../api/v1/pods",
    "nightly/status",
    "nightly?limit=1",
    "nightly#x",
    "nightly%2f..",
    "nightly\n",
    "night ly",
    "Nightly",
    "a..b",
    "a.-b",
    "-a",
    "a.",
    "ä",
    "a" * 254,
)


@pytest.mark.parametrize("name", TRAPS)
def test_what_is_not_a_name_becomes_no_path(name: str) -> None:
    assert not is_name(name)
    for kind in ("KafkaBackup", "Secret", "Kafka", "ConfigMap", "Job"):
        with pytest.raises(NotAName, match=re.escape(f"{name!r} is not the name of a {kind}, so no request")):
            api_path(kind, "team", name)
    with pytest.raises(NotAName, match="is not the name of a namespace"):
        api_path("KafkaBackup", name, "nightly")


def test_a_namespace_has_no_dots_and_at_most_63_characters() -> None:
    assert is_namespace("team-a1")
    assert not is_namespace("team.a")
    assert not is_namespace("a" * 64)
    assert not is_namespace(None)
    with pytest.raises(NotAName):
        api_path("KafkaBackup", None, "nightly")
    with pytest.raises(NotAName, match="is not a part of a Pod"):
        api_path("Pod", "team", "p", part="../log")


def test_names_become_paths() -> None:
    group = "/apis/logkeep.dev/v1alpha1"
    assert api_path("KafkaBackup", "team", "a.b-c") == f"{group}/namespaces/team/kafkabackups/a.b-c"
    assert api_path("KafkaRestore", "team", "x", part="status") == f"{group}/namespaces/team/kafkarestores/x/status"
    assert api_path("KafkaBackupRun", None) == f"{group}/kafkabackupruns"
    assert api_path("Secret", "team", "s" * 253).startswith("/api/v1/namespaces/team/secrets/sss")
    assert api_path("Kafka", "k", "p", api_version="kafka.strimzi.io/v1beta2").startswith(
        "/apis/kafka.strimzi.io/v1beta2/namespaces/k/kafkas/"
    )


def found(**changes: Any) -> dict[str, Any]:
    metadata = {"namespace": "team", "name": "nightly"} | changes.pop("metadata", {})
    return {"apiVersion": "logkeep.dev/v1alpha1", "kind": "KafkaBackup", "metadata": metadata} | changes


def test_an_answer_that_is_another_object_is_an_error_that_names_both() -> None:
    check_object(found(), "KafkaBackup", "team", "nightly")
    for other, named in (
        (found(metadata={"namespace": "team-b"}), "KafkaBackup team-b/nightly of logkeep.dev/v1alpha1"),
        (found(metadata={"name": "other"}), "KafkaBackup team/other of logkeep.dev/v1alpha1"),
        (found(kind="PodList", apiVersion="v1"), "PodList team/nightly of v1"),
        (found(apiVersion="evil.example/v1"), "KafkaBackup team/nightly of evil.example/v1"),
        ({}, "? ?/? of ?"),
        ({"metadata": [], "kind": "\x1b[2J"}, r"\x1b[2J ?/? of ?"),
    ):
        with pytest.raises(OtherObject) as raised:
            check_object(other, "KafkaBackup", "team", "nightly")
        wanted = "asked for KafkaBackup team/nightly of logkeep.dev/v1alpha1; answered with "
        assert str(raised.value) == wanted + named


def test_a_list_and_its_items_are_compared() -> None:
    check_list({"kind": "PodList", "apiVersion": "v1"}, "Pod")
    with pytest.raises(OtherObject, match="asked for PodList of v1; answered with SecretList of v1"):
        check_list({"kind": "SecretList", "apiVersion": "v1"}, "Pod")
    check_item({"metadata": {"name": "p", "namespace": "team"}}, "Pod", "team")
    check_item({"metadata": {"name": "p", "namespace": "other"}}, "Pod", None)
    with pytest.raises(OtherObject, match=r"asked for Pod team/\* of v1; answered with Pod other/p of v1"):
        check_item({"metadata": {"name": "p", "namespace": "other"}}, "Pod", "team")
    with pytest.raises(OtherObject, match="answered with Secret team/p of v1"):
        check_item({"kind": "Secret", "metadata": {"name": "p", "namespace": "team"}}, "Pod", "team")


@pytest.mark.parametrize("name", ["../../team-b/kafkabackups/nightly", "..", "Nightly", ""])
def test_every_reference_of_a_spec_takes_names_only(name: str) -> None:
    said = re.escape(f"{name!r} is not a name in Kubernetes: lower-case letters, digits, '-', and '.' between them")
    with pytest.raises(SpecInvalid, match=f"spec.backupRef.name: {said}"):
        parse_model(KafkaBackupRunSpec, {"backupRef": {"name": name}})
    with pytest.raises(SpecInvalid, match=f"spec.source.backupRef.name: {said}"):
        parse_restore(restore_spec(source={"backupRef": {"name": name}}))
    for field, spec in (
        ("storage.credentials.secretRef.name", {"credentials": {"secretRef": {"name": name}}}),
        ("storage.tls.caConfigMapRef.name", {"tls": {"caConfigMapRef": {"name": name}}}),
    ):
        with pytest.raises(SpecInvalid, match=f"spec.{field}: {said}"):
            parse_backup(backup_spec(storage={"uri": "s3://bucket/x", **spec}))
    with pytest.raises(SpecInvalid, match=f"spec.storage.volume.claimName: {said}"):
        parse_backup(backup_spec(storage={"uri": "file:///data/x", "volume": {"claimName": name}}))
    with pytest.raises(SpecInvalid, match=f"spec.spark.serviceAccountName: {said}"):
        parse_backup(backup_spec(spark={"serviceAccountName": name}))
    with pytest.raises(SpecInvalid, match=f"spec.cluster.strimzi.name: {said}"):
        parse_backup(backup_spec(cluster={"strimzi": {"name": name, "listener": "tls"}}))


@pytest.mark.parametrize("key", ["..", ".", "../x", "..data", "a/b", "a b"])
def test_a_key_of_a_secret_is_one_that_kubernetes_takes(key: str) -> None:
    said = re.escape(f"{key!r} is not a key of a Secret or a ConfigMap")
    with pytest.raises(SpecInvalid, match=f"spec.accessKeyIdKey: {said}"):
        parse_model(StoreSecretRef, {"name": "s3", "accessKeyIdKey": key})
    assert parse_model(CaRef, {"name": "ca", "certificateKey": ".ca-bundle.crt"}).certificate_key == ".ca-bundle.crt"
