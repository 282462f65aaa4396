"""Backups of a simulated cluster by the product's own `run_backup`, and what they leave in the archive."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.backup.run import backup_run as running
from logkeep_engine.contract.cluster import ClusterSpec
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.run import RunResult
from logkeep_engine.kafka.brokers import BrokerPool
from logkeep_engine.kafka.connection import KafkaConnection, Limits, connection_from
from logkeep_engine.storage import open_uri
from tests.kafka.restores import ThreadRunner, try_backup
from tests.simulation.cluster import SimulatedCluster


def wait_no_longer(monkeypatch: pytest.MonkeyPatch, limits: Limits) -> None:
    """Let backups have these limits."""

    def connect(spec: ClusterSpec, environ: Any) -> KafkaConnection:
        return replace(connection_from(spec, environ), limits=limits)

    monkeypatch.setattr(running, "connection_from", connect)


def ask_first(monkeypatch: pytest.MonkeyPatch, broker: int) -> None:
    """Ask this broker before all others for metadata."""
    nodes = BrokerPool._nodes
    monkeypatch.setattr(BrokerPool, "_nodes", lambda pool: iter(sorted(nodes(pool), key=lambda node: node != broker)))


def backup_spec(cluster: SimulatedCluster, root: Path, **more: object) -> dict[str, Any]:
    """A spec that backs up all topics into an archive at `root`."""
    return {
        "cluster": {"bootstrapServers": cluster.bootstrap},
        "topics": {"include": [".*"]},
        "storage": {"uri": root.as_uri()},
        **more,
    }


def backup(
    cluster: SimulatedCluster,
    root: Path,
    run_id: str,
    *,
    before: Callable[[object], None] | None = None,
    **more: object,
) -> RunResult:
    """`before` its tasks."""
    return try_backup(backup_spec(cluster, root, **more), run_id, ThreadRunner(before=before))


def state_of(root: Path) -> ArchiveState:
    return Archive.open(open_uri(root.as_uri())).load()
