"""A KafkaUser's Secret gives what `security` would say."""

from __future__ import annotations

import re
from typing import Any

import pytest

from logkeep_engine.contract.cluster import ClusterSpec, SecuritySpec
from logkeep_engine.contract.parsing import SpecInvalid, parse_model
from tests.data.wrong_logins import WRONG_ENDPOINTS, WRONG_LOGINS


def security(cluster: dict[str, Any]) -> SecuritySpec:
    return ClusterSpec.model_validate({"bootstrapServers": ["kafka:9093"], **cluster}).security_with_user


def test_without_a_user_the_security_is_as_it_is_written() -> None:
    assert security({"security": {"protocol": "SSL"}}) == SecuritySpec.model_validate({"protocol": "SSL"})


def test_a_user_with_a_password_is_a_scram_user_of_the_name_of_the_resource() -> None:
    found = security({"kafkaUserRef": {"name": "logkeep"}, "security": {"protocol": "SASL_SSL"}})
    assert found.sasl is not None
    assert (found.sasl.mechanism, found.sasl.username) == ("SCRAM-SHA-512", "logkeep")
    assert found.sasl.secret_ref is not None
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
    assert found.sasl.secret_ref is not None
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


def login(sasl: dict[str, Any]) -> dict[str, Any]:
    return {"bootstrapServers": ["k:1"], "security": {"protocol": "SASL_SSL", "sasl": sasl}}


@pytest.mark.parametrize(("sasl", "message"), WRONG_LOGINS)
def test_a_login_says_what_it_needs_and_nothing_else(sasl: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecInvalid, match=re.escape(message)):
        parse_model(ClusterSpec, login(sasl))


@pytest.mark.parametrize("endpoint", [*WRONG_ENDPOINTS, "https://169.254.169.254/token", "https://sso:0/token"])
def test_a_token_endpoint_is_a_plain_url_and_no_metadata_service(endpoint: str) -> None:
    sasl = {"mechanism": "OAUTHBEARER", "secretRef": {"name": "s"}, "oauth": {"tokenEndpoint": endpoint}}
    with pytest.raises(SpecInvalid, match=r"security\.sasl\.oauth\.tokenEndpoint") as error:
        parse_model(ClusterSpec, login(sasl))
    assert "password" not in str(error.value).replace("a password", "")


@pytest.mark.parametrize("scope", ["kafka", "api://confluent/.default", "a b"])
def test_a_scope_is_taken(scope: str) -> None:
    oauth = {"tokenEndpoint": "https://sso.example:8443/realms/x/token", "scope": scope}
    parse_model(ClusterSpec, login({"mechanism": "OAUTHBEARER", "secretRef": {"name": "s"}, "oauth": oauth}))
