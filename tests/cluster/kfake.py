"""Brokers of another implementation of Kafka's protocol: kfake of franz-go, which keeps everything in memory.

with Kfake() as kfake: ...
with Kfake(unknown=[29, 48]) as kfake: ...      # which does not know DescribeAcls and DescribeClientQuotas
"""

import shutil
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.cluster import tools
from tests.cluster.kafka import living, new_id
from tests.cluster.process import Process, wait_until
from tests.cluster.state import State
from tests.data.compare import read_committed

KFAKE = "kfake"


class Kfake:
    """Brokers on loopback, without TLS and logins, that last from entering to leaving. Everybody may do everything.

    `unknown`: the numbers of requests that they do not know, as brokers do not that are less complete. `backoff_ms`:
    how often they compact their logs.
    """

    version = KFAKE

    def __init__(self, brokers: int = 1, unknown: Collection[int] = (), backoff_ms: int = 3_600_000) -> None:
        self.cluster_id = new_id()
        self._brokers = brokers
        self._arguments = [str(brokers), self.cluster_id, *map(str, (backoff_ms, *sorted(unknown)))]

    def __enter__(self) -> Self:
        self._state = State.create("kfake")
        try:
            self._process = Process(self._state, "kfake", [tools.kfake(), *self._arguments])
            self._process.start()
            self._process.wait_ready(lambda: len(self.addresses) == self._brokers and bool(living(self.bootstrap)))
        except BaseException:
            self._state.destroy(grace=0)
            raise
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._process.kill()
        self._state.destroy(grace=0)

    @property
    def bootstrap(self) -> str:
        """The address of the first broker, `host:port`."""
        return self.addresses[0]

    @property
    def addresses(self) -> list[str]:
        """The addresses, as a spec's `bootstrapServers` takes them."""
        return [line.strip() for line in self._process.output.splitlines(keepends=True) if line.endswith("\n")]

    def wait_until_cleaned(self, topic: str) -> None:
        """Until no key has two records in the first partition. What is compacted is the log but for its last batch."""

        def cleaned() -> bool:
            keys = [record.key() for record in read_committed(self.bootstrap, topic, 0)]
            return len(keys) == len(set(keys))

        wait_until(cleaned, 60, f"{topic} to be compacted")

    def collect_logs(self, folder: Path) -> None:
        """Copy what explains a failure."""
        shutil.copy(self._process.log, folder / f"{self._state.path.name}.log")
