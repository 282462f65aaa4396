"""The operator's own watches: for each kind of object in each namespace there is a task that never ends.

Each watch stands alone: it says what is wrong (`ServedNamespaces`), waits longer and longer, and begins again. Kopf's
watches end the process for some of that, and docs/design/0007 has what was tried to make them do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from logkeep_engine.contract.names import BACKUP_RUN, KAFKA_ARCHIVE
from logkeep_engine.contract.objects import MAX_OBJECT_BYTES, OtherObject, check_item
from logkeep_operator.answers import api_error, checked_page, parsed, too_long
from logkeep_operator.api import KINDS
from logkeep_operator.cluster import CHILDREN, CHILDREN_QUERY, KubernetesCluster, object_path
from logkeep_operator.errors import AnswerTooLong, AnswerWrong, ApiUnavailable
from logkeep_operator.served_namespaces import ServedNamespaces, retry_pause

log = logging.getLogger(__name__)

Tell = Callable[[str, Mapping[str, Any], str], None]
"""Takes an event: the kind, the object, and ADDED, MODIFIED or DELETED."""
Missed = Callable[[str | None], None]
"""Takes a namespace in which anything may have changed while no watch saw it; None: in the whole cluster."""

WATCH_SECONDS = 300
# The API sends a bookmark about once a minute: a watch that is silent for longer has lost its connection.
SILENCE_SECONDS = 90
RECONNECT_SECONDS = 0.2
_LIST_TIMEOUT = aiohttp.ClientTimeout(total=30, sock_connect=10)
# The API ends a watch by itself after WATCH_SECONDS: the total is for one that does not.
_WATCH_TIMEOUT = aiohttp.ClientTimeout(total=WATCH_SECONDS + 10, sock_connect=10, sock_read=SILENCE_SECONDS)


class TooOld(Exception):
    """The API does not remember the version from which the watch should continue."""


async def watch(
    cluster: KubernetesCluster, reach: ServedNamespaces, namespaces: Sequence[str], tell: Tell, missed: Missed
) -> None:
    """Report every change, and where one may have been missed, until cancelled. No namespace means all of them."""
    # Each watch keeps its connection, and more may be needed than aiohttp's default of 100.
    connector = aiohttp.TCPConnector(limit=0, ssl=cluster.trust())
    async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:
        for namespace in namespaces or (None,):
            for kind in (*KINDS, BACKUP_RUN, KAFKA_ARCHIVE, *CHILDREN):
                group.create_task(_Watch(cluster, reach, session, kind, namespace, tell, missed).run())


class _Watch:
    """A watch of one kind in one namespace. `version` is the newest that was seen, None before the first."""

    def __init__(
        self,
        cluster: KubernetesCluster,
        reach: ServedNamespaces,
        session: aiohttp.ClientSession,
        kind: str,
        namespace: str | None,
        tell: Tell,
        missed: Missed,
    ) -> None:
        self._cluster = cluster
        self._reach = reach
        self._session = session
        self._kind = kind
        self._namespace = namespace
        self._tell = tell
        self._missed = missed
        self._path = object_path(kind, namespace)
        self._query = CHILDREN_QUERY if kind in CHILDREN else {}
        self._version: str | None = None

    async def run(self) -> None:
        what = f"watch of {self._kind}"
        failures = 0
        while True:
            try:
                if self._version is None:
                    await self._begin()
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

    async def _begin(self) -> None:
        """Ask which version is the newest. A list of one object says it, and a resync reads what came before."""
        async with self._get({"limit": "1"}, _LIST_TIMEOUT) as content:
            page = parsed("GET", self._path, await self._whole(content))
        checked_page(self._kind, self._namespace, self._path, page)
        self._version = page["metadata"]["resourceVersion"]
        self._missed(self._namespace)

    async def _stream(self, begun: Callable[[], None]) -> None:
        """Tell what happens from then on. It returns when the connection ends; the next continues from there."""
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
            "resourceVersion": self._version or "",
        }
        async with self._get(query, _WATCH_TIMEOUT) as content:
            begun()
            try:
                async for line in _lines(content):
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

    @asynccontextmanager
    async def _get(
        self, query: Mapping[str, str], limits: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """Yield the content of an answer. Raises ApiError for an error, TooOld for a version that is gone."""
        url, headers = self._cluster.address("GET", self._path, {**self._query, **query})
        async with self._session.get(url, headers=headers, timeout=limits) as answer:
            if answer.status == 410:
                raise TooOld
            if answer.status >= 300:
                raise api_error("GET", self._path, answer.status, await self._whole(answer.content))
            yield answer.content

    async def _whole(self, content: aiohttp.StreamReader) -> bytes:
        """Read an answer that has one object at most. Raises AnswerTooLong."""
        data = b""
        async for piece in content.iter_any():
            data += piece
            if len(data) > MAX_OBJECT_BYTES:
                raise too_long("GET", self._path, MAX_OBJECT_BYTES)
        return data


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield the lines of an answer. Raises AnswerTooLong for one that is longer than an object can be."""
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
