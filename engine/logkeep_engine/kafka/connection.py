"""How to reach a Kafka cluster: addresses from the resource's spec, secrets from this process's environment, or from
files that it names.

A `KafkaConnection` never shows a secret (repr, errors) and never carries one: pickling it sends only what the spec
says, and the process that unpickles it reads its own environment (`contract.names.ENV_KAFKA_*`), as executors do. Each
new connection to a broker, and each login that is renewed, reads files again: what was replaced in a run counts.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from logkeep_engine.contract import names
from logkeep_engine.contract.cluster import ClusterSpec, Protocol, Sasl
from logkeep_engine.contract.model import replace
from logkeep_engine.errors import CredentialsMissing, SpecError, by_place
from logkeep_engine.kafka.login import Login
from logkeep_engine.kafka.secrets import Secret, file_of, user_and_password
from logkeep_engine.kafka.tokens import TokenSource, token_source

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
    `settling`: how long a broker may take to read the groups of which it has become the coordinator. `renewal`: how
    long a login may be refused that was taken before: the kubelet takes up to two minutes to bring a changed Secret.
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
    renewal: float = 120.0


@dataclass(frozen=True, slots=True)
class KafkaConnection:
    """Made by `connection_from`.

    Files are paths on this machine; `ca_file` None means the system's certificate authorities. `limits` go along to
    tasks. `cluster_id`: brokers of another Kafka cluster, to which the bootstrap addresses may lead one day, are not
    listened to; "": it does not matter. `tokens` gives what is shown in place of a user and a password.
    """

    bootstrap: tuple[str, ...]
    protocol: Protocol = Protocol.PLAINTEXT
    sasl: Sasl | None = None
    username: Secret = field(default_factory=Secret, repr=False)
    password: Secret = field(default_factory=Secret, repr=False)
    tokens: TokenSource | None = field(default=None, repr=False)
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    limits: Limits = field(default_factory=Limits)
    cluster_id: str = ""

    def __reduce__(self) -> tuple[object, ...]:
        needs = (self.ca_file is not None, self.cert_file is not None)
        return (_from_environment, (self.bootstrap, self.protocol, self.sasl, *needs, self.limits, self.cluster_id))

    @property
    def uses_tls(self) -> bool:
        return self.protocol in (Protocol.SSL, Protocol.SASL_SSL)

    @property
    def may_be_renewed(self) -> bool:
        """Whether what is shown to brokers may be another one at the next attempt: it is in files, or is a token."""
        in_files = self.username.path or self.password.path or self.cert_file or self.ca_file
        return bool(in_files) or self.tokens is not None

    def login(self) -> Login | None:
        """Return who logs in on connections, and how, as it is now; None where the spec asks for no login. A new token
        takes its time. Raises CredentialsMissing, and for a token KafkaLoginRefused and TokenUnavailable."""
        if self.sasl is None:
            return None
        if self.tokens is not None:
            return self.tokens.login()
        return Login(self.sasl.mechanism, self.username.read(), self.password.read())

    async def current_login(self) -> Login | None:
        """Return the same, and let the event loop do other work while a token is fetched."""
        if self.tokens is None:
            return self.login()
        return self.tokens.held() or await asyncio.to_thread(self.login)

    def drop_token(self, login: Login) -> None:
        """Forget the token that a broker did not take: the next login fetches another one."""
        if self.tokens is not None:
            self.tokens.drop(login)

    def tls(self) -> ssl.SSLContext | None:
        """Return what TLS connections need, of the files as they are now; None without TLS. Raises CredentialsMissing
        if a certificate file cannot be used."""
        if not self.uses_tls:
            return None
        files = (self.ca_file, self.cert_file, self.key_file)
        seen = None
        while True:
            try:
                before, seen = seen, tuple(map(_stamp, files))
                return _ssl_context(files, seen)
            except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
                if seen != before:  # a certificate may have been replaced between the reading of it and of its key
                    continue
                raise CredentialsMissing(
                    f"{_SECURITY}.tls: the certificate files cannot be used: {error}.",
                    hint="They must be PEM: "
                    + by_place(
                        "ca.crt with certificates, tls.crt and its tls.key without a passphrase.",
                        f"{names.ENV_KAFKA_CA_FILE} with certificates, {names.ENV_KAFKA_CERT_FILE} and its "
                        f"{names.ENV_KAFKA_KEY_FILE} without a passphrase.",
                    ),
                ) from error


def _stamp(path: str | None) -> tuple[int, int, int] | None:
    """Return what changes with the content of a file."""
    if path is None:
        return None
    found = os.stat(path)
    return found.st_ino, found.st_mtime_ns, found.st_size


@lru_cache(maxsize=4)
def _ssl_context(files: tuple[str | None, ...], stamps: tuple[object, ...]) -> ssl.SSLContext:
    ca_file, cert_file, key_file = files
    context = ssl.create_default_context(cafile=ca_file)
    if cert_file is not None:
        context.load_cert_chain(cert_file, key_file)
    return context


def login_source() -> str:
    """Return where the user and the password of a connection come from, for messages."""
    return by_place(
        "in the Secret of spec.cluster.security.sasl.secretRef, or of spec.cluster.kafkaUserRef",
        f"({names.ENV_KAFKA_USERNAME}, unless the resource says it, and {names.ENV_KAFKA_PASSWORD}; or the files of "
        f"{names.ENV_KAFKA_USERNAME}{names.FILE_SUFFIX} and {names.ENV_KAFKA_PASSWORD}{names.FILE_SUFFIX})",
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
        sasl,
        tls is not None and tls.names_authorities,
        tls is not None and tls.client_cert_secret_ref is not None,
        environ,
    )


def _from_environment(
    bootstrap: tuple[str, ...],
    protocol: Protocol,
    sasl: Sasl | None,
    needs_ca: bool,
    needs_cert: bool,
    limits: Limits,
    cluster_id: str,
) -> KafkaConnection:
    made = _build(bootstrap, protocol, sasl, needs_ca, needs_cert, os.environ)
    return replace(made, limits=limits, cluster_id=cluster_id)


def _build(
    bootstrap: tuple[str, ...],
    protocol: Protocol,
    sasl: Sasl | None,
    needs_ca: bool,
    needs_cert: bool,
    environ: Mapping[str, str],
) -> KafkaConnection:
    username, password = Secret(), Secret()
    tokens = ca_file = cert_file = key_file = None
    if sasl is not None and sasl.mechanism.has_token:
        tokens = token_source(sasl, environ)
    elif sasl is not None:
        username, password = user_and_password(sasl, environ)
    if protocol in (Protocol.SSL, Protocol.SASL_SSL):
        ca_field = f"{_SECURITY}.tls.caSecretRef or caConfigMapRef"
        cert_field = f"{_SECURITY}.tls.clientCertSecretRef"
        if needs_ca or environ.get(names.ENV_KAFKA_CA_FILE):
            ca_file = file_of(environ, names.ENV_KAFKA_CA_FILE, ca_field)
        if needs_cert or environ.get(names.ENV_KAFKA_CERT_FILE):
            cert_file = file_of(environ, names.ENV_KAFKA_CERT_FILE, cert_field)
            key_file = file_of(environ, names.ENV_KAFKA_KEY_FILE, cert_field)
    return KafkaConnection(bootstrap, protocol, sasl, username, password, tokens, ca_file, cert_file, key_file)
