"""The cost of an archive, as `logkeep inspect --cost` shows it. Without prices no field has a price.

Sizes are bytes, times ms since the epoch. None stands for what is unknown, or was not asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

from logkeep_engine.archive.maintenance.as_json import AsJson
from logkeep_engine.archive.maintenance.cost.requests import RequestCount
from logkeep_engine.contract.prices import GIB, Prices


@dataclass(frozen=True, slots=True)
class StoredObjects(AsJson):
    """How many objects, and their bytes."""

    objects: int = 0
    bytes: int = 0

    def __add__(self, other: StoredObjects) -> StoredObjects:
        return StoredObjects(self.objects + other.objects, self.bytes + other.bytes)


NOTHING_STORED = StoredObjects()


@dataclass(frozen=True, slots=True)
class RequestCost(AsJson):
    """Requests, their price, and the price of the bytes that they get if these leave the store."""

    requests: RequestCount
    price: float | None = None
    egress: float | None = None

    @classmethod
    def of(cls, requests: RequestCount, prices: Prices | None) -> RequestCost:
        """Requests at these prices, if there are any."""
        if prices is None:
            return cls(requests)
        each = prices.requests_per_1000
        kinds = (requests.put, each.put), (requests.get, each.get), (requests.list, each.list)
        paid = sum(count * price for count, price in (*kinds, (requests.delete, each.delete))) / 1000
        return cls(requests, paid, requests.read / GIB * prices.egress_per_gib)


@dataclass(frozen=True, slots=True)
class TopicCost(AsJson):
    """An incarnation of a topic. `bytes_per_day` is the growth of all of its objects but snapshots. `backup`, `verify`
    and `restore` are the requests for its objects. `retention` are the bytes that the limits would remove now.
    `compacted`: its cleanup policy compacts it. `below_snapshots` are the bytes of segments below the newest snapshot
    of their partition, which retention may remove."""

    name: str
    topic_id: str
    partitions: int
    logs: StoredObjects
    indexes: StoredObjects
    snapshots: StoredObjects
    objects: int
    bytes: int
    bytes_per_day: int | None
    backup: RequestCount
    verify: RequestCount
    restore: RequestCount
    compacted: bool
    below_snapshots: int | None
    retention: int | None
    month: float | None


@dataclass(frozen=True, slots=True)
class StoredKinds(AsJson):
    """All objects that are known. `removed`: retention has taken them out of the catalog, and they may still be there.
    `digests` are those of records, `runs` what lies in the folders of runs."""

    logs: StoredObjects
    indexes: StoredObjects
    snapshots: StoredObjects
    removed: StoredObjects
    catalog: StoredObjects
    runs: StoredObjects
    digests: StoredObjects


@dataclass(frozen=True, slots=True)
class GrowthFacts(AsJson):
    """The growth since `since`, by backups that began then or later: `bytes_per_day` of segments, `other_per_day` of
    all other objects. `requests` are those of a day's backups."""

    since: int
    since_time: str
    runs: int
    runs_per_day: float
    bytes_per_day: int
    other_per_day: int
    requests: RequestCost


@dataclass(frozen=True, slots=True)
class RetentionFacts(AsJson):
    """The bytes that the limits would remove now. `told` are the limits in words."""

    told: str
    segments: int
    bytes: int
    month: float | None
    requests: RequestCost


@dataclass(frozen=True, slots=True)
class Projection(AsJson):
    """The bytes in this many days at the present growth, and the price of their storage in a month then: without a
    retention, and with the limits."""

    days: int
    bytes: int
    month: float | None
    retained: int | None
    retained_month: float | None


@dataclass(frozen=True, slots=True)
class OperationCosts(AsJson):
    """The requests of a `backup` that stores all segments again, of a backup that finds nothing new (`idle`), of
    `verify`, and of a full `restore`, which takes no branch, and the incarnations that a restore takes by default."""

    backup: RequestCost
    idle: RequestCost
    verify: RequestCost
    restore: RequestCost


@dataclass(frozen=True, slots=True)
class BackedUp(AsJson):
    """The bytes of logs that a run has archived, and its end."""

    run_id: str
    end: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ArchiveCost(AsJson):
    """`month` is the price of a month's storage. `below_snapshots` is None if no partition has a snapshot."""

    archive_id: str
    uri: str
    time: int
    time_text: str
    currency: str | None
    storage_class: str | None
    stored: StoredKinds
    objects: int
    bytes: int
    month: float | None
    growth: GrowthFacts | None
    operations: OperationCosts
    below_snapshots: int | None
    retention: RetentionFacts | None
    projections: tuple[Projection, ...]
    topics: tuple[TopicCost, ...]
    runs: tuple[BackedUp, ...]


def month_price(size: int, prices: Prices | None) -> float | None:
    """Return the price of storing this many bytes for a month."""
    return None if prices is None else prices.month(size)
