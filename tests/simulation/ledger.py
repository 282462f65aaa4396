"""The records that producers were told are written, and the records that therefore must be in a restore.

Every record's value is its name, used once. So a restored record says by itself which incarnation, partition and
lineage it comes from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from logkeep_engine.contract.facts.outcome import LossFact
from logkeep_engine.log.records import Record
from tests.simulation.cluster import SimulatedCluster, Topic
from tests.simulation.faults import FOREVER
from tests.simulation.partition_log import Partition


class Fate(StrEnum):
    """The fate of a transaction."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


NO_LOG = Partition((1,))  # of a partition that the incarnation never had
Place = tuple[str, int]  # topic id as printed, partition
Seen = dict[Place, dict[bytes, int]]  # names of records and their offsets


@dataclass(frozen=True, slots=True)
class Written:
    """An acknowledged record. `epoch`: of the leader that took it. `cuts`: how often its partition had been cut off
    before."""

    topic: str
    place: Place
    record: Record
    transaction: int | None
    epoch: int
    cuts: int


@dataclass
class Ledger:
    """All that was acknowledged, and what became of it."""

    written: dict[bytes, Written] = field(default_factory=dict)
    fates: dict[int, Fate] = field(default_factory=dict)
    markers: dict[int, int] = field(default_factory=dict)  # offsets
    cuts: Counter[Place] = field(default_factory=Counter)  # elections that lost records
    required: Seen = field(default_factory=dict)
    archived: dict[Place, int] = field(default_factory=dict)  # one past the last archived offset
    reported: list[LossFact] = field(default_factory=list)

    def seen(self, cluster: SimulatedCluster) -> Seen:
        """The committed records that are in the logs now."""
        return {
            (topic.printed_id, number): {record.value or b"": record.offset for record in partition.log.committed()}
            for topic in cluster.topics.values()
            for number, partition in enumerate(topic.partitions)
        }

    def is_known(self, item: Written) -> bool:
        """Whether the archive can know the end of the record's transaction whatever lists of fetches say: its marker
        lies where the archive has all, or nowhere."""
        marker = self.markers.get(item.transaction, -1) if item.transaction is not None else -1
        return marker < self.archived.get(item.place, FOREVER)

    def succeeded(self, before: Seen, after: Seen, loss: Iterable[LossFact], old_ends: Mapping[Place, int]) -> None:
        """A backup has: what was in the logs from its beginning to its end is archived, but for what it says. It is one
        of an earlier moment where it was told an end of that moment."""
        self.reported += loss
        for place, records in before.items():
            still = after.get(place, {})
            wanted = self.required.setdefault(place, {})
            end = old_ends.get(place, FOREVER)
            wanted.update({name: at for name, at in records.items() if still.get(name) == at and at < end})


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken."""

    kind: str
    where: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.where}: {self.detail}"


def check_topic(
    ledger: Ledger,
    name: str,
    restored: Sequence[Sequence[Record]],
    incarnations: Mapping[str, Topic],
    living: Topic | None,
) -> list[Violation]:
    """Compare the partitions of a restored topic with the ledger. `incarnations`: all of this name, by id, oldest
    first. `living`: the one of them that a backup of the healed cluster has found."""
    ids = list(incarnations)
    names = [record.value or b"" for log in restored for record in log]
    wanted_ids = [one for one in ids if _is_wanted(ledger, name, one, incarnations[one], living)]
    found = _check_incarnation(ledger, name, names, ids, wanted_ids)
    taken = {ledger.written[one].place[0] for one in names if one in ledger.written}
    with_records = [one for one in ids if any(wanted for (own, _), wanted in ledger.required.items() if own == one)]
    topic_id = next(iter(taken)) if taken else with_records[-1] if with_records else None
    chosen = incarnations.get(topic_id or "")
    for number in range(max(len(restored), *(len(topic.partitions) for topic in incarnations.values()))):
        log = restored[number] if number < len(restored) else ()
        place = (topic_id or "", number)
        partition = chosen.partitions[number] if chosen is not None and number < len(chosen.partitions) else NO_LOG
        alive = chosen is not None and chosen is living
        found += _check_partition(ledger, name, place, log, partition, living=alive)
    return found


def _check_partition(
    ledger: Ledger, name: str, place: Place, restored: Sequence[Record], partition: Partition, *, living: bool
) -> list[Violation]:
    number = place[1]
    where = f"topic {name} partition {number}"
    found: list[Violation] = []

    def violated(kind: str, names: Sequence[bytes]) -> None:
        if names:
            shown = ", ".join(one.decode(errors="replace")[:40] for one in names[:4])
            found.append(Violation(kind, where, f"{len(names)} records, first {shown}"))

    names = [record.value or b"" for record in restored]
    known = {one: ledger.written[one] for one in names if one in ledger.written}
    own = {one: item for one, item in known.items() if item.place == place}
    violated("invented", [one for one in names if one not in known])
    violated("twice", [one for at, one in enumerate(names) if one in names[:at]])
    for fate, kind in ((Fate.ABORTED, "aborted restored"), (Fate.OPEN, "undecided restored")):
        violated(kind, [one for one, item in known.items() if item.transaction is not None
                        and ledger.fates[item.transaction] is fate and ledger.is_known(item)])  # fmt: skip
    violated("altered", [one for one, record in zip(names, restored, strict=True) if one in known
                         and record[1:] != known[one].record[1:]])  # fmt: skip
    order = [known[one].record.offset for one in names if one in known]
    violated("out of order", [one for one, low, high in zip(names[1:], order, order[1:], strict=False) if low >= high])
    violated("of another topic or partition", [one for one, item in known.items() if item.place != place])
    violated("two lineages mixed", _mixed(partition, own))
    missing = [
        one
        for one, offset in ledger.required.get(place, {}).items()
        if one not in known
        and not _reported(ledger, name, number, offset)
        and not _lost(partition, ledger.written[one], living=living)
    ]
    violated("missing", missing)
    return found


def _is_wanted(ledger: Ledger, name: str, topic_id: str, topic: Topic, living: Topic | None) -> bool:
    """Whether an incarnation has archived records of which neither the archive nor the cluster says that they are
    gone."""
    return any(
        number >= len(topic.partitions)
        or (
            not _reported(ledger, name, number, offset)
            and not _lost(topic.partitions[number], ledger.written[one], living=topic is living)
        )
        for (owner, number), records in ledger.required.items()
        if owner == topic_id
        for one, offset in records.items()
    )


def _check_incarnation(
    ledger: Ledger, name: str, restored: Iterable[bytes], ids: Sequence[str], newest: Sequence[str]
) -> list[Violation]:
    """A restore takes the newest incarnation that has records: the last of `newest`."""
    taken = {ledger.written[one].place[0] for one in restored if one in ledger.written}
    if newest and taken and newest[-1] not in taken and ids.index(newest[-1]) > max(ids.index(one) for one in taken):
        return [Violation("older incarnation", f"topic {name}", f"{sorted(taken)} instead of {newest[-1]}")]
    if newest and not taken:
        return [Violation("no incarnation", f"topic {name}", f"nothing restored, {newest[-1]} has records")]
    return []


def untrue_losses(
    ledger: Ledger, cluster: SimulatedCluster, gaps: Iterable[tuple[str, int, int, int]]
) -> list[Violation]:
    """Gaps (topic id, partition, start, end) of the archive over records that the healthy cluster has: they are never
    fetched again."""
    now = ledger.seen(cluster)
    found = []
    for topic_id, number, start, end in gaps:
        there = [one for one, at in now.get((topic_id, number), {}).items() if start <= at < end]
        old = [one for one in there if ledger.written[one].cuts == 0 or not ledger.cuts.get((topic_id, number))]
        if old:
            where = f"topic id {topic_id} partition {number}"
            found.append(Violation("gap over living records", where, f"[{start}, {end}), {len(old)} records are there"))
    return found


def _mixed(partition: Partition, known: Mapping[bytes, Written]) -> list[bytes]:
    """Records that were never in one log with the last one."""
    if not known:
        return []
    last = max(known, key=lambda one: (known[one].record.offset, known[one].epoch))
    ancestry = partition.ancestry(known[last].epoch)
    strange = [one for one, item in known.items() if not _within(ancestry, item)]
    return [*strange, last] if strange else []


def _within(ancestry: Mapping[int, int], item: Written) -> bool:
    return item.record.offset < ancestry.get(item.epoch, 0)


def _reported(ledger: Ledger, name: str, number: int, offset: int) -> bool:
    return any(
        (fact.topic, fact.partition) == (name, number) and fact.start <= offset < fact.end for fact in ledger.reported
    )


def _lost(partition: Partition, item: Written, *, living: bool) -> bool:
    """The cluster has lost it since. If its topic is gone, any of the topic's logs may be the restored one."""
    heads = [partition.log.lineage] if living else [one for one in partition.origins if one > item.epoch]
    return any(not _within(partition.ancestry(head), item) for head in heads)
