"""The operator's own watches: for each kind of object in each namespace there is a task that never ends.

Kopf's watches end the process when one of them is refused for a minute, finds no list or reads what is no JSON, and a
token that is refused once is never tried again. Here each watch stands alone: it says what is wrong (`Reach`), waits
longer and longer, and begins again with a list.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import aiohttp

from logkeep_engine.contract.objects import MAX_OBJECT_BYTES, OtherObject, check_item
from logkeep_operator.answers import api_error, checked_page, page_bytes, page_size, parsed, too_long
from logkeep_operator.api import KINDS
from logkeep_operator.api.asked import ASKED_KIND
from logkeep_operator.cluster import CHILDREN, CHILDREN_QUERY, KubernetesCluster, collection_path
from logkeep_operator.errors import AnswerTooLong, AnswerWrong, ApiUnavailable
from logkeep_operator.reach import Reach, retry_pause

log = logging.getLogger(__name__)

# Kind, object, and how: ADDED, MODIFIED or DELETED; None for what is there when a watch begins.
Tell = Callable[[str, Mapping[str, Any], str | None], None]

WATCH_SECONDS = 300
# The API sends a bookmark about once a minute: a watch that is silent for longer has lost its connection.
SILENCE_SECONDS = 90
RECONNECT_SECONDS = 0.2
_LIST_TIMEOUT = aiohttp.ClientTimeout(total=30, sock_connect=10)
_WATCH_TIMEOUT = aiohttp.ClientTimeout(total=WATCH_SECONDS + 10, sock_connect=10, sock_read=SILENCE_SECONDS)


class TooOld(Exception):
    """The API does not remember the version from which the watch should continue."""


async def watch(cluster: KubernetesCluster, reach: Reach, namespaces: Sequence[str], tell: Tell) -> None:
    """Tell of every object that is there, is changed or goes, until cancelled. No namespace means all of them."""
    connector = aiohttp.TCPConnector(limit=0, ssl=cluster.trust())
    async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:
        for namespace in namespaces or (None,):
            for kind in (*KINDS, ASKED_KIND, *CHILDREN):
                group.create_task(_Watch(cluster, reach, session, kind, namespace, tell).run())


class _Watch:
    """A watch of one kind in one namespace. `version` is the newest that was seen, None before a list."""

    def __init__(
        self,
        cluster: KubernetesCluster,
        reach: Reach,
        session: aiohttp.ClientSession,
        kind: str,
        namespace: str | None,
        tell: Tell,
    ) -> None:
        self._cluster = cluster
        self._reach = reach
        self._session = session
        self._kind = kind
        self._namespace = namespace
        self._tell = tell
        self._path = collection_path(kind, namespace)
        self._query = CHILDREN_QUERY if kind in CHILDREN else {}
        self._version: str | None = None

    async def run(self) -> None:
        what = f"watch of {self._kind}"
        failures = 0
        while True:
            try:
                if self._version is None:
                    await self._list()
                await self._stream(lambda: self._reach.found(self._namespace, what))
                failures = 0
            except TooOld:
                self._version = None
                await asyncio.sleep(RECONNECT_SECONDS)
            except Exception as error:  # whatever an answer looks like, the other watches continue
                failures += 1
                self._version = None
                self._reach.lost(self._namespace, what, f"{type(error).__name__}: {error}"[:500])
                log.debug("%s", what, exc_info=True)
                await asyncio.sleep(retry_pause(failures))
            else:
                await asyncio.sleep(RECONNECT_SECONDS)

    async def _list(self) -> None:
        """Tell of every object that is there, page by page. A page that is too long is asked for again with half as
        many."""
        limit, following = int(page_size(self._kind)), None
        while True:
            page = {"limit": str(limit), **({"continue": following} if following else {})}
            async with self._get(page, _LIST_TIMEOUT) as answer:
                data = await _bounded(answer.content, page_bytes(limit))
            if data is None and limit > 1:
                limit = -(-limit // 2)
                continue
            if data is None:
                raise too_long("GET", self._path, page_bytes(limit))
            body = checked_page(self._kind, self._namespace, self._path, parsed("GET", self._path, data))
            for item in body.get("items") or ():
                self._tell(self._kind, item, None)
            self._version = body["metadata"]["resourceVersion"]
            following = body["metadata"].get("continue")
            if not following:
                return

    async def _stream(self, begun: Callable[[], None]) -> None:
        """Tell what happens from then on. It returns when the connection ends; the next continues from there."""
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
            "resourceVersion": self._version or "",
        }
        async with self._get(query, _WATCH_TIMEOUT) as answer:
            begun()
            try:
                async for line in _lines(answer.content):
                    self._event(parsed("GET", self._path, line))
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError):
                return

    def _event(self, event: dict[str, Any]) -> None:
        body = event["object"]
        if event["type"] == "ERROR":
            if body.get("code") == 410:
                raise TooOld
            raise ApiUnavailable(f"GET {self._path}: the watch was ended: {body.get('message')}")
        self._version = body["metadata"]["resourceVersion"]
        if event["type"] == "BOOKMARK":
            return
        try:
            check_item(body, self._kind, self._namespace)
        except OtherObject as error:
            raise AnswerWrong(f"GET {self._path}: {error}") from error
        self._tell(self._kind, body, event["type"])

    def _get(self, query: Mapping[str, str], timeout: aiohttp.ClientTimeout) -> _Answer:
        return _Answer(self._cluster, self._session, self._path, {**self._query, **query}, timeout)


class _Answer:
    """The answer to a GET, while in its context. Raises ApiError for an error, TooOld for a version that is gone."""

    def __init__(
        self,
        cluster: KubernetesCluster,
        session: aiohttp.ClientSession,
        path: str,
        query: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,
    ) -> None:
        url, headers = cluster.address("GET", path, query)
        self._path = path
        self._request = session.get(url, headers=headers, timeout=timeout)

    async def __aenter__(self) -> aiohttp.ClientResponse:
        answer = await self._request.__aenter__()
        if answer.status < 300:
            return answer
        try:
            data = await _bounded(answer.content, MAX_OBJECT_BYTES)
        finally:
            await self._request.__aexit__(None, None, None)
        if answer.status == 410:
            raise TooOld
        if data is None:
            raise too_long("GET", self._path, MAX_OBJECT_BYTES)
        raise api_error("GET", self._path, answer.status, data)

    async def __aexit__(self, *error: Any) -> None:
        await self._request.__aexit__(*error)


async def _bounded(content: aiohttp.StreamReader, most: int) -> bytes | None:
    """A whole answer, None if it is longer than `most`."""
    pieces, size = [], 0
    async for piece in content.iter_any():
        pieces.append(piece)
        size += len(piece)
        if size > most:
            return None
    return b"".join(pieces)


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """The lines of an answer. Raises AnswerTooLong for one that is longer than an object can be."""
    rest = b""
    async for piece in content.iter_any():
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > MAX_OBJECT_BYTES:
            raise AnswerTooLong(f"an event of a watch has more than {MAX_OBJECT_BYTES >> 20} MiB")
        for line in lines:
            if line.strip():
                yield line
    if rest.strip():
        yield rest
