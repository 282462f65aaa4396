"""One round: producers write while backups are killed and leaders move, then restores are killed, then the books are
checked.

The seed decides what is in a round: kinds of faults, delays, whose leaders move. Brokers and schedulers have their own
mind, so the same seed is the same story and not the same run; its history says what has happened.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException

from logkeep_engine.archive.care.verify import verify
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.contract.names import ExitCode
from logkeep_engine.contract.run import RunResult
from logkeep_engine.storage import open_uri
from tests.cluster.kafka_cluster import KafkaCluster
from tests.cluster.process import NotReady
from tests.data.compare import read_committed
from tests.data.topics import delete_topics, wait_until_decided
from tests.ledger.drivers import Driver
from tests.ledger.ledger import Fate, Found, differences, doubled, problems
from tests.ledger.producers import KINDS, PARTITIONS, Writer

_BROKER_KILLS = 4  # a broker is killed in one round of so many
_LEAST_RECORDS = 100  # of each producer: some transactions, some of them aborted
_ATTEMPTS = 8  # of a run that fails, as a Job that tries again


class Failed(AssertionError):
    """A round that found something wrong; the text has its seed and history."""


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
        self._archive = (folder / "archive").as_uri()
        self._began = time.monotonic()
        self._log = folder / "drivers.log"
        self._runs = 0

    def play(self) -> str:
        """Play it; returns what was done in one line. Raises Failed."""
        try:
            return self._play()
        except Exception as error:
            told = "\n  ".join(self.history)
            raise Failed(
                f"seed {self.seed}: {type(error).__name__}: {error}\n  {told}\n"
                f"again: make ledger SEED={self.seed} ROUNDS=1; drivers: {self._log}"
            ) from error

    def _play(self) -> str:
        replicas = [self._random.sample([1, 2, 3], 3) for _ in range(PARTITIONS)]
        self._cluster.create_topic(self._topic, replicas, {"min.insync.replicas": "2", "segment.bytes": "1048576"})
        writers: list[Writer] = [kind(self._cluster.bootstrap, self._topic, self.seed) for kind in KINDS]
        nemesis = _Nemesis(self._cluster, self.seed, self._topic, self._note)
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
            self._finish("KafkaBackup", self._backup_spec(), self._run_id())
            kills += self._restore_under_kills()
        finally:
            for writer in writers:
                writer.quit()
            nemesis.stop()
        faults = verify(Archive.open(open_uri(self._archive))).faults
        if faults:
            raise AssertionError(f"verify: {faults[0]}, of {len(faults)}")
        told = self._check(writers, kills)
        delete_topics(self._cluster.bootstrap, [self._topic, self._restored])
        return told

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

    def _restore_under_kills(self) -> int:
        kills = 0
        for _ in range(self._random.randint(1, 2)):
            if not self._kill("KafkaRestore", self._restore_spec(), "restore"):
                break
            kills += 1
        self._finish("KafkaRestore", self._restore_spec(), "restore")
        return kills

    def _kill(self, kind: str, spec: dict[str, Any], run_id: str) -> bool:
        delay = self._random.choice((0.2, 0.6, 1.2)) * self._random.random() + 0.02
        killed = Driver(kind, run_id, spec, self._log).kill_after(delay)
        self._note(
            f"{kind} {run_id} " + (f"killed after {delay:.2f} s" if killed else "had ended before it was killed")
        )
        return killed

    def _finish(self, kind: str, spec: dict[str, Any], run_id: str) -> RunResult:
        """Start the run until it succeeds. Only what may pass is tried again."""
        for _ in range(_ATTEMPTS):
            result = Driver(kind, run_id, spec, self._log).result()
            self._note(f"{kind} {run_id}: {result.outcome}, {result.records} records. {result.message}")
            if result.outcome == "Succeeded":
                if result.loss_total:
                    raise AssertionError(f"{kind} {run_id} tells of lost records, and nothing was lost: {result.loss}")
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
            **slow,
        }

    def _restore_spec(self) -> dict[str, Any]:
        return {
            "cluster": {"bootstrapServers": self._cluster.addresses},
            "source": {"storage": {"uri": self._archive}},
            "topics": {"rename": [{"from": self._topic, "to": self._restored}]},
        }

    # ---- the books

    def _check(self, writers: list[Writer], kills: int) -> str:
        source, found = self._read(self._topic), self._read(self._restored)
        ledger = [item for writer in writers for item in writer.ledger]
        wrong = [*differences(source, found), *problems(ledger, found, doubled(source))]
        if wrong:
            raise AssertionError(f"{len(wrong)} problems:\n    " + "\n    ".join(wrong[:10]))
        fates = {fate: sum(item.fate is fate for item in ledger) for fate in Fate}
        counts = ", ".join(f"{count} {fate.value}" for fate, count in fates.items())
        restored = sum(map(len, found.values()))
        return f"seed {self.seed}: {counts}, {restored} restored, {kills} runs killed, {self._seconds():.1f} s"

    def _read(self, topic: str) -> dict[int, list[Found]]:
        return {
            partition: [
                Found(record.key(), record.value(), record.timestamp()[1], tuple(record.headers() or ()))  # type: ignore[arg-type]
                for record in read_committed(self._cluster.bootstrap, topic, partition)
            ]
            for partition in range(PARTITIONS)
        }

    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def _note(self, what: str) -> None:
        self.history.append(f"{self._seconds():6.2f} {what}")


class _Nemesis:
    """Moves leaders, and in some rounds kills a broker and starts it again, in a thread of its own."""

    def __init__(self, cluster: KafkaCluster, seed: int, topic: str, note: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._random = random.Random(-seed - 1)
        self._kills = seed % _BROKER_KILLS == 0
        self._topic = topic
        self._note = note
        self._ended = threading.Event()
        self.moving = threading.Lock()
        """Held while leaders are moved: whoever takes it has peace."""
        self._thread = threading.Thread(target=self._work, name="nemesis", daemon=True)
        self._failure: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(300)
        if self._kills:
            self._cluster.restore()
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        try:
            if self._kills:
                self._kill_a_broker()
            while not self._ended.wait(self._random.uniform(0.2, 1.0)):
                with self.moving:
                    self._move_a_leader()
        except BaseException as error:
            self._failure = error

    def _kill_a_broker(self) -> None:
        number = self._random.choice([1, 2, 3])
        self._ended.wait(self._random.uniform(0.2, 1.5))
        self._cluster.kill(number)
        self._note(f"broker {number} killed")
        self._ended.wait(self._random.uniform(0, 2))
        self._cluster.start(number)
        self._note(f"broker {number} is back")

    def _move_a_leader(self) -> None:
        partition = self._random.randrange(PARTITIONS)
        try:
            placed = self._cluster.placed(self._topic, partition)
            others = sorted(placed.in_sync - {placed.leader})
            if others:
                to = self._random.choice(others)
                self._cluster.move_leader(self._topic, partition, to)
                self._note(f"broker {to} leads partition {partition}")
        except (KafkaException, KeyError, NotReady) as error:
            self._note(f"partition {partition} has no other leader: {error}")
