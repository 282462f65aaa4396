"""Producers that write until they are told to stop, and keep a ledger of what they were told."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tests.cluster.process import wait_until
from tests.ledger.ledger import Fate, Sent

PARTITIONS = 3
_BURST = 40
_TRANSACTION_SECONDS = 20.0


class Writer:
    """One producer in a thread of its own. Subclasses say what kind of producer it is."""

    settings: ClassVar[dict[str, Any]] = {}

    def __init__(self, bootstrap: str, topic: str, seed: int) -> None:
        self.name = f"{type(self).__name__.lower()}-{seed}"
        self.ledger: list[Sent] = []
        self.failure: BaseException | None = None
        self._bootstrap = bootstrap
        self._topic = topic
        self._random = random.Random(f"{self.name}")
        self._transaction = -1
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when nobody waits for an answer any more. Raises the error of a producer that has failed."""
        self._ended.set()
        self._thread.join(180)
        if self._thread.is_alive():
            raise TimeoutError(f"producer {self.name} does not end")
        if self.failure is not None:
            raise self.failure

    def wait_for(self, records: int) -> None:
        """Until so many were handed over."""
        wait_until(lambda: len(self.ledger) >= records or not self._thread.is_alive(), 120, f"records of {self.name}")

    def quit(self) -> None:
        """End without a word, when the round has failed."""
        self._ended.set()

    def _work(self) -> None:
        try:
            self._write()
        except BaseException as error:
            self.failure = error

    def _write(self) -> None:
        producer = self._producer()
        while not self._ended.is_set():
            self._send(producer, self._acknowledged)
            producer.poll(self._random.uniform(0, 0.1))
        producer.flush(120)

    def _producer(self, **more: Any) -> Producer:
        common = {"bootstrap.servers": self._bootstrap, "acks": "all", "linger.ms": 5, "log_level": 0}
        return Producer({**common, **self.settings, **more})

    def _send(self, producer: Producer, settle: Callable[[Sent, Message], None]) -> list[Sent]:
        """A burst of records; those that were handed over."""
        burst = []
        for _ in range(self._random.randint(1, _BURST)):
            value = self._random.randbytes(self._random.choice((10, 200, 2000)))
            number, partition = len(self.ledger), self._random.randrange(PARTITIONS)
            item = Sent(self.name, number, partition, value, self._time(), transaction=self._transaction)

            def delivered(error: KafkaError | None, message: Message, item: Sent = item) -> None:
                if error is None:
                    settle(item, message)

            try:
                producer.produce(
                    self._topic,
                    key=item.key,
                    value=item.value,
                    headers=item.headers,  # type: ignore[arg-type]
                    timestamp=item.timestamp,
                    partition=partition,
                    on_delivery=delivered,
                )
            except (BufferError, KafkaException):
                break
            self.ledger.append(item)
            burst.append(item)
        return burst

    def _time(self) -> int:
        """The time of the next record."""
        return now()

    @staticmethod
    def _acknowledged(item: Sent, message: Message) -> None:
        item.offset = message.offset() if message.offset() is not None else -1  # type: ignore[assignment]
        item.acknowledged = now()
        item.fate = Fate.COMMITTED


def now() -> int:
    """The time in ms."""
    return time.time_ns() // 1_000_000


class Plain(Writer):
    """Sends each record once: a second time it could land twice."""

    settings: ClassVar[dict[str, Any]] = {
        "enable.idempotence": "false",
        "retries": 0,
        "max.in.flight": 1,
        "message.timeout.ms": 10_000,
    }


class Idempotent(Writer):
    """Sends each record until the broker has acknowledged it; the record lands once. Its clock is often hours late."""

    settings: ClassVar[dict[str, Any]] = {"enable.idempotence": "true", "compression.type": "lz4"}

    def _time(self) -> int:
        return now() - (self._random.randrange(6 * 3_600_000) if self._random.random() < 0.2 else 0)


class Transactional(Writer):
    """Commits most of its transactions and aborts the others."""

    settings: ClassVar[dict[str, Any]] = {"transaction.timeout.ms": 20_000}

    def _write(self) -> None:
        producer = self._begun()
        while not self._ended.is_set():
            if not self._transact(producer):
                producer = self._begun()
            self._ended.wait(self._random.uniform(0, 0.1))

    def _begun(self) -> Producer:
        """A new producer, which ends what an earlier one has left open."""
        until = time.monotonic() + 120
        while True:
            producer = self._producer(**{"transactional.id": f"{self._topic}-{self.name}"})
            try:
                producer.init_transactions(30)
                return producer
            except KafkaException:
                if time.monotonic() > until:
                    raise

    def _transact(self, producer: Producer) -> bool:
        """One transaction; False if the producer is of no use any more."""
        producer.begin_transaction()
        self._transaction += 1
        burst = self._send(producer, self._written)
        if self._random.random() < 0.3:
            for item in burst:
                item.fate = Fate.ABORTED
            return self._abort(producer)
        until = time.monotonic() + _TRANSACTION_SECONDS
        while True:
            try:
                producer.commit_transaction(_TRANSACTION_SECONDS)
            except KafkaException as problem:
                error: KafkaError = problem.args[0]
                if error.retriable() and time.monotonic() < until:
                    continue
                return error.txn_requires_abort() and self._abort(producer)
            for item in burst:
                item.fate = Fate.COMMITTED
            return True

    def _abort(self, producer: Producer) -> bool:
        try:
            producer.abort_transaction(_TRANSACTION_SECONDS)
        except KafkaException:
            return False
        return True

    @staticmethod
    def _written(item: Sent, message: Message) -> None:
        item.offset = message.offset() if message.offset() is not None else -1  # type: ignore[assignment]


KINDS = (Plain, Idempotent, Transactional)
