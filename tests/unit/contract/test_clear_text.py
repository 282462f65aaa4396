"""Warnings for secrets that a spec sends across the network in the clear."""

from __future__ import annotations

from typing import Any

import pytest

from logkeep_engine.contract.clear_text import clear_text_warnings, of_the_run
from logkeep_engine.contract.restore_spec import parse_restore
from logkeep_engine.contract.run import MAX_LIST, RunResult
from logkeep_engine.contract.spec import parse_backup
from logkeep_engine.frame import with_clear_text_warnings

SECRET = {"credentials": {"secretRef": {"name": "keys"}}}


def storage(endpoint: str | None = None, **more: Any) -> dict[str, Any]:
    return {"uri": "s3://bucket/x", **({} if endpoint is None else {"endpoint": endpoint}), **more}


def cluster(protocol: str, mechanism: str | None = None) -> dict[str, Any]:
    sasl = {} if mechanism is None else {"sasl": {"mechanism": mechanism, "secretRef": {"name": "login"}}}
    return {"bootstrapServers": ["k:9092"], "security": {"protocol": protocol, **sasl}}


def warnings(place: dict[str, Any], kafka: dict[str, Any]) -> tuple[str, ...]:
    return clear_text_warnings(parse_backup({"topics": {"include": [".*"]}, "storage": place, "cluster": kafka}))


@pytest.mark.parametrize(
    ("protocol", "mechanism", "expected"),
    [
        ("SASL_PLAINTEXT", "PLAIN", True), ("SASL_SSL", "PLAIN", False), ("SASL_PLAINTEXT", "SCRAM-SHA-512", False),
        ("PLAINTEXT", None, False),
    ],
)  # fmt: skip
def test_a_password_of_plain_without_tls_is_reported(protocol: str, mechanism: str | None, expected: bool) -> None:
    found = warnings(storage(), cluster(protocol, mechanism))
    assert len(found) == expected
    assert all("PLAIN over SASL_PLAINTEXT sends the password across the network in the clear" in text for text in found)


OAUTH = {"mechanism": "OAUTHBEARER", "secretRef": {"name": "c"}, "oauth": {"tokenEndpoint": "https://sso/token"}}
IAM = {"mechanism": "AWS_MSK_IAM", "aws": {"region": "eu-north-1"}}


@pytest.mark.parametrize("sasl", [OAUTH, IAM])
def test_a_token_without_tls_is_reported(sasl: dict[str, Any]) -> None:
    def found(protocol: str) -> tuple[str, ...]:
        kafka = {"bootstrapServers": ["k:9092"], "security": {"protocol": protocol, "sasl": sasl}}
        return warnings(storage(), kafka)

    assert found("SASL_SSL") == ()
    (text,) = found("SASL_PLAINTEXT")
    assert f"{sasl['mechanism']} over SASL_PLAINTEXT sends the token across the network in the clear" in text


def test_a_clients_secret_over_http_is_reported() -> None:
    sasl = {**OAUTH, "oauth": {"tokenEndpoint": "http://sso/token"}}
    kafka = {"bootstrapServers": ["k:9092"], "security": {"protocol": "SASL_SSL", "sasl": sasl}}
    (text,) = warnings(storage(), kafka)
    assert text.startswith("spec.cluster.security.sasl.oauth.tokenEndpoint is http://: the client's secret ")


@pytest.mark.parametrize(
    ("endpoint", "keys", "expected"),
    [
        ("http://minio:9000", SECRET, True), ("https://minio:9000", SECRET, False), (None, SECRET, False),
        ("http://minio:9000", {}, False),
    ],
)  # fmt: skip
def test_keys_of_a_secret_over_http_are_reported(endpoint: str | None, keys: dict[str, Any], expected: bool) -> None:
    found = warnings(storage(endpoint, **keys), cluster("PLAINTEXT"))
    assert len(found) == expected
    assert all(text.startswith("spec.storage.endpoint is http://: ") for text in found)


@pytest.mark.parametrize(
    ("uri", "sent"),
    [
        ("s3://bucket/x", "the id of the Secret's key, its session token and all records"),
        ("gs://bucket/x", "the tokens that the Secret's key gets and all records"),
        ("az://bucket/x", "the Secret's shared access signature, if it has one, and all records"),
    ],
)
def test_each_store_is_sent_something_else(uri: str, sent: str) -> None:
    (text,) = warnings(storage("http://store:9000", uri=uri, **SECRET), cluster("PLAINTEXT"))
    assert f": {sent} cross the network in the clear" in text


def test_a_restore_tells_its_archive_and_its_state() -> None:
    place = storage("http://minio:9000", **SECRET)
    spec = {"source": {"storage": place}, "state": {**place, "uri": "s3://bucket/y"}, "cluster": cluster("PLAINTEXT")}
    assert [text.partition(" ")[0] for text in clear_text_warnings(parse_restore(spec))] == [
        "spec.source.storage.endpoint",
        "spec.state.endpoint",
    ]


def test_the_result_has_them_first_and_stays_bounded() -> None:
    spec = parse_backup(
        {"topics": {"include": [".*"]}, "storage": storage(), "cluster": cluster("SASL_PLAINTEXT", "PLAIN")}
    )
    result = RunResult(
        run_id="r",
        kind="KafkaBackup",
        outcome="Succeeded",
        exit_code=0,
        start_time=1.0,
        end_time=2.0,
        warnings=tuple("w" * MAX_LIST),
    )
    reported = with_clear_text_warnings(result, spec).warnings
    assert (len(reported), reported[0][:21], reported[1]) == (MAX_LIST, "spec.cluster.security", "w")
    assert reported[-1] == "and 2 more warnings, which the driver's log has"


def test_messages_do_not_repeat_what_the_spec_says_in_every_run() -> None:
    spec = parse_backup(
        {"topics": {"include": [".*"]}, "storage": storage(), "cluster": cluster("SASL_PLAINTEXT", "PLAIN")}
    )
    warnings = clear_text_warnings(spec)
    assert warnings
    others = ("spec.topics.include[0] 'a' matches no topic", "topic a crosses in the clear")
    assert of_the_run((*warnings, *others)) == others
