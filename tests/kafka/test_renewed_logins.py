"""Passwords and certificates that somebody replaces while a run goes on."""

import asyncio
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from logkeep_engine.contract import names
from logkeep_engine.contract.model import replace
from logkeep_engine.errors import CredentialsMissing, KafkaLoginRefused
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.connection import KafkaConnection, Limits
from logkeep_engine.kafka.control import ControlPlane
from tests.cluster.kafka import STEADY, KafkaBroker
from tests.data.topics import create_topic
from tests.kafka.logging_in import connect, put, wires, write_for
from tests.kafka.raw import run
from tests.kafka.restores import committed

SESSION = 6
SCRAM = {"mechanism": "SCRAM-SHA-512", "secretRef": {"name": "login"}}


@pytest.fixture(scope="module")
def brief_broker() -> Iterator[KafkaBroker]:
    """A broker that ends sessions soon, and wants a certificate of its clients."""
    settings = {"connections.max.reauth.ms": str(SESSION * 1000), "listener.name.ssl.ssl.client.auth": "required"}
    with KafkaBroker(secure=True, overrides={**STEADY, **settings}) as broker:
        yield broker


def set_password(broker: KafkaBroker, user: str, password: str) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    change = UserScramCredentialUpsertion(user, info, password.encode())
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for done in admin.alter_user_scram_credentials([change]).values():
        done.result(30)


def user_of(broker: KafkaBroker, name: str, file: Path) -> KafkaConnection:
    environ = {names.ENV_KAFKA_USERNAME: name, f"{names.ENV_KAFKA_PASSWORD}_FILE": str(file)}
    return replace(connect(broker.sasl_bootstrap, "SASL_PLAINTEXT", environ, sasl=SCRAM), limits=Limits(outage=30))


def test_a_session_is_renewed_on_an_open_connection(brief_broker: KafkaBroker, unique: str) -> None:
    create_topic(brief_broker.bootstrap, unique)
    for sasl in (SCRAM, {**SCRAM, "mechanism": "PLAIN"}):
        environ = {names.ENV_KAFKA_USERNAME: brief_broker.username, names.ENV_KAFKA_PASSWORD: brief_broker.password}
        connection = connect(brief_broker.sasl_bootstrap, "SASL_PLAINTEXT", environ, sasl=sasl)

        async def work(connection: KafkaConnection = connection) -> None:
            async with RawClient(connection) as client:
                await write_for(client, unique, 0.1)
                before = set(map(id, wires(client)))
                await write_for(client, unique, 2.5 * SESSION)
                assert before <= set(map(id, wires(client))), "a connection was closed"

        run(work())


def test_requests_that_are_under_way_while_a_login_is_renewed_are_all_answered(
    brief_broker: KafkaBroker, unique: str
) -> None:
    """A broker takes nothing but the login meanwhile: what was sent before is answered, what comes then waits."""
    create_topic(brief_broker.bootstrap, unique)
    environ = {names.ENV_KAFKA_USERNAME: brief_broker.username, names.ENV_KAFKA_PASSWORD: brief_broker.password}
    connection = connect(brief_broker.sasl_bootstrap, "SASL_PLAINTEXT", environ, sasl=SCRAM)

    async def work() -> int:
        async with RawClient(connection) as client:
            first = await write_for(client, unique, 0.1)
            before = set(map(id, wires(client)))
            counts = await asyncio.gather(*(write_for(client, unique, 2.5 * SESSION) for _ in range(8)))
            assert before <= set(map(id, wires(client))), "a connection was closed"
            return first + sum(counts)

    assert run(work()) == len(committed(brief_broker, unique))


def test_a_password_that_is_changed_in_a_run_is_taken_from_its_file(
    brief_broker: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    """The kubelet brings the new one some time after the broker has it: meanwhile nobody can log in."""
    create_topic(brief_broker.bootstrap, unique)
    set_password(brief_broker, unique, "first")
    put(tmp_path / "password", "first\n")

    async def work() -> None:
        async with RawClient(user_of(brief_broker, unique, tmp_path / "password")) as client:
            await write_for(client, unique, 1)
            set_password(brief_broker, unique, "second")
            threading.Timer(2 * SESSION, put, (tmp_path / "password", "second")).start()
            await write_for(client, unique, 3 * SESSION)

    run(work())


def test_a_question_of_the_control_plane_waits_for_the_new_password_too(
    brief_broker: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    set_password(brief_broker, unique, "first")
    put(tmp_path / "password", "first")
    limits = Limits(control=2, renewal=60)
    with ControlPlane(replace(user_of(brief_broker, unique, tmp_path / "password"), limits=limits)) as control:
        control.only(control.cluster_id())
        set_password(brief_broker, unique, "second")
        threading.Timer(SESSION, put, (tmp_path / "password", "second")).start()
        time.sleep(3)  # the connections of the last question are not kept for that long
        assert control.broker_count() == 1


def test_a_password_that_stays_wrong_ends_the_run_with_the_reason(
    brief_broker: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    create_topic(brief_broker.bootstrap, unique)
    set_password(brief_broker, unique, "first")
    put(tmp_path / "password", "first")
    connection = replace(user_of(brief_broker, unique, tmp_path / "password"), limits=Limits(outage=4, renewal=4))

    async def work() -> None:
        async with RawClient(connection) as client:
            await write_for(client, unique, 1)
            set_password(brief_broker, unique, "second")
            await write_for(client, unique, 60)

    started = time.monotonic()
    with pytest.raises(KafkaLoginRefused, match=rf"refused user '{unique}': .*LOGKEEP_KAFKA_PASSWORD_FILE"):
        run(work())
    assert time.monotonic() - started < 30


def test_a_password_that_is_wrong_from_the_beginning_is_not_tried_again(
    brief_broker: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    set_password(brief_broker, unique, "first")
    put(tmp_path / "password", "wrong")
    started = time.monotonic()
    with (
        ControlPlane(user_of(brief_broker, unique, tmp_path / "password")) as control,
        pytest.raises(KafkaLoginRefused, match="refused user"),
    ):
        control.cluster_id()
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("content", ["", "\n", None])
def test_a_file_without_a_password_is_named(content: str | None, tmp_path: Path) -> None:
    file = tmp_path / "password"
    if content is not None:
        put(file, content)
    environ = {names.ENV_KAFKA_USERNAME: "ann", f"{names.ENV_KAFKA_PASSWORD}_FILE": str(file)}
    what = "is empty" if content is not None else "cannot be read"
    with pytest.raises(
        CredentialsMissing, match=rf"sasl\.secretRef: LOGKEEP_KAFKA_PASSWORD_FILE names .* which {what}"
    ):
        connect("k:1", "SASL_PLAINTEXT", environ, sasl=SCRAM)


def brief_certificate(broker: KafkaBroker, seconds: float) -> tuple[str, str]:
    """A client's certificate that ends soon, and its key."""
    authority = x509.load_pem_x509_certificate(broker.ca_pem.read_bytes())
    key = serialization.load_pem_private_key(broker.ca_pem.with_name("ca.key").read_bytes(), None)
    own = serialization.load_pem_private_key(broker.client_certificate.key.read_bytes(), None)
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "logkeep")]))
        .issuer_name(authority.subject)
        .public_key(own.public_key())  # type: ignore[arg-type]
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(seconds=seconds))
        .sign(key, hashes.SHA256())  # type: ignore[arg-type]
    )
    return made.public_bytes(serialization.Encoding.PEM).decode(), broker.client_certificate.key.read_text()


def test_a_certificate_that_ends_in_a_run_is_replaced_by_the_one_in_its_file(
    brief_broker: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    create_topic(brief_broker.bootstrap, unique)
    cert, key = brief_certificate(brief_broker, 4)
    environ = {
        names.ENV_KAFKA_CA_FILE: str(brief_broker.ca_pem),
        names.ENV_KAFKA_CERT_FILE: put(tmp_path / "tls.crt", cert),
        names.ENV_KAFKA_KEY_FILE: put(tmp_path / "tls.key", key),
    }
    connection = replace(connect(brief_broker.ssl_bootstrap, "SSL", environ), limits=Limits(outage=30))

    async def work() -> None:
        async with RawClient(connection) as client:
            await write_for(client, unique, 1)
            await asyncio.sleep(4)  # it ends
            for wire in wires(client):
                await wire.close()  # the network does that
            threading.Timer(3, put, (tmp_path / "tls.crt", brief_certificate(brief_broker, 600)[0])).start()
            await write_for(client, unique, 1)

    run(work())


def test_a_certificate_that_has_ended_is_refused(brief_broker: KafkaBroker, tmp_path: Path) -> None:
    cert, key = brief_certificate(brief_broker, -60)
    environ = {
        names.ENV_KAFKA_CA_FILE: str(brief_broker.ca_pem),
        names.ENV_KAFKA_CERT_FILE: put(tmp_path / "tls.crt", cert),
        names.ENV_KAFKA_KEY_FILE: put(tmp_path / "tls.key", key),
    }
    with (
        ControlPlane(connect(brief_broker.ssl_bootstrap, "SSL", environ)) as control,
        pytest.raises(KafkaLoginRefused, match=r"failed the TLS handshake: .*whether that of spec"),
    ):
        control.cluster_id()
