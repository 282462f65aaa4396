"""The bound of a whole status. Each list and each text in it has a bound of its own, but with the longest names that
Kafka allows all of them together would be too much."""

from __future__ import annotations

import json
from typing import Any

from logkeep_engine.contract.facts.values import Facts
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.visible import cut
from logkeep_operator.api import Status

MAX_STATUS_BYTES = 128 << 10
_SHORTER = (512, 256, 128, 64)  # characters of a text
# People read the texts of these parts, and no decision does. Times are shorter than all bounds.
_BOUNDED = ("cluster_state", "coverage", "dry_run", "held_topics", "history", "loss", "progress", "warnings")


def bounded(status: Status) -> Status:
    """Return the status, whose texts are cut shorter and shorter until it is within the bound."""
    for most in _SHORTER:
        if len(json.dumps(status.to_dict(), ensure_ascii=False).encode()) < MAX_STATUS_BYTES:
            break
        status = replace(status, **{name: _cut(getattr(status, name), most) for name in _BOUNDED})
    return status


def _cut(value: Any, most: int) -> Any:
    if type(value) is str:  # and no word of a list
        return value if len(value) <= most else cut(value, most)  # what `cut` makes visible may be too long for a name
    if isinstance(value, tuple):
        return tuple(_cut(item, most) for item in value)
    if isinstance(value, Facts):
        return replace(value, **{name: _cut(item, most) for name, item in value})
    return value
