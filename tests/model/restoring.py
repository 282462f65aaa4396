"""Restores of the model's archives: planned by the product, and read as their tasks would send them, to no target."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.maintenance.record_digests import unpacked_stretches
from logkeep_engine.contract.restore_spec import KafkaRestoreSpec, parse_restore
from logkeep_engine.errors import ArchiveDamaged
from logkeep_engine.log.batch import parse_header
from logkeep_engine.log.records import decode
from logkeep_engine.report import Reporter
from logkeep_engine.restore.model.context import Planned, RestoreContext
from logkeep_engine.restore.model.plan import RestorePlan
from logkeep_engine.restore.model.state import RestoreState
from logkeep_engine.restore.planning.planner import RestorePlanner
from logkeep_engine.restore.positions.offset_lookup import OffsetFinder, open_offset_map
from logkeep_engine.restore.sending import side_by_side
from logkeep_engine.restore.sending.partitions import explained
from logkeep_engine.restore.sending.stream import stream_of
from logkeep_engine.restore.sending.task import restore_partitions
from logkeep_engine.restore.sending.work import restore_task, with_task
from logkeep_engine.restore.verification.expected import expected_records
from logkeep_engine.storage import Storage
from tests.model.asking import Asked
from tests.model.reference import Key
from tests.model.target import TargetCluster
from tests.runners import Context
from tests.unit.archive.build import CLUSTER
from tests.unit.erasure.erasing import Inside

Row = tuple[int, int | None, bytes | None, bytes | None]
"""Offset, time, key, value."""
Rows = dict[Key, list[Row]]


class _Nobody:
    """A cluster without topics."""

    def topics(self) -> list[Any]:
        return []

    def latest_offsets(self, _: Any) -> dict[Any, int]:
        return {}

    def group_offsets(self, _: Any) -> dict[Any, Any]:
        return {}

    def broker_configs(self, _: Any) -> dict[str, str]:
        return {}

    def configs_of_brokers(self, _: Any) -> list[dict[str, str]]:
        return [{"log.retention.ms": "-1"}]  # the times of the model's records are old

    def check_replicas(self, *_: Any) -> None:
        pass

    def refusal(self, _: Any) -> None:
        pass


class _Planner(RestorePlanner):
    """The planner of a cluster that has producer ids enough."""

    def _with_producer_ids(self, plan: RestorePlan) -> RestorePlan:
        return plan.with_producer_ids(range(100, 200))


def context_of(storage: Storage, asked: Asked, run_id: str = "restore-1") -> RestoreContext:
    """The context of a restore of what is asked for."""
    source: dict[str, Any] = {"storage": {"uri": storage.uri, "volume": {"claimName": "c"}}}
    body: dict[str, Any] = {"source": source, "cluster": {"bootstrapServers": ["127.0.0.1:1"]}}
    if asked.topic_ids:
        body["topics"] = {"include": list(asked.topic_ids)}
        source["topicIds"] = {name: topic_id for name, topic_id in asked.topic_ids.items() if topic_id}
    if asked.skips_damage:
        body["onDamagedArchive"] = "Skip"
    if asked.point:
        body["point"] = asked.point
    spec: KafkaRestoreSpec = parse_restore(body)
    nothing: Any = None
    control: Any = _Nobody()
    state = RestoreState(storage, run_id)
    reporter = Reporter(run_id)
    return RestoreContext(run_id, spec, Archive.open(storage), state, CLUSTER, control, nothing, Inside, reporter)


@dataclass
class Given:
    """The records that a reader gives of an incarnation of each topic."""

    rows: Rows = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=dict)
    groups: dict[tuple[str, str, int], int] = field(default_factory=dict)
    """Positions by group, topic id and partition."""


def restored(storage: Storage, asked: Asked) -> Given:
    """Plan a restore without storing it, and take what its tasks would send."""
    context, planned = sketched(storage, asked)
    try:
        return _given(context, planned)
    except ArchiveDamaged as error:
        raise explained(error, context, planned) from error


def sketched(storage: Storage, asked: Asked) -> tuple[RestoreContext, Planned]:
    """Plan a restore without storing it."""
    context = context_of(storage, asked)
    planned = RestorePlanner(context).sketch()
    return context, Planned(planned.plan.with_producer_ids(range(100, 200)), planned.archived, fresh=True)


def expected_by_verification(storage: Storage, asked: Asked) -> dict[Key, tuple[int, int, int]]:
    """Tell what the verification of a restore expects in each partition: records, lowest and highest time. It keeps
    digests in the archive, as one does."""
    context, planned = sketched(storage, asked)
    some = [
        ((topic.topic_id, part.partition), restore_task(context, planned, topic, part))
        for topic, part in with_task(planned)
        if planned.segments(topic, part.partition)
    ]
    found = {}
    for (key, _), expected in zip(some, expected_records(context, [task for _, task in some], 16), strict=True):
        parts = [item for item in unpacked_stretches(expected.stretches) if item.records]
        lowest, highest = min((i.lowest for i in parts), default=-1), max((i.highest for i in parts), default=-1)
        found[key] = (sum(item.records for item in parts), lowest, highest)
    return found


def started(storage: Storage, asked: Asked, run_id: str) -> Given:
    """Start a restore, or start it again, and take what its tasks send from the first record on."""
    context = context_of(storage, asked, run_id)
    planned = _Planner(context).load_or_make()
    try:
        return _given(context, planned)
    except ArchiveDamaged as error:
        raise explained(error, context, planned) from error


def brought(storage: Storage, asked: Asked, run_id: str, target: TargetCluster) -> None:
    """Start a restore, or start it again, and let its tasks write to the target, from where they find that to be."""
    context = context_of(storage, asked, run_id)
    planned = _Planner(context).load_or_make()
    tasks = tuple(restore_task(context, planned, topic, part) for topic, part in with_task(planned))
    with patch.object(side_by_side, "RawClient", target.client):
        for task in tasks:
            restore_partitions((task,), Context(attempt=1))


def offset_maps(storage: Storage, asked: Asked, run_id: str) -> dict[Key, OffsetFinder]:
    """The offset maps of a restore that has ended."""
    context = context_of(storage, asked, run_id)
    planned = _Planner(context).load_or_make()
    return {
        (topic.topic_id, part.partition): open_offset_map(storage, restore_task(context, planned, topic, part).map_path)
        for topic, part in with_task(planned)
    }


def _given(context: RestoreContext, planned: Planned) -> Given:
    ids = [topic.topic_id for topic in planned.plan.topics]
    found = Given(topic_ids={planned.archived.topics[topic_id].name: topic_id for topic_id in ids})
    for group in planned.archived.groups:
        if group.topic_id in ids:
            found.groups[group.group_id, group.topic_id, group.partition] = group.offset
    for topic, part in with_task(planned):
        task = restore_task(context, planned, topic, part)
        rows = found.rows.setdefault((topic.topic_id, part.partition), [])
        for item in stream_of(task, 0):
            assert item.data is not None
            data = b"".join(item.data)
            assert parse_header(data).size == item.size == len(data)
            offsets = [at for first, count in item.source for at in range(first, first + count)]
            rows += [(at, rec.timestamp, rec.key, rec.value) for at, rec in zip(offsets, decode(data), strict=True)]
    return found
