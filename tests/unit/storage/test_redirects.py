"""No store and no proxy has requests with keys sent elsewhere than to the endpoint."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from logkeep_engine.errors import LogkeepError
from logkeep_engine.storage import Storage, open_uri

KEYS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key", "AWS_SESSION_TOKEN": "a token"}


@contextmanager
def store(status: int, code: str, headers: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    """A store that answers everything in this way: its URL, and the tokens that it was sent."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("X-Amz-Security-Token", ""))
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = f"<Error><Code>{code}</Code><Region>eu-west-1</Region></Error>".encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_PUT = do_POST = do_GET  # noqa: N815 - the names that the base class calls

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", seen
        finally:
            server.shutdown()


REQUESTS: dict[str, Callable[[Storage], object]] = {
    "list": lambda storage: storage.check(),
    "read": lambda storage: storage.read("a"),
    "head": lambda storage: storage.version("a"),
    "write": lambda storage: storage.put("a", b"x"),
    "delete": lambda storage: storage.delete(["a"]),
}


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize(
    ("status", "code"),
    [(301, "PermanentRedirect"), (307, "TemporaryRedirect"), (400, "AuthorizationHeaderMalformed")],
)
def test_no_request_follows_a_redirect(status: int, code: str, request_: Callable[[Storage], object]) -> None:
    with store(200, "", {}) as (elsewhere, stolen):
        redirect = {"Location": f"{elsewhere}/bucket/a", "x-amz-bucket-region": "evil.example"}
        with store(status, code, redirect) as (endpoint, seen):
            storage = open_uri("s3://bucket/x", endpoint, "us-east-1", KEYS)
            with pytest.raises(LogkeepError):
                request_(storage)
            assert set(seen) == {"a token"}
        assert stolen == []


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_no_proxy_reads_what_goes_to_an_endpoint_without_tls(
    request_: Callable[[Storage], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with store(403, "AccessDenied", {}) as (proxy, read), store(403, "AccessDenied", {}) as (endpoint, seen):
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy)
        with pytest.raises(LogkeepError):
            request_(open_uri("s3://bucket/x", endpoint, "us-east-1", KEYS))
        assert seen == ["a token"]
        assert read == []
