"""Lines about KafkaArchives, made as those of `lines`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from logkeep_engine.cli.kubectl.lines import NOTHING, Body, Row, age, ago, archive_rows, condition_rows, part, ready
from logkeep_engine.contract.prices import price_text


def overview(body: Body, now: datetime, *, everywhere: bool = False) -> tuple[str, ...]:
    """Return the line of a KafkaArchive, below the heads of `lines.overview`. It has no run."""
    row = (
        str(body.get("kind")),
        str(part(body, "metadata", "name")),
        NOTHING,
        ready(body),
        NOTHING,
        age(part(body, "status", "archive", "writeTime"), now),
        age(part(body, "status", "recovery", "lastTime"), now),
        NOTHING,
        str(part(body, "status", "archive", "size") or NOTHING),
        age(part(body, "metadata", "creationTimestamp"), now),
    )
    return (str(part(body, "metadata", "namespace")), *row) if everywhere else row


def detail(body: Body, now: datetime) -> list[Row]:
    """Return names and values of what the status of a KafkaArchive says."""
    status = part(body, "status") or {}
    rows = [
        ("resource", f"{body.get('kind')} {part(body, 'metadata', 'namespace')}/{part(body, 'metadata', 'name')}"),
        ("uri", str(part(body, "spec", "storage", "uri") or NOTHING)),
        *condition_rows(body),
        ("written by", str(status.get("writer") or NOTHING)),
        *(_users(status, kind) for kind in ("backup", "restore")),
        *archive_rows(status),
        *_cost(status),
    ]
    if part(status, "archive", "writeTime"):
        rows.append(("last write", ago(part(status, "archive", "writeTime"), now)))
    if part(status, "recovery", "lastTime"):
        first, last = part(status, "recovery", "firstTime") or NOTHING, ago(part(status, "recovery", "lastTime"), now)
        rows.append(("recoverable", f"from {first} to {last}"))
    if part(status, "drill", "endTime"):
        rows.append(("last good drill", ago(part(status, "drill", "lastGoodTime"), now)))
    if part(status, "verification", "endTime"):
        found = part(status, "verification")
        text = f"{found.get('outcome')}, {ago(found.get('endTime'), now)}, KafkaRestore {found.get('restore')}"
        rows.append(("last verified restore", text))
    return rows


def _cost(status: Body) -> list[Row]:
    cost = part(status, "cost")
    if not isinstance(cost, Mapping) or cost.get("month") is None:
        return []
    later = cost.get("monthIn30Days")
    rises = "" if later is None else f", {price_text(float(later), str(cost.get('currency')))}/month in 30 days"
    return [("costs", f"{cost.get('display')}{rises}")]


def _users(status: Body, kind: str) -> Row:
    names = [str(name) for name in status.get(f"{kind}List") or ()]
    left = int(status.get(f"{kind}s") or 0) - len(names)
    more = f" and {left} more" if left > 0 else ""
    return f"{kind}s", f"{', '.join(names)}{more}" or NOTHING
