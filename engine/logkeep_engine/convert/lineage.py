"""Leader epochs in conversions: they are converted too, and old ends of logs are never mixed with what came after.
Pure.

A source whose log was cut off in the cluster holds the newest log, and the old end as a branch. A target that was
converted before that still holds the old end: what the source has gained since would follow another log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.catalog.lineage import UNKNOWN, EpochStart, LeaderEpoch, LeaderSeen
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.errors import ArchiveMismatch

if TYPE_CHECKING:
    from logkeep_engine.convert.source import ConvertSource


@dataclass(frozen=True, slots=True)
class Leaders:
    """The leaders of a partition, as far as an archive knows them. `old_ends` has for each branch the last leader epoch
    and the offset at which the branch begins."""

    leader: int = UNKNOWN
    epochs: tuple[EpochStart, ...] = ()
    old_ends: tuple[EpochStart, ...] = ()


def leaders_of(state: ArchiveState) -> dict[Partition, Leaders]:
    """Return the leaders of each partition of which something is known, by topic id and partition."""
    return {
        key: Leaders(state.leaders.get(key, UNKNOWN), tuple(state.epochs.get(key, ())), tuple(state.old_ends(key)))
        for key in {*state.leaders, *state.epochs, *state.lines}
    }


def leaders_seen(leaders: Mapping[Partition, Leaders]) -> Iterator[LeaderSeen]:
    """For the first commit of a conversion."""
    return (LeaderSeen(*key, item.leader) for key, item in sorted(leaders.items()) if item.leader >= 0)


def leader_epochs(leaders: Mapping[Partition, Leaders]) -> Iterator[LeaderEpoch]:
    """For the first commit of a conversion."""
    return (LeaderEpoch(*key, *start) for key, item in sorted(leaders.items()) for start in item.epochs)


def describe_old_ends(source: ConvertSource) -> Iterator[str]:
    """The warnings about old ends of logs, which no conversion takes along."""
    for key, item in sorted(source.leaders.items()):
        if item.old_ends:
            offsets = " and ".join(str(offset) for _, offset in item.old_ends)
            yield (
                f"topic {source.topic_names[key[0]]!r} partition {key[1]} was cut off in the cluster at offset "
                f"{offsets}: only the newest log is converted, the source alone has the earlier branches"
            )


def check_same_logs(source: ConvertSource, target: ArchiveState) -> None:
    """Raises ArchiveMismatch if the target holds the old end of a log that is a branch in the source by now."""
    for key, item in sorted(source.leaders.items()):
        accounted = target.accounted_for(*key)
        known = target.leaders.get(key, UNKNOWN)
        for epoch, offset in item.old_ends:
            # A target that has seen a later leader epoch was converted from the newest log already.
            if accounted and accounted[-1][1] > offset and known <= epoch:
                raise ArchiveMismatch(
                    f"The log of topic {source.topic_names[key[0]]!r} partition {key[1]} was cut off in the cluster at "
                    f"offset {offset}. What was converted before reaches offset {accounted[-1][1]} of the earlier "
                    "log, and the source holds the newest one.",
                    hint="Convert into a new folder.",
                )
