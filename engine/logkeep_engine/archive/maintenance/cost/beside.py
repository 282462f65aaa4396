"""The objects of an archive that no commit names: the catalog itself, the folders of runs, digests of records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.cluster_state import CLUSTER_STATE
from logkeep_engine.archive.catalog.run_note import HEARTBEAT
from logkeep_engine.archive.maintenance.cost.archive_cost import StoredObjects
from logkeep_engine.archive.maintenance.cost.requests import CatalogObjects
from logkeep_engine.storage import ObjectInfo, Storage


@dataclass(frozen=True, slots=True)
class ObjectsBeside:
    """The listed objects of three folders."""

    catalog: Sequence[ObjectInfo]
    runs: Sequence[ObjectInfo]
    digests: Sequence[ObjectInfo]

    @classmethod
    def listed(cls, storage: Storage) -> ObjectsBeside:
        """List them. Raises storage errors."""
        return cls(storage.list(names.CATALOG), storage.list(names.RUNS), storage.list(names.DIGESTS))

    def written_since(self, time: int) -> int:
        """Return the bytes of those that were written at `time` (ms since the epoch, the store's clock) or later."""
        found = (*self.catalog, *self.runs, *self.digests)
        return sum(info.size for info in found if info.modified * 1000 >= time)

    def read(self) -> CatalogObjects:
        """Return the objects among them that runs read."""
        commits = [number for info in self.catalog if (number := names.parse_commit(info.path)) is not None]
        bundles = sum(names.parse_bundle(info.path) is not None for info in self.catalog)
        folded = [found[0] for info in self.catalog if (found := names.parse_checkpoint(info.path)) is not None]
        newest = max(folded, default=-1)
        paths = [info.path for info in self.runs]
        return CatalogObjects(
            commits=len(commits) + bundles,
            unfolded=sum(number > newest for number in commits),
            checkpoints=len(folded),
            bundles=sum(names.parse_bundle(info.path) is not None for info in self.catalog),
            beats=sum(path.endswith(f"/{HEARTBEAT}") for path in paths),
            states=sum(path.count("/") == 2 and path.endswith(f"/{CLUSTER_STATE}") for path in paths),
            runs=len(paths),
            bytes=sum(info.size for info in self.catalog),
        )


def stored_of(infos: Sequence[ObjectInfo]) -> StoredObjects:
    """Return how many they are, and their bytes."""
    return StoredObjects(len(infos), sum(info.size for info in infos))
