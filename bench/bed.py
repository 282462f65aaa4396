"""The servers of a benchmark: one broker with a JVM as in production, one S3 server, a folder for archives."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.process import cpu_of, pin
from logkeep_engine.contract import names
from tests.cluster.kafka import KafkaBroker
from tests.cluster.s3 import S3Server
from tests.cluster.state import State, sweep

_JVM = ("-Xmx1g", "-Xms1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
_OVERRIDES = {
    "log.retention.ms": "-1",  # the records are of a fixed day in the past
    "message.max.bytes": str(16 << 20),
    "auto.create.topics.enable": "false",
    "log.retention.check.interval.ms": "300000",
    "log.cleaner.backoff.ms": "15000",
    # Kafka's own numbers of threads: brokers of tests have fewer.
    "num.network.threads": "3",
    "num.io.threads": "8",
    "background.threads": "10",
}
BUCKET = "bench"


@dataclass(frozen=True, slots=True)
class Bed:
    """Running servers. `folder` is for archives and scratch, on the same disk as the broker's data."""

    broker: KafkaBroker
    s3: S3Server | None
    folder: Path
    access_log: Path

    @property
    def bootstrap(self) -> str:
        """The broker's address."""
        return self.broker.bootstrap

    def broker_cpu(self) -> float:
        """CPU seconds the broker has used so far."""
        return cpu_of(self.broker.process.pid)

    def s3_cpu(self) -> float:
        """CPU seconds the S3 server has used so far; 0 without one."""
        return cpu_of(self.s3.process.pid) if self.s3 is not None else 0.0

    def pin_broker(self, cores: Sequence[int] | None) -> None:
        """Keep the broker on these cores; None: on all."""
        pin(self.broker.process.pid, cores)

    def storage(self, kind: str, name: str) -> dict[str, str]:
        """`spec.storage` of an archive of this name: `kind` is file or s3."""
        if kind == "file":
            return {"uri": (self.folder / name).as_uri()}
        assert self.s3 is not None
        return {"uri": f"s3://{BUCKET}/{name}", "endpoint": self.s3.endpoint, "region": self.s3.region}

    def archive(self, kind: str, name: str) -> Path:
        """Where the archive's objects lie on this machine."""
        if kind == "file":
            return self.folder / name
        assert self.s3 is not None
        return self.s3.data_dir / BUCKET / name

    def drop(self, kind: str, name: str) -> None:
        """Remove an archive, if it is there."""
        shutil.rmtree(self.archive(kind, name), ignore_errors=True)

    def broker_bytes(self, topic: str) -> int:
        """Bytes of a topic's logs on the broker's disk."""
        return sum(file.stat().st_size for file in self.broker.data_dir.glob(f"{topic}-[0-9]*/*.log"))


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@contextmanager
def started(*, s3: bool) -> Iterator[Bed]:
    """Start the servers; everything is gone afterwards. Credentials are put into this process's environment."""
    sweep()
    state = State.create("bench")
    log = state.path / "s3-access.log"
    os.environ["VGW_ACCESS_LOG"] = str(log)  # read by the S3 server: it writes a line a request
    try:
        with KafkaBroker(overrides=_OVERRIDES, jvm=_JVM) as broker:
            if not s3:
                yield Bed(broker, None, state.path, log)
                return
            with S3Server() as server:
                os.environ[names.ENV_S3_ACCESS_KEY] = server.access_key
                os.environ[names.ENV_S3_SECRET_KEY] = server.secret_key
                server.create_bucket(BUCKET)
                yield Bed(broker, server, state.path, log)
    finally:
        state.destroy(grace=0)
