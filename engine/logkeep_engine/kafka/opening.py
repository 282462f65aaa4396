"""Says why a connection to a broker could not be opened: which failures no second attempt repairs, and what to
check."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

from logkeep_engine.errors import BrokerRefused
from logkeep_engine.kafka.connection import authorities_source, login_source
from logkeep_engine.kafka.login import LoginDenied, LoginNotTaken, WrongBroker


def refusal(broker: str, username: str | None, error: BaseException) -> BrokerRefused | None:
    """Return the error for a login or a certificate that is not accepted; None for a failure that may pass. `broker` is
    its name in messages."""
    for cause in _causes(error):
        if isinstance(cause, LoginDenied):
            return BrokerRefused(
                f"{broker} refused user {username!r}: {reason_of(cause)}.",
                hint=f"Check the user and the password {login_source()}.",
            )
        if isinstance(cause, LoginNotTaken):
            return BrokerRefused(
                f"{broker} does not take this login: {reason_of(cause)}.",
                hint="Compare the security protocol and the SASL mechanism with those of the broker's listener.",
            )
        if isinstance(cause, ssl.SSLCertVerificationError):
            return BrokerRefused(
                f"{broker} has a certificate that is not trusted: {cause.verify_message}.",
                hint=f"Check the authorities {authorities_source()}, and the host name.",
            )
        if isinstance(cause, ssl.SSLError) and cause.reason:
            return BrokerRefused(
                f"{broker} failed the TLS handshake: {cause.reason}.",
                hint="Check the security protocol, and whether the broker requires a client certificate.",
            )
        if isinstance(cause, WrongBroker):
            return BrokerRefused(
                f"{broker} answered the SCRAM login wrongly: {cause}.",
                hint="The broker does not know this user's password; check that the address is the right one.",
            )
    return None


def reason_of(error: BaseException) -> str:
    """Return the reason of a failure in a few words."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return str(error) or type(error).__name__


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__
