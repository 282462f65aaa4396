"""Objects of a bucket that cannot be read at once: they lie in a class for archives, and must be retrieved first.

A list shows which class an object has. Whether it was retrieved, and for how long, only its own headers show:
`x-amz-restore: ongoing-request="true"` while the store works, and `"false"` with an end as long as the copy is there.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from logkeep_engine.errors import ObjectMissing, StorageRefused
from logkeep_engine.storage.base import ColdObject, ObjectInfo
from logkeep_engine.storage.place import BucketPlace
from logkeep_engine.storage.s3.errors import RetrievedAlready
from logkeep_engine.storage.s3.requests import Requests

_ARCHIVED = {"GLACIER", "DEEP_ARCHIVE"}
_TIERED = "INTELLIGENT_TIERING"  # its objects are cold in two of its tiers, which no list shows
_ASKED_AT_ONCE = 16


def cold_objects(place: BucketPlace, requests: Requests, listed: Iterable[ObjectInfo]) -> tuple[ColdObject, ...]:
    """See `Storage.cold`."""
    asked = [info for info in listed if info.storage_class in _ARCHIVED or info.storage_class == _TIERED]
    if not asked:
        return ()
    with ThreadPoolExecutor(_ASKED_AT_ONCE, thread_name_prefix="logkeep-cold") as pool:
        found = pool.map(partial(_look, place, requests), asked)
        return tuple(item for item in found if item is not None)


def _look(place: BucketPlace, requests: Requests, info: ObjectInfo) -> ColdObject | None:
    try:
        answer: dict[str, Any] = requests.call("head_object", info.path, Key=place.key(info.path))
    except ObjectMissing:
        return None  # whoever reads it says so
    if info.storage_class == _TIERED and not answer.get("ArchiveStatus"):
        return None
    said = str(answer.get("Restore") or "")
    if 'ongoing-request="false"' in said:
        return None
    return ColdObject(info, retrieving='ongoing-request="true"' in said)


def retrieve(place: BucketPlace, requests: Requests, cold: ColdObject, days: int, tier: str) -> None:
    """See `Storage.retrieve`. From its archive tiers INTELLIGENT_TIERING brings an object back for good."""
    path = cold.info.path
    kept = {} if cold.info.storage_class == _TIERED else {"Days": days}
    wanted = {**kept, "GlacierJobParameters": {"Tier": tier}}
    try:
        requests.call("restore_object", path, Key=place.key(path), RestoreRequest=wanted)
    except RetrievedAlready:
        return
    except StorageRefused as error:
        raise StorageRefused(
            f"{cold} cannot be retrieved with tier {tier}: {error.message}",
            hint="The credentials need s3:RestoreObject. DEEP_ARCHIVE has no tier Expedited.",
        ) from error
