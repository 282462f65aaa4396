"""A restore that is begun again, or asked for again, while its archive continues: what it has planned still follows
from the archive, and what it has done is still done.
"""

import contextlib
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.archive.maintenance.retention_items import object_bytes
from logkeep_engine.archive.moments import iso
from logkeep_engine.contract.retention import Retention
from logkeep_engine.contract.run import RunResult
from logkeep_engine.erasure.run import ErasureAsked, erase
from logkeep_engine.errors import ArchiveMismatch, SegmentsRemoved
from logkeep_engine.report import Reporter
from logkeep_engine.storage import LocalStorage
from tests.kafka.backing_up import FOR_TEST
from tests.kafka.restores import ThreadRunner, back_up, bring_back, try_backup
from tests.simulation.backing_up import backup_spec, state_of
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.partition_log import batch
from tests.unit.log.batches import NOON

Clusters = tuple[SimulatedCluster, SimulatedCluster]


WANTED: list[Any] = [
    {},
    {"offsets": "Same"},
    {"point": {"offsets": [{"topic": "orders", "partition": 0, "offset": 7}]}},
    {"point": {"run": "backup-1"}},
    {"point": {"run": "backup-0"}},
    {"topics": {"partitionCount": 3, "partitioner": "murmur2"}},
    {"topics": {"rename": [{"from": "(.*)", "to": r"copy.\1"}]}},
    {"topics": {"partitions": [{"topic": "orders", "partition": 0, "target": 1}]}},
    {"consumerGroups": {"restore": "Translate"}},
    {"point": {"window": {"from": "2020-01-01T00:00:00Z", "to": "2040-01-01T00:00:00Z"}}},
    {"point": {"asOf": iso(NOON + 5)}},
]


def produce(cluster: SimulatedCluster, topic: str) -> None:
    for partition in cluster.topics[topic].partitions:
        cluster.do(lambda to=partition: to.append(batch([(b"%d" % n, b"value") for n in range(10)])))  # type: ignore[misc]


def restored(
    target: SimulatedCluster, root: Path, *, run_id: str = "restore-1", killed: bool = False, **more: Any
) -> RunResult:
    """Two tasks for the records; with `killed` the driver dies when the first has been done."""
    seen: list[object] = []

    def before(work: Any) -> None:
        if isinstance(work, tuple):
            seen.append(work)
        if killed and len(seen) == 2:
            raise KeyboardInterrupt

    spec = {
        "cluster": {"bootstrapServers": target.bootstrap},
        "source": {"storage": {"uri": root.as_uri()}},
        "spark": {"executor": {"instances": 2}},
        **more,
    }
    return bring_back(spec, run_id, ThreadRunner(before=before))


def goes_on(source: SimulatedCluster, root: Path, **retention: str) -> None:
    """Let a run fail half-way, partitions come, the topic be created again, and retention remove all that it may."""

    def fails(work: Any) -> None:
        raise KeyboardInterrupt

    produce(source, "orders")
    with contextlib.suppress(KeyboardInterrupt):
        try_backup(backup_spec(source, root), "backup-2", ThreadRunner(before=fails))
    assert state_of(root).runs["backup-2"].success is None
    source.do(lambda: source.add_partitions(source.topics["orders"], 2, 1))
    produce(source, "orders")
    back_up(backup_spec(source, root), "backup-3")
    source.do(source.topics.clear)
    source.do(lambda: source.create("orders", 1))
    produce(source, "orders")
    back_up(backup_spec(source, root), "backup-4")
    back_up(backup_spec(source, root, retention={"maxAge": "1s", **retention}), "backup-5")
    assert state_of(root).removed


@pytest.fixture
def archive(source: SimulatedCluster, tmp_path: Path) -> Path:
    root = tmp_path / "archive"
    source.do(lambda: source.create("orders", 2))
    produce(source, "orders")
    back_up(backup_spec(source, root), "backup-0")
    produce(source, "orders")
    back_up(backup_spec(source, root), "backup-1")
    return root


@pytest.mark.parametrize("point", ["backup-0", "backup-1"])
def test_a_killed_restore_to_a_run_does_not_leave_out_what_is_deleted_since(
    clusters: Clusters, target: SimulatedCluster, archive: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would say that all is restored, or that its plan was altered."""
    source = clusters[0]
    produce(source, "orders")
    back_up(backup_spec(source, archive), "backup-2")
    with pytest.raises(KeyboardInterrupt):
        restored(target, archive, killed=True, point={"run": point})
    sizes = [object_bytes(entry) for entries in state_of(archive).segments.values() for entry in entries]
    monkeypatch.setattr(Retention, "max_bytes_int", sum(sizes) // 3)
    back_up(backup_spec(source, archive, retention={"maxBytes": "1Mi", "grace": "0s"}), "backup-3")
    assert state_of(archive).removed
    with pytest.raises(SegmentsRemoved, match=r"Retention has removed [1-4] segments of this restore"):
        restored(target, archive, point={"run": point})


def erase_key(root: Path, key: bytes) -> None:
    """Erase a key from the topic."""
    storage = LocalStorage(root.as_uri())
    done = erase("erase-1", storage, ErasureAsked("orders", (key,)), ThreadRunner, Reporter("erase-1"), FOR_TEST)
    assert (done.outcome, done.message) == ("Succeeded", "")


# Simulated brokers know no transactions, which fill an offset whose record was erased.
@pytest.mark.parametrize("wanted", [wanted for wanted in WANTED if "offsets" not in wanted], ids=str)
def test_an_erasure_of_before_a_restore_does_not_stop_its_second_start(
    clusters: Clusters, target: SimulatedCluster, archive: Path, wanted: Any
) -> None:
    erase_key(archive, b"3")
    with contextlib.suppress(KeyboardInterrupt):
        restored(target, archive, killed=True, **wanted)
    assert restored(target, archive, **wanted).outcome == "Succeeded"


@pytest.mark.parametrize("wanted", [{}, {"point": {"run": "backup-0"}}, {"point": {"asOf": iso(NOON + 5)}}], ids=str)
def test_an_erasure_of_after_the_start_stops_a_restore_by_name_if_it_took_something(
    clusters: Clusters, target: SimulatedCluster, archive: Path, wanted: Any
) -> None:
    with pytest.raises(KeyboardInterrupt):
        restored(target, archive, killed=True, **wanted)
    erase_key(archive, b"3")
    with pytest.raises(
        ArchiveMismatch, match="cannot continue: since it started, an erasure has removed records that it restores"
    ):
        restored(target, archive, **wanted)


def test_an_erasure_of_records_that_a_restore_does_not_bring_does_not_stop_it(
    clusters: Clusters, target: SimulatedCluster, archive: Path
) -> None:
    wanted: dict[str, Any] = {"point": {"run": "backup-0"}}
    source = clusters[0]
    for partition in source.topics["orders"].partitions:
        source.do(lambda to=partition: to.append(batch([(b"later", b"value")])))  # type: ignore[misc]
    back_up(backup_spec(source, archive), "backup-2")
    with pytest.raises(KeyboardInterrupt):
        restored(target, archive, killed=True, **wanted)
    erase_key(archive, b"later")
    assert restored(target, archive, **wanted).outcome == "Succeeded"


@pytest.mark.parametrize("wanted", WANTED, ids=str)
def test_a_killed_restore_continues(clusters: Clusters, target: SimulatedCluster, archive: Path, wanted: Any) -> None:
    with contextlib.suppress(KeyboardInterrupt):  # some have one task only
        restored(target, archive, killed=True, **wanted)
    goes_on(clusters[0], archive)
    assert restored(target, archive, **wanted).outcome == "Succeeded"


@pytest.mark.parametrize("wanted", WANTED, ids=str)
def test_what_is_done_is_not_done_again(
    clusters: Clusters, target: SimulatedCluster, archive: Path, wanted: Any
) -> None:
    """Whatever retention has deleted since."""
    done = restored(target, archive, **wanted)
    ends = {name: [part.log.end for part in topic.partitions] for name, topic in target.topics.items()}
    goes_on(clusters[0], archive, grace="0s")
    assert restored(target, archive, **wanted).records == done.records
    assert {name: [part.log.end for part in topic.partitions] for name, topic in target.topics.items()} == ends
