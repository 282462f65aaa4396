"""Lists what is not restored of a cluster: settings of its brokers, and levels of its finalized features.

Both belong to the administrators of the target: a restore changes neither. What differs is reported, and listed in the
document of the restore, since topics and groups without a value of their own do as these say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from logkeep_engine.archive.catalog.cluster_state import ClusterState
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.restore.model.compared_items import first_of


@dataclass(frozen=True)
class ClusterDifferences:
    """Values that the target has otherwise than the source had, by name: the source's and the target's. None: the
    target does not have it. Features are those that are lower in the target. `hidden`: the target does not report its
    settings."""

    settings: Mapping[str, tuple[str, str | None]]
    features: Mapping[str, tuple[int, int]]
    hidden: bool = False

    @classmethod
    def between(cls, state: ClusterState, control: ControlPlane) -> ClusterDifferences:
        """Return the differences between the archived state and the cluster."""
        wanted = state.settings or {}
        there = control.broker_configs(wanted) if wanted else {}
        levels = control.features() if state.features else {}
        return cls(
            {key: (value, there.get(key)) for key, value in wanted.items() if there.get(key) != value},
            {
                name: (level, levels.get(name, 0))
                for name, level in state.features.items()
                if levels.get(name, 0) < level
            },
            hidden=bool(wanted) and not there,
        )

    def told(self) -> Iterator[str]:
        """Yield the warnings."""
        if self.settings:
            unset = "not reported" if self.hidden else "not set"
            listed = [f"{key}={was} (here {unset if now is None else now})" for key, (was, now) in self._sorted()]
            yield (
                f"settings of the source's brokers are not restored, and affect topics and groups without "
                f"their own value: {first_of(listed)}: set those that you need by hand"
            )
        if self.features:
            listed = [f"{name} {was} (here {now})" for name, (was, now) in sorted(self.features.items())]
            yield (
                f"features of the source had a higher level, which is not restored: {first_of(listed)}: "
                "`kafka-features.sh upgrade` raises them"
            )

    def rows(self) -> dict[str, Any]:
        """Return the parts of the document."""
        return {
            "brokerSettings": {
                "columns": ["key", "archived", "cluster"],
                "rows": [[key, *values] for key, values in self._sorted()],
            },
            "features": {
                "columns": ["name", "archived", "cluster"],
                "rows": [[name, *levels] for name, levels in sorted(self.features.items())],
            },
        }

    def _sorted(self) -> list[tuple[str, tuple[str, str | None]]]:
        return sorted(self.settings.items())
