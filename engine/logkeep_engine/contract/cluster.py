"""How a resource says which Kafka cluster it means, and how to connect to it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, model_validator

from logkeep_engine.contract.endpoints import Broker
from logkeep_engine.contract.model import Model, rules, schema, usual
from logkeep_engine.contract.references import (
    CaRef,
    ClientCertSecretRef,
    KafkaUserRef,
    LoginSecretRef,
    StrimziRef,
)


class Protocol(StrEnum):
    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"


class SaslMechanism(StrEnum):
    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"


class Tls(Model):
    model_config = rules(
        (
            "!has(self.caSecretRef) || !has(self.caConfigMapRef)",
            "caSecretRef and caConfigMapRef may not both be set",
        ),
    )

    ca_secret_ref: CaRef | None = None
    """Secret with the certificate authorities to trust. Without it, those of the engine's image are trusted."""
    ca_config_map_ref: CaRef | None = None
    """ConfigMap with the certificate authorities to trust, instead of caSecretRef."""
    client_cert_secret_ref: ClientCertSecretRef | None = None
    """Secret with the client certificate and its private key, for mutual TLS."""

    @property
    def names_authorities(self) -> bool:
        """Whether it says whom to trust; else that is for the image to say."""
        return self.ca_secret_ref is not None or self.ca_config_map_ref is not None

    @model_validator(mode="after")
    def _one_ca(self) -> Tls:
        if self.ca_secret_ref is not None and self.ca_config_map_ref is not None:
            raise ValueError("caSecretRef and caConfigMapRef may not both be set")
        return self


class Sasl(Model):
    """`username`: the user's name, where the Secret has the password only."""

    model_config = rules(
        (
            "!has(self.username) || self.secretRef.usernameKey == 'username'",
            "secretRef.usernameKey has no effect with username; leave one of them out",
        ),
    )

    mechanism: SaslMechanism
    """SASL mechanism of the listener."""
    username: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """Name of the user, where the Secret has the password only."""
    secret_ref: LoginSecretRef
    """Secret with the user's name and password."""

    @model_validator(mode="after")
    def _one_name(self) -> Sasl:
        if self.username is not None and self.secret_ref.username_key != LoginSecretRef(name="x").username_key:
            raise ValueError("secretRef.usernameKey has no effect with username; leave one of them out")
        return self


class SecuritySpec(Model):
    model_config = rules(
        (
            "!has(self.tls) || self.protocol.endsWith('SSL')",
            "tls may be set only when protocol is SSL or SASL_SSL",
        ),
    )

    protocol: Protocol = Protocol.PLAINTEXT
    """Security protocol of the listener."""
    tls: Tls | None = None
    """Certificates, for the protocols SSL and SASL_SSL."""
    sasl: Sasl | None = None
    """User and password, for the protocols SASL_PLAINTEXT and SASL_SSL."""

    @property
    def uses_sasl(self) -> bool:
        return self.protocol in (Protocol.SASL_PLAINTEXT, Protocol.SASL_SSL)

    @model_validator(mode="after")
    def _fits_protocol(self) -> SecuritySpec:
        if self.tls is not None and self.protocol not in (Protocol.SSL, Protocol.SASL_SSL):
            raise ValueError("tls may be set only when protocol is SSL or SASL_SSL")
        return self


class ClusterSpec(Model):
    """`strimzi`: where the operator finds servers, protocol and authorities. It puts them in its place before a run
    starts, so the engine never sees it.
    """

    model_config = rules(
        (
            "has(self.bootstrapServers) != has(self.strimzi)",
            "exactly one of bootstrapServers and strimzi must be set",
        ),
        (
            "!has(self.strimzi) || self.security.protocol == 'PLAINTEXT' && !has(self.security.tls) && "
            "!has(self.security.sasl)",
            "security must be left out with strimzi: the listener says how to connect",
        ),
        (
            "has(self.kafkaUserRef) || self.security.protocol.startsWith('SASL') == has(self.security.sasl)",
            "security.sasl must be set exactly when protocol is SASL_PLAINTEXT or SASL_SSL",
        ),
        (
            "!has(self.kafkaUserRef) || has(self.strimzi) || self.security.protocol != 'PLAINTEXT'",
            "kafkaUserRef may be set only with strimzi, or with another protocol than PLAINTEXT",
        ),
        (
            "!has(self.kafkaUserRef) || !has(self.security.sasl) && !(has(self.security.tls) && "
            "has(self.security.tls.clientCertSecretRef))",
            "security.sasl and security.tls.clientCertSecretRef must be left out with kafkaUserRef, which has both",
        ),
    )

    bootstrap_servers: Annotated[tuple[Broker, ...], Field(min_length=1), schema(maxItems=64)] | None = None
    """Addresses of some of the brokers, as host:port."""
    strimzi: StrimziRef | None = None
    """A Kafka resource of Strimzi, in place of bootstrapServers and security. Each run takes the addresses, the
    protocol and the cluster's certificate authority from there when it starts."""
    security: SecuritySpec = usual(SecuritySpec)
    """How to connect; without it, with protocol PLAINTEXT."""
    kafka_user_ref: KafkaUserRef | None = None
    """A Strimzi KafkaUser as which the runs log in: with its certificate where the protocol is SSL, with its
    password and SCRAM-SHA-512 where it is SASL_PLAINTEXT or SASL_SSL. Its Secret must be in the same namespace."""

    @property
    def servers(self) -> tuple[str, ...]:
        """The addresses, none where only Strimzi's resource knows them."""
        return self.bootstrap_servers or ()

    @property
    def security_with_user(self) -> SecuritySpec:
        """The security, with the keys of the KafkaUser's Secret in it."""
        user, security = self.kafka_user_ref, self.security
        if user is None or self.strimzi is not None:
            return security
        if security.uses_sasl:
            secret = LoginSecretRef(name=user.secret, password_key=user.password_key)
            sasl = Sasl(mechanism=SaslMechanism.SCRAM_SHA_512, username=user.name, secret_ref=secret)
            return security.model_copy(update={"sasl": sasl})
        certificate = ClientCertSecretRef(
            name=user.secret, certificate_key=user.certificate_key, private_key_key=user.private_key_key
        )
        tls = (security.tls or Tls()).model_copy(update={"client_cert_secret_ref": certificate})
        return security.model_copy(update={"tls": tls})

    @model_validator(mode="after")
    def _one_way(self) -> ClusterSpec:
        if (self.bootstrap_servers is None) == (self.strimzi is None):
            raise ValueError("exactly one of bootstrapServers and strimzi must be set")
        if self.strimzi is not None and self.security != SecuritySpec():
            raise ValueError("security must be left out with strimzi: the listener says how to connect")
        if self.kafka_user_ref is not None:
            self._check_user()
        elif self.security.uses_sasl != (self.security.sasl is not None):
            raise ValueError("security.sasl must be set exactly when protocol is SASL_PLAINTEXT or SASL_SSL")
        return self

    def _check_user(self) -> None:
        if self.strimzi is None and self.security.protocol is Protocol.PLAINTEXT:
            raise ValueError("kafkaUserRef may be set only with strimzi, or with another protocol than PLAINTEXT")
        tls = self.security.tls
        if self.security.sasl is not None or (tls is not None and tls.client_cert_secret_ref is not None):
            raise ValueError(
                "security.sasl and security.tls.clientCertSecretRef must be left out with kafkaUserRef, which has both"
            )
