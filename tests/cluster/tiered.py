"""A Kafka broker with tiered storage (KIP-405), whose remote store is slow or fails on command.

with TieredBroker() as broker:
    Topics(broker).create("orders", 1, **tiered_topic())
    ...
    broker.wait_until_remote("orders")
    broker.command(delay_ms=600)  # more than remote.fetch.max.wait.ms: such reads get an answer without records
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.cluster import tools, versions
from tests.cluster.kafka import KafkaBroker
from tests.cluster.process import wait_until

_SETTINGS = {
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.manager.class.name": "dev.logkeep.bed.SlowTieredStorage",
    "remote.log.storage.manager.impl.prefix": "rsm.config.",
    "remote.log.metadata.manager.class.name": (
        "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"
    ),
    "remote.log.metadata.manager.listener.name": "PLAINTEXT",
    "remote.log.metadata.manager.impl.prefix": "rlmm.config.",
    "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
    "remote.log.manager.task.interval.ms": "200",
}


def tiered_topic(**more: str) -> dict[str, str]:
    """Configuration of a topic whose closed segments of 1 MiB go to the remote store at once and stay there only."""
    return {
        "remote_storage_enable": "true",
        "segment_bytes": "1048576",
        "local_retention_bytes": "1",
        "retention_ms": "-1",
        **more,
    }


class TieredBroker(KafkaBroker):
    """A KafkaBroker with a remote store in its state folder; `overrides` may change its settings."""

    def __init__(self, overrides: Mapping[str, str] | None = None) -> None:
        super().__init__(overrides=overrides, version=versions.TIERED)

    def command(self, *, delay_ms: int = 0, fail: bool = False) -> None:
        """Let each read of a remote segment from now on take `delay_ms` longer, and fails if so told."""
        reported = self._command.with_suffix(".new")
        reported.write_text(f"delay.ms={delay_ms}\nfail={str(fail).lower()}\n")
        os.replace(reported, self._command)

    def wait_until_remote(self, topic: str, partition: int = 0) -> int:
        """Until only the active segment is left on the broker's disk; returns its first offset, where the local log
        starts.
        """
        folder = self.data_dir / f"{topic}-{partition}"
        wait_until(lambda: len(_logs(folder)) == 1 and _logs(folder)[0] > 0, 120, f"{topic}-{partition} to be remote")
        return _logs(folder)[0]

    @property
    def remote_dir(self) -> Path:
        """The remote store's folder: a folder for each partition, with the segments' files."""
        return self._state.path / "remote"

    @property
    def _command(self) -> Path:
        return self._state.path / "remote-store.properties"

    def _class_path(self) -> Sequence[str]:
        return tools.slow_store_class_path()

    def _own_settings(self) -> Mapping[str, str]:
        return {**_SETTINGS, "rsm.config.dir": str(self.remote_dir), "rsm.config.command": str(self._command)}


def _logs(folder: Path) -> list[int]:
    return sorted(int(file.stem) for file in folder.glob("*.log"))
