"""A Kafka broker that checks tokens by Strimzi's own library, as the brokers of a Strimzi cluster do."""

from collections.abc import Mapping, Sequence

from tests.cluster import tools
from tests.cluster.kafka import STEADY, KafkaBroker
from tests.cluster.tokens import TokenServer

_VALIDATOR = "io.strimzi.kafka.oauth.server.JaasServerOauthValidatorCallbackHandler"


class StrimziOAuthBroker(KafkaBroker):
    """Its SASL listeners take tokens of an issuer, and end the session when the token ends."""

    def __init__(self, issuer: TokenServer) -> None:
        super().__init__(secure=True, overrides=STEADY)
        self._issuer = issuer

    def _class_path(self) -> Sequence[str]:
        return (f"{tools.strimzi_oauth_jars()}/*",)

    def _own_settings(self) -> Mapping[str, str]:
        options = {
            "oauth.valid.issuer.uri": self._issuer.issuer,
            "oauth.jwks.endpoint.uri": f"{self._issuer.url}/keys",
            "oauth.username.claim": "sub",
            "oauth.check.access.token.type": "false",
            "unsecuredLoginStringClaim_sub": "broker",
        }
        module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
        jaas = " ".join([module, *(f'{name}="{value}"' for name, value in options.items())]) + ";"
        settings = {
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512,OAUTHBEARER",
            "connections.max.reauth.ms": "3600000",
        }
        for listener in ("sasl_plaintext", "sasl_ssl"):
            prefix = f"listener.name.{listener}.oauthbearer.sasl"
            settings |= {f"{prefix}.jaas.config": jaas, f"{prefix}.server.callback.handler.class": _VALIDATOR}
        return settings
