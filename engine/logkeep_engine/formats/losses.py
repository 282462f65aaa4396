"""The losses of a run: summed, and as a document. A backup and a conversion write the same one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from logkeep_engine.contract.nesting import loads
from logkeep_engine.formats.base import Loss, LossKind

LOSS_FILE = "format-loss.json"


def merge_losses(found: Iterable[Loss]) -> tuple[Loss, ...]:
    """One fact for each topic, partition and kind, in this order."""
    merged: dict[tuple[str, int, LossKind], Loss] = {}
    for loss in found:
        key = (loss.topic, loss.partition, loss.kind)
        before = merged.get(key, replace(loss, count=0))
        merged[key] = replace(loss, count=before.count + loss.count, offset=min(before.offset, loss.offset))
    return tuple(merged[key] for key in sorted(merged))


def dump_losses(losses: Sequence[Loss], unchecked: Iterable[int] = (), chunks: int | None = None) -> bytes:
    """`runs/<run id>/format-loss.json`, for people and for a driver that starts again. `unchecked`: numbers of the
    plan's first `chunks` that could not be looked through; the losses are those of the others. Without `chunks` the
    document says nothing of a plan: a conversion looks through everything.
    """
    rows = [
        {
            "topic": loss.topic,
            "partition": loss.partition,
            "what": loss.kind.value,
            "records": loss.count,
            "firstOffset": loss.offset,
        }
        for loss in losses
    ]
    document: dict[str, Any] = {"format": 1, "losses": rows}
    if chunks is not None:
        document["chunks"] = chunks
    if left := sorted(unchecked):
        document["unchecked"] = left
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()


def load_losses(data: bytes) -> tuple[Loss, ...]:
    """Return the losses in what `dump_losses` has made."""
    document: dict[str, Any] = loads(data)
    return tuple(
        Loss(LossKind(row["what"]), row["topic"], row["partition"], row["records"], row["firstOffset"])
        for row in document["losses"]
    )


def load_unchecked(data: bytes, chunks: int) -> frozenset[int]:
    """Return the chunks, of a plan of `chunks`, that are left to look through by what `dump_losses` has made: what was
    added to the plan since is among them, and so are all if the document says nothing of a plan.
    """
    document: dict[str, Any] = loads(data)
    return frozenset(document.get("unchecked", ())) | frozenset(range(document.get("chunks", 0), chunks))
