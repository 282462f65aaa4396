"""Logins by OAUTHBEARER at a broker that checks tokens with the keys of their issuer, as Kafka does it itself."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.contract import names
from logkeep_engine.errors import CredentialsMissing, KafkaLoginRefused, KafkaLoginUnavailable
from logkeep_engine.kafka import wire as wires_module
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.tokens import _held
from logkeep_engine.spark.in_driver import InDriverRunner
from logkeep_engine.spark.nursery import Nursery
from tests.cluster.kafka import JVM, STEADY, KafkaBroker
from tests.cluster.pki import Authority
from tests.cluster.strimzi_oauth import StrimziOAuthBroker
from tests.cluster.tokens import AUDIENCE, TokenServer
from tests.data.topics import create_topic
from tests.kafka.backing_up import Topics, numbers
from tests.kafka.logging_in import connect, put, wires, write_for
from tests.kafka.raw import run
from tests.kafka.restores import ThreadRunner, back_up, bring_back, committed

_LOGIN_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
_VALIDATOR = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"


@pytest.fixture(scope="module")
def issuer() -> Iterator[TokenServer]:
    with TokenServer() as server:
        yield server


@pytest.fixture
def tokens(issuer: TokenServer) -> Iterator[TokenServer]:
    """The issuer, which does what it should before and after each test. No token is held from before."""
    issuer.well()
    _held.of.clear()
    yield issuer
    issuer.well()


@pytest.fixture(scope="module")
def oauth_broker(issuer: TokenServer) -> Iterator[KafkaBroker]:
    """A broker whose SASL listeners take tokens of the issuer, and end the session when the token ends."""
    keys = f"{issuer.url}/keys"
    settings = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512,OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": keys,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": issuer.issuer,
        "sasl.oauthbearer.clock.skew.seconds": "0",
        "connections.max.reauth.ms": "3600000",
    }
    for listener in ("sasl_plaintext", "sasl_ssl"):
        prefix = f"listener.name.{listener}.oauthbearer"
        settings |= {f"{prefix}.sasl.jaas.config": _LOGIN_MODULE}
        settings |= {f"{prefix}.sasl.server.callback.handler.class": _VALIDATOR}
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys}"
    with KafkaBroker(secure=True, overrides={**STEADY, **settings}, jvm=(*JVM, allowed)) as broker:
        yield broker


def sasl(endpoint: str | None, **more: Any) -> dict[str, Any]:
    oauth = {**({} if endpoint is None else {"tokenEndpoint": endpoint}), **more}
    return {"mechanism": "OAUTHBEARER", "oauth": oauth, "secretRef": {"name": "client"}}


def environ(tokens: TokenServer) -> dict[str, str]:
    return {names.ENV_KAFKA_USERNAME: "backup", names.ENV_KAFKA_PASSWORD: tokens.clients["backup"]}


def client_of(broker: KafkaBroker, tokens: TokenServer, **oauth: Any) -> KafkaConnection:
    return connect(
        broker.sasl_bootstrap, "SASL_PLAINTEXT", environ(tokens), sasl=sasl(tokens.endpoint, scope="kafka", **oauth)
    )


def test_topics_are_archived_and_restored_by_a_client_of_the_issuer(
    oauth_broker: KafkaBroker, tokens: TokenServer, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Topics(oauth_broker).create(unique, 2)
    Topics(oauth_broker).produce(unique, numbers(500))
    for name, value in environ(tokens).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(names.ENV_KAFKA_CA_FILE, str(oauth_broker.ca_pem))
    security = {"protocol": "SASL_SSL", "sasl": sasl(tokens.endpoint, scope="kafka", clientAuthentication="Post")}
    cluster = {"bootstrapServers": [oauth_broker.sasl_ssl_bootstrap], "security": security}
    storage = {"uri": tmp_path.as_uri()}
    back_up({"cluster": cluster, "topics": {"include": [unique]}, "storage": storage}, runner=ThreadRunner())
    rename = {"rename": [{"from": "(.*)", "to": r"\1-copy"}]}
    bring_back({"cluster": cluster, "source": {"storage": storage}, "topics": rename, "verify": "Full"})
    assert committed(oauth_broker, f"{unique}-copy") == committed(oauth_broker, unique)
    assert len(tokens.issued) == 1, "all connections of a process show one token"
    assert tokens.asked[0]["client_secret"] == tokens.clients["backup"]


def test_a_run_goes_on_when_its_tokens_end(
    oauth_broker: KafkaBroker,
    tokens: TokenServer,
    unique: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nursery: Nursery,
) -> None:
    Topics(oauth_broker).create(unique)
    Topics(oauth_broker).produce(unique, [bytes(20_000)] * 50, batch=1)
    for name, value in environ(tokens).items():
        monkeypatch.setenv(name, value)
    tokens.seconds = 4
    security = {"protocol": "SASL_PLAINTEXT", "sasl": sasl(tokens.endpoint)}
    spec = {
        "cluster": {"bootstrapServers": [oauth_broker.sasl_bootstrap], "security": security},
        "topics": {"include": [unique]},
        "storage": {"uri": tmp_path.as_uri()},
        "limits": {"bytesPerSecond": "64Ki"},
    }
    started = time.monotonic()
    assert back_up(spec, runner=InDriverRunner(nursery, 1, os.environ)).records == 50
    assert time.monotonic() - started > 2 * tokens.seconds
    assert len(tokens.issued) >= 3


def test_an_open_connection_logs_in_again_before_its_session_ends(
    oauth_broker: KafkaBroker, tokens: TokenServer, unique: str
) -> None:
    create_topic(oauth_broker.bootstrap, unique)
    tokens.seconds = 8  # a busy machine needs some of what is left of it

    async def work() -> int:
        async with RawClient(client_of(oauth_broker, tokens)) as client:
            await write_for(client, unique, 0.1)
            before = set(map(id, wires(client)))
            count = await write_for(client, unique, 18)
            assert before <= set(map(id, wires(client))), "a connection was closed"
            return count

    count = run(work())
    assert len(tokens.issued) >= 3
    assert len(committed(oauth_broker, unique)) > count


def test_the_broker_ends_a_session_that_is_not_renewed(
    oauth_broker: KafkaBroker, tokens: TokenServer, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above would not show it of a broker that bounds no session."""
    create_topic(oauth_broker.bootstrap, unique)
    tokens.seconds = 3
    monkeypatch.setattr(wires_module.Wire, "_renew", lambda *_: None)

    async def work() -> None:
        async with RawClient(client_of(oauth_broker, tokens)) as client:
            await write_for(client, unique, 0.1)
            before = wires(client)
            await write_for(client, unique, 5)
            assert not any(wire.connected() for wire in before)

    run(work())


def refused(connection: KafkaConnection) -> KafkaLoginRefused:
    with ControlPlane(connection) as control, pytest.raises(KafkaLoginRefused) as error:
        control.cluster_id()
    return error.value


def test_a_token_that_another_key_has_signed_is_refused(oauth_broker: KafkaBroker, tokens: TokenServer) -> None:
    tokens.forges = True
    error = refused(client_of(oauth_broker, tokens))
    assert (error.code, error.exit_code) == ("KafkaLoginRefused", 2)
    assert error.message.startswith(f"{oauth_broker.sasl_bootstrap} refused the token of client 'backup': ")
    assert "invalid_token" in error.message
    assert "Compare the issuer, the audience and the scope" in error.hint
    assert tokens.issued[0] not in str(error)
    assert tokens.clients["backup"] not in str(error)


@pytest.mark.parametrize("what", ["ended", "audience"])
def test_a_token_that_has_ended_or_is_for_others_is_refused(
    oauth_broker: KafkaBroker, tokens: TokenServer, what: str
) -> None:
    tokens.seconds, tokens.audience = (-60, AUDIENCE) if what == "ended" else (3600, "others")
    assert "refused the token of client 'backup'" in str(refused(client_of(oauth_broker, tokens)))


def test_a_token_that_is_not_taken_any_more_is_fetched_again(oauth_broker: KafkaBroker, tokens: TokenServer) -> None:
    """The issuer has taken it back, or has new keys: the token that this process holds is not shown for ever."""
    connection = client_of(oauth_broker, tokens)
    tokens.audience = "others"
    refused(connection)
    tokens.audience = AUDIENCE
    with ControlPlane(connection) as control:
        assert control.cluster_id() == oauth_broker.cluster_id
    assert len(tokens.issued) == 2


def test_an_issuer_that_does_not_know_the_client_is_named(oauth_broker: KafkaBroker, tokens: TokenServer) -> None:
    wrong = {**environ(tokens), names.ENV_KAFKA_PASSWORD: "wrong-secret"}
    connection = connect(oauth_broker.sasl_bootstrap, "SASL_PLAINTEXT", wrong, sasl=sasl(tokens.endpoint))
    error = refused(connection)
    assert error.message == (
        f"The token endpoint {tokens.endpoint} gives client 'backup' no token: it answers 401 (invalid_client: Invalid "
        "client or Invalid client credentials)."
    )
    assert "LOGKEEP_KAFKA_PASSWORD" in error.hint
    assert "wrong-secret" not in str(error)


ANSWERS: list[tuple[tuple[int, Any], str, str]] = [
    ((302, "moved"), "answers 302", "no secret is sent after it"),
    ((404, "<html>not here</html>"), "answers 404", "Check spec.cluster.security.sasl.oauth.tokenEndpoint"),
    ((200, "<html>hello</html>"), "answers 200 without an access_token", "tokenEndpoint"),
    ((200, {"access_token": "x", "token_type": "mac"}), "another type than Bearer", "Change what the provider"),
    ((400, {"error": "invalid_scope"}), "answers 400 (invalid_scope)", "Check spec.cluster.security.sasl.oauth.scope"),
]


@pytest.mark.parametrize(("answer", "message", "hint"), ANSWERS)
def test_what_an_endpoint_answers_in_place_of_a_token_is_reported(
    oauth_broker: KafkaBroker, tokens: TokenServer, answer: tuple[int, Any], message: str, hint: str
) -> None:
    tokens.answer = answer
    error = refused(client_of(oauth_broker, tokens))
    assert message in error.message
    assert hint in error.hint
    assert len(tokens.asked) == 1, "a refusal is not asked for again, and no redirect is followed"


def test_an_issuer_that_is_down_is_asked_again(oauth_broker: KafkaBroker, tokens: TokenServer) -> None:
    tokens.answer = 503, "busy"
    with ControlPlane(client_of(oauth_broker, tokens)) as control:
        with pytest.raises(KafkaLoginUnavailable) as error:
            control.cluster_id()
        assert f"the token endpoint {tokens.endpoint} answers 503" in error.value.message
        assert "Check that what gives tokens runs" in error.value.hint
        assert len(tokens.asked) > 1
        tokens.answer = None
        assert control.cluster_id() == oauth_broker.cluster_id


@pytest.mark.parametrize("answer", [(503, "busy"), (401, {"error": "invalid_client"})], ids=["down", "refuses"])
def test_a_token_serves_as_long_as_it_holds_where_the_issuer_gives_no_other(
    oauth_broker: KafkaBroker, tokens: TokenServer, answer: tuple[int, Any]
) -> None:
    tokens.seconds = 8
    connection = client_of(oauth_broker, tokens)
    with ControlPlane(connection) as control:
        control.cluster_id()
    assert connection.tokens is not None
    tokens.answer = answer
    time.sleep(5.7)  # a quarter of its time is left
    assert connection.tokens.held() is None
    with ControlPlane(connection) as control:
        assert control.cluster_id() == oauth_broker.cluster_id
    assert len(tokens.asked) > 1 == len(tokens.issued)


def test_an_issuer_with_a_certificate_of_its_own_is_trusted_by_name_only(
    oauth_broker: KafkaBroker, tmp_path: Path, issuer: TokenServer
) -> None:
    authority = Authority(tmp_path / "pki")
    with TokenServer(authority.issue("issuer", "/CN=issuer", "IP:127.0.0.1")) as secure:
        secure._key, secure.issuer = issuer._key, issuer.issuer  # that brokers know
        place, login = oauth_broker.sasl_bootstrap, sasl(secure.endpoint)
        error = refused(connect(place, "SASL_PLAINTEXT", environ(secure), sasl=login))
        assert error.message.startswith(f"The token endpoint {secure.endpoint} has a certificate that is not trusted: ")
        assert "LOGKEEP_KAFKA_TOKEN_CA_FILE" in error.hint
        trusting = {**environ(secure), names.ENV_KAFKA_TOKEN_CA_FILE: str(authority.cert)}
        with ControlPlane(connect(place, "SASL_PLAINTEXT", trusting, sasl=login)) as control:
            assert control.cluster_id() == oauth_broker.cluster_id


def test_a_token_in_a_file_is_shown_to_brokers_and_read_again(
    oauth_broker: KafkaBroker, tokens: TokenServer, unique: str, tmp_path: Path
) -> None:
    """The kubelet renews the token of a ServiceAccount like this."""
    create_topic(oauth_broker.bootstrap, unique)
    file = tmp_path / "token"
    login = {"mechanism": "OAUTHBEARER", "oauth": {"serviceAccountToken": {"audience": AUDIENCE}}}
    found = {names.ENV_KAFKA_TOKEN_FILE: put(file, tokens.token("logkeep-engine", 4))}
    connection = connect(oauth_broker.sasl_bootstrap, "SASL_PLAINTEXT", found, sasl=login)

    async def work() -> None:
        async with RawClient(connection) as client:
            for _ in range(4):
                await write_for(client, unique, 2)
                put(file, tokens.token("logkeep-engine", 4))

    run(work())
    put(file, tokens.token("logkeep-engine", -5))
    time.sleep(4)  # the token that this process holds ends, too
    error = refused(connection)
    assert "spec.cluster.security.sasl.oauth: the token has ended" in error.message


def test_a_token_of_kubernetes_is_shown_to_the_issuer_as_an_assertion(
    oauth_broker: KafkaBroker, tokens: TokenServer, tmp_path: Path
) -> None:
    proof = tokens.token("system:serviceaccount:team:logkeep-engine", 600, audience="issuer")
    tokens.issued.append(proof)  # the issuer knows who has signed it
    tokens.clients["backup"], secret = "", tokens.clients["backup"]
    try:
        oauth = {"tokenEndpoint": tokens.endpoint, "serviceAccountToken": {"audience": "issuer"}}
        login = {"mechanism": "OAUTHBEARER", "username": "backup", "oauth": oauth}
        found = {names.ENV_KAFKA_TOKEN_FILE: put(tmp_path / "token", proof)}
        with ControlPlane(connect(oauth_broker.sasl_bootstrap, "SASL_PLAINTEXT", found, sasl=login)) as control:
            assert control.cluster_id() == oauth_broker.cluster_id
        assert tokens.asked[0]["client_assertion_type"].endswith(":client-assertion-type:jwt-bearer")
        put(tmp_path / "token", tokens.token("system:serviceaccount:team:other", 600))
        found = {names.ENV_KAFKA_TOKEN_FILE: str(tmp_path / "token")}
        other = connect(oauth_broker.sasl_bootstrap, "SASL_PLAINTEXT", found, sasl={**login, "username": "someone"})
        assert "gives client 'someone' no token: it answers 401" in refused(other).message
    finally:
        tokens.clients["backup"] = secret


def test_a_listener_that_takes_no_tokens_says_what_it_takes(kafka: KafkaBroker, tokens: TokenServer) -> None:
    connection = connect(kafka.bootstrap, "SASL_PLAINTEXT", environ(tokens), sasl=sasl(tokens.endpoint))
    error = refused(connection)
    assert "does not take this login" in error.message


def test_a_secret_that_is_missing_is_named(tokens: TokenServer) -> None:
    with pytest.raises(CredentialsMissing, match=r"sasl\.secretRef: .*LOGKEEP_KAFKA_PASSWORD is not set, nor is"):
        connect("k:1", "SASL_SSL", {names.ENV_KAFKA_USERNAME: "x"}, sasl=sasl(tokens.endpoint))
    login = {"mechanism": "OAUTHBEARER", "oauth": {"serviceAccountToken": {"audience": AUDIENCE}}}
    with pytest.raises(CredentialsMissing, match=r"oauth\.serviceAccountToken: .*LOGKEEP_KAFKA_TOKEN_FILE is not set"):
        connect("k:1", "SASL_SSL", {}, sasl=login)


def test_strimzis_library_takes_the_same_logins_and_refuses_the_same_tokens(
    issuer: TokenServer, tokens: TokenServer, unique: str
) -> None:
    with StrimziOAuthBroker(issuer) as broker:
        create_topic(broker.bootstrap, unique)
        for spoil in ({"forges": True}, {"seconds": -60}):
            tokens.__dict__.update(spoil)
            assert "refused the token of client 'backup'" in str(refused(client_of(broker, tokens)))
            tokens.well()
        tokens.seconds = 8

        async def work() -> None:
            async with RawClient(client_of(broker, tokens)) as client:
                await write_for(client, unique, 0.1)
                before = set(map(id, wires(client)))
                await write_for(client, unique, 18)
                assert before <= set(map(id, wires(client))), "a connection was closed"

        run(work())
        assert len(tokens.issued) >= 3
