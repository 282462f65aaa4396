"""`logkeep inspect --at` beside the restores that it speaks of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.moments import iso
from logkeep_engine.cli.inspect import show_point
from logkeep_engine.cli.options import Output
from logkeep_engine.errors import LogkeepError
from tests.model.asking import Asked, Fault
from tests.model.positions import positions_at
from tests.model.restoring import Given, restored
from tests.model.world import World


def previewed(world: World, moment: int) -> Iterator[Fault]:
    """Compare what `--at` shows of a time with what restores to it give; if one of them is refused, it says so."""
    point = f"inspect --at {iso(moment)}"
    shown, reported = _shown(world, moment)
    refusals = []
    for kind in ("asOf", "timestamp"):
        asked = Asked(kind, world.reference.seen, {kind: iso(moment)}, moment=moment)
        try:
            given = restored(world.store, asked)
        except LogkeepError as error:
            refusals.append(error.message)
            continue
        for text in _differences(world, asked, given, shown[kind]) if shown else ():
            yield Fault("different", point, kind, text, world.had())
    if (shown and refusals) or (not shown and reported not in refusals):
        yield Fault(
            "refused", point, "a time", f"shown: {bool(shown)}, {reported!r}, restores: {refusals}", world.had()
        )
    else:
        world.counts[f"inspect --at: {'equal' if shown else 'refused, as a restore is'}"] += 1


def _shown(world: World, moment: int) -> tuple[dict[str, Any], str]:
    """The document of the command, or its error."""
    out = StringIO()
    try:
        with redirect_stdout(out):
            show_point(Archive.open(world.store), iso(moment), Output.JSON)
    except LogkeepError as error:
        return {}, error.message
    shown: dict[str, Any] = json.loads(out.getvalue())
    return shown, ""


def _differences(world: World, asked: Asked, given: Given, shown: dict[str, Any]) -> Iterator[str]:
    rows = [dict(zip(shown["columns"], row, strict=True)) for row in shown["partitions"]]
    ids = {row["topic"]: row["topicId"] for row in rows}
    if ids != given.topic_ids:
        yield f"incarnations {ids} instead of {given.topic_ids}"
        return
    for row in rows:
        records = given.rows.get((row["topicId"], row["partition"]), [])
        outside = [at for at, *_ in records if not row["start"] <= at < row["end"]]
        if outside or len(records) > row["recordsAtMost"]:
            yield f"{row}, and a restore brings {records}"
    positions = len(positions_at(world, asked))
    if shown["groups"]["positions"] != positions:
        yield f"{shown['groups']} instead of {positions} positions"
