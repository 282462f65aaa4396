"""Checks the driver's clock. Retention by age removes segments that are old by that clock, and a clock that is a year
ahead makes all of them old.

There are two witnesses: the clock of the storage, from the time of an object that was written just now, and the times
in the catalog. On a local disk the first is the same clock, so there only the second helps: a jump since the run before
is believed by the next run, not by the first that sees it. Runs may be further apart by plan: a pause that is about as
long as the one before it is not a jump.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from logkeep_engine.archive.catalog.writer import Writer
from logkeep_engine.archive.moments import moment
from logkeep_engine.errors import ClockDoubtful

MAX_SKEW = 3_600_000
"""ms between the clocks of the driver and of the store. Ages are in days, and S3 refuses requests 15 minutes off."""
MAX_JUMP = 35 * 86_400_000
"""ms from the run before to this one: more than a month, the longest time between backups that is usual."""


def checked_now(writer: Writer) -> int:
    """Return the time now, by the slower of the two clocks, in ms since the epoch. Raises ClockDoubtful, storage
    errors."""
    before = time.time_ns() // 1_000_000
    store = writer.store_time()
    now = time.time_ns() // 1_000_000
    if store < before - MAX_SKEW or store > now + MAX_SKEW:
        raise ClockDoubtful(
            f"The driver's clock says {moment(now)}, the store's clock says {moment(store)}.",
            hint="Set the clock of the driver's node, or of the store.",
        )
    own = writer.state.runs[writer.run_id]
    earlier = [run.end_time or run.begin_time for run in writer.state.runs.values() if run.run_id != own.run_id]
    if earlier and now - max(earlier) > _longest_pause(earlier):
        raise ClockDoubtful(
            f"The driver's clock says {moment(now)}, but the previous run was at {moment(max(earlier))}.",
            hint="If the clock is right, the next run removes what is too old.",
        )
    return min(now, store)


def _longest_pause(earlier: Sequence[int]) -> int:
    """Return the most ms that may have passed since the last of these times without a doubt."""
    *_, before, last = [0, 0, *sorted(earlier)]
    return max(MAX_JUMP, (last - before) * 5 // 4 if before else 0)
