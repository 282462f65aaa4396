"""Opens a connection to a broker, and says why one could not be opened: which failures no second attempt repairs, and
what to check."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator

from logkeep_engine.contract.cluster import SaslMechanism
from logkeep_engine.errors import KafkaLoginRefused, KafkaLoginUnavailable
from logkeep_engine.kafka.buffers import Buffers
from logkeep_engine.kafka.connection import KafkaConnection, Limits, authorities_source, login_source
from logkeep_engine.kafka.login import Login, LoginDenied, LoginNotTaken, WrongBroker
from logkeep_engine.kafka.retry import RetriableError
from logkeep_engine.kafka.tokens import TokenUnavailable
from logkeep_engine.kafka.wire import Wire, open_wire

_CLIENT_ID = "logkeep"
_NO_TOKEN = (
    "Check that what gives tokens runs and can be reached from here: spec.cluster.security.sasl.oauth.tokenEndpoint, "
    "or AWS with AWS_MSK_IAM."
)


async def open_broker(
    broker: str,
    address: tuple[str, int],
    connection: KafkaConnection,
    limits: Limits,
    buffers: Buffers,
    hint: str | None,
) -> Wire:
    """Open a connection to a `broker`, with certificates and a password or a token as they are now. `hint` is what to
    do if it cannot be reached. Raises RetriableError, KafkaLoginRefused, CredentialsMissing, VersionMissing."""

    def not_connected(why: str) -> RetriableError:
        return RetriableError(broker + why) if hint is None else RetriableError(broker + why, hint=hint)

    async def again() -> Login:
        renewed = await connection.current_login()
        assert renewed is not None
        return renewed

    try:
        login = await connection.current_login()
    except TokenUnavailable as error:
        raise RetriableError(str(error), error=KafkaLoginUnavailable, hint=_NO_TOKEN) from error
    try:
        async with asyncio.timeout(limits.connect):
            return await open_wire(
                *address,
                buffers=buffers,
                client_id=_CLIENT_ID,
                patience=limits.request,
                tls=connection.tls(),
                login=login,
                again=again,
            )
    except TimeoutError as error:
        raise not_connected(f" did not answer within {limits.connect:.0f} s") from error
    except (LoginDenied, LoginNotTaken, WrongBroker, OSError) as error:
        if isinstance(error, LoginDenied) and login is not None:
            connection.drop_token(login)
        if found := refusal(broker, login, error):
            raise found from error
        raise not_connected(f": {reason_of(error)}") from error


def refusal(broker: str, login: Login | None, error: BaseException) -> KafkaLoginRefused | None:
    """Return the error for a login or a certificate that is not accepted; None for a failure that may pass. `broker` is
    its name in messages."""
    for cause in _causes(error):
        if isinstance(cause, LoginDenied):
            return KafkaLoginRefused(
                f"{broker} refused {login.who if login is not None else 'the login'}: {reason_of(cause)}.",
                hint=_what_was_shown(login),
            )
        if isinstance(cause, LoginNotTaken):
            return KafkaLoginRefused(
                f"{broker} does not take this login: {reason_of(cause)}.",
                hint="Compare the security protocol and the SASL mechanism with those of the broker's listener.",
            )
        if isinstance(cause, ssl.SSLCertVerificationError):
            return KafkaLoginRefused(
                f"{broker} has a certificate that is not trusted: {cause.verify_message}.",
                hint=f"Check the authorities {authorities_source()}, and the host name.",
            )
        if isinstance(cause, ssl.SSLError) and cause.reason:
            return KafkaLoginRefused(
                f"{broker} failed the TLS handshake: {cause.reason}.",
                hint="Check the security protocol, whether the broker requires a client certificate, and whether that "
                "of spec.cluster.security.tls has ended.",
            )
        if isinstance(cause, WrongBroker):
            return KafkaLoginRefused(
                f"{broker} answered the SCRAM login wrongly: {cause}.",
                hint="The broker does not know this user's password; check that the address is the right one.",
            )
    return None


def _what_was_shown(login: Login | None) -> str:
    if login is not None and login.mechanism is SaslMechanism.AWS_MSK_IAM:
        return (
            "Check spec.cluster.security.sasl.aws.region, the identity's right kafka-cluster:Connect on the cluster, "
            "and this machine's clock."
        )
    if login is not None and login.mechanism is SaslMechanism.OAUTHBEARER:
        return (
            "Compare the issuer, the audience and the scope of the token with what the brokers want, and the clocks: "
            "spec.cluster.security.sasl.oauth."
        )
    return f"Check the user and the password {login_source()}."


def reason_of(error: BaseException) -> str:
    """Return the reason of a failure in a few words."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, ConnectionResetError):
        return "connection reset"
    return str(error) or type(error).__name__


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__
