"""The cost of an archive in words, as rows of tables: for the command, and for the page. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from logkeep_engine.archive.maintenance.cost.archive_cost import ArchiveCost, RequestCost, StoredObjects, TopicCost
from logkeep_engine.contract.prices import price_text
from logkeep_engine.contract.values import human_bytes, so_many

NOT_KNOWN = "not known"
NOTHING = "-"

Rows = list[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class CostWords:
    """Says prices in the currency of the prices; nothing where there are none."""

    cost: ArchiveCost

    @property
    def priced(self) -> bool:
        return self.cost.currency is not None

    def price(self, value: float | None) -> str:
        """12.30 USD"""
        if value is None or self.cost.currency is None:
            return NOTHING
        return price_text(value, self.cost.currency)

    def month(self, value: float | None) -> str:
        """, 12.30 USD a month"""
        return f", {self.price(value)} a month" if value is not None and self.priced else ""

    def prices(self, *values: float | None) -> tuple[str, ...]:
        """Return a column for each price, if there are prices."""
        return tuple(self.price(value) for value in values) if self.priced else ()

    def heads(self, *names: str) -> tuple[str, ...]:
        """Return the heads of these columns."""
        return names if self.priced else ()


def summary_of(cost: ArchiveCost, words: CostWords) -> Rows:
    """Return names, and what they stand for."""
    stored = cost.stored
    kinds = (
        ("logs", stored.logs),
        ("indexes", stored.indexes),
        ("snapshots", stored.snapshots),
        ("removed, not yet deleted", stored.removed),
        ("catalog", stored.catalog),
        ("runs", stored.runs),
        ("digests of records", stored.digests),
    )
    rows: Rows = [("archive", cost.archive_id), ("time", cost.time_text)]
    if cost.storage_class is not None:
        rows.append(("storage class", cost.storage_class))
    whole = StoredObjects(cost.objects, cost.bytes)
    rows.append(("stored", _objects(whole) + words.month(cost.month)))
    rows += [(f"  {name}", _objects(found)) for name, found in kinds if found.objects]
    rows.append(("growth", _growth(cost)))
    if cost.growth is not None:
        rows.append(("backups of a day", _requests(cost.growth.requests, words)))
    if cost.retention is not None:
        gone = cost.retention
        saved = f"would remove {human_bytes(gone.bytes)} in {so_many(gone.segments, 'segment')} now"
        rows.append((f"retention, {gone.told or 'no limits'}", saved + words.month(gone.month)))
    if any(topic.compacted for topic in cost.topics):
        rows.append(("below snapshots", _below(cost.below_snapshots)))
    return rows


def _growth(cost: ArchiveCost) -> str:
    found = cost.growth
    if found is None:
        return f"{NOT_KNOWN}: this needs a backup that started after the first successful one, and an hour"
    runs = so_many(found.runs, "backup")
    other = f", and {human_bytes(found.other_per_day)} of other objects" if found.other_per_day else ""
    return f"{human_bytes(found.bytes_per_day)} a day{other}, by {runs} since {found.since_time}"


def _objects(found: StoredObjects) -> str:
    return f"{human_bytes(found.bytes)} in {so_many(found.objects, 'object')}"


def _requests(cost: RequestCost, words: CostWords) -> str:
    found = cost.requests
    kinds = (("PUT", found.put), ("GET", found.get), ("LIST", found.list), ("DELETE", found.delete))
    text = ", ".join(f"{count:,} {kind}" for kind, count in kinds if count) or "no requests"
    return text + (f", {words.price(cost.price)}" if words.priced else "")


def _below(size: int | None) -> str:
    return NOT_KNOWN if size is None else human_bytes(size)


def operations_of(cost: ArchiveCost, words: CostWords) -> tuple[Sequence[str], Rows]:
    """Return the heads and rows of the requests of each kind of run."""
    found = cost.operations
    named = (
        ("backup of all that is stored", found.backup),
        ("backup that finds nothing new", found.idle),
        ("verify", found.verify),
        ("full restore", found.restore),
    )
    rows: Rows = []
    for name, item in named:
        asked = item.requests
        counts = (f"{asked.put:,}", f"{asked.get:,}", f"{asked.list:,}", human_bytes(asked.read))
        rows.append((name, *counts, *words.prices(item.price, item.egress)))
    return ("requests of a", "PUT", "GET", "LIST", "read", *words.heads("price", "egress")), rows


def projected_of(cost: ArchiveCost, words: CostWords) -> tuple[Sequence[str], Rows]:
    """Return the heads and rows of what is stored now and later."""
    limited = cost.retention is not None
    gone = cost.retention
    left = None if gone is None else cost.bytes - gone.bytes
    saved = None if gone is None or gone.month is None or cost.month is None else cost.month - gone.month
    lines = [("now", cost.bytes, cost.month, left, saved)]
    for item in cost.projections:
        lines.append((f"in {item.days} days", item.bytes, item.month, item.retained, item.retained_month))
    rows: Rows = []
    for name, size, month, kept, kept_month in lines:
        also = (NOT_KNOWN if kept is None else human_bytes(kept), *words.prices(kept_month)) if limited else ()
        rows.append((name, human_bytes(size), *words.prices(month), *also))
    more = ("with retention", *words.heads("a month then")) if limited else ()
    return ("at present growth", "stored", *words.heads("a month"), *more), rows


def topic_heads(cost: ArchiveCost) -> Sequence[str]:
    """Return the columns of the table of topics."""
    words = CostWords(cost)
    snapshots = ("snapshots", "below snapshots") if any(topic.compacted for topic in cost.topics) else ()
    retention = ("retention removes",) if cost.retention is not None else ()
    requests = ("backup PUTs", "verify GETs", "restore GETs")
    sizes = ("topic", "logs", "indexes", "objects", "growth a day")
    return (*sizes, *requests, *snapshots, *retention, *words.heads("a month"))


def topics_of(cost: ArchiveCost, topics: Sequence[TopicCost], words: CostWords) -> Rows:
    """Return a row for each of these topics."""
    compacted = any(topic.compacted for topic in cost.topics)
    again = {topic.name for topic in cost.topics}
    several = len(again) < len(cost.topics)
    rows: Rows = []
    for topic in topics:
        below = NOTHING if not topic.compacted else _below(topic.below_snapshots)
        rows.append(
            (
                f"{topic.name} {topic.topic_id}" if several else topic.name,
                human_bytes(topic.logs.bytes),
                human_bytes(topic.indexes.bytes),
                f"{topic.objects:,}",
                NOT_KNOWN if topic.bytes_per_day is None else human_bytes(topic.bytes_per_day),
                f"{topic.backup.put:,}",
                f"{topic.verify.get:,}",
                f"{topic.restore.get:,}",
                *((human_bytes(topic.snapshots.bytes), below) if compacted else ()),
                *((human_bytes(topic.retention or 0),) if cost.retention is not None else ()),
                *words.prices(topic.month),
            )
        )
    return rows
