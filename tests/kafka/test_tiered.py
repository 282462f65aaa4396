"""Tiered storage (KIP-405): a slow, failing or throttled remote store never looks like a log without records."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)

from logkeep_engine.archive import names
from logkeep_engine.archive.plans import BACKUP_PLAN_FILE
from logkeep_engine.backup.model.plan import BackupPlan
from logkeep_engine.backup.planning import balance
from logkeep_engine.backup.planning import remote as remote_chunks
from logkeep_engine.backup.run import backup_run
from logkeep_engine.contract.cluster import ClusterSpec
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import ExitCode
from logkeep_engine.errors import RecordsWithheld
from logkeep_engine.kafka.client import Limits, RawClient
from logkeep_engine.kafka.connection import KafkaConnection, connection_from
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.limits import Throttle
from logkeep_engine.restore.sending.written import Look, TargetPartition, look
from logkeep_engine.spark.nursery import Nursery
from tests.cluster.tiered import TieredBroker, tiered_topic
from tests.kafka.backing_up import Backups, Topics, folder_spec
from tests.kafka.raw import each, eventually, numbered, plain, read_all, records, run

BATCHES = 300
RECORDS = 20 * BATCHES
QUOTA = "remote.log.manager.fetch.max.bytes.per.second"


class Remote(NamedTuple):
    """A topic of 6,000 records of a kilobyte by one producer id; those below `local_start` are in the remote store
    only.
    """

    topic: str
    local_start: int
    producer_id: int


@pytest.fixture(scope="module")
def remote(tiered_broker: TieredBroker) -> Remote:
    """A topic that the tests of this module only read."""
    topics = Topics(tiered_broker)
    topics.create("remote", 1, **tiered_topic())

    async def fill() -> int:
        async with RawClient(plain(tiered_broker.bootstrap)) as client:
            producer_id, _ = await client.init_producer_id()
            async for _ in client.produce_many("remote", 0, each(numbered(producer_id, BATCHES, 20, size=1000))):
                pass
            return producer_id

    producer_id = run(fill())
    return Remote("remote", tiered_broker.wait_until_remote("remote"), producer_id)


def impatient(broker: TieredBroker) -> RawClient:
    """For a remote store that gives nothing. One that is well may take a while on a busy machine: see `patient`."""
    return RawClient(plain(broker.bootstrap), limits=Limits(outage=3))


def patient(broker: TieredBroker) -> RawClient:
    return RawClient(plain(broker.bootstrap), limits=Limits(outage=60))


def test_slow_remote_store_is_no_compaction(tiered: TieredBroker, remote: Remote) -> None:
    async def work() -> None:
        async with impatient(tiered) as client:
            tiered.command(delay_ms=1500)
            stream = client.stream(remote.topic, 0, 0, RECORDS)
            with pytest.raises(RecordsWithheld) as caught:
                await anext(stream)
            assert f"topic '{remote.topic}' partition 0 from offset 0" in caught.value.message
            assert f"the local log begins at {remote.local_start}" in caught.value.message
            assert "remote.fetch.max.wait.ms" in caught.value.hint
            assert QUOTA in caught.value.hint
            parts = [part async for part in client.stream(remote.topic, 0, remote.local_start, RECORDS)]
            assert len(records(parts, remote.local_start, RECORDS)) == RECORDS - remote.local_start

    run(work())


def test_hiccup_of_the_remote_store_is_waited_out(tiered: TieredBroker, remote: Remote) -> None:
    tiered.command(delay_ms=2500)

    async def heal() -> None:
        await asyncio.sleep(4)  # more than three answers without records
        tiered.command()

    async def work() -> None:
        async with patient(tiered) as client:
            healing = asyncio.create_task(heal())
            assert len(await read_all(client, remote.topic)) == RECORDS
            await healing

    run(work())


def test_used_up_remote_quota_is_waited_out(tiered: TieredBroker, remote: Remote, quota: None) -> None:
    async def work() -> None:
        async with patient(tiered) as client:
            began = time.monotonic()
            assert [offset for offset, _ in await read_all(client, remote.topic)] == list(range(RECORDS))
            assert time.monotonic() - began > 2  # the quota was felt

    run(work())


@pytest.fixture
def quota(tiered: TieredBroker) -> Iterator[None]:
    """At most so many bytes a second from the remote store; the broker counts over 11 seconds."""
    alter_broker(tiered, QUOTA, str(1 << 20))
    yield
    alter_broker(tiered, QUOTA, None)


def alter_broker(broker: TieredBroker, name: str, value: str | None) -> None:
    kind = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(name, value, incremental_operation=kind)
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(30)

    def taken_over() -> bool:
        """The controller answers before the broker knows."""
        asked = ConfigResource(ResourceType.BROKER, "1")
        found = admin.describe_configs([asked])[asked].result(30)[name]
        own = found.source == ConfigSource.DYNAMIC_BROKER_CONFIG.value
        return (found.value if own else None) == value

    eventually(taken_over)


def test_failing_remote_store_is_named(tiered: TieredBroker, remote: Remote) -> None:
    tiered.command(fail=True)

    async def work() -> None:
        async with impatient(tiered) as client:
            with pytest.raises(RecordsWithheld, match="UNKNOWN_SERVER_ERROR at offset 0") as caught:
                await read_all(client, remote.topic)
            assert "remote store" in caught.value.hint

    run(work())


def test_own_batches_are_looked_for_in_the_remote_store_until_it_answers(tiered: TieredBroker, remote: Remote) -> None:
    async def work() -> None:
        async with impatient(tiered) as client:
            tiered.command(delay_ms=1500)
            with pytest.raises(RecordsWithheld):
                await client.written_by(remote.topic, 0, remote.producer_id, start=0)
        tiered.command()
        async with patient(tiered) as client:
            found = await client.written_by(remote.topic, 0, remote.producer_id, start=0)
            assert [batch.base_offset for batch in found] == list(range(0, RECORDS, 20))

    run(work())


def test_restore_does_not_take_an_unread_target_for_one_without_its_records(
    tiered: TieredBroker, remote: Remote
) -> None:
    target = TargetPartition(remote.topic, 0, remote.producer_id, start=0, created=False, compacts=False)
    wanted = Look(plain(tiered.bootstrap), target, (remote.producer_id,), None, rows=True)

    async def work() -> None:
        async with impatient(tiered) as client:
            tiered.command(delay_ms=1500)
            with pytest.raises(RecordsWithheld):
                await look(client, wanted, Throttle())
        tiered.command()
        async with patient(tiered) as client:
            landed = (await look(client, wanted, Throttle()))[remote.producer_id]
            assert (landed.records, list(landed.rows or ())) == (RECORDS, [(0, 0, RECORDS)])

    run(work())


# ---- backups


@pytest.fixture
def backups(tiered: TieredBroker, nursery: Nursery, tmp_path: Path) -> Backups:
    return Backups(tiered, folder_spec(tmp_path / "archive"), nursery=nursery)


def test_remote_partition_is_cut_by_its_bytes_and_archived_whole(
    backups: Backups, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(balance, "MIN_CHUNK_BYTES", 1 << 20)
    monkeypatch.setattr(remote_chunks, "REMOTE_CHUNK_BYTES", 1 << 20)
    result = backups.run(remote.topic, run_id="first")
    assert (result.outcome, result.records, result.loss) == ("Succeeded", RECORDS, ())
    assert [record.offset for record in backups.records(remote.topic)] == list(range(RECORDS))
    assert backups.faults() == []
    plan = BackupPlan.from_json(backups.storage.read(names.run_file("first", BACKUP_PLAN_FILE)), "plan")
    in_remote = [chunk for chunk in plan.chunks if chunk.end <= remote.local_start]
    assert 5 <= len(in_remote) <= 7
    archived = sum(segment.bytes for segment in backups.segments(remote.topic))
    assert sum(chunk.bytes for chunk in plan.chunks) == pytest.approx(archived, rel=0.2)


def test_backup_records_nothing_of_what_the_remote_store_did_not_give(
    tiered: TieredBroker, backups: Backups, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    def soon(spec: ClusterSpec, environ: Mapping[str, str]) -> KafkaConnection:
        return replace(connection_from(spec, environ), limits=Limits(outage=2))

    tiered.command(delay_ms=1500)
    with monkeypatch.context() as patch:
        patch.setattr(backup_run, "connection_from", soon)
        result = backups.run(remote.topic)
    assert (result.outcome, result.exit_code) == ("Failed", ExitCode.FAILED)
    assert "remote.fetch.max.wait.ms" in result.message
    assert f"topic '{remote.topic}' partition 0 from offset 0" in result.message
    assert (result.loss, result.records) == ((), RECORDS - remote.local_start)  # what is local was archived
    (topic_id,) = backups.state().topics
    assert backups.state().accounted_for(topic_id, 0) == [(remote.local_start, RECORDS)]
    tiered.command()
    result = backups.run(remote.topic)
    assert (result.outcome, result.records) == ("Succeeded", remote.local_start)
    assert [record.offset for record in backups.records(remote.topic)] == list(range(RECORDS))
    assert backups.faults() == []


def test_metadata_of_the_remote_store_is_left_out_like_other_internal_topics(backups: Backups, remote: Remote) -> None:
    with ControlPlane(plain(backups.broker.bootstrap)) as control:
        assert "__remote_log_metadata" in [topic.name for topic in control.topics()]
    result = backups.run(".*")
    assert result.outcome == "Succeeded"
    assert "__remote_log_metadata" not in [topic.name for topic in backups.state().topics.values()]


def test_remote_store_is_slow_and_fails_on_command(tiered: TieredBroker, unique: str) -> None:
    topics = Topics(tiered)
    topics.create(unique, 1, **tiered_topic())
    topics.produce(unique, [b"x" * 1000] * 3000)
    local_start = tiered.wait_until_remote(unique)
    assert 0 < local_start < 3000
    assert len(list(tiered.remote_dir.rglob("*.log"))) >= 2
    assert read_some(tiered, unique, 60) == b"x" * 1000
    tiered.command(delay_ms=1000)  # over remote.fetch.max.wait.ms: nothing comes, and no error
    assert read_some(tiered, unique, 3) is None
    tiered.command(fail=True)
    assert read_some(tiered, unique, 3) is None
    tiered.command()
    assert read_some(tiered, unique, 60) == b"x" * 1000


def read_some(broker: TieredBroker, topic: str, seconds: float) -> bytes | None:
    """The first record of partition 0, or None if the broker gives none for so long."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        found = consumer.poll(seconds)
        value = None if found is None or found.error() else found.value()
        return value if isinstance(value, bytes) else None
    finally:
        consumer.close()
