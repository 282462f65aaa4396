"""The part of a status that tells of an archive."""

from __future__ import annotations

from typing import Annotated

from logkeep_engine.contract.facts.archive import ArchiveSize, Retained, TopicGenerations, TopicSnapshots
from logkeep_engine.contract.facts.values import Count, Listed, OnlyBackup, Timestamp
from logkeep_engine.contract.values import parse_timestamp
from logkeep_operator.api.part import StatusPart


class ArchiveStatus(ArchiveSize, StatusPart):
    """The archive, and what a run has told of it. `anchor` names the newest known commit with all before it, and never
    goes back by itself. `write_time` is the end of the last run that wrote the archive, `taken_over` the value of the
    annotation `logkeep.dev/take-over` that was used."""

    id: str | None = None
    """Id of the archive."""
    uri: str | None = None
    """URI of the archive."""
    cluster_id: str | None = None
    """Id of the Kafka cluster it was made from."""
    epoch: Count | None = None
    """Epoch of the last run."""
    commit: Count | None = None
    """Number of the last commit."""
    anchor: Annotated[str | None, OnlyBackup] = None
    """The newest known commit with all commits before it: its number and a SHA-256. Every run refuses an archive that
    does not have it (ArchiveRolledBack). It never goes back by itself. Pass it to logkeep verify --expect-commit."""
    write_time: Annotated[Timestamp | None, OnlyBackup] = None
    """When the last run ended that wrote the archive."""
    taken_over: Annotated[str | None, OnlyBackup] = None
    """The value of the annotation logkeep.dev/take-over that was used last. It consents to nothing more."""
    snapshots: Annotated[Listed[TopicSnapshots], OnlyBackup] = ()
    """The newest snapshots of compacted topics, and since when those with generations are exact. Those with
    exactNowhere come first, then those of most bytes, at most 20."""
    generations: Annotated[Listed[TopicGenerations], OnlyBackup] = ()
    """The active generations of compacted topics, those begun first before the others, at most 20."""
    retention: Annotated[Retained | None, OnlyBackup] = None
    """The last retention: what was removed, what waits for its deletion, and what is kept. It is absent if nothing is
    to be removed or kept."""

    @property
    def write_time_seconds(self) -> float | None:
        """The same in seconds since the epoch."""
        moment = parse_timestamp(self.write_time)
        return None if moment is None else moment.timestamp()

    def anchor_at(self, uri: str) -> str | None:
        """The newest known commit of the archive at a URI, None if none is known there."""
        return self.anchor if self.uri == uri else None
