"""References from a resource: to Secrets and the keys in them, and to resources of Strimzi."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from logkeep_engine.contract.model import Model, meant, rules, schema
from logkeep_engine.contract.values import NamespaceName, ResourceName, SecretKey


class SecretRef(Model):
    name: ResourceName
    """Name of the Secret, in the same namespace."""


class ArchiveRef(Model):
    """A KafkaArchive in the same namespace: its `storage` is the archive's place."""

    name: ResourceName
    """Name of the KafkaArchive."""


class CaRef(Model):
    """A Secret or a ConfigMap with certificate authorities to trust, in PEM."""

    name: ResourceName
    """Name of the Secret, or of the ConfigMap, in the same namespace."""
    certificate_key: SecretKey = "ca.crt"
    """Key of the Secret, or of the ConfigMap, that holds the certificates, in PEM."""


class ClientCertSecretRef(SecretRef):
    """A Secret with a client certificate and its private key, both in PEM."""

    certificate_key: SecretKey = "tls.crt"
    """Key of the Secret that holds the certificate, in PEM."""
    private_key_key: SecretKey = "tls.key"
    """Key of the Secret that holds the private key, in unencrypted PEM."""


class LoginSecretRef(SecretRef):
    """A Secret with a user's name and password."""

    username_key: SecretKey = "username"
    """Key of the Secret that holds the user's name."""
    password_key: SecretKey = "password"
    """Key of the Secret that holds the password."""


class StoreSecretRef(SecretRef):
    """A Secret with the keys of an object store. The session token may be absent, and one of the two of Azure is."""

    access_key_id_key: SecretKey = "accessKeyId"
    """Key of the Secret that holds the access key's id."""
    secret_access_key_key: SecretKey = "secretAccessKey"
    """Key of the Secret that holds the secret access key."""
    session_token_key: SecretKey = "sessionToken"
    """Key of the Secret that holds the session token; the Secret may have none."""
    service_account_key_key: SecretKey = "serviceAccountKey"
    """Key of the Secret that holds the key of a service account of Google, in JSON: for a gs:// uri."""
    account_key_key: SecretKey = "accountKey"
    """Key of the Secret that holds the key of a storage account of Azure: for an az:// uri."""
    sas_token_key: SecretKey = "sasToken"
    """Key of the Secret that holds a shared access signature, which an az:// uri may have in place of the account's
    key."""


LISTENER = meant(r"^[a-z0-9]{1,11}$", "the name of a listener of Strimzi: 1 to 11 lower-case letters and digits")


class StrimziRef(Model):
    """Strimzi's `Kafka` resource and one of its listeners. `namespace` None: that of the resource which says this.

    `ca_secret_ref`: for a listener with a certificate of its own, which the cluster's authority has not signed.
    """

    name: ResourceName
    """Name of the Kafka resource."""
    namespace: NamespaceName | None = None
    """Namespace of the Kafka resource. By default the same namespace."""
    listener: Annotated[str, Field(pattern=LISTENER), schema(maxLength=11)]
    """Name of the listener in spec.kafka.listeners."""
    ca_secret_ref: CaRef | None = None
    """Secret with the certificate authorities to trust, for a listener that has a certificate of its own
    (brokerCertChainAndKey). Without it, those of the engine's image are trusted there, and the cluster's own for all
    other listeners."""


class KafkaUserRef(Model):
    """Strimzi's `KafkaUser`, which is the user's name, and the Secret that Strimzi's User Operator makes of it.

    `secret_name` None: the Secret has the name of the KafkaUser.
    """

    name: ResourceName
    """Name of the KafkaUser, which is the name of the user."""
    secret_name: ResourceName | None = None
    """Name of the Secret. By default it has the name of the KafkaUser."""
    certificate_key: SecretKey = "user.crt"
    """Key of the Secret that holds the certificate, in PEM."""
    private_key_key: SecretKey = "user.key"
    """Key of the Secret that holds the private key, in unencrypted PEM."""
    password_key: SecretKey = "password"
    """Key of the Secret that holds the password."""

    @property
    def secret(self) -> str:
        return self.secret_name or self.name


class ServerTls(Model):
    """Whom to trust as a server that is no broker: as the object store, or as what gives tokens."""

    model_config = rules(
        (
            "has(self.caSecretRef) != has(self.caConfigMapRef)",
            "exactly one of caSecretRef and caConfigMapRef must be set",
        ),
    )

    ca_secret_ref: CaRef | None = None
    """Secret with the certificate authorities to trust."""
    ca_config_map_ref: CaRef | None = None
    """ConfigMap with the certificate authorities to trust."""

    @model_validator(mode="after")
    def _one(self) -> ServerTls:
        if (self.ca_secret_ref is None) == (self.ca_config_map_ref is None):
            raise ValueError("exactly one of caSecretRef and caConfigMapRef must be set")
        return self
