"""Connections: what is asked of the environment, and that secrets stay hidden."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.contract.cluster import ClusterSpec, Protocol, SaslMechanism
from logkeep_engine.errors import CredentialsMissing, SpecError
from logkeep_engine.kafka.connection import KafkaConnection, connection_from
from logkeep_engine.kafka.login import Login
from tests.cluster.pki import Authority

LOGIN = {"LOGKEEP_KAFKA_USERNAME": "ann", "LOGKEEP_KAFKA_PASSWORD": "s3cret-pw"}


def cluster(protocol: str, mechanism: str | None = None, *, ca: bool = False, cert: bool = False) -> ClusterSpec:
    security: dict[str, object] = {"protocol": protocol}
    if mechanism:
        security["sasl"] = {"mechanism": mechanism, "secretRef": {"name": "login"}}
    if ca or cert:
        tls = {"caSecretRef": {"name": "ca"}} if ca else {}
        security["tls"] = tls | ({"clientCertSecretRef": {"name": "cert"}} if cert else {})
    return ClusterSpec.model_validate({"bootstrapServers": ["k1:9092", "[::1]:9093"], "security": security})


def test_plaintext_needs_nothing_of_the_environment() -> None:
    connection = connection_from(cluster("PLAINTEXT"), {})
    assert connection == KafkaConnection(("k1:9092", "[::1]:9093"), Protocol.PLAINTEXT)
    assert (connection.login(), connection.tls()) == (None, None)


@pytest.mark.parametrize("name", LOGIN)
def test_missing_login_names_variable_and_field(name: str) -> None:
    environ = {key: value for key, value in LOGIN.items() if key != name}
    with pytest.raises(CredentialsMissing, match=rf"spec\.cluster\.security\.sasl\.secretRef.*{name}"):
        connection_from(cluster("SASL_PLAINTEXT", "PLAIN"), environ)


def test_missing_ca_names_variable_and_field() -> None:
    with pytest.raises(CredentialsMissing, match=r"tls\.caSecretRef.*LOGKEEP_KAFKA_CA_FILE is not set"):
        connection_from(cluster("SSL", ca=True), {})


def test_a_missing_ca_of_a_config_map_is_missed_too() -> None:
    tls = {"caConfigMapRef": {"name": "ca"}}
    security = {"bootstrapServers": ["k1:9093"], "security": {"protocol": "SSL", "tls": tls}}
    with pytest.raises(CredentialsMissing, match=r"caConfigMapRef.*LOGKEEP_KAFKA_CA_FILE is not set"):
        connection_from(ClusterSpec.model_validate(security), {})


def test_missing_key_names_variable_and_field(tmp_path: Path) -> None:
    (tmp_path / "tls.crt").write_text("x")
    environ = {"LOGKEEP_KAFKA_CERT_FILE": str(tmp_path / "tls.crt")}
    with pytest.raises(CredentialsMissing, match=r"tls\.clientCertSecretRef.*LOGKEEP_KAFKA_KEY_FILE"):
        connection_from(cluster("SSL", cert=True), environ)


def test_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CredentialsMissing, match=r"nowhere\.crt, which is not a file"):
        connection_from(cluster("SSL", ca=True), {"LOGKEEP_KAFKA_CA_FILE": str(tmp_path / "nowhere.crt")})


def test_file_that_is_no_certificate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("hello")
    connection = connection_from(cluster("SSL"), {"LOGKEEP_KAFKA_CA_FILE": str(tmp_path / "ca.crt")})
    with pytest.raises(CredentialsMissing, match="certificate files cannot be used"):
        connection.tls()


def test_password_is_in_the_configurations_but_never_shown() -> None:
    connection = connection_from(cluster("SASL_PLAINTEXT", "SCRAM-SHA-512"), LOGIN)
    login = connection.login()
    assert login == Login(SaslMechanism.SCRAM_SHA_512, "ann", "s3cret-pw")
    assert "s3cret-pw" not in f"{connection!r} {connection} {login!r} {login}"
    assert "ann" not in f"{connection!r} {login!r}"


def test_pickle_carries_no_secret_and_reads_the_environment_of_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pickle.dumps(connection_from(cluster("SASL_PLAINTEXT", "PLAIN"), LOGIN))
    assert b"s3cret-pw" not in data
    monkeypatch.setenv("LOGKEEP_KAFKA_USERNAME", "bob")
    monkeypatch.setenv("LOGKEEP_KAFKA_PASSWORD", "other")
    there = pickle.loads(data)
    assert isinstance(there, KafkaConnection)
    assert there.login() == Login(SaslMechanism.PLAIN, "bob", "other")
    assert there.bootstrap == ("k1:9092", "[::1]:9093")


def test_the_name_of_a_kafka_user_goes_along_and_its_password_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"bootstrapServers": ["k1:9092"], "security": {"protocol": "SASL_SSL"}, "kafkaUserRef": {"name": "logkeep"}}
    environ = {"LOGKEEP_KAFKA_PASSWORD": "s3cret-pw"}
    connection = connection_from(ClusterSpec.model_validate(said), environ)
    assert (connection.bootstrap, connection.protocol) == (("k1:9092",), Protocol.SASL_SSL)
    assert connection.login() == Login(SaslMechanism.SCRAM_SHA_512, "logkeep", "s3cret-pw")
    assert (connection.ca_file, connection.cert_file, connection.key_file) == (None, None, None)
    data = pickle.dumps(connection)
    assert b"s3cret-pw" not in data
    monkeypatch.delenv("LOGKEEP_KAFKA_USERNAME", raising=False)
    monkeypatch.setenv("LOGKEEP_KAFKA_PASSWORD", "other")
    there = pickle.loads(data)
    assert there.login() == Login(SaslMechanism.SCRAM_SHA_512, "logkeep", "other")


def test_the_certificate_of_a_kafka_user_is_asked_for() -> None:
    said = {"bootstrapServers": ["k1:9092"], "security": {"protocol": "SSL"}, "kafkaUserRef": {"name": "logkeep"}}
    with pytest.raises(CredentialsMissing, match="LOGKEEP_KAFKA_CERT_FILE is not set"):
        connection_from(ClusterSpec.model_validate(said), {})


def test_a_kafka_resource_of_strimzi_is_nothing_for_the_command_line() -> None:
    said = ClusterSpec.model_validate({"strimzi": {"name": "prod", "listener": "tls"}})
    with pytest.raises(SpecError, match=r"spec\.cluster\.strimzi: only the operator .* spec\.cluster\.bootstrap"):
        connection_from(said, {})


def test_pickle_without_the_environment_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LOGIN:
        monkeypatch.delenv(name, raising=False)
    data = pickle.dumps(connection_from(cluster("SASL_PLAINTEXT", "PLAIN"), LOGIN))
    with pytest.raises(CredentialsMissing, match="LOGKEEP_KAFKA_USERNAME"):
        pickle.loads(data)


OAUTH = {"mechanism": "OAUTHBEARER", "secretRef": {"name": "c"}, "oauth": {"tokenEndpoint": "https://sso/token"}}
IAM = {"mechanism": "AWS_MSK_IAM", "secretRef": {"name": "c"}, "aws": {"region": "eu-north-1"}}


@pytest.mark.parametrize("sasl", [OAUTH, IAM])
def test_what_makes_tokens_stays_here_and_a_task_makes_its_own(
    sasl: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = {"bootstrapServers": ["k1:9092"], "security": {"protocol": "SASL_SSL", "sasl": sasl}}
    connection = connection_from(ClusterSpec.model_validate(spec), LOGIN)
    data = pickle.dumps(connection)
    assert b"s3cret-pw" not in data
    assert b"ann" not in data
    assert "s3cret-pw" not in f"{connection!r} {connection.tokens!r}"
    for name, value in LOGIN.items():
        monkeypatch.setenv(name, value)
    assert pickle.loads(data) == connection


def test_files_are_read_again_at_each_login(tmp_path: Path) -> None:
    for name, text in (("username", "ann"), ("password", "first\n")):
        (tmp_path / name).write_text(text)
    environ = {f"{variable}_FILE": str(tmp_path / variable.rpartition("_")[2].lower()) for variable in LOGIN}
    connection = connection_from(cluster("SASL_PLAINTEXT", "PLAIN"), environ | LOGIN)
    assert connection.login() == Login(SaslMechanism.PLAIN, "ann", "first"), "a file goes before the variable"
    (tmp_path / "password").write_text("second")
    assert connection.login() == Login(SaslMechanism.PLAIN, "ann", "second")
    assert connection.may_be_renewed
    assert not connection_from(cluster("SASL_PLAINTEXT", "PLAIN"), LOGIN).may_be_renewed


def test_one_context_serves_until_a_certificate_is_replaced(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    first, second = (authority.issue(name, f"/CN={name}") for name in ("first", "second"))
    environ = {"LOGKEEP_KAFKA_CA_FILE": str(authority.cert)}
    for variable, source in (("CERT", first.cert), ("KEY", first.key)):
        (tmp_path / variable).write_bytes(source.read_bytes())
        environ[f"LOGKEEP_KAFKA_{variable}_FILE"] = str(tmp_path / variable)
    connection = connection_from(cluster("SSL", ca=True, cert=True), environ)
    before = connection.tls()
    assert connection.tls() is before
    (tmp_path / "CERT").write_bytes(second.cert.read_bytes())
    with pytest.raises(CredentialsMissing, match="certificate files cannot be used"):
        connection.tls()  # the key is another one's
    (tmp_path / "KEY").write_bytes(second.key.read_bytes())
    assert connection.tls() is not before
