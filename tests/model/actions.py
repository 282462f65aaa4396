"""The actions of a history. Each action is a line that can be pasted; one that does not fit does nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.model.asking import Fault
from tests.model.readers import begin_restore
from tests.model.reference import HOUR
from tests.model.world import POLICIES, Pasted, Settings, World


@dataclass(frozen=True, repr=False)
class Write(Pasted):
    """Producers write a batch: a letter is a key, a capital one its tombstone. `hours` is how late its times are."""

    keys: str = "ab"
    partition: int = 0
    commits: bool | None = None
    hours: int = 0
    topic: int = 0

    def on(self, world: World) -> None:
        _, log = world.log(self.partition, self.topic)
        world.time += 60_000
        rows = [
            (b"key-%s-of-somebody" % name.lower().encode(), None if name.isupper() else b"v%d" % (log.end + at))
            for at, name in enumerate(self.keys)
        ]
        log.append(rows, world.time - self.hours * HOUR, self.commits)


@dataclass(frozen=True, repr=False)
class Clean(Pasted):
    """The broker's cleaner works on all but the last offsets of a log."""

    partition: int = 0
    left: int = 0
    topic: int = 0

    def on(self, world: World) -> None:
        topic = world.topic(self.topic)
        if "compact" in topic.policy:
            _, log = world.log(self.partition, self.topic)
            log.clean(log.end - self.left)
            topic.features.add("cleaned")


@dataclass(frozen=True, repr=False)
class Expire(Pasted):
    """Retention in the cluster, or DeleteRecords, moves the start of a log up to the last offsets."""

    partition: int = 0
    left: int = 2
    topic: int = 0

    def on(self, world: World) -> None:
        if "delete" in world.topic(self.topic).policy:
            _, log = world.log(self.partition, self.topic)
            log.delete_below(log.end - self.left)


@dataclass(frozen=True, repr=False)
class CutOff(Pasted):
    """The log of a partition loses its last batches: an unclean election."""

    partition: int = 0
    batches: int = 1
    topic: int = 0

    def on(self, world: World) -> None:
        world.cut_off(*world.log(self.partition, self.topic), self.batches)


@dataclass(frozen=True, repr=False)
class Recreate(Pasted):
    """A topic is deleted, and created again."""

    topic: int = 0

    def on(self, world: World) -> None:
        world.recreate(world.topic(self.topic))


@dataclass(frozen=True, repr=False)
class AddPartition(Pasted):
    """A topic gets a second partition."""

    topic: int = 0

    def on(self, world: World) -> None:
        world.topic(self.topic).partitions = 2


@dataclass(frozen=True, repr=False)
class AddTopic(Pasted):
    """There is a second topic from now on."""

    policy: str = "delete"

    def on(self, world: World) -> None:
        world.add_topic(self.policy)


@dataclass(frozen=True, repr=False)
class SetPolicy(Pasted):
    """A topic gets another cleanup.policy."""

    policy: str
    topic: int = 0

    def on(self, world: World) -> None:
        world.topic(self.topic).policy = self.policy


@dataclass(frozen=True, repr=False)
class Wait(Pasted):
    """Hours go by."""

    hours: int = 24

    def on(self, world: World) -> None:
        world.time += self.hours * HOUR


@dataclass(frozen=True, repr=False)
class Backup(Pasted):
    """A run of a backup. `end` Failed: it has tried everything. `dies`: after this many writes. `again`: it is the run
    that died. `segment`: batches in each; `pieces` of a partition, the last of them first if `backwards`. `generation`:
    "whole" or "part" of one is read. `due`: a reconciliation was told to heal. `merges`: the least number of neighbours
    that are merged; 0: none are."""

    end: str = "Succeeded"
    snapshots: bool = False
    retains: bool = False
    segment: int = 2
    pieces: int = 1
    backwards: bool = False
    generation: str = ""
    due: bool = False
    merges: int = 0
    dies: int | None = None
    again: bool = False

    def on(self, world: World) -> None:
        world.time += 60_000
        world.back_up(self)


@dataclass(frozen=True, repr=False)
class Retain(Pasted):
    """A run of retention alone. `dies`: after this many writes."""

    dies: int | None = None

    def on(self, world: World) -> None:
        if world.runs and world.settings.rules.is_set and world.archive is not None:
            world.retain(self.dies)


@dataclass(frozen=True, repr=False)
class HoldRun(Pasted):
    """A hold on a kept point; a negative number releases all."""

    number: int = 0

    def on(self, world: World) -> None:
        if world.archive is not None:
            world.hold(self.number)


@dataclass(frozen=True, repr=False)
class Erase(Pasted):
    """A key of a topic is erased, everywhere. `dies`: after this many writes; then it is begun again."""

    key: str = "a"
    dies: int | None = None
    topic: int = 0

    def on(self, world: World) -> Fault | None:
        topic = world.topic(self.topic)
        if world.archive is None or not world.reference.points or topic.name not in world.archived_names():
            return None
        done = world.erase(topic, b"key-%s-of-somebody" % self.key.encode(), self.dies)
        # docs/guides/erasure.md, "When it does not succeed"
        held = any(key[0] in topic.ids for key in world.reference.points.get(world.reference.held, ()))
        if done.outcome == "Succeeded" or (held and "There is a hold on run" in done.message):
            return None
        return Fault("refused", "erasure", "", done.message, world.had())


@dataclass(frozen=True, repr=False)
class Convert(Pasted):
    """A conversion into a target of this format, again if there is one. `dies`: after this many writes."""

    format: str = "Kafka"
    dies: int | None = None
    again: bool = True

    def on(self, world: World) -> Fault | None:
        if world.archive is None or not world.reference.points:
            return None
        done = world.convert(self.format, self.dies, self.again)
        if done is None or done.outcome == "Succeeded" or self._is_right(world, done.message):
            return None
        return Fault("refused", f"conversion to {self.format}", "the newest", done.message, world.had())

    def _is_right(self, world: World, message: str) -> bool:
        """Whether the documents promise a refusal: docs/archive/segments.md, "Records and Avro"; docs/cli.md, `logkeep
        convert`."""
        if "was deleted and created again: the source holds it with topic ids" in message:
            return self.format != "Kafka" and any(topic.incarnation for topic in world.topics)
        if world.removals and "The source no longer holds offsets" in message and "which run convert-" in message:
            return True  # one that was begun before
        return "was cut off in the cluster" in message and "branch" in world.had()


@dataclass(frozen=True, repr=False)
class Restore(Pasted):
    """A restore is begun, and started again after each action from now on, so that it comes to its end. `dies`: it has
    begun to write to its target, and dies after this many writes."""

    point: str = "newest"
    number: int = 0
    dies: int | None = None

    def on(self, world: World) -> None:
        begin_restore(world, self.point, self.number, self.dies)


@dataclass(frozen=True)
class History:
    """A history as it can be pasted."""

    settings: Settings
    actions: tuple[Any, ...]

    def __str__(self) -> str:
        lines = "".join(f"\n    {action}," for action in (self.settings, *self.actions))
        return f"history({lines}\n)"


def history(settings: Settings, *actions: Any) -> History:
    """A history of these actions."""
    return History(settings, actions)


@dataclass(frozen=True)
class Style:
    """The ways of one history: how often runs make snapshots and retain, into what it is converted, how many neighbours
    are merged, and the numbers of topics and of partitions."""

    snapshots: float
    retains: float
    format: str
    partitions: int
    merges: int
    topics: int


def random_history(seed: int) -> History:
    """A history of a seed, with some kinds of actions only, so that these come often."""
    chance = Random(seed)
    policy = chance.choice(("delete", "compact", "compact", "compact", "compact,delete"))
    settings = Settings(
        policy,
        keep_runs=chance.choice((0, 0, 1, 1, 2, 3)),
        keep_days=chance.choice((0, 0, 0, 2)),
        max_age=chance.choice((0, 0, 1, 3)),
        max_bytes=chance.choice((0, 0, 0, 400, 900)),
        grace=chance.choice((0, 0, 1)),
        format=chance.choice(("Kafka",) * 6 + ("Records", "Avro")),
    )
    style = Style(
        chance.choice((0.0, 0.5, 1.0)),
        chance.choice((0.3, 1.0)),
        chance.choice(("Kafka", "Kafka", "Records", "Avro")),
        chance.choice((1, 1, 2)),
        chance.choice((0, 2, 2, 3)),
        chance.choice((1, 1, 2)),
    )
    kinds = [_write, _write, _backup, _backup, *(kind for kind in _SOMETIMES if chance.random() < 0.35 for _ in "ab")]
    actions: list[Any] = _write(chance, style)
    actions += [AddTopic(chance.choice((policy, *POLICIES)))] if style.topics > 1 else []
    actions += [AddPartition(number) for number in range(style.topics) if style.partitions > 1]
    actions += _backup(chance, style)
    length = chance.randrange(6, 18)
    while len(actions) < length:
        actions += chance.choice(kinds)(chance, style)
    return History(settings, tuple(actions))


def _topic(chance: Random, style: Style) -> int:
    return chance.randrange(style.topics)


def _write(chance: Random, style: Style) -> list[Any]:
    keys = "".join(chance.choice("abcABdabcd") for _ in range(chance.randrange(1, 5)))
    commits, topic = chance.choice((None, None, None, True, False)), _topic(chance, style)
    return [Write(keys, chance.randrange(style.partitions), commits, chance.choice((0, 0, 0, 0, 1, 48)), topic)]


def _backup(chance: Random, style: Style) -> list[Any]:
    return [
        Backup(
            end=chance.choice(("Succeeded",) * 7 + ("Failed",)),
            snapshots=chance.random() < style.snapshots,
            retains=chance.random() < style.retains,
            segment=chance.choice((1, 2, 9)),
            pieces=chance.choice((1, 2)),
            backwards=chance.random() < 0.3,
            merges=style.merges if chance.random() < 0.7 else 0,
            dies=chance.randrange(30) if chance.random() < 0.12 else None,
            again=chance.random() < 0.5,
        )
    ]


def _generation(chance: Random, style: Style) -> list[Any]:
    return [
        Backup(
            snapshots=chance.random() < style.snapshots,
            retains=chance.random() < style.retains,
            segment=chance.choice((1, 9)),
            generation=chance.choice(("whole", "whole", "part")),
            due=chance.random() < 0.2,
            merges=style.merges,
        )
    ]


def _cut_off(chance: Random, style: Style) -> list[Any]:
    """An unclean election, with or without a record before the next run."""
    cut = CutOff(chance.randrange(style.partitions), chance.choice((1, 1, 2)), _topic(chance, style))
    return [cut, *chance.choice(([], _write(chance, style))), *_backup(chance, style)]


def _convert(chance: Random, style: Style) -> list[Any]:
    dies = chance.randrange(20) if chance.random() < 0.3 else None
    return [Convert(style.format, dies, chance.random() < 0.5)]


def _erase(chance: Random, style: Style) -> list[Any]:
    return [Erase(chance.choice("abc"), chance.randrange(12) if chance.random() < 0.3 else None, _topic(chance, style))]


def _restore(chance: Random, style: Style) -> list[Any]:
    return [
        Restore(
            chance.choice(("newest", "run", "run", "time")),
            chance.randrange(9),
            chance.choice((None, None, 1, 2, 3, 5, 8)),
        )
    ]


def _recreate(chance: Random, style: Style) -> list[Any]:
    return [Recreate(_topic(chance, style)), *_write(chance, style), *_backup(chance, style)]


_SOMETIMES: tuple[Callable[[Random, Style], list[Any]], ...] = (
    _generation,
    _cut_off,
    _convert,
    _convert,
    _erase,
    _restore,
    _recreate,
    lambda chance, style: [
        Clean(chance.randrange(style.partitions), chance.choice((0, 0, 1, 3)), _topic(chance, style))
    ],
    lambda chance, style: [Expire(chance.randrange(style.partitions), chance.choice((1, 2, 4)), _topic(chance, style))],
    lambda chance, style: [SetPolicy(chance.choice(POLICIES), _topic(chance, style))],
    lambda chance, style: [Wait(chance.choice((1, 25, 50, 100)))],
    lambda chance, style: [Retain(chance.randrange(10) if chance.random() < 0.3 else None)],
    lambda chance, style: [HoldRun(chance.choice((-1, 0, 1, 2)))],
)
