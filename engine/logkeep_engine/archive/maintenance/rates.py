"""The expected time of a run, from the rate of an earlier one that moved enough to be representative, or from a
default."""

from __future__ import annotations

import math
from dataclasses import dataclass

from logkeep_engine.archive.moments import moment
from logkeep_engine.contract.values import human_bytes

LEAST_BYTES = 64 << 20
"""A run that has moved less says little: its start takes most of the time."""

DEFAULT_RATE = 50_000_000
DEFAULT_START_SECONDS = 15


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A run that has succeeded, from its beginning to its `end` (ms since the epoch). `what`: from where to where."""

    run_id: str
    what: str
    bytes: int
    seconds: float
    end: int


@dataclass(frozen=True, slots=True)
class ExpectedTime:
    """`seconds` for a whole run, at `rate` bytes a second. `source` says where the rate is from."""

    seconds: int
    rate: int
    source: str


def expected_time(size: int, measured: MeasuredRun | None, limit: int | None, where: str) -> ExpectedTime:
    """Return the expected time of a run that moves `size` bytes, at most `limit` a second. `where` tells in which place
    no run was found, if none was measured."""
    if measured is None:
        rate, start = DEFAULT_RATE, DEFAULT_START_SECONDS
        text = (
            f"a default, {human_bytes(DEFAULT_RATE)}/s after {DEFAULT_START_SECONDS} s: no such run of "
            f"{human_bytes(LEAST_BYTES)} or more is noted in {where}"
        )
    else:
        rate, start = max(1, int(measured.bytes / measured.seconds)), 0
        text = (
            f"measured by run {measured.run_id} {measured.what}, which ended at {moment(measured.end)}: "
            f"{human_bytes(measured.bytes)} in {measured.seconds:.0f} s"
        )
    if limit is not None and limit < rate:
        rate, text = limit, f"spec.limits.bytesPerSecond, which is less than {text}"
    return ExpectedTime(start + math.ceil(size / rate), rate, text)
