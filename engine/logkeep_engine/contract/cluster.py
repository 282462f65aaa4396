"""How a resource says which Kafka cluster it means, and how to connect to it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, model_validator

from logkeep_engine.contract.endpoints import Broker
from logkeep_engine.contract.model import Model
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
    ca_secret_ref: CaRef | None = None
    ca_config_map_ref: CaRef | None = None
    client_cert_secret_ref: ClientCertSecretRef | None = None

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

    mechanism: SaslMechanism
    username: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    secret_ref: LoginSecretRef

    @model_validator(mode="after")
    def _one_name(self) -> Sasl:
        if self.username is not None and self.secret_ref.username_key != LoginSecretRef(name="x").username_key:
            raise ValueError("secretRef.usernameKey has no effect with username; leave one of them out")
        return self


class SecuritySpec(Model):
    protocol: Protocol = Protocol.PLAINTEXT
    tls: Tls | None = None
    sasl: Sasl | None = None

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

    bootstrap_servers: Annotated[tuple[Broker, ...], Field(min_length=1)] | None = None
    strimzi: StrimziRef | None = None
    security: SecuritySpec = SecuritySpec()
    kafka_user_ref: KafkaUserRef | None = None

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
