"""Lists that a store gives in pages. What a page says of the next one is a claim: some stores lack it, and some ignore
what they are asked for. A list ends when the store has ended it, or it is refused: never early, and never again from
the start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from logkeep_engine.errors import ListUnreliable
from logkeep_engine.storage.place import BucketPlace
from logkeep_engine.storage.s3.requests import Requests

_HINT = (
    "A backup cannot be trusted to a store that does not list all of its objects. Look for a newer version of the "
    "store, or for a proxy in front of it that changes requests, or use another one."
)

Page = dict[str, Any]


def listed(place: BucketPlace, requests: Requests, prefix: str, size: int | None = None) -> Iterator[Page]:
    """Yield the pages of the list of objects below `prefix`, of `size` objects; None: as many as the store gives.

    After a page that lacks the token of the next one, the older form of the request continues after the last key:
    stores that know only that form answer both alike. Raises ListUnreliable if a page repeats another.
    """
    progress, method, at = _Progress(place, prefix), "list_objects_v2", dict[str, str]()
    most = {} if size is None else {"MaxKeys": size}
    while True:
        page = requests.call(method, prefix, Prefix=place.prefix + prefix, **most, **at)
        progress.check_list(page)
        token = page.get("NextContinuationToken")
        keys = [item["Key"] for item in page.get("Contents", ())]
        progress.check_keys(keys)
        progress.check_first(keys)
        yield page
        if not page.get("IsTruncated") and not token:
            return
        if token and method == "list_objects_v2":
            at = {"ContinuationToken": token}
        elif keys:
            method, at = "list_objects", {"Marker": keys[-1]}
        else:
            raise progress.error("continues after a page that has no object and lacks its NextContinuationToken")
        progress.check_next(at)


def marked(place: BucketPlace, requests: Requests, prefix: str, method: str, marker: str) -> Iterator[Page]:
    """Yield the pages of a list whose places have two markers, the key and `marker`. Raises ListUnreliable if a page
    lacks one of the next page, or if a page leads back to another."""
    progress, at = _Progress(place, prefix), dict[str, str]()
    while True:
        page = requests.call(method, prefix, Prefix=place.prefix + prefix, **at)
        progress.check_list(page)
        progress.check_keys([item["Key"] for what in ("Versions", "Uploads") for item in page.get(what, ())])
        yield page
        if not page.get("IsTruncated"):
            return
        try:
            at = {"KeyMarker": page["NextKeyMarker"], marker: page[f"Next{marker}"]}
        except KeyError as error:
            raise progress.error(f"continues after a page that lacks its {error.args[0]}") from error
        progress.check_next(at)


class _Progress:
    """Notes what the pages of one list have said."""

    def __init__(self, place: BucketPlace, prefix: str) -> None:
        self._place = place
        self._prefix = prefix
        self._first: set[str] = set()
        self._next: set[tuple[str, ...]] = set()

    def check_list(self, page: Page) -> None:
        """Refuse a page of something else than a list: it would be that of an empty archive."""
        if page.keys() <= {"ResponseMetadata", "RequestCharged"}:
            raise self.error("has nothing that a list has: a proxy may answer in place of the store")

    def check_keys(self, keys: list[str]) -> None:
        """Refuse a key of elsewhere. Objects that are listed may be deleted."""
        below = self._place.prefix + self._prefix
        strange = next((key for key in keys if not key.startswith(below)), None)
        if strange is not None:
            raise self.error(f"has the object {strange!r}, which was not asked for: the store ignores the prefix")

    def check_first(self, keys: list[str]) -> None:
        """Refuse a page that begins as an earlier one."""
        if keys and keys[0] in self._first:
            raise self.error(f"comes back to the object {keys[0]!r}: the store ignores where a page is to begin")
        self._first.update(keys[:1])

    def check_next(self, at: dict[str, str]) -> None:
        """Refuse a place that an earlier page has led to."""
        place = tuple(at.values())
        if place in self._next:
            raise self.error(f"does not end: two of its pages continue at {' '.join(place)!r}")
        self._next.add(place)

    def error(self, what: str) -> ListUnreliable:
        listed = self._place.name_of(self._prefix)
        return ListUnreliable(f"{self._place.where}: the list of objects below {listed} {what}.", hint=_HINT)
