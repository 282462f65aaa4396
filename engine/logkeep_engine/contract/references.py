"""References from a resource: to Secrets and the keys in them, and to resources of Strimzi."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from logkeep_engine.contract.model import Model
from logkeep_engine.contract.values import NamespaceName, ResourceName, SecretKey


class SecretRef(Model):
    name: ResourceName


class CaRef(Model):
    """A Secret or a ConfigMap with certificate authorities to trust, in PEM."""

    name: ResourceName
    certificate_key: SecretKey = "ca.crt"


class ClientCertSecretRef(SecretRef):
    """A Secret with a client certificate and its private key, both in PEM."""

    certificate_key: SecretKey = "tls.crt"
    private_key_key: SecretKey = "tls.key"


class LoginSecretRef(SecretRef):
    """A Secret with a user's name and password."""

    username_key: SecretKey = "username"
    password_key: SecretKey = "password"


class S3SecretRef(SecretRef):
    """A Secret with the keys of an object store. The session token may be absent."""

    access_key_id_key: SecretKey = "accessKeyId"
    secret_access_key_key: SecretKey = "secretAccessKey"
    session_token_key: SecretKey = "sessionToken"


class StrimziRef(Model):
    """Strimzi's `Kafka` resource and one of its listeners. `namespace` None: that of the resource which says this.

    `ca_secret_ref`: for a listener with a certificate of its own, which the cluster's authority has not signed.
    """

    name: ResourceName
    namespace: NamespaceName | None = None
    listener: Annotated[str, Field(pattern=r"^[a-z0-9]{1,11}$")]
    ca_secret_ref: CaRef | None = None


class KafkaUserRef(Model):
    """Strimzi's `KafkaUser`, which is the user's name, and the Secret that Strimzi's User Operator makes of it.

    `secret_name` None: the Secret has the name of the KafkaUser.
    """

    name: ResourceName
    secret_name: ResourceName | None = None
    certificate_key: SecretKey = "user.crt"
    private_key_key: SecretKey = "user.key"
    password_key: SecretKey = "password"

    @property
    def secret(self) -> str:
        return self.secret_name or self.name
