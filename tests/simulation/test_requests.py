"""How many writes a backup of many small partitions takes, counted at the storage."""

from collections import Counter
from pathlib import Path

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.storage import LocalStorage, ObjectWriter
from tests.kafka.restores import back_up
from tests.simulation.backing_up import backup_spec
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.partition_log import batch

PARTITIONS = 3000


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The writes by the first part of the object's name. Heartbeats between the first and the last do not count: a busy
    machine has more of them."""
    counted: Counter[str] = Counter()
    create, put, writer = LocalStorage.create, LocalStorage.put, LocalStorage.writer

    def note(path: str) -> None:
        counted["heartbeat" if path.endswith("heartbeat.json") else path.partition("/")[0]] += 1

    def created(self: LocalStorage, path: str, data: bytes) -> None:
        note(path)
        create(self, path, data)

    def written(self: LocalStorage, path: str, data: bytes) -> None:
        note(path)
        put(self, path, data)

    def opened(self: LocalStorage, path: str, *, replaces: str | None = "*") -> ObjectWriter:
        note(path)
        return writer(self, path, replaces=replaces)

    monkeypatch.setattr(LocalStorage, "create", created)
    monkeypatch.setattr(LocalStorage, "put", written)
    monkeypatch.setattr(LocalStorage, "writer", opened)
    return counted


def test_a_first_run_over_many_small_partitions_takes_few_writes_and_an_idle_run_hardly_any(
    source: SimulatedCluster, tmp_path: Path, writes: Counter[str]
) -> None:
    source.do(lambda: source.create("orders", PARTITIONS))
    sent = batch([(b"key", b"value %d" % number) for number in range(3)])

    def fill() -> None:
        for log in source.topics["orders"].partitions:
            log.append(sent)

    source.do(fill)
    spec = backup_spec(source, tmp_path)
    assert back_up(spec).records == 3 * PARTITIONS
    writes["heartbeat"] = min(writes["heartbeat"], 2)
    assert sum(writes.values()) <= 40, writes
    assert writes["packs"] <= 16, writes
    writes.clear()
    assert back_up(spec, "backup-2").records == 0
    writes["heartbeat"] = min(writes["heartbeat"], 2)
    assert sum(writes.values()) <= 7, writes
    report = verify(Archive.open(LocalStorage(tmp_path.as_uri())))
    assert (report.faults, report.orphans, report.records) == ([], [], 3 * PARTITIONS)
