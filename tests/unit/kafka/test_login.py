"""Logins against servers that answer as RFC 5802 and RFC 7677 say, and against those that do not know the password."""

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Any, cast

import pytest

from logkeep_engine.contract.cluster import SaslMechanism
from logkeep_engine.kafka import login as logins
from logkeep_engine.kafka.buffers import Buffers
from logkeep_engine.kafka.encoding import Call, Reader, pack_array, pack_string
from logkeep_engine.kafka.login import Login, LoginDenied, LoginNotTaken, WrongBroker, log_in

PEN = Login(SaslMechanism.SCRAM_SHA_256, "user", "pencil")
# The example of RFC 7677: the nonce of the client, and the messages of the server.
NONCE = "rOprNGfwEbeRWgbNEkqO"
FIRST = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
LAST = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
PROOF = "p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="


class Broker:
    """Answers each request for a login with what the script says, and keeps what was said."""

    def __init__(self, *script: str | Callable[[str], str], enabled: int = 0, refuses: str = "") -> None:
        self._script = iter(script)
        self._enabled = enabled
        self._refuses = refuses
        self.heard: list[bytes] = []

    def send(self, call: Call[Any]) -> asyncio.Future[Any]:
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(call.decode(Reader(_frame(self._answer(call)))))
        return answer

    def _answer(self, call: Call[Any]) -> bytes:
        if call.api_key == logins.SASL_HANDSHAKE:
            return self._enabled.to_bytes(2, "big") + pack_array([pack_string("PLAIN"), pack_string("GSSAPI")])
        said = b"".join(call.body)[4:]
        self.heard.append(said)
        if self._refuses:
            return (58).to_bytes(2, "big") + pack_string(self._refuses) + (0).to_bytes(4, "big")
        step = next(self._script)
        data = (step if isinstance(step, str) else step(said.decode())).encode()
        return b"\0\0" + pack_string(None) + len(data).to_bytes(4, "big") + data


def _frame(data: bytes) -> Any:
    frame = Buffers().lend(len(data))
    frame.view[:] = data
    return frame


@pytest.fixture(autouse=True)
def nonce(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logkeep_engine.kafka.login.secrets.token_urlsafe", lambda _: NONCE)


def run(broker: Broker, login: Login = PEN) -> None:
    asyncio.run(log_in(cast(Any, broker), login))


def test_the_example_of_the_rfc() -> None:
    broker = Broker(FIRST, LAST)
    run(broker)
    first, final = (text.decode() for text in broker.heard)
    assert first == f"n,,n=user,r={NONCE}"
    assert final == f"c=biws,{FIRST.partition(',')[0]},{PROOF}"


def test_plain_says_user_and_password_once() -> None:
    broker = Broker("")
    run(broker, Login(SaslMechanism.PLAIN, "ann", "pässwörd"))
    assert broker.heard == ["\0ann\0pässwörd".encode()]


def test_a_name_with_the_signs_of_scram_is_escaped() -> None:
    broker = Broker(refuses="no")
    with pytest.raises(LoginDenied, match="no"):
        run(broker, Login(SaslMechanism.SCRAM_SHA_512, "a=b,c", "x"))
    assert broker.heard == [f"n,,n=a=3Db=2Cc,r={NONCE}".encode()]


def test_a_mechanism_that_the_listener_does_not_take_names_those_that_it_takes() -> None:
    with pytest.raises(LoginNotTaken, match=r"UNSUPPORTED_SASL_MECHANISM for SCRAM-SHA-256; it takes PLAIN, GSSAPI"):
        run(Broker(enabled=33))


def test_the_brokers_reason_is_reported() -> None:
    with pytest.raises(LoginDenied, match="Authentication failed: invalid credentials"):
        run(Broker(refuses="Authentication failed: invalid credentials"))


@pytest.mark.parametrize(
    ("first", "last", "reason"),
    [
        ("r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", LAST, "not for this login"),
        (f"r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", LAST, "not for this login"),
        (FIRST.replace("i=4096", "i=1"), LAST, "requires 1 iterations"),
        (FIRST.replace("i=4096", "i=99999999"), LAST, "requires 99999999 iterations"),
        (FIRST.replace("i=4096", "i=many"), LAST, "cannot be read"),
        (FIRST.replace("s=W22", "s=!"), LAST, "cannot be read"),
        ("", LAST, "cannot be read: 's'"),
        (FIRST, "v=AAAA", "its signature is another one"),
        (FIRST, "v=\u00e4\u00e4", "its signature is another one"),
        (FIRST, "e=unknown-user", "unknown-user"),
        (FIRST, "", "its signature is another one"),
    ],
)
def test_a_server_that_does_not_know_the_password_is_no_broker(first: str, last: str, reason: str) -> None:
    broker = Broker(first, last)
    with pytest.raises(WrongBroker, match=reason):
        run(broker)
    assert all(b"pencil" not in said for said in broker.heard)


def test_scram_with_sha_512_proves_the_password_and_wants_the_brokers_proof() -> None:
    """The server's side, computed here from the stored key alone."""
    salt, login = b"salt of the user", Login(SaslMechanism.SCRAM_SHA_512, "user", "pencil")
    salted = hashlib.pbkdf2_hmac("sha512", b"pencil", salt, 4096)
    stored = hashlib.sha512(hmac.digest(salted, b"Client Key", "sha512")).digest()
    challenge = f"r={NONCE}-server,s={base64.b64encode(salt).decode()},i=4096"

    def last(said: str) -> str:
        bare, _, proof = said.rpartition(",p=")
        text = f"n=user,r={NONCE},{challenge},{bare}".encode()
        mask = hmac.digest(stored, text, "sha512")
        key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), mask, strict=True))
        assert hashlib.sha512(key).digest() == stored, "the proof is wrong"
        server = hmac.digest(hmac.digest(salted, b"Server Key", "sha512"), text, "sha512")
        return "v=" + base64.b64encode(server).decode()

    run(Broker(challenge, last), login)


BEARER = Login(SaslMechanism.OAUTHBEARER, "client", "a-token", (("logicalCluster", "lkc-1"),))


def test_a_token_is_shown_with_extensions_as_rfc_7628_says() -> None:
    broker = Broker("")
    run(broker, BEARER)
    assert broker.heard == [b"n,,\x01auth=Bearer a-token\x01logicalCluster=lkc-1\x01\x01"]


def test_a_broker_that_says_why_it_takes_no_token_is_heard_out() -> None:
    said = json.dumps({"status": "invalid_token", "scope": "kafka"})
    broker = Broker(said, "")
    with pytest.raises(LoginDenied, match="invalid_token"):
        run(broker, BEARER)
    assert broker.heard[1] == b"\x01"


def test_no_message_repeats_the_password() -> None:
    with pytest.raises(LoginDenied) as error:
        run(Broker(refuses="ann may not log in with pa=ss"), Login(SaslMechanism.PLAIN, "ann", "pa=ss"))
    assert str(error.value) == "ann may not log in with …"


def test_no_message_repeats_the_token() -> None:
    with pytest.raises(LoginDenied) as error:
        run(Broker("the token a-token is bad", ""), BEARER)
    assert str(error.value) == "the token … is bad"
    assert "a-token" not in repr(BEARER)


def test_iam_is_oauthbearer_on_the_wire() -> None:
    with pytest.raises(LoginNotTaken, match=r"UNSUPPORTED_SASL_MECHANISM for OAUTHBEARER; it takes PLAIN, GSSAPI"):
        run(Broker(enabled=33), Login(SaslMechanism.AWS_MSK_IAM, "AKIA", "a-token"))
