"""The HTTP session of s3fs. Slow to import, as s3fs is.

aiohttp follows redirects, and takes no header but Authorization away on its way to another server: a store that answers
301 would have the session token sent wherever it says. botocore's own session follows none.
"""

from __future__ import annotations

from typing import Any

from aiobotocore.httpsession import AIOHTTPSession


class UnredirectedSession(AIOHTTPSession):  # type: ignore[misc]
    """A session that hands a redirect on as the answer it is."""

    async def _get_session(self, proxy_url: str | None) -> Any:
        return _Unredirected(await super()._get_session(proxy_url))


class _Unredirected:
    def __init__(self, session: Any) -> None:
        self._session = session

    def request(self, *arguments: Any, **options: Any) -> Any:
        return self._session.request(*arguments, **options, allow_redirects=False)
