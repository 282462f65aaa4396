"""A KafkaUser's Secret gives what `security` would say."""

from __future__ import annotations

from typing import Any

from logkeep_engine.contract.cluster import ClusterSpec, SecuritySpec


def security(cluster: dict[str, Any]) -> SecuritySpec:
    return ClusterSpec.model_validate({"bootstrapServers": ["kafka:9093"], **cluster}).security_with_user


def test_without_a_user_the_security_is_as_it_is_written() -> None:
    assert security({"security": {"protocol": "SSL"}}) == SecuritySpec.model_validate({"protocol": "SSL"})


def test_a_user_with_a_password_is_a_scram_user_of_the_name_of_the_resource() -> None:
    found = security({"kafkaUserRef": {"name": "logkeep"}, "security": {"protocol": "SASL_SSL"}})
    assert found.sasl is not None
    assert (found.sasl.mechanism, found.sasl.username) == ("SCRAM-SHA-512", "logkeep")
    assert (found.sasl.secret_ref.name, found.sasl.secret_ref.password_key) == ("logkeep", "password")
    assert found.tls is None


def test_a_user_with_a_certificate_keeps_the_authorities_of_the_cluster() -> None:
    tls = {"caSecretRef": {"name": "ca"}}
    found = security({"kafkaUserRef": {"name": "logkeep"}, "security": {"protocol": "SSL", "tls": tls}})
    assert found.tls is not None
    assert found.tls.ca_secret_ref is not None
    assert found.tls.client_cert_secret_ref is not None
    client = found.tls.client_cert_secret_ref
    assert found.tls.ca_secret_ref.name == "ca"
    assert (client.name, client.certificate_key, client.private_key_key) == ("logkeep", "user.crt", "user.key")


def test_name_and_keys_of_the_users_secret_can_be_said() -> None:
    user = {"name": "logkeep", "secretName": "copied", "passwordKey": "pw"}
    found = security({"kafkaUserRef": user, "security": {"protocol": "SASL_PLAINTEXT"}})
    assert found.sasl is not None
    assert (found.sasl.username, found.sasl.secret_ref.name, found.sasl.secret_ref.password_key) == (
        "logkeep",
        "copied",
        "pw",
    )
    user = {"name": "logkeep", "secretName": "issued", "certificateKey": "tls.crt", "privateKeyKey": "tls.key"}
    found = security({"kafkaUserRef": user, "security": {"protocol": "SSL"}})
    assert found.tls is not None
    assert found.tls.client_cert_secret_ref is not None
    client = found.tls.client_cert_secret_ref
    assert (client.name, client.certificate_key, client.private_key_key) == ("issued", "tls.crt", "tls.key")
