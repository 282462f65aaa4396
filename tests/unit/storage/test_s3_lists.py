"""Stores whose lists of objects do not say how to continue, or do not do what they are asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest

from logkeep_engine.contract import names
from logkeep_engine.errors import ListUnreliable, StorageUnavailable
from logkeep_engine.storage import open_uri, retry
from logkeep_engine.storage.place import BucketPlace
from logkeep_engine.storage.s3.pages import marked
from logkeep_engine.storage.s3.unseen import old_versions, unfinished_uploads

LOGIN = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key"}
PATHS = sorted(f"topics/a b+ü&{number:02}" for number in range(12))
PAGE = 5

Query = dict[str, str]
Store = Callable[[Query], tuple[list[str], str]]
"""The keys of a page, and the elements that say how to continue."""


def page(keys: list[str], after: str) -> tuple[list[str], bool]:
    left = [key for key in keys if key > after]
    return left[:PAGE], len(left) > PAGE


def keys_of(query: Query) -> list[str]:
    return [f"x/{path}" for path in PATHS if f"x/{path}".startswith(query["prefix"])]


def whole(query: Query) -> tuple[list[str], str]:
    """A store that does as S3 does."""
    found, more = page(keys_of(query), unquote(query.get("continuation-token", "")))
    return found, f"<NextContinuationToken>{quote(found[-1])}</NextContinuationToken>" if more else ""


def of_the_older_form(query: Query) -> tuple[list[str], str]:
    """A store that takes each request for one of the older form, as Huawei's does."""
    found, more = page(keys_of(query), query.get("marker", ""))
    return found, "<IsTruncated>true</IsTruncated>" if more else "<IsTruncated>false</IsTruncated>"


def without_token(query: Query) -> tuple[list[str], str]:
    """A store that knows both forms and forgets the token of the next page."""
    found, more = page(keys_of(query), query.get("start-after", query.get("marker", "")))
    return found, "<IsTruncated>true</IsTruncated>" if more else ""


def with_token_alone(query: Query) -> tuple[list[str], str]:
    """A store that does not say that a page is not the last, and gives the token of the next."""
    found, more = page(keys_of(query), unquote(query.get("continuation-token", "")))
    token = f"<NextContinuationToken>{quote(found[-1])}</NextContinuationToken>" if more else ""
    return found, "<IsTruncated>false</IsTruncated>" + token


def with_empty_pages(query: Query) -> tuple[list[str], str]:
    """A store with a page in the middle that has no objects, which S3 allows."""
    token = query.get("continuation-token", "")
    if token == "half":
        return [], "<IsTruncated>true</IsTruncated><NextContinuationToken>rest</NextContinuationToken>"
    found, more = page(keys_of(query), f"x/{PATHS[4]}" if token == "rest" else unquote(token))
    following = "half" if not token else quote(found[-1])
    return found, f"<NextContinuationToken>{following}</NextContinuationToken>" if more else ""


def the_first_page_for_ever(query: Query) -> tuple[list[str], str]:
    found, _ = page(keys_of(query), "")
    return found, "<IsTruncated>true</IsTruncated><NextContinuationToken>more</NextContinuationToken>"


def the_first_page_with_other_tokens(query: Query) -> tuple[list[str], str]:
    found, _ = page(keys_of(query), "")
    return found, f"<NextContinuationToken>{query.get('continuation-token', '')}+</NextContinuationToken>"


def the_first_page_without_tokens(query: Query) -> tuple[list[str], str]:
    found, _ = page(keys_of(query), "")
    return found, "<IsTruncated>true</IsTruncated>"


def empty_pages_for_ever(query: Query) -> tuple[list[str], str]:
    return [], "<IsTruncated>true</IsTruncated><NextContinuationToken>more</NextContinuationToken>"


def nothing_and_more(query: Query) -> tuple[list[str], str]:
    return [], "<IsTruncated>true</IsTruncated>"


def everything(query: Query) -> tuple[list[str], str]:
    """A store that ignores the prefix."""
    return ["other/a", *keys_of(query)], ""


@contextmanager
def listing(store: Store) -> Iterator[tuple[str, list[Query]]]:
    """The endpoint of a store that can do nothing but list, and what it was asked for."""
    asked: list[Query] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = {name: values[-1] for name, values in parse_qs(urlsplit(self.path).query, True).items()}
            asked.append(query)
            keys, more = store(query)
            more = more if "<IsTruncated>" in more or not more else f"<IsTruncated>true</IsTruncated>{more}"
            found = "".join(
                f"<Contents><Key>{quote(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                "<Size>1</Size></Contents>"
                for key in keys
            )
            body = f"<ListBucketResult><EncodingType>url</EncodingType>{more}{found}</ListBucketResult>".encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()


@pytest.mark.parametrize("store", [whole, of_the_older_form, without_token, with_token_alone, with_empty_pages])
def test_a_list_is_whole_however_the_store_says_that_there_is_more(store: Store) -> None:
    with listing(store) as (endpoint, asked):
        storage = open_uri("s3://bucket/x", endpoint, "us-east-1", LOGIN)
        assert [info.path for info in storage.list("topics/")] == PATHS
        assert len(asked) == (4 if store is with_empty_pages else 3)


@pytest.mark.parametrize(
    ("store", "what"),
    [
        (the_first_page_for_ever, "comes back to the object 'x/topics/a b\\+ü&00': the store ignores where a page"),
        (the_first_page_with_other_tokens, "comes back to the object 'x/topics/a b\\+ü&00'"),
        (the_first_page_without_tokens, "comes back to the object 'x/topics/a b\\+ü&00'"),
        (empty_pages_for_ever, "does not end: two of its pages continue at 'more'"),
        (nothing_and_more, "continues after a page that has no object and lacks its NextContinuationToken"),
        (everything, "has the object 'other/a', which was not asked for: the store ignores the prefix"),
    ],
)
def test_a_list_that_cannot_be_whole_is_refused(store: Store, what: str) -> None:
    with listing(store) as (endpoint, asked):
        storage = open_uri("s3://bucket/x", endpoint, "us-east-1", LOGIN)
        with pytest.raises(ListUnreliable, match=f"below s3://bucket/x/topics/ {what}") as caught:
            storage.list("topics/")
        assert endpoint in caught.value.message
        assert "use another one" in str(caught.value)
        assert len(asked) <= 2


EMPTY = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
WHOLE = {
    "with its length": b"Content-Length: %d\r\n\r\n%s" % (len(EMPTY), EMPTY),
    "to the end of the connection": b"\r\n" + EMPTY,
    "in chunks": b"Transfer-Encoding: chunked\r\nContent-Length: 999\r\n\r\n%x\r\n%s\r\n0\r\n\r\n"
    % (len(EMPTY), EMPTY),
}
CUT = {
    "behind the headers": b"Content-Length: %d\r\n\r\n" % len(EMPTY),
    "of no length": b"\r\n",
    "in whole chunks": b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(EMPTY), EMPTY),
    "at the end": b"Content-Length: %d\r\n\r\n%s" % (len(EMPTY) + 1, EMPTY),
}


@pytest.mark.parametrize("sent", [*WHOLE.values(), *CUT.values()], ids=[*WHOLE, *CUT])
def test_a_list_is_empty_only_if_all_of_the_answer_has_come(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "PATIENCE", 0.0)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.wfile.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n" + sent)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        storage = open_uri("s3://bucket/x", f"http://127.0.0.1:{server.server_port}", "us-east-1", LOGIN)
        if sent in WHOLE.values():
            assert storage.list() == []
        else:
            with pytest.raises(StorageUnavailable):
                storage.list()
        server.shutdown()


PLACE = BucketPlace("s3://bucket/x", None, None, names.OWN_KEYS, False)


class Pages:
    """Answers requests with one page after the other, and the last one for ever."""

    def __init__(self, *pages: dict[str, Any]) -> None:
        self._pages = [*pages]
        self.asked: list[dict[str, Any]] = []

    def call(self, method: str, path: str, **arguments: Any) -> Any:
        self.asked.append(arguments)
        return self._pages.pop(0) if len(self._pages) > 1 else self._pages[0]


def test_lists_of_versions_and_of_uploads_continue_at_both_markers() -> None:
    more = {"IsTruncated": True, "NextKeyMarker": "x/a", "NextVersionIdMarker": "1", "NextUploadIdMarker": "1"}
    for marker in ("VersionIdMarker", "UploadIdMarker"):
        requests: Any = Pages(more, {**more, f"Next{marker}": "2"}, {"IsTruncated": False})
        assert len([*marked(PLACE, requests, "", "list", marker)]) == 3
        assert [asked.get(marker) for asked in requests.asked] == [None, "1", "2"]


def test_lists_of_versions_and_of_uploads_that_do_not_continue_are_refused() -> None:
    key, more = {"NextKeyMarker": "x/a"}, {"IsTruncated": True}
    markers = {"NextVersionIdMarker": "1", "NextUploadIdMarker": "1"}
    for pages, what in (
        ([{"ResponseMetadata": {}}], "has nothing that a list has: a proxy may answer in place of the store"),
        ([more], "continues after a page that lacks its NextKeyMarker"),
        ([more | key], "continues after a page that lacks its Next(VersionId|UploadId)Marker"),
        ([more | key | markers], "does not end: two of its pages continue at 'x/a 1'"),
        (
            [{"Versions": [{"Key": "y/a"}], "Uploads": [{"Key": "y/a"}]}],
            "has the object 'y/a', which was not asked for",
        ),
    ):
        for walk in (old_versions, unfinished_uploads):
            requests: Any = Pages(*pages)
            with pytest.raises(ListUnreliable, match=f"below s3://bucket/x {what}"):
                list(walk(PLACE, requests, ""))
