"""The events of a simulated cluster: producers write, brokers stop, logs are compacted and cut off.

An `Action` is drawn when the schedule is made and finds its topic when it happens. All of it runs in the cluster's
loop.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from logkeep_engine.log.compression import Codec
from logkeep_engine.log.records import decode
from tests.simulation.cluster import SimulatedCluster, Topic
from tests.simulation.ledger import Fate, Ledger, Written
from tests.simulation.partition_log import Partition, batch

UNTIL_HEALED = 1 << 30


@dataclass(frozen=True, slots=True)
class Action:
    """`name` is a method of `History`; `seed` decides what it does."""

    name: str
    seed: int

    def __str__(self) -> str:
        return self.name


@dataclass(slots=True)
class _Open:
    """A transaction that is not decided."""

    topic: Topic
    number: int
    producer_id: int
    transaction: int


@dataclass
class History:
    """The history of one cluster. `log` says what has happened."""

    cluster: SimulatedCluster
    ledger: Ledger
    log: list[str] = field(default_factory=list)
    prefix: bytes = b""  # of the names of records
    _names: int = 0
    _transactions: int = 0
    _open: list[_Open] = field(default_factory=list)
    _sequences: dict[tuple[int, int], int] = field(default_factory=dict)  # (partition object, producer id) -> next

    def happen(self, action: Action) -> None:
        rng = random.Random(action.seed)
        act: Callable[[random.Random], str | None] = getattr(self, f"_{action.name}")
        done = act(rng)
        if done:
            self.log.append(done)

    def finish(self) -> None:
        """Every transaction is decided, when every partition has a leader. One whose marker an election has cut off is
        aborted, as an administrator does it (`kafka-transactions.sh abort`)."""
        for _ in range(len(self._open)):
            self._end_transaction(random.Random(0))
        for topic in self.cluster.topics.values():
            for partition in topic.partitions:
                for producer_id in list(partition.log.open):
                    partition.mark(producer_id, commit=False)

    # ---- producers

    def _write(self, rng: random.Random) -> str | None:
        found = self._some(rng)
        if found is None:
            return None
        topic, number, partition = found
        producer_id = rng.choice([-1, 500 + number, self.cluster.producer_id()])
        count = sum(self._send(rng, topic, number, partition, producer_id, None) for _ in range(rng.randint(1, 4)))
        return f"{count} records to {topic.name}/{number}, end {partition.log.end}"

    def _begin_transaction(self, rng: random.Random) -> str | None:
        found = self._some(rng)
        if found is None:
            return None
        topic, number, partition = found
        self._transactions += 1
        opened = _Open(topic, number, self.cluster.producer_id(), self._transactions)
        self.ledger.fates[opened.transaction] = Fate.OPEN
        count = sum(
            self._send(rng, topic, number, partition, opened.producer_id, opened.transaction)
            for _ in range(rng.randint(1, 3))
        )
        if count:
            self._open.append(opened)
        return f"transaction of {count} records to {topic.name}/{number}, end {partition.log.end}"

    def _end_transaction(self, rng: random.Random) -> str | None:
        if not self._open:
            return None
        at = rng.randrange(len(self._open))
        opened = self._open[at]
        partition = opened.topic.partitions[opened.number]
        there = self.cluster.topics.get(opened.topic.name) is opened.topic
        if there and partition.leader < 0:
            return None  # the coordinator keeps the marker until there is a leader (`markersQueueForUnknownBroker`)
        del self._open[at]
        if not there or opened.producer_id not in partition.log.open:
            self.ledger.fates[opened.transaction] = Fate.OPEN
            return None
        commit = rng.random() < 0.5
        self.ledger.fates[opened.transaction] = Fate.COMMITTED if commit else Fate.ABORTED
        end = partition.log.end
        self.ledger.markers[opened.transaction] = end
        partition.mark(opened.producer_id, commit=commit)
        return f"{'commit' if commit else 'abort'} in {opened.topic.name}/{opened.number} at {end}"

    def _send(
        self,
        rng: random.Random,
        topic: Topic,
        number: int,
        partition: Partition,
        producer_id: int,
        transaction: int | None,
    ) -> int:
        """One batch; how many records of it were acknowledged."""
        ledger = self.ledger
        compacted = "compact" in topic.configs.get("cleanup.policy", "")
        rows: list[tuple[bytes | None, bytes]] = []
        for _ in range(rng.randint(1, 5)):
            self._names += 1
            key = b"k%d" % rng.randrange(5) if compacted else rng.choice([None, b"key"])
            rows.append(
                (
                    key,
                    b"%s%s/%d#%d" % (self.prefix, topic.name.encode(), number, self._names) + b"." * rng.randint(0, 60),
                )
            )
        key_of = (id(partition), producer_id)
        sequence = self._sequences.get(key_of, 0) if producer_id >= 0 else -1
        data = batch(
            rows,
            producer_id=producer_id,
            epoch=0 if producer_id >= 0 else -1,
            sequence=sequence,
            transactional=transaction is not None,
            codec=rng.choice([Codec.NONE, Codec.NONE, Codec.GZIP, Codec.ZSTD, Codec.LZ4]),
        )
        code, base = partition.append(data)
        if code or base < 0:
            self._sequences.pop(key_of, None)
            return 0
        if producer_id >= 0:
            self._sequences[key_of] = sequence + len(rows)
        place = (topic.printed_id, number)
        for delta, record in enumerate(decode(data)):
            ledger.written[record.value or b""] = Written(
                topic.name,
                place,
                record._replace(offset=base + delta),
                transaction,
                partition.epoch,
                ledger.cuts[place],
            )
        return len(rows)

    # ---- the log

    def _compact(self, rng: random.Random) -> str | None:
        found = self._some(rng, lambda topic, _: "compact" in topic.configs.get("cleanup.policy", ""))
        if found is None:
            return None
        topic, number, partition = found
        until = rng.randint(0, partition.log.end)
        for replica in partition.replicas.values():
            replica.compact(until, keep_markers=rng.random() < 0.7)
        return f"{topic.name}/{number} compacted below {until}"

    def _delete_records(self, rng: random.Random) -> str | None:
        found = self._some(rng)
        if found is None:
            return None
        topic, number, partition = found
        below = rng.randint(partition.log.start, max(partition.log.start, partition.log.last_stable))
        for replica in partition.replicas.values():
            replica.delete_below(min(below, replica.end))
        return f"{topic.name}/{number} starts at {below}"

    def _tier(self, rng: random.Random) -> str | None:
        found = self._some(rng, lambda topic, _: "remote.storage.enable" in topic.configs)
        if found is None:
            return None
        topic, number, partition = found
        partition.local_start = rng.randint(partition.log.start, partition.log.last_stable)
        return f"{topic.name}/{number} is remote below {partition.local_start}"

    # ---- topics

    def _delete_topic(self, rng: random.Random) -> str | None:
        return self._gone(rng, again=False)

    def _recreate_topic(self, rng: random.Random) -> str | None:
        return self._gone(rng, again=True)

    def _gone(self, rng: random.Random, *, again: bool) -> str | None:
        if len(self.cluster.topics) < (1 if again else 2) or not self.cluster.alive():
            return None
        name = rng.choice(sorted(self.cluster.topics))
        topic = self.cluster.topics[name]
        self.cluster.delete(name)
        if not again:
            return f"{name} deleted"
        replicas = len(topic.partitions[0].brokers)
        # Who creates a topic while brokers are down asks for no more replicas in sync than there are.
        in_sync = min(int(topic.configs.get("min.insync.replicas", 1)), len(self.cluster.alive()))
        configs = {**topic.configs, "min.insync.replicas": str(in_sync)}
        self.cluster.create(name, rng.randint(1, 3), replicas=replicas, configs=configs)
        return f"{name} deleted and created again"

    def _add_partition(self, rng: random.Random) -> str | None:
        if not self.cluster.topics or not self.cluster.alive():
            return None
        topic = self.cluster.topics[rng.choice(sorted(self.cluster.topics))]
        self.cluster.add_partitions(topic, 1, len(topic.partitions[0].brokers))
        return f"{topic.name} has {len(topic.partitions)} partitions"

    # ---- brokers

    def _move_leader(self, rng: random.Random) -> str | None:
        found = self._some(rng, lambda _, one: len(one.isr) > 1)
        if found is None:
            return None
        topic, number, partition = found
        node = rng.choice([one for one in partition.isr if one != partition.leader])
        partition.elect(node, stale_answers=rng.choice([0, 0, 1, 3, UNTIL_HEALED]))
        return f"{topic.name}/{number} led by {node}, {partition.stale_answers} answers with an old high watermark"

    def _lag(self, rng: random.Random) -> str | None:
        found = self._some(rng, lambda _, one: len(one.isr) > 1)
        if found is None:
            return None
        topic, number, partition = found
        node = rng.choice([one for one in partition.isr if one != partition.leader])
        partition.leave_isr(node)
        return f"{topic.name}/{number} replica {node} falls behind at {partition.replicas[node].end}"

    def _diverge(self, rng: random.Random) -> str | None:
        """A replica falls behind, leads, and others write on: one history in one go."""
        for act in (self._lag, self._write, self._write, self._unclean, self._write):
            done = act(rng)
            if done:
                self.log.append(done)
        return None

    def _unclean(self, rng: random.Random) -> str | None:
        found = self._some(rng, lambda _, one: bool(one.behind - self._down()))
        if found is None:
            return None
        topic, number, partition = found
        node = rng.choice(sorted(partition.behind - self._down()))
        old_lineage, old_end = partition.log.lineage, partition.log.end
        at = partition.replicas[node].end
        partition.elect(node)
        partition.replicate()
        fork = min(partition.fork(old_lineage, partition.epoch), old_end)
        if fork < old_end:
            partition.lost_when_counted = partition.lost_when_counted or partition.counted
            self.ledger.cuts[topic.printed_id, number] += 1
        back = f", an older end up to {at} is back" if fork < at else ""
        return f"{topic.name}/{number} led by {node}, which was behind: cut off from {old_end} to {fork}{back}"

    def _down(self) -> set[int]:
        return {node for node, broker in self.cluster.brokers.items() if not broker.up}

    def _stop_broker(self, rng: random.Random) -> str | None:
        alive = self.cluster.alive()
        if not alive:
            return None
        node = rng.choice(alive)
        self.cluster.stop_broker(node)
        return f"broker {node} stops"

    def _start_brokers(self, rng: random.Random) -> str | None:
        down = sorted(self._down())
        for node in down:
            self.cluster.start_broker(node)
        return f"brokers {down} start" if down else None

    def _forget_producers(self, rng: random.Random) -> str | None:
        found = self._some(rng)
        if found is None:
            return None
        topic, number, partition = found
        for replica in partition.replicas.values():
            replica.producers.clear()
        return f"{topic.name}/{number} forgets its producers"

    # ----

    def _some(
        self, rng: random.Random, fits: Callable[[Topic, Partition], bool] = lambda topic, partition: True
    ) -> tuple[Topic, int, Partition] | None:
        """A partition that has a leader."""
        found = [
            (topic, number, partition)
            for _, topic in sorted(self.cluster.topics.items())
            for number, partition in enumerate(topic.partitions)
            if partition.leader >= 0 and fits(topic, partition)
        ]
        return rng.choice(found) if found else None
