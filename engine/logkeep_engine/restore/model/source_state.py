"""Finds what the archive knows of the state of its cluster at the point of a restore."""

from __future__ import annotations

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.cluster_state import ClusterState, read_cluster_state
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.contract.point import PointSpec
from logkeep_engine.restore.model.point import end_before


def source_state(archive: Archive, archived: ArchiveState, point: PointSpec | None) -> ClusterState | None:
    """Return the state of the cluster that the last run before the point has archived, None if there is none. Raises
    ArchiveDamaged."""
    end = end_before(archive, archived, point)
    return None if end is None else read_cluster_state(archive, end)
