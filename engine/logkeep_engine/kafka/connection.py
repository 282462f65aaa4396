"""How to reach a Kafka cluster: addresses from the resource's spec, secrets from this process's environment.

A `KafkaConnection` never shows a secret (repr, errors) and never carries one: pickling it sends only what the spec
says, and the process that unpickles it reads its own environment (`contract.names.ENV_KAFKA_*`), as executors do.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from logkeep_engine.contract import names
from logkeep_engine.contract.cluster import ClusterSpec, Protocol, SaslMechanism
from logkeep_engine.contract.model import replace
from logkeep_engine.errors import CredentialsMissing, SpecError, by_place
from logkeep_engine.kafka.login import Login

_SECURITY = "spec.cluster.security"


@dataclass(frozen=True, slots=True)
class Limits:
    """How long to wait, in seconds.

    `connect`: one connection with its TLS and SASL. `request`: one answer, its bytes included, from the moment when it
    is next in its connection's line. `outage`: how long a partition may be out of reach before BrokerUnavailable.
    `unknown`: how long a topic may be unknown before TopicGone (brokers learn of a new topic one after another).
    `truncated`: how long the last stable offset may lie below the end of a stream (a new leader starts with the high
    watermark it last heard of). `control`: one question of the control plane, with its repetitions. `pause` and
    `longest_pause`: between two attempts of the data plane, longer each time; `control_pause`: of the control plane.
    `settling`: how long a broker may take to read the groups of which it has become the coordinator.
    """

    connect: float = 10.0
    request: float = 40.0
    outage: float = 120.0
    unknown: float = 10.0
    truncated: float = 30.0
    control: float = 30.0
    pause: float = 0.05
    longest_pause: float = 2.0
    control_pause: float = 0.3
    settling: float = 2.0


@dataclass(frozen=True, slots=True)
class KafkaConnection:
    """Made by `connection_from`.

    Files are paths on this machine; `ca_file` None means the system's certificate authorities. `limits` go along to
    tasks. `cluster_id`: brokers of another Kafka cluster, to which the bootstrap addresses may lead one day, are not
    listened to; "": it does not matter. `spec_username` is a user's name in the spec; it is not a secret, and
    goes along.
    """

    bootstrap: tuple[str, ...]
    protocol: Protocol = Protocol.PLAINTEXT
    mechanism: SaslMechanism | None = None
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    limits: Limits = field(default_factory=Limits)
    cluster_id: str = ""
    spec_username: str | None = field(default=None, repr=False)

    def __reduce__(self) -> tuple[object, ...]:
        needs = (self.ca_file is not None, self.cert_file is not None)
        return (
            _from_environment,
            (self.bootstrap, self.protocol, self.mechanism, *needs, self.limits, self.cluster_id, self.spec_username),
        )

    @property
    def uses_tls(self) -> bool:
        return self.protocol in (Protocol.SSL, Protocol.SASL_SSL)

    def login(self) -> Login | None:
        """Return who logs in on connections, and how; None where the spec asks for no login."""
        if self.mechanism is None:
            return None
        return Login(self.mechanism, self.username or "", self.password or "")

    def tls(self) -> ssl.SSLContext | None:
        """Return what TLS connections need; None without TLS. Raises CredentialsMissing if a certificate file cannot be
        used."""
        return self._ssl_context() if self.uses_tls else None

    def _ssl_context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.cert_file is not None:
                context.load_cert_chain(self.cert_file, self.key_file)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise CredentialsMissing(
                f"{_SECURITY}.tls: the certificate files cannot be used: {error}.",
                hint="They must be PEM: "
                + by_place(
                    "ca.crt with certificates, tls.crt and its tls.key without a passphrase.",
                    f"{names.ENV_KAFKA_CA_FILE} with certificates, {names.ENV_KAFKA_CERT_FILE} and its "
                    f"{names.ENV_KAFKA_KEY_FILE} without a passphrase.",
                ),
            ) from error
        return context


def login_source() -> str:
    """Return where the user and the password of a connection come from, for messages."""
    return by_place(
        "in the Secret of spec.cluster.security.sasl.secretRef, or of spec.cluster.kafkaUserRef",
        f"({names.ENV_KAFKA_USERNAME}, unless the resource says it, and {names.ENV_KAFKA_PASSWORD})",
    )


def authorities_source() -> str:
    """Return where the certificate authorities come from that are trusted as the brokers, for messages."""
    return by_place(
        "that spec.cluster.security.tls or spec.cluster.strimzi names",
        f"in the file of {names.ENV_KAFKA_CA_FILE}, or, without it, those of this machine",
    )


def connection_from(spec: ClusterSpec, environ: Mapping[str, str] = os.environ) -> KafkaConnection:
    """Return the connection that `spec.cluster` describes.

    Raises CredentialsMissing naming the variable and the field if the spec needs a secret that `environ` does not have.
    Certificate files in the environment are used with TLS also where the spec names no Secret (the command line on a
    laptop). Raises SpecError for `strimzi`, which the operator has replaced before a run begins.
    """
    if spec.strimzi is not None:
        raise SpecError(
            "spec.cluster.strimzi: only the operator can ask Kubernetes for a Kafka resource.",
            hint="Set spec.cluster.bootstrapServers and spec.cluster.security instead.",
        )
    security = spec.security_with_user
    tls, sasl = security.tls, security.sasl
    return _build(
        spec.servers,
        security.protocol,
        sasl.mechanism if sasl is not None else None,
        tls is not None and tls.names_authorities,
        tls is not None and tls.client_cert_secret_ref is not None,
        environ,
        sasl.username if sasl is not None else None,
    )


def _from_environment(
    bootstrap: tuple[str, ...],
    protocol: Protocol,
    mechanism: SaslMechanism | None,
    needs_ca: bool,
    needs_cert: bool,
    limits: Limits,
    cluster_id: str,
    spec_username: str | None,
) -> KafkaConnection:
    made = _build(bootstrap, protocol, mechanism, needs_ca, needs_cert, os.environ, spec_username)
    return replace(made, limits=limits, cluster_id=cluster_id)


def _build(
    bootstrap: tuple[str, ...],
    protocol: Protocol,
    mechanism: SaslMechanism | None,
    needs_ca: bool,
    needs_cert: bool,
    environ: Mapping[str, str],
    spec_username: str | None,
) -> KafkaConnection:
    username = password = ca_file = cert_file = key_file = None
    if mechanism is not None:
        username = spec_username or _variable(environ, names.ENV_KAFKA_USERNAME, f"{_SECURITY}.sasl.secretRef")
        password = _variable(environ, names.ENV_KAFKA_PASSWORD, f"{_SECURITY}.sasl.secretRef")
    if protocol in (Protocol.SSL, Protocol.SASL_SSL):
        ca_field = f"{_SECURITY}.tls.caSecretRef or caConfigMapRef"
        cert_field = f"{_SECURITY}.tls.clientCertSecretRef"
        if needs_ca or environ.get(names.ENV_KAFKA_CA_FILE):
            ca_file = _file(environ, names.ENV_KAFKA_CA_FILE, ca_field)
        if needs_cert or environ.get(names.ENV_KAFKA_CERT_FILE):
            cert_file = _file(environ, names.ENV_KAFKA_CERT_FILE, cert_field)
            key_file = _file(environ, names.ENV_KAFKA_KEY_FILE, cert_field)
    return KafkaConnection(
        bootstrap, protocol, mechanism, username, password, ca_file, cert_file, key_file, spec_username=spec_username
    )


def _variable(environ: Mapping[str, str], name: str, where: str) -> str:
    value = environ.get(name)
    if not value:
        raise CredentialsMissing(
            f"{where}: the environment variable {name} is not set.",
            hint=by_place(
                "The operator sets it from the Secret or the ConfigMap: check its keys.",
                "A command does not read Secrets: set the variable.",
            ),
        )
    return value


def _file(environ: Mapping[str, str], name: str, where: str) -> str:
    path = _variable(environ, name, where)
    if not Path(path).is_file():
        raise CredentialsMissing(
            f"{where}: {name} names {path}, which is not a file.",
            hint=by_place(
                "Check that the Secret or the ConfigMap has the key and is mounted there.", "Name a PEM file."
            ),
        )
    return path
