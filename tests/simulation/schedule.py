"""A seed's schedule: the whole of what will happen, drawn before it begins.

schedule = make_schedule(4711)
print(schedule)
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from logkeep_engine.contract.spec import OnDataLoss, OnDivergence
from tests.simulation.cluster import RELEASES
from tests.simulation.faults import FOREVER, Kind, Lie
from tests.simulation.history import Action
from tests.simulation.protocol import Api
from tests.simulation.s3_front import HttpFault, HttpKind
from tests.simulation.store import StoreFault, StoreKind

_WRITES = ("write", "write", "write", "begin_transaction", "end_transaction", "compact")
_OWNERS = ("delete_records", "delete_topic", "recreate_topic", "add_partition")
_BROKERS = ("move_leader", "move_leader", "lag", "unclean", "diverge", "stop_broker", "start_brokers", "tier")
_OTHERS = ("write", "write", "write", "begin_transaction", "end_transaction")
_OF_TARGET = ("move_leader", "lag", "unclean", "stop_broker", "start_brokers")
# This lie stands alone: beside others nothing but the broker's memory of a producer tells a batch that is sent again.
_FORGET = ("forget_producers",)

# Error codes that a broker answers a request with while it passes.
_FETCH_CODES = (6, 74, 75, 3, 100, 56, 9, -1, 78)
_OFFSET_CODES = (5, 6, 74, 75, 3, 78)
_PRODUCE_CODES = (6, 3, 5, 7, 19, 20, 56, 13)
_COORDINATOR_CODES = (14, 15, 16)
_REQUEST_KINDS = (Kind.DROPPED, Kind.LOST_ANSWER, Kind.SILENCE, Kind.SLOW, Kind.CUT_ANSWER, Kind.THROTTLED)
_FETCH_KINDS = (
    Kind.CODE,
    Kind.CODE,
    Kind.EMPTY,
    Kind.EMPTY,
    Kind.LATE_WATERMARK,
    Kind.OUT_OF_RANGE,
    Kind.FLIPPED,
    Kind.CUT_BATCH,
    Kind.DUPLICATED,
    Kind.ABORTED_MISSING,
    Kind.ABORTED_MISSING,
)
_BACKUP_APIS = (Api.FETCH, Api.FETCH, Api.FETCH, Api.LIST_OFFSETS, Api.LIST_OFFSETS, Api.METADATA, Api.DESCRIBE_CONFIGS)
_RESTORE_APIS = (Api.PRODUCE, Api.PRODUCE, Api.PRODUCE, Api.FETCH, Api.LIST_OFFSETS, Api.METADATA, Api.CREATE_TOPICS)
_STORE_OPERATIONS = ("create", "put", "writer", "read", "list", "delete")


@dataclass(frozen=True, slots=True)
class Event:
    """An action that happens when the brokers have had so many requests of the attempt."""

    at: int
    action: Action

    def __str__(self) -> str:
        return f"{self.action} at request {self.at}"


@dataclass(slots=True)
class Attempt:
    """One start of a run. `death`: after how many calls the driver dies; `task_deaths`: of the tasks."""

    before: list[Action] = field(default_factory=list)
    lies: list[Lie] = field(default_factory=list)
    store_faults: list[StoreFault] = field(default_factory=list)
    http_faults: list[HttpFault] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    death: int | None = None
    dies_before: bool = False
    task_deaths: list[int | None] = field(default_factory=list)
    same_run: bool = True

    def lines(self) -> list[str]:
        lines = [f"  first: {', '.join(map(str, self.before))}"] if self.before else []
        lines += [f"  {item}" for item in (*self.lies, *self.store_faults, *self.http_faults, *self.events)]
        if self.death is not None:
            lines.append(f"  the driver dies {'before' if self.dies_before else 'after'} call {self.death}")
        if any(death is not None for death in self.task_deaths):
            lines.append(
                f"  tasks die after calls {self.task_deaths[::-1]} (negative: they are only thought to be dead)"
            )
        return lines or ["  nothing goes wrong"]


@dataclass(frozen=True, slots=True)
class TopicShape:
    """A topic at the beginning."""

    name: str
    partitions: int
    replicas: int
    compacted: bool
    tiered: bool
    min_isr: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """All that a seed decides. Lies and faults in it are used up by a run: make another one for the next."""

    seed: int
    release: str
    target_release: str
    brokers: int
    topics: tuple[TopicShape, ...]
    on_data_loss: OnDataLoss
    on_divergence: OnDivergence
    threads: int
    batches_an_answer: int
    s3: bool
    backups: tuple[Attempt, ...]
    restores: tuple[Attempt, ...]
    target_brokers: int
    append: bool

    def __str__(self) -> str:
        kind = "S3" if self.s3 else "a folder"
        lines = [
            f"seed {self.seed}: {self.brokers} brokers of Kafka {self.release}, restored to "
            f"{self.target_brokers} of {self.target_release}, onDataLoss {self.on_data_loss.value}, "
            f"onDivergence {self.on_divergence.value}, "
            f"{self.threads} tasks at once, the archive in {kind}"
            + (", restored beside records of others" if self.append else "")
        ]
        lines += [f"  {shape}" for shape in self.topics]
        for title, attempts in (("backup", self.backups), ("restore", self.restores)):
            for number, attempt in enumerate(attempts, start=1):
                again = " (same run)" if attempt.same_run and number > 1 else ""
                lines += [f"{title} {number}{again}", *attempt.lines()]
        return "\n".join(lines)


def make_schedule(seed: int) -> Schedule:
    """The same for the same seed."""
    rng = random.Random(seed)
    brokers = rng.choice([1, 2, 3, 3])
    release = rng.choices(list(RELEASES), weights=[1, 2, 4, 13])[0]
    s3 = rng.random() < 0.25
    topics = tuple(_topic(rng, name, brokers) for name in ("orders", "users")[: rng.randint(1, 2)])
    backups = tuple(_backup(rng, number, s3=s3) for number in range(rng.randint(1, 3)))
    target_brokers = rng.choice([1, 2, 3])
    append = rng.random() < 0.25
    return Schedule(
        seed=seed,
        release=release,
        target_release=rng.choices(list(RELEASES), weights=[1, 2, 4, 13])[0],
        brokers=brokers,
        topics=topics,
        on_data_loss=rng.choice(list(OnDataLoss)),
        on_divergence=rng.choice([OnDivergence.FAIL, OnDivergence.BRANCH, OnDivergence.BRANCH]),
        threads=rng.choice([1, 1, 2]),
        batches_an_answer=rng.choice([1, 2, 2, FOREVER]),
        s3=s3,
        backups=backups,
        restores=tuple(_restore(rng, s3=s3, append=append) for _ in range(rng.randint(0, 2))),
        target_brokers=target_brokers,
        append=append,
    )


def _topic(rng: random.Random, name: str, brokers: int) -> TopicShape:
    replicas = rng.randint(1, brokers)
    tiered = rng.random() < 0.25
    return TopicShape(
        name,
        rng.randint(1, 3),
        replicas,
        compacted=not tiered and rng.random() < 0.3,
        tiered=tiered,
        min_isr=rng.randint(1, min(2, replicas)),
    )


def _actions(rng: random.Random, names: tuple[str, ...], count: int) -> list[Action]:
    return [Action(rng.choice(names), rng.getrandbits(32)) for _ in range(count)]


def _backup(rng: random.Random, number: int, *, s3: bool) -> Attempt:
    before = _actions(rng, _WRITES, rng.randint(4, 9) if number == 0 else rng.randint(0, 5))
    before += _actions(rng, (*_BROKERS, "tier"), rng.choice([0, 1, 2]))
    before += _actions(rng, _OWNERS, rng.choice([0, 0, 0, 1]))
    before += _actions(rng, _WRITES, rng.randint(0, 3))
    events = _actions(rng, (*_WRITES, *_BROKERS, *_BROKERS), rng.choice([0, 1, 2, 3]))
    events += _actions(rng, _OWNERS, rng.choice([0, 0, 0, 1]))
    return Attempt(
        before=before,
        lies=[_lie(rng, rng.choice(_BACKUP_APIS)) for _ in range(rng.choice([0, 1, 2, 3, 4]))],
        store_faults=[] if s3 else _store_faults(rng),
        http_faults=_http_faults(rng) if s3 else [],
        events=sorted((Event(rng.randint(1, 45), action) for action in events), key=lambda event: event.at),
        death=rng.randint(1, 60) if rng.random() < 0.4 else None,
        dies_before=rng.random() < 0.5,
        task_deaths=_task_deaths(rng),
        same_run=rng.random() < 0.6,
    )


def _restore(rng: random.Random, *, s3: bool, append: bool) -> Attempt:
    events = [
        Event(rng.randint(1, 45), action)
        for action in _actions(
            rng, (*_OF_TARGET, *_OTHERS) if append else (*_OF_TARGET, *_FORGET), rng.choice([0, 1, 2, 3])
        )
    ]
    if rng.random() < 0.4:  # a replica falls behind, and leads some requests later
        at = rng.randint(12, 45)
        lag, unclean = (Action(name, rng.getrandbits(32)) for name in ("lag", "unclean"))
        events += [Event(at, lag), Event(at + rng.randint(1, 8), unclean)]
    return Attempt(
        before=_actions(rng, _OTHERS, rng.randint(0, 4)) if append else [],
        lies=[_lie(rng, rng.choice(_RESTORE_APIS), forgets=not append) for _ in range(rng.choice([0, 1, 2, 3, 4]))],
        store_faults=[] if s3 else _store_faults(rng),
        http_faults=_http_faults(rng) if s3 else [],
        events=sorted(events, key=lambda event: event.at),
        death=rng.randint(1, 60) if rng.random() < 0.5 else None,
        dies_before=rng.random() < 0.5,
        task_deaths=_task_deaths(rng),
        same_run=rng.random() < 0.8,
    )


def _task_deaths(rng: random.Random) -> list[int | None]:
    return [rng.choice([None, rng.randint(1, 25), -rng.randint(1, 25)]) for _ in range(rng.choice([0, 0, 1, 3]))]


def _store_faults(rng: random.Random) -> list[StoreFault]:
    faults = []
    for _ in range(rng.choice([0, 0, 0, 1, 2])):
        operation = rng.choice(_STORE_OPERATIONS)
        kinds = [StoreKind.UNAVAILABLE, StoreKind.LOST_ANSWER, StoreKind.SLOW]
        if operation == "create":
            kinds.append(StoreKind.EXISTS)
        if operation == "list":
            kinds = [StoreKind.UNAVAILABLE, StoreKind.STALE_LIST]
        kind = rng.choice(kinds)
        faults.append(StoreFault(kind, operation, rng.randint(0, 8), rng.choice([1, 1, 2, 4])))
    return faults


def _http_faults(rng: random.Random) -> list[HttpFault]:
    faults = []
    for _ in range(rng.choice([0, 1, 2, 3])):
        method = rng.choice(["GET", "PUT", "PUT", "LIST"])
        kinds = [HttpKind.SLOW_DOWN, HttpKind.INTERNAL, HttpKind.SLOW, HttpKind.LOST_ANSWER, HttpKind.DROPPED]
        kinds += {"GET": [HttpKind.CUT_BODY], "PUT": [], "LIST": [HttpKind.STALE_LIST, HttpKind.CUT_BODY]}[method]
        faults.append(HttpFault(rng.choice(kinds), method, rng.randint(0, 12), rng.choice([1, 1, 2])))
    return faults


def _lie(rng: random.Random, api: Api, *, forgets: bool = True) -> Lie:
    times = rng.choice([1, 1, 2, 3, 4, 8, FOREVER])
    after = rng.choice([0, 0, 1, 2, 3, 5, 8])
    topic = rng.choice([None, None, "orders"])
    node = rng.choice([None, None, 1, 2])
    if rng.random() < 0.25:
        kind = rng.choice(_REQUEST_KINDS)
        return Lie(kind, api, after, min(times, 3 if kind is Kind.SILENCE else 8), node=node)
    match api:
        case Api.FETCH:
            kind = rng.choice(_FETCH_KINDS)
            return Lie(kind, api, after, times, rng.choice(_FETCH_CODES), node, topic, rng.choice([None, 0]))
        case Api.LIST_OFFSETS:
            kind = rng.choice([Kind.CODE, Kind.CODE, Kind.NO_OFFSET, Kind.STALE_OFFSET])
            return Lie(kind, api, after, times, rng.choice(_OFFSET_CODES), node, topic)
        case Api.METADATA:
            kind = rng.choice([Kind.UNKNOWN_TOPIC, Kind.NO_LEADER, Kind.STALE_LEADER, Kind.MISSING_BROKER])
            if kind is Kind.UNKNOWN_TOPIC:
                node = 2  # the controller, which is the first broker, knows
            return Lie(kind, api, after, times, node=node, topic=None if kind is Kind.MISSING_BROKER else topic)
        case Api.PRODUCE:
            kind = rng.choice([Kind.CODE, Kind.CODE, Kind.APPENDED_WITH_ERROR, Kind.FORGOTTEN_PRODUCER])
            if kind is Kind.FORGOTTEN_PRODUCER and not forgets:
                kind = Kind.APPENDED_WITH_ERROR
            return Lie(kind, api, after, times, rng.choice(_PRODUCE_CODES), node, topic)
        case Api.CREATE_TOPICS:
            kind = rng.choice([Kind.CODE, Kind.MADE_WITH_ERROR])
            return Lie(kind, api, 0, min(times, 3), rng.choice([7, 41, -1]))
        case _:
            return Lie(Kind.CODE, api, after, min(times, 3), rng.choice(_COORDINATOR_CODES), node)
