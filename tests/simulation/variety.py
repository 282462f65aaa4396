"""All that can happen in a schedule, and few seeds that have all of it.

python -m tests.simulation.variety 261 414    the seeds to add to these
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable

from tests.simulation.schedule import Attempt, Schedule, make_schedule

CANDIDATES = 2000


def features(schedule: Schedule) -> set[str]:
    """The kinds of things in a schedule: its releases and policies, and each lie, fault, action and death by the kind
    of its run."""
    found = {
        f"Kafka {schedule.release}",
        f"restored to Kafka {schedule.target_release}",
        f"onDataLoss {schedule.on_data_loss.value}",
        f"onDivergence {schedule.on_divergence.value}",
        f"{schedule.brokers} brokers",
        "the archive in S3" if schedule.s3 else "the archive in a folder",
        "restored beside records of others" if schedule.append else "restored into new topics",
    }
    for run, attempts in (("backup", schedule.backups), ("restore", schedule.restores)):
        found |= {f"{run}: {what}" for attempt in attempts for what in _happens(attempt)}
    return found


def _happens(attempt: Attempt) -> Iterable[str]:
    yield from (f"{lie.api.name}: {lie.kind.value}" for lie in attempt.lies)
    yield from (f"store: {fault.kind.value}" for fault in attempt.store_faults)
    yield from (f"HTTP: {fault.kind.value}" for fault in attempt.http_faults)
    yield from (f"action {event.action.name}" for event in attempt.events)
    if attempt.death is not None:
        yield f"the driver dies {'before' if attempt.dies_before else 'after'} a call"
    if any(death is not None for death in attempt.task_deaths):
        yield "tasks die"


def features_of(seeds: Iterable[int]) -> set[str]:
    """The features of all of these seeds."""
    return {feature for seed in seeds for feature in features(make_schedule(seed))}


def varied(given: Collection[int]) -> list[int]:
    """Seeds that have, with the given ones, every feature of the candidates: each adds as many as one seed can."""
    candidates = {seed: features(make_schedule(seed)) for seed in range(CANDIDATES)}
    missing = set().union(*candidates.values()) - features_of(given)
    chosen: list[int] = []
    while missing:
        best = max(candidates, key=lambda seed: len(candidates[seed] & missing))
        chosen.append(best)
        missing -= candidates[best]
    return chosen


if __name__ == "__main__":
    print(*varied([int(word) for word in sys.argv[1:]]))
