"""Logins by IAM at a front that checks signatures of AWS as Amazon MSK does, before a real broker."""

import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from logkeep_engine.contract import names
from logkeep_engine.errors import CredentialsMissing, KafkaLoginRefused
from logkeep_engine.kafka import aws_token, tokens
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.kafka.control import ControlPlane
from tests.cluster import system
from tests.cluster.kafka import STEADY, KafkaBroker
from tests.cluster.msk_front import MskFront
from tests.data.topics import create_topic
from tests.kafka.backing_up import Topics, numbers
from tests.kafka.logging_in import connect, put, wires, write_for
from tests.kafka.raw import run
from tests.kafka.restores import ThreadRunner, back_up, bring_back, committed

KEY, SECRET = "AKIALOGKEEP000000000", "a-secret/of+40=characters"
ROLE = "arn:aws:iam::123456789012:role/backups"
AWS: dict[str, Any] = {"mechanism": "AWS_MSK_IAM", "aws": {"region": "eu-north-1"}}
WITH_SECRET = {**AWS, "secretRef": {"name": "aws"}}
ENVIRON = {names.ENV_KAFKA_USERNAME: KEY, names.ENV_KAFKA_PASSWORD: SECRET}


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[MskFront, KafkaBroker]]:
    (port,) = system.free_ports(1)
    advertised = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}
    with MskFront(port) as front, KafkaBroker(overrides={**STEADY, **advertised}) as broker:
        front.target = broker.bootstrap
        yield front, broker


@pytest.fixture
def front(both: tuple[MskFront, KafkaBroker], monkeypatch: pytest.MonkeyPatch) -> Iterator[MskFront]:
    """The front, which knows one key, and no identity of AWS in the environment. No token is held from before."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    tokens._held.of.clear()
    found, _ = both
    found.well()
    found.secrets, found.tokens = {KEY: SECRET}, {}
    yield found
    found.well()


@pytest.fixture
def behind(both: tuple[MskFront, KafkaBroker]) -> KafkaBroker:
    return both[1]


def address(front: MskFront) -> str:
    return f"127.0.0.1:{front.server_address[1]}"


def client_of(
    front: MskFront, environ: Mapping[str, str] = ENVIRON, sasl: Mapping[str, Any] = WITH_SECRET
) -> KafkaConnection:
    return connect(address(front), "SASL_PLAINTEXT", environ, sasl=sasl)


def refused(connection: KafkaConnection) -> KafkaLoginRefused:
    with ControlPlane(connection) as control, pytest.raises(KafkaLoginRefused) as error:
        control.cluster_id()
    return error.value


def test_topics_are_archived_and_restored_by_an_identity_of_aws(
    front: MskFront, behind: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Topics(behind).create(unique, 2)
    Topics(behind).produce(unique, numbers(300))
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    security = {"protocol": "SASL_PLAINTEXT", "sasl": WITH_SECRET}
    cluster = {"bootstrapServers": [address(front)], "security": security}
    storage = {"uri": tmp_path.as_uri()}
    back_up({"cluster": cluster, "topics": {"include": [unique]}, "storage": storage}, runner=ThreadRunner())
    rename = {"rename": [{"from": "(.*)", "to": r"\1-copy"}]}
    bring_back({"cluster": cluster, "source": {"storage": storage}, "topics": rename, "verify": "Full"})
    assert committed(behind, f"{unique}-copy") == committed(behind, unique)
    assert {who for who, _ in front.logins} == {KEY}


def test_tokens_are_made_anew_in_a_run_and_shown_on_open_connections(
    front: MskFront, behind: KafkaBroker, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(behind.bootstrap, unique)
    monkeypatch.setattr(aws_token, "SECONDS", 8)

    async def work() -> int:
        async with RawClient(client_of(front)) as client:
            await write_for(client, unique, 0.1)
            before = set(map(id, wires(client)))
            count = await write_for(client, unique, 18)
            assert before <= set(map(id, wires(client))), "a connection was closed"
            return count

    count = run(work())
    assert max(before for _, before in front.logins) >= 2
    assert len(committed(behind, unique)) > count


def test_an_identity_that_aws_does_not_know_is_refused(front: MskFront) -> None:
    error = refused(client_of(front, {**ENVIRON, names.ENV_KAFKA_PASSWORD: "wrong-secret"}))
    assert error.message == (
        f"{address(front)} refused the identity of AWS with the access key {KEY!r}: [the signature is another one]: "
        "Access denied."
    )
    assert "kafka-cluster:Connect" in error.hint
    assert "wrong-secret" not in str(error)


def test_a_token_that_has_expired_is_refused(front: MskFront) -> None:
    front.ahead = 901
    assert "the request has expired" in refused(client_of(front)).message


def test_another_region_is_refused(front: MskFront) -> None:
    other = {**WITH_SECRET, "aws": {"region": "eu-west-1"}}
    error = refused(client_of(front, sasl=other))
    assert "the request is for kafka.eu-west-1.amazonaws.com" in error.message
    assert "sasl.aws.region" in error.hint


def test_a_key_that_was_replaced_in_a_run_serves_from_then_on(
    front: MskFront, behind: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(behind.bootstrap, unique)
    monkeypatch.setattr(aws_token, "SECONDS", 3)
    file = tmp_path / "secret"
    environ = {names.ENV_KAFKA_USERNAME: KEY, f"{names.ENV_KAFKA_PASSWORD}_FILE": put(file, SECRET)}

    async def work() -> None:
        async with RawClient(client_of(front, environ)) as client:
            await write_for(client, unique, 1)
            front.secrets[KEY] = "another-secret"
            put(file, "another-secret")
            await write_for(client, unique, 6)

    run(work())


def test_the_environments_identity_serves_on_the_command_line(front: MskFront, monkeypatch: pytest.MonkeyPatch) -> None:
    front.tokens[KEY] = "a-session-token"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a-session-token")
    with ControlPlane(client_of(front, {}, AWS)) as control:
        assert control.cluster_id()


def test_the_keys_of_an_object_store_are_no_identity_in_a_pod(front: MskFront, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv(names.ENV_POD_NAMESPACE, "team")
    with ControlPlane(client_of(front, {}, AWS)) as control, pytest.raises(CredentialsMissing) as error:
        control.cluster_id()
    assert error.value.message == "spec.cluster.security.sasl.aws: there is no identity of AWS here."
    assert "Bind both ServiceAccounts" in error.value.hint


class TokenService(ThreadingHTTPServer):
    """A server that gives keys with a session token as AWS's STS does, for a role or for the token of an account."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Sts)
        self.asked: list[dict[str, str]] = []
        self.refuses = False


class _Sts(BaseHTTPRequestHandler):
    server: TokenService

    def do_POST(self) -> None:
        body = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        form = {name: values[0] for name, values in body.items()}
        self.server.asked.append(form)
        action, ends = form["Action"], datetime.now(UTC) + timedelta(hours=1)
        if self.server.refuses:
            text = "<Error><Type>Sender</Type><Code>AccessDenied</Code><Message>not authorized</Message></Error>"
            self._send(403, f"<ErrorResponse>{text}<RequestId>1</RequestId></ErrorResponse>")
            return
        key = f"<AccessKeyId>ASIA1</AccessKeyId><SecretAccessKey>{SECRET}</SecretAccessKey>"
        key += f"<SessionToken>of-sts</SessionToken><Expiration>{ends:%Y-%m-%dT%H:%M:%SZ}</Expiration>"
        found = f"<{action}Result><Credentials>{key}</Credentials></{action}Result>"
        self._send(200, f"<{action}Response>{found}</{action}Response>")

    def _send(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/xml")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        return


@pytest.fixture
def sts(front: MskFront, monkeypatch: pytest.MonkeyPatch) -> Iterator[TokenService]:
    with TokenService() as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{server.server_address[1]}")
        front.secrets["ASIA1"], front.tokens["ASIA1"] = SECRET, "of-sts"
        yield server
        server.shutdown()


def test_a_role_is_assumed_with_the_secrets_key(front: MskFront, sts: TokenService) -> None:
    with ControlPlane(client_of(front, sasl={**WITH_SECRET, "aws": {**AWS["aws"], "roleArn": ROLE}})) as control:
        assert control.cluster_id()
    assert {who for who, _ in front.logins} == {"ASIA1"}
    assert [(form["Action"], form["RoleArn"]) for form in sts.asked] == [("AssumeRole", ROLE)]


def test_a_role_that_may_not_be_assumed_is_named(front: MskFront, sts: TokenService) -> None:
    sts.refuses = True
    error = refused(client_of(front, sasl={**WITH_SECRET, "aws": {**AWS["aws"], "roleArn": ROLE}}))
    assert error.message.startswith(f"spec.cluster.security.sasl.aws: AWS gives {ROLE} no identity: ")
    assert "whom its trust policy names" in error.hint


def test_a_pod_logs_in_with_the_role_of_its_service_account(
    front: MskFront, sts: TokenService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(names.ENV_POD_NAMESPACE, "team")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-the-object-store")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-object-store")
    monkeypatch.setenv("AWS_ROLE_ARN", ROLE)
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", put(tmp_path / "token", "of-the-service-account"))
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    with ControlPlane(client_of(front, {}, AWS)) as control:
        assert control.cluster_id()
    assert {who for who, _ in front.logins} == {"ASIA1"}
    assert [form["WebIdentityToken"] for form in sts.asked] == ["of-the-service-account"]
