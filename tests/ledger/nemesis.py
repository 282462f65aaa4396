"""Moves the leaders of a round's topic, and kills a broker."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import NamedTuple

from confluent_kafka import KafkaException

from tests.cluster.kafka_cluster import KafkaCluster
from tests.cluster.process import NotReady

_BROKER_KILLS = 4  # of so many rounds, a broker is killed in the first, and in the last during its restore


class Prey(NamedTuple):
    """The topic whose leaders move, and whether it is the one that is restored."""

    topic: str
    partitions: int
    restored: bool


class Nemesis:
    """Moves leaders, and in some rounds kills a broker and starts it again, in a thread of its own."""

    def __init__(
        self,
        cluster: KafkaCluster,
        seed: int,
        prey: Callable[[], Prey],
        note: Callable[[str], None],
        *,
        waits: bool,
    ) -> None:
        """`waits`: a broker that is killed is killed during a restore."""
        self._cluster = cluster
        self._random = random.Random(-seed - 1)
        self._kills = seed % _BROKER_KILLS in (0, 3)
        self._waits = waits or seed % _BROKER_KILLS == 3
        self._prey = prey
        self._note = note
        self._ended = threading.Event()
        self.moving = threading.RLock()
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
        while self._waits and not self._prey().restored and not self._ended.wait(0.05):
            pass
        self._ended.wait(self._random.uniform(0.2, 1.5))
        self._cluster.kill(number)
        self._note(f"broker {number} killed")
        self._ended.wait(self._random.uniform(0, 2))
        self._cluster.start(number)
        self._note(f"broker {number} is back")

    def _move_a_leader(self) -> None:
        topic, partitions, _ = self._prey()
        partition = self._random.randrange(partitions)
        try:
            placed = self._cluster.placed(topic, partition)
            others = sorted(placed.in_sync - {placed.leader})
            if others:
                to = self._random.choice(others)
                self._cluster.move_leader(topic, partition, to)
                self._note(f"broker {to} leads partition {partition} of {topic}")
        except (KafkaException, KeyError, NotReady) as error:
            self._note(f"partition {partition} has no other leader: {error}")
