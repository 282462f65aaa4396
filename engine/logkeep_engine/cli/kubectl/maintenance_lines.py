"""Lines about what an archive keeps and removes: retention, kept points, compacted topics, stale keys. Pure."""

from __future__ import annotations

from datetime import datetime

from logkeep_engine.cli.kubectl.lines import NOTHING, Body, Row, ago, items, part
from logkeep_engine.contract.values import human_bytes, so_many

COMPACTED = ("compacted topic", "kept as", "partitions", "records", "size", "points exact after")
KEPT = ("kept point", "ended", "rules")


def maintenance_rows(body: Body, now: datetime) -> list[Row]:
    """Return names and values of what the last retention did, and of what was found when keys were compared."""
    return [*_retention(body, now), *_keys(body, now)]


def compacted_topics(body: Body) -> list[tuple[str, ...]]:
    """Return a row for each compacted topic that the status names, below the heads COMPACTED. Both lists of the status
    are cut, each in an order of its own: of a topic that only one names, nothing says from when on points are exact."""
    rows: list[tuple[str, ...]] = []
    generations = {_shown(item.get("topic")): item for item in items(body, "status", "archive", "generations")}
    for item in items(body, "status", "archive", "snapshots"):
        topic = _shown(item.get("topic"))
        read = generations.pop(topic, None)
        size = human_bytes(float(item.get("bytes") or 0)) if item.get("records") else NOTHING
        rows.append((topic, *_kept_as(item, read), _shown(item.get("records") or None), size, _exact_after(item)))
    rows += [(topic, *_kept_as({}, read), NOTHING, NOTHING, "unknown") for topic, read in generations.items()]
    return rows


def _kept_as(snapshots: Body, generations: Body | None) -> tuple[str, str]:
    if generations is None:
        return "snapshot", _shown(snapshots.get("partitions"))
    reading = f", {generations['reading']} being read" if generations.get("reading") else ""
    return f"generation {_shown(generations.get('number'))}{reading}", _shown(generations.get("partitions"))


def _exact_after(snapshots: Body) -> str:
    nowhere = snapshots.get("exactNowhere")
    text = _shown(snapshots.get("exactAfter"), "all are")
    return f"{text}; {so_many(int(nowhere), 'partition')} nowhere" if nowhere else text


def kept_points(body: Body, now: datetime) -> list[tuple[str, ...]]:
    """Return a row for each kept point that the status names, the newest first, below the heads KEPT, and one for the
    number of others."""
    kept = items(body, "status", "archive", "retention", "kept")
    rows: list[tuple[str, ...]] = [
        (_shown(item.get("runId")), ago(item.get("endTime"), now), ", ".join(map(str, item.get("rules") or ())))
        for item in kept
    ]
    more = int(part(body, "status", "archive", "retention", "points") or 0) - len(rows)
    return [*rows, (f"and {more} more", "", "")] if rows and more > 0 else rows


def planned_removals(body: Body) -> list[str]:
    """Return a line for each topic of which a dry run says that retention would remove something, and for those of
    which nothing would go because the spec does not choose them."""
    lines = [
        f"retention would remove {_amount(item)} of {_shown(item.get('topic'))}: {_shown(item.get('why'))}"
        for item in items(body, "status", "dryRun", "retention", "topicList")
    ]
    found = part(body, "status", "dryRun", "retention")
    if not isinstance(found, dict):
        return lines
    more = int(found.get("topics") or 0) - len({item.get("topic") for item in found.get("topicList") or ()})
    lines += [f"retention would remove something of {so_many(more, 'topic')} more"] if more > 0 else []
    spared = int(found.get("topicsUnchosen") or 0)
    return lines + (
        [f"retention would leave {so_many(spared, 'topic')} alone that spec.topics does not choose"] if spared else []
    )


def _amount(found: Body) -> str:
    text = so_many(int(found.get("segments") or 0), "segment")
    text += f", {so_many(int(found['snapshots']), 'snapshot')}" if found.get("snapshots") else ""
    return f"{text}, {human_bytes(float(found.get('bytes') or 0))}"


def _retention(body: Body, now: datetime) -> list[Row]:
    found = part(body, "status", "archive", "retention")
    if not isinstance(found, dict):
        return []
    rows = []
    for name, key in (("removed", "removed"), ("deleted", "deleted"), ("waits for deletion", "waiting")):
        text = so_many(int(found.get(f"{key}Segments") or 0), "segment")
        if found.get(f"{key}Snapshots"):
            text += f", {so_many(int(found[f'{key}Snapshots']), 'snapshot')}"
        rows.append((name, f"{text}, {human_bytes(int(found.get(f'{key}Bytes') or 0))}"))
    rows[0] = (rows[0][0], f"{rows[0][1]}, by run {found.get('runId')}")
    locked = found.get("locked")
    if isinstance(locked, dict):
        text = so_many(int(locked.get("objects") or 0), "object")
        text += f", the last until {ago(locked['until'], now)}" if locked.get("until") else ""
        text += f", {locked['legalHolds']} with a legal hold" if locked.get("legalHolds") else ""
        rows.append(("locked by the store", f"{text}: first {locked.get('first')}"))
    if found.get("holds"):
        rows.append(("holds", str(found["holds"])))
    return [*rows, ("kept points", str(found.get("points", 0)))]


def _keys(body: Body, now: datetime) -> list[Row]:
    found = part(body, "status", "reconcile")
    if not isinstance(found, dict):
        return []
    text = f"{ago(found.get('endTime'), now)}: {found.get('keys', 0)} keys, {found.get('stale', 0)} stale"
    return [("keys compared", text + (f", {found['missing']} missing" if found.get("missing") else ""))]


def _shown(value: object, nothing: str = NOTHING) -> str:
    return nothing if value is None or value == "" else str(value)
