"""Answers of a token endpoint that are not what they should be: each has an error that can be read, and none repeats
what was sent."""

import base64
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from logkeep_engine.contract.cluster import ClientAuthentication, OAuth
from logkeep_engine.errors import KafkaLoginRefused
from logkeep_engine.kafka import token_endpoint
from logkeep_engine.kafka.token_endpoint import ask
from logkeep_engine.kafka.tokens import TokenUnavailable, seconds_left

SECRET = "s3/cr=t +%"
CLIENT = "backup"


@contextmanager
def server(answer: Callable[[str], bytes]) -> Iterator[str]:
    """An endpoint that answers one request with these bytes of the whole request, and does not close the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                heard = b""
                while b"grant_type" not in heard:
                    heard += connection.recv(1 << 16)
                connection.sendall(answer(heard.decode()))
                done.wait()

        done = threading.Event()
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/token"
        done.set()
        thread.join()


def http(status: int, body: str, length: int | None = None) -> bytes:
    size = len(body.encode()) if length is None else length
    return f"HTTP/1.1 {status} X\r\nContent-Length: {size}\r\n\r\n{body}".encode()


def oauth(url: str, how: ClientAuthentication = ClientAuthentication.BASIC) -> OAuth:
    return OAuth(token_endpoint=url, client_authentication=how)


@pytest.mark.parametrize("how", list(ClientAuthentication))
@pytest.mark.parametrize("status", [401, 503])
def test_an_endpoint_that_repeats_what_it_was_sent_is_not_quoted(how: ClientAuthentication, status: int) -> None:
    sent = [SECRET]

    def repeat(heard: str) -> bytes:
        lines = heard.splitlines()
        sent.extend(line.rpartition(" ")[2] for line in lines if line.startswith("Authorization: "))
        sent.extend(item.partition("=")[2] for item in lines[-1].split("&") if item.startswith("client_secret="))
        return http(status, json.dumps({"error": "denied", "error_description": f"{' and '.join(sent)} are wrong"}))

    with server(repeat) as url, pytest.raises((KafkaLoginRefused, TokenUnavailable)) as error:
        ask(oauth(url, how), CLIENT, SECRET, None, None)
    assert len(sent) == 2
    assert "(denied: … and … are wrong)" in str(error.value)


def test_an_endpoint_that_hangs_in_the_middle_of_a_refusal_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_endpoint, "_SECONDS", 0.2)
    with server(lambda _: http(503, "{", length=10)) as url, pytest.raises(TokenUnavailable, match="does not answer"):
        ask(oauth(url), CLIENT, SECRET, None, None)


def test_what_speaks_no_http_is_not_quoted() -> None:
    with server(lambda heard: f"{SECRET} {heard}".encode()) as url, pytest.raises(TokenUnavailable) as error:
        ask(oauth(url), CLIENT, SECRET, None, None)
    assert str(error.value) == f"the token endpoint {url} does not speak HTTP: BadStatusLine"


def test_a_document_that_is_nested_too_deeply_is_none() -> None:
    with server(lambda _: http(400, "[" * 200_000)) as url, pytest.raises(KafkaLoginRefused, match="it answers 400"):
        ask(oauth(url), CLIENT, SECRET, None, None)


def test_a_host_that_is_no_name_is_refused() -> None:
    with pytest.raises(KafkaLoginRefused, match=r"a\.\.b/token is at no name of a host"):
        ask(oauth("https://a..b/token"), CLIENT, SECRET, None, None)


@pytest.mark.parametrize(
    ("expires_in", "seconds"),
    [(60, 60), ("60", 60), (0.5, 0.5), ("²", None), ("9" * 400, None), (float("inf"), None), ([], None)],
)
def test_a_token_holds_as_long_as_its_endpoint_says_if_it_says_so(expires_in: object, seconds: float | None) -> None:
    answer = {"access_token": "opaque", "expires_in": expires_in}
    with server(lambda _: http(200, json.dumps(answer))) as url:
        assert ask(oauth(url), CLIENT, SECRET, None, None).seconds == seconds


@pytest.mark.parametrize("claims", ["[" * 200_000, '{"exp": 1' + "0" * 400 + "}", '{"exp": "never"}', "[]", "\xff"])
def test_a_token_that_says_nothing_of_its_end_has_none(claims: str) -> None:
    payload = base64.urlsafe_b64encode(claims.encode("latin-1")).decode().rstrip("=")
    assert seconds_left(f"a.{payload}.c") is None
