"""One round: producers write while backups are killed and leaders move, then restores are killed, then the books are
checked. Half of the restores give records their source offsets, and most go to a point. Some divide them among another
number of partitions, some bring back everything of a cluster that has lost the topic, and some resume one another.

The seed decides what is in a round: kinds of faults, delays, whose leaders move. Brokers and schedulers have their own
mind, so the same seed is the same story and not the same run; its history says what has happened.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.contract.names import ExitCode
from logkeep_engine.contract.run import RunResult
from logkeep_engine.storage import open_uri
from tests.cluster.kafka_cluster import KafkaCluster
from tests.data.compare import read_committed
from tests.data.topics import commit_positions, delete_topics, wait_until_decided
from tests.kafka.restores import seen
from tests.ledger.drivers import Driver
from tests.ledger.ledger import Fate, Found, Sent, by_pairs, differences, divided, doubled, problems
from tests.ledger.nemesis import Nemesis, Prey
from tests.ledger.points import (
    Point,
    chosen,
    end_offsets,
    ends_of_logs,
    positions_of,
    promised,
    transactions_in,
    within,
)
from tests.ledger.producers import KINDS, PARTITIONS, Writer
from tests.ledger.shapes import Shape
from tests.ledger.users import Users

_LEAST_RECORDS = 100  # of each producer: some transactions, some of them aborted
_ATTEMPTS = 8  # of a run that fails, as a Job that tries again
_BEGUN_ANEW = 4
_SETTLED_SECONDS = 1.0  # in which a leader learns from its followers what they have
_TWICE = "the marker of a transaction twice"


class Failed(AssertionError):
    """A round that found something wrong; the text has its seed and history."""


@dataclass(frozen=True)
class Source:
    """The source as committed consumers read it: the records that the restore must bring, by partition, and the keys of
    those that the source itself has more than once."""

    wanted: dict[int, list[Found]]
    doubled: frozenset[bytes]


class Round:
    """`folder` is for the archive and the logs of drivers."""

    def __init__(self, cluster: KafkaCluster, seed: int, folder: Path) -> None:
        self.seed = seed
        self.history: list[str] = []
        self._cluster = cluster
        self._folder = folder
        self._random = random.Random(seed)
        self._topic = f"ledger-{seed}-{secrets.token_hex(3)}"
        self._restored = f"{self._topic}-back"
        self._group = f"{self._topic}-group"
        self._users = Users(cluster, self._group)
        self._shape = Shape.of(seed, full=self._random.random() < 0.3)
        if self._shape.everything:
            self._restored = self._topic
        self._refusals = 0
        self._prey = Prey(self._topic, PARTITIONS, restored=False)
        self._archive = (folder / "archive").as_uri()
        self._began = time.monotonic()
        self._log = folder / "drivers.log"
        self._runs = 0

    def play(self) -> str:
        """Play it; returns what was done in one line. Raises Failed."""
        try:
            return self._play()
        except Exception as error:
            text = "\n  ".join(self.history)
            raise Failed(
                f"seed {self.seed}: {type(error).__name__}: {error}\n  {text}\n"
                f"again: make ledger SEED={self.seed} ROUNDS=1; drivers: {self._log}"
            ) from error

    def _play(self) -> str:
        replicas = [self._random.sample([1, 2, 3], 3) for _ in range(PARTITIONS)]
        self._cluster.create_topic(self._topic, replicas, {"min.insync.replicas": "2", "segment.bytes": "1048576"})
        if self._shape.everything:
            self._users.begin()
        writers: list[Writer] = [kind(self._cluster.bootstrap, self._topic, self.seed) for kind in KINDS]
        waits = self._shape.divided
        nemesis = self._nemesis = Nemesis(self._cluster, self.seed, lambda: self._prey, self._note, waits=waits)
        nemesis.start()
        try:
            for writer in writers:
                writer.start()
            kills = self._back_up_under_kills()
            for writer in writers:
                writer.wait_for(_LEAST_RECORDS)
            for writer in writers:
                writer.stop()
            self._note(", ".join(f"{writer.name} sent {len(writer.ledger)}" for writer in writers))
            with nemesis.moving:  # a leader that is new does not tell the end of its log
                wait_until_decided(self._cluster.bootstrap, self._topic)
                positions = self._commit_positions()
            self._finish("KafkaBackup", self._backup_spec(), self._run_id())
            ledger = [item for writer in writers for item in writer.ledger]
            with nemesis.moving:
                point = chosen(self._random, self._shape.point, self._cluster.bootstrap, self._topic, ledger)
                source = self._source(point)
                if self._shape.everything:
                    self._lose_the_topic()
            self._note(f"{self._shape}{point}: {point.time} {dict(point.ends)}")
            kills += self._restore_under_kills(point)
        finally:
            for writer in writers:
                writer.quit()
            nemesis.stop()
        faults = verify(Archive.open(open_uri(self._archive))).faults
        if faults:
            raise AssertionError(f"verify: {faults[0]}, of {len(faults)}")
        reported = self._check(ledger, source, point, positions, kills)
        delete_topics(self._cluster.bootstrap, {self._topic, self._restored})
        if self._shape.everything:
            self._users.forget()
        return reported

    # ---- runs

    def _back_up_under_kills(self) -> int:
        """Returns how many runs were killed."""
        run_id, kills = self._run_id(), 0
        for _ in range(self._random.randint(2, 3)):
            killed = self._kill("KafkaBackup", self._backup_spec(), run_id)
            kills += killed
            if not killed or self._random.random() < 0.5:
                run_id = self._run_id()
        return kills

    def _restore_under_kills(self, point: Point) -> int:
        """Returns how many runs were killed. A restore to the same offsets may say that a marker came twice, which
        nothing can mend: then it is begun again."""
        kills = 0
        for number in range(_BEGUN_ANEW):
            run_id = f"restore-{number}"
            spec = self._restore_spec(point)
            self._prey = Prey(self._restored, self._shape.partitions, restored=True)
            for again in range(self._random.randint(1, 3 if self._shape.same else 2)):
                if not self._kill("KafkaRestore", spec, run_id):
                    break
                kills += 1
                if self._shape.resumes and not self._refusals:
                    run_id, spec = f"restore-{number}-{again}", {**spec, "ifTopicExists": "Resume"}
            result = self._finish("KafkaRestore", spec, run_id, refusal=_TWICE if self._shape.same else None)
            if result.outcome == "Succeeded":
                break
            self._refusals += 1
            if self._shape.everything:
                self._lose_the_topic()
            else:
                delete_topics(self._cluster.bootstrap, [self._restored])
                self._restored += "-anew"
        else:
            raise AssertionError(f"refused {_BEGUN_ANEW} times: {result.message}")
        self._result = result
        if self._shape.full and (result.verification is None or result.verification.outcome != "Verified"):
            raise AssertionError(f"verify: Full says {result.verification}")
        return kills

    def _commit_positions(self) -> dict[int, int]:
        """The positions of a consumer group somewhere in the source."""
        ends = end_offsets(self._cluster.bootstrap, self._topic)
        positions = {number: self._random.randint(0, end) for number, end in ends.items()}
        wanted = {(self._topic, number): offset for number, offset in positions.items()}
        commit_positions(self._cluster.bootstrap, self._group, wanted)
        return positions

    def _kill(self, kind: str, spec: dict[str, Any], run_id: str) -> bool:
        delay = self._random.choice((0.2, 0.6, 1.2)) * self._random.random() + 0.02
        killed = Driver(kind, run_id, spec, self._log).kill_after(delay)
        self._note(
            f"{kind} {run_id} " + (f"killed after {delay:.2f} s" if killed else "had ended before it was killed")
        )
        return killed

    def _finish(self, kind: str, spec: dict[str, Any], run_id: str, *, refusal: str | None = None) -> RunResult:
        """Start the run until it succeeds. Only what may pass is tried again. `refusal`: a message that may end it."""
        for _ in range(_ATTEMPTS):
            result = Driver(kind, run_id, spec, self._log).result()
            self._note(f"{kind} {run_id}: {result.outcome}, {result.records} records. {result.message}")
            if result.outcome == "Succeeded":
                if result.loss_total:
                    raise AssertionError(f"{kind} {run_id} tells of lost records, and nothing was lost: {result.loss}")
                return result
            if refusal is not None and refusal in result.message:
                return result
            if result.exit_code != ExitCode.FAILED:
                break
        raise AssertionError(f"{kind} {run_id} does not succeed: {result.message}")

    def _run_id(self) -> str:
        self._runs += 1
        return f"backup-{self._runs}"

    def _backup_spec(self) -> dict[str, Any]:
        slow = {"limits": {"bytesPerSecond": "256Ki"}} if self._random.random() < 0.5 and self._runs < 3 else {}
        return {
            "cluster": {"bootstrapServers": self._cluster.addresses},
            "topics": {"include": [self._topic]},
            "storage": {"uri": self._archive},
            "consumerGroups": {"include": [self._group]},
            **slow,
        }

    def _restore_spec(self, point: Point) -> dict[str, Any]:
        return {
            "cluster": {"bootstrapServers": self._cluster.addresses},
            "source": {"storage": {"uri": self._archive}},
            **self._shape.spec(self._topic, self._restored, self._group),
            **point.spec(self._topic),
        }

    def _lose_the_topic(self) -> None:
        """Let the cluster lose the topic, the group and the quota, as one that is new has none of them."""
        with self._nemesis.moving:
            delete_topics(self._cluster.bootstrap, [self._topic])
            self._cluster.wait_until_gone(self._topic)
            self._users.forget()

    # ---- the books

    def _source(self, point: Point) -> Source:
        """Read the source, which a cluster may lose before it comes back."""
        records = self._read(self._topic, PARTITIONS)
        transactions = transactions_in(self._cluster.bootstrap, self._topic)
        wanted = {number: within(point, some, number, transactions[number]) for number, some in records.items()}
        return Source(wanted, doubled(records))

    def _check(self, ledger: list[Sent], source: Source, point: Point, positions: Mapping[int, int], kills: int) -> str:
        found, shape = self._read(self._restored, self._shape.partitions), self._shape
        wrong = [*self._users.problems()] if shape.everything else []
        if shape.divided:
            there = by_pairs(ledger, found)
            wrong += differences(divided(source.wanted, shape.partitions), there)
            wrong += problems(ledger, there, source.doubled, promised(point, ledger))
        else:
            wrong += differences(source.wanted, found, offsets=shape.same)
            wrong += problems(ledger, found, source.doubled, promised(point, ledger))
            wrong += self._wrong_positions(point, positions, source.wanted, found)
        if wrong:
            raise AssertionError(f"{len(wrong)} problems:\n    " + "\n    ".join(wrong[:10]))
        fates = {fate: sum(item.fate is fate for item in ledger) for fate in Fate}
        counts = ", ".join(f"{count} {fate.value}" for fate, count in fates.items())
        restored = sum(map(len, found.values()))
        refused = f"begun anew {self._refusals} times, " if self._refusals else ""
        return (
            f"seed {self.seed}: {counts}, {shape}{point}, {restored} restored, {self._result.groups} positions, "
            f"{refused}{kills} runs killed, {self._seconds():.1f} s"
        )

    def _wrong_positions(
        self,
        point: Point,
        positions: Mapping[int, int],
        wanted: Mapping[int, Sequence[Found]],
        found: Mapping[int, Sequence[Found]],
    ) -> Iterator[str]:
        """Name the partitions where the group stands before another record than in the source."""
        there = positions_of(self._cluster.bootstrap, self._group, self._restored)
        for number, position in positions.items():
            end = point.ends.get(number)
            may_miss = point.kind in ("asOf", "timestamp") or (end is not None and position > end)
            if number not in there and may_miss:  # no run had archived the positions by then
                continue
            passed = sum(record.offset < position for record in wanted[number])
            stands = sum(record.offset < there.get(number, -1) for record in found[number])
            if number not in there or stands != passed:
                yield f"partition {number}: the group was behind {passed} records, and is behind {stands}: {there}"

    def _read(self, topic: str, partitions: int) -> dict[int, list[Found]]:
        ends = ends_of_logs(self._cluster.bootstrap, topic, partitions)
        return {partition: self._read_to_end(topic, partition, end) for partition, end in ends.items()}

    def _read_to_end(self, topic: str, partition: int, end: int) -> list[Found]:
        """The records of a partition whose log ends at `end`. A leader that is new may tell consumers of an earlier
        end; and markers may lie after the last record. So what seems to end early is read until it grows no more."""
        found = self._read_once(topic, partition)
        while found and found[-1].offset + 1 < end:
            time.sleep(_SETTLED_SECONDS)
            again = self._read_once(topic, partition)
            if len(again) == len(found):
                break
            found = again
        return found

    def _read_once(self, topic: str, partition: int) -> list[Found]:
        messages = map(seen, read_committed(self._cluster.bootstrap, topic, partition))
        return [Found(key, value, at, headers, offset) for offset, key, value, headers, at in messages]

    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def _note(self, what: str) -> None:
        self.history.append(f"{self._seconds():6.2f} {what}")
