"""How a resource says which Kafka cluster it means, and how to connect to it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, model_validator

from logkeep_engine.contract.endpoints import Broker, Region, TokenEndpoint
from logkeep_engine.contract.model import Model, map_of, meant, rules, schema, usual
from logkeep_engine.contract.references import (
    CaRef,
    ClientCertSecretRef,
    KafkaUserRef,
    LoginSecretRef,
    ServerTls,
    StrimziRef,
)

SCOPES = meant(r"^[!#-\[\]-~]+( [!#-\[\]-~]+)*$", "a list of scopes with a space between two")


class Protocol(StrEnum):
    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"


class SaslMechanism(StrEnum):
    """`AWS_MSK_IAM`: OAUTHBEARER with a token that AWS's identities sign, as Amazon MSK takes it."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"
    AWS_MSK_IAM = "AWS_MSK_IAM"

    @property
    def on_the_wire(self) -> str:
        """The name by which brokers know it."""
        return self.OAUTHBEARER.value if self is self.AWS_MSK_IAM else self.value

    @property
    def has_token(self) -> bool:
        """Whether who logs in shows a token, which is made for a short time."""
        return self in (self.OAUTHBEARER, self.AWS_MSK_IAM)


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


class ServiceAccountToken(Model):
    audience: Annotated[str, Field(min_length=1, max_length=512)]
    """Who takes the token: the audience that is written into it."""


class ClientAuthentication(StrEnum):
    """Where the client's id and secret are in a request for a token: in its header, or in its body."""

    BASIC = "Basic"
    POST = "Post"


EXTENSION = meant(r"^[A-Za-z]{1,64}$", "the name of an extension: 1 to 64 letters")


class Extension(Model):
    """A name and a value that a login sends beside its token."""

    name: Annotated[str, Field(pattern=EXTENSION), schema(maxLength=64)]
    """Name of the extension, such as logicalCluster."""
    value: Annotated[str, Field(pattern=meant(r"^[ -~]+$", "printable characters of ASCII"), max_length=1024)]
    """Its value."""


class OAuth(Model):
    """Where tokens come from: of an endpoint of OpenID Connect, of Kubernetes, or of the first for the second."""

    model_config = rules(
        (
            "has(self.tokenEndpoint) || has(self.serviceAccountToken)",
            "tokenEndpoint or serviceAccountToken must be set",
        ),
        (
            "has(self.tokenEndpoint) || !has(self.scope) && !has(self.audience) && !has(self.tls) && "
            "self.clientAuthentication == 'Basic'",
            "scope, audience, clientAuthentication and tls may be set only with tokenEndpoint",
        ),
        (
            "!has(self.tls) || !has(self.tokenEndpoint) || self.tokenEndpoint.startsWith('https://')",
            "tls has no effect with a tokenEndpoint of http://",
        ),
        (
            "!has(self.extensions) || self.extensions.all(e, e.name != 'auth')",
            "extensions may not have the name auth",
        ),
    )

    token_endpoint: TokenEndpoint | None = None
    """URL that gives tokens to clients (grant client_credentials). The client's secret is sent there, so the
    installation must allow it (engine.allowed.endpoints of the chart). http:// must be written out there."""
    scope: Annotated[str, Field(pattern=SCOPES, max_length=1024)] | None = None
    """Scopes to ask for, with a space between two."""
    audience: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """Audience to ask for, where the endpoint wants one (Auth0)."""
    client_authentication: ClientAuthentication = ClientAuthentication.BASIC
    """How the client shows its secret to the endpoint: in the header (client_secret_basic), or in the body
    (client_secret_post)."""
    service_account_token: ServiceAccountToken | None = None
    """Use a token of the pods' ServiceAccount, which Kubernetes renews, in place of a client's secret. With
    tokenEndpoint it is shown there as the client's assertion; without it, the brokers get it."""
    tls: ServerTls | None = None
    """Whom to trust as the token endpoint. Without it, the certificate authorities of the engine's image are
    trusted."""
    extensions: Annotated[tuple[Extension, ...], Field(max_length=16), map_of("name")] = ()
    """Extensions of SASL that brokers want beside the token (KIP-342), such as logicalCluster and identityPoolId of
    Confluent Cloud."""

    @model_validator(mode="after")
    def _fits(self) -> OAuth:
        if self.token_endpoint is None:
            if self.service_account_token is None:
                raise ValueError("tokenEndpoint or serviceAccountToken must be set")
            given = (self.scope, self.audience, self.tls)
            if any(one is not None for one in given) or self.client_authentication is not ClientAuthentication.BASIC:
                raise ValueError("scope, audience, clientAuthentication and tls may be set only with tokenEndpoint")
        elif self.tls is not None and self.token_endpoint.startswith("http:"):
            raise ValueError("tls has no effect with a tokenEndpoint of http://")
        if any(one.name == "auth" for one in self.extensions):
            raise ValueError("extensions may not have the name auth")
        if len({one.name for one in self.extensions}) < len(self.extensions):
            raise ValueError("extensions may not have one name twice")
        return self


ROLE_ARN = meant(
    r"^arn:[a-z-]+:iam::[0-9]{12}:role/[!-~]{1,512}$",
    "the ARN of a role: arn:aws:iam::123456789012:role/NAME",
)


class AwsIdentity(Model):
    region: Region
    """Region of the MSK cluster."""
    role_arn: Annotated[str, Field(pattern=ROLE_ARN), schema(maxLength=600)] | None = None
    """A role to assume first, with the Secret's key or the pods' identity."""


_PASSWORDS = "self.mechanism == 'PLAIN' || self.mechanism.startsWith('SCRAM-')"


class Sasl(Model):
    """`username`: the user's name, where the Secret has the password only."""

    model_config = rules(
        (
            "!has(self.username) || !has(self.secretRef) || self.secretRef.usernameKey == 'username'",
            "secretRef.usernameKey has no effect with username; leave one of them out",
        ),
        (
            f"!({_PASSWORDS}) || has(self.secretRef)",
            "secretRef must be set with PLAIN and SCRAM",
        ),
        (
            "(self.mechanism == 'OAUTHBEARER') == has(self.oauth)",
            "oauth must be set exactly when mechanism is OAUTHBEARER",
        ),
        (
            "(self.mechanism == 'AWS_MSK_IAM') == has(self.aws)",
            "aws must be set exactly when mechanism is AWS_MSK_IAM",
        ),
        (
            "!has(self.oauth) || has(self.secretRef) != has(self.oauth.serviceAccountToken)",
            "exactly one of secretRef and oauth.serviceAccountToken must be set with OAUTHBEARER",
        ),
        (
            "!has(self.oauth) || has(self.oauth.tokenEndpoint) || !has(self.username)",
            "username has no effect without oauth.tokenEndpoint",
        ),
        (
            "!has(self.aws) || has(self.secretRef) || !has(self.username)",
            "username has no effect without secretRef",
        ),
    )

    mechanism: SaslMechanism
    """SASL mechanism of the listener. AWS_MSK_IAM is the login of Amazon MSK by IAM."""
    username: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """Name of the user, where the Secret has the password only; with OAUTHBEARER the id of the client, with
    AWS_MSK_IAM that of the access key."""
    secret_ref: LoginSecretRef | None = None
    """Secret with the user's name and password; with OAUTHBEARER the id and the secret of the client, with AWS_MSK_IAM
    those of an access key. Without it AWS_MSK_IAM uses the identity of the pods (IRSA, EKS Pod Identity)."""
    oauth: OAuth | None = None
    """Where the tokens of OAUTHBEARER come from."""
    aws: AwsIdentity | None = None
    """Who logs in by AWS_MSK_IAM, and where."""

    @model_validator(mode="after")
    def _one_name(self) -> Sasl:
        secret, mechanism = self.secret_ref, self.mechanism
        if (
            self.username is not None
            and secret is not None
            and secret.username_key != LoginSecretRef(name="x").username_key
        ):
            raise ValueError("secretRef.usernameKey has no effect with username; leave one of them out")
        if not mechanism.has_token and secret is None:
            raise ValueError("secretRef must be set with PLAIN and SCRAM")
        if (mechanism is SaslMechanism.OAUTHBEARER) != (self.oauth is not None):
            raise ValueError("oauth must be set exactly when mechanism is OAUTHBEARER")
        if (mechanism is SaslMechanism.AWS_MSK_IAM) != (self.aws is not None):
            raise ValueError("aws must be set exactly when mechanism is AWS_MSK_IAM")
        if self.oauth is not None:
            if (secret is None) == (self.oauth.service_account_token is None):
                raise ValueError("exactly one of secretRef and oauth.serviceAccountToken must be set with OAUTHBEARER")
            if self.oauth.token_endpoint is None and self.username is not None:
                raise ValueError("username has no effect without oauth.tokenEndpoint")
        if self.aws is not None and secret is None and self.username is not None:
            raise ValueError("username has no effect without secretRef")
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
    """Who logs in and how, for the protocols SASL_PLAINTEXT and SASL_SSL."""

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
