"""Asks an endpoint of OpenID Connect for a token: the grant client_credentials of OAuth 2.0 (RFC 6749), with the
client's secret or with an assertion about it (RFC 7523).

The endpoint gets a secret, so no redirect is followed, and the errors say nothing that was sent.
"""

from __future__ import annotations

import base64
import http.client
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import IO, Any
from urllib.parse import quote_plus, urlencode

from logkeep_engine.contract import names
from logkeep_engine.contract.cluster import ClientAuthentication, OAuth
from logkeep_engine.errors import CredentialsMissing, KafkaLoginRefused, by_place
from logkeep_engine.kafka.secrets import SASL
from logkeep_engine.kafka.tokens import Token, TokenUnavailable, document, seconds_left, seconds_of

_SECONDS = 10.0
_MOST_BYTES = 1 << 20
_MOST_SAID = 300
_ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


def ask(oauth: OAuth, client: str, secret: str, assertion: str | None, ca_file: str | None) -> Token:
    """Return a new token. Raises KafkaLoginRefused if the endpoint gives none to this client, TokenUnavailable if it
    does not answer now, CredentialsMissing if its certificate authorities cannot be read."""
    url = oauth.token_endpoint
    assert url is not None
    form = {"grant_type": "client_credentials"}
    headers = {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded"}
    if oauth.scope is not None:
        form["scope"] = oauth.scope
    if oauth.audience is not None:
        form["audience"] = oauth.audience
    if assertion is not None:
        form |= {"client_assertion_type": _ASSERTION, "client_assertion": assertion}
        form |= {"client_id": client} if client else {}
    elif oauth.client_authentication is ClientAuthentication.POST:
        form |= {"client_id": client, "client_secret": secret}
    else:
        pair = f"{quote_plus(client)}:{quote_plus(secret)}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    status, body = _post(url, urlencode(form).encode(), headers, ca_file)
    sent = [one for one in (secret, assertion) if one]
    sent += [quote_plus(one) for one in sent] + [headers.get("Authorization", "").removeprefix("Basic ")]
    return _read(oauth, client, status, body, sorted(filter(None, sent), key=len, reverse=True))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


def _post(url: str, data: bytes, headers: Mapping[str, str], ca_file: str | None) -> tuple[int, bytes]:
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ValueError) as error:
        raise CredentialsMissing(
            f"{SASL}.oauth.tls: the certificate authorities cannot be used: {error}.", hint="They must be PEM."
        ) from error
    handlers: list[urllib.request.BaseHandler] = [_NoRedirect(), urllib.request.HTTPSHandler(context=context)]
    if url.startswith("http:"):  # a proxy would read it
        handlers.append(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, data, dict(headers), method="POST")
    try:
        with _answer(urllib.request.build_opener(*handlers), request) as answer:
            return answer.status, answer.read(_MOST_BYTES)
    except UnicodeError as error:  # a name that no resolver is asked for, such as a..b
        raise KafkaLoginRefused(
            f"The token endpoint {url} is at no name of a host.", hint=f"Check {SASL}.oauth.tokenEndpoint."
        ) from error
    except OSError as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise KafkaLoginRefused(
                f"The token endpoint {url} has a certificate that is not trusted: {reason.verify_message}.",
                hint="Check the authorities "
                + by_place(f"that {SASL}.oauth.tls names", f"in the file of {names.ENV_KAFKA_TOKEN_CA_FILE}")
                + ", and the host name.",
            ) from error
        raise TokenUnavailable(f"the token endpoint {url} does not answer: {reason or type(error).__name__}") from error
    except http.client.HTTPException as error:  # its text is what the other side has sent
        raise TokenUnavailable(f"the token endpoint {url} does not speak HTTP: {type(error).__name__}") from None


def _answer(opener: urllib.request.OpenerDirector, request: urllib.request.Request) -> Any:
    """Return the answer, whatever its status is."""
    try:
        return opener.open(request, timeout=_SECONDS)
    except urllib.error.HTTPError as error:
        return error


def _read(oauth: OAuth, client: str, status: int, body: bytes, sent: list[str]) -> Token:
    url = oauth.token_endpoint
    answer = document(body)
    if status == 429 or status >= 500:
        raise TokenUnavailable(f"the token endpoint {url} answers {status}{_said(answer, sent)}")
    who = f"client {client!r}" if client else "the ServiceAccount's token"
    if status != 200:
        raise KafkaLoginRefused(
            f"The token endpoint {url} gives {who} no token: it answers {status}{_said(answer, sent)}.",
            hint=_what_to_do(oauth, status, answer),
        )
    text, kind = answer.get("access_token"), answer.get("token_type", "bearer")
    if not isinstance(text, str) or not text or not text.isascii() or not text.isprintable():
        raise KafkaLoginRefused(
            f"The token endpoint {url} answers 200 without an access_token.", hint=f"Check {SASL}.oauth.tokenEndpoint."
        )
    if str(kind).lower() != "bearer":
        raise KafkaLoginRefused(
            f"The token endpoint {url} gives tokens of another type than Bearer, which brokers do not take.",
            hint="Change what the provider gives this client.",
        )
    seconds = seconds_of(answer.get("expires_in"))
    return Token(text, client, seconds_left(text) if seconds is None else seconds)


def _said(answer: Mapping[str, Any], sent: list[str]) -> str:
    """Return what the endpoint gives as its reason, without what was sent, which it may repeat."""
    words = [str(answer[key]) for key in ("error", "error_description") if answer.get(key)]
    text = ": ".join(words)
    for secret in sent:
        text = text.replace(secret, "…")
    return f" ({text[:_MOST_SAID].rstrip('.')})" if text else ""


def _what_to_do(oauth: OAuth, status: int, answer: Mapping[str, Any]) -> str:
    if 300 <= status < 400:
        return f"It leads elsewhere, and no secret is sent after it: correct {SASL}.oauth.tokenEndpoint."
    if answer.get("error") == "invalid_scope":
        return f"Check {SASL}.oauth.scope."
    if not answer.get("error"):
        return f"Check {SASL}.oauth.tokenEndpoint."
    if oauth.service_account_token is not None:
        return (
            f"Check {SASL}.username and the audience of {SASL}.oauth.serviceAccountToken, and whom the provider trusts."
        )
    where = by_place(f"in the Secret of {SASL}.secretRef", f"({names.ENV_KAFKA_USERNAME}, {names.ENV_KAFKA_PASSWORD})")
    return (
        f"Check the client's id and secret {where}, {SASL}.oauth.clientAuthentication, and that the client may have "
        "this grant."
    )
