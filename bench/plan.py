"""The plan of the measurements: a list of stages with their contenders, in order.

Contenders of a stage take turns (first sample of each, then the second of each, and so on), after one pass of the floor
that nobody counts, so that a machine that slows down slows all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from bench import contenders as c
from bench.contenders import Contender, Stage
from bench.peer import Peer
from bench.topics import Topic
from logkeep_engine.contract.model import replace

SECTIONS = (
    "pinned", "backup", "restore", "s3", "spark", "scaling", "decode", "formats", "trust",
    "parts", "digest", "requests", "scale", "memory", "hostile",
)  # fmt: skip
MAIN = ("plain-1k", "zstd-1k", "lz4-1k", "lz4-100")
PACKED = ("plain-1k", "single-100")  # also as segments compressed with zstd
RECORD_CLIENTS = ("zstd-1k", "lz4-100")  # where Java reads, and Java and librdkafka write: they take the longest
SPARK_TOPICS = ("plain-1k", "zstd-1k", "lz4-100")
S3_TOPICS = ("zstd-1k",)
SCALED = ("zstd-1k",)
DECODED = ("lz4-100", "plain-1k")
FORMATS = ("plain-1k", "lz4-100")
TRUSTED = ("plain-1k",)  # 2 GB
MANY_BATCHES = ("single-2m",)  # the floor of a restore, a request for each batch, would take minutes
CONVERSIONS = (("Kafka", "Records"), ("Kafka", "Avro"), ("Avro", "Kafka"))
VERIFIED = "engine, Full verification"
BROKER_CORE, ENGINE_CORE = 0, 1


@dataclass(frozen=True, slots=True)
class Turn:
    """A contender at a stage and how often it takes its turn."""

    who: str
    run: Contender
    repeat: int


@dataclass(frozen=True, slots=True)
class Group:
    """Turns at one topic. `pinned`: the broker on one core, the contender on another."""

    section: str
    where: str
    turns: tuple[Turn, ...]
    pinned: bool = False
    before: Callable[[Stage], object] | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line."""

    sections: frozenset[str]
    topics: tuple[Topic, ...]
    repeat: int
    repeat_slow: int
    peer: Peer | None
    factor: int


def groups(topic: Topic, options: Options) -> list[Group]:
    """Everything that is measured at one topic, in order."""
    wanted = options.sections
    found: list[Group] = []
    main = topic.name in MAIN
    clients = topic.name in RECORD_CLIENTS
    if not main:
        options = replace(options, repeat=options.repeat_slow)
    if "pinned" in wanted and main:
        found.append(_pinned(options))
    if "backup" in wanted:
        found.append(Group("backup", "file", _backup(topic, clients, options)))
    if "restore" in wanted:
        found.append(_restore(topic, clients, options))
    if "s3" in wanted and topic.name in S3_TOPICS:
        found += _s3(options)
    if "spark" in wanted and topic.name in SPARK_TOPICS:
        found += _spark(options)
    if "scaling" in wanted and topic.name in SCALED:
        found.append(Group("scaling", "file", _scaling(options)))
    if "decode" in wanted and topic.name in DECODED:
        both: list[tuple[str, Contender]] = [("engine", c.engine_decode), ("librdkafka", c.librdkafka_consume)]
        found.append(Group("decode", "file", _turns(options, both, [])))
    if "formats" in wanted and topic.name in FORMATS:
        found += _formats(options)
    if "trust" in wanted and topic.name in TRUSTED:
        found.append(_trust(options))
    return found


def _turns(
    options: Options, quick: Sequence[tuple[str, Contender]], slow: Sequence[tuple[str, Contender]]
) -> tuple[Turn, ...]:
    turns = [Turn(who, run, options.repeat) for who, run in quick]
    return tuple(turns + [Turn(who, run, options.repeat_slow) for who, run in slow])


def _peer(options: Options, verb: str) -> list[tuple[str, Contender]]:
    if options.peer is None:
        return []
    run: Contender
    run = partial(c.peer_backup, options.peer) if verb == "backup" else partial(c.peer_restore, options.peer)
    return [(options.peer.name, run)]


def _pinned(options: Options) -> Group:
    quick: list[tuple[str, Contender]] = [("floor", c.floor_backup), ("engine", c.engine_backup)]
    return Group("pinned", "file", _turns(options, quick, []), pinned=True)


def _backup(topic: Topic, clients: bool, options: Options) -> tuple[Turn, ...]:
    quick: list[tuple[str, Contender]] = [("floor", c.floor_backup), ("engine", c.engine_backup)]
    if topic.name in PACKED:
        quick.append(("engine, Zstd", partial(c.engine_backup, segment={"compression": "Zstd"})))
    slow: list[tuple[str, Contender]] = [("librdkafka", c.librdkafka_consume)]
    if clients:
        slow.append(("java", c.java_consume))
    return _turns(options, quick + _peer(options, "backup"), slow)


def _restore(topic: Topic, clients: bool, options: Options) -> Group:
    quick: list[tuple[str, Contender]] = [("engine", c.engine_restore)]
    if topic.name not in MANY_BATCHES:
        quick.insert(0, ("floor", c.floor_restore))
    if topic.name in MAIN:
        quick.append((VERIFIED, partial(c.engine_restore, verified=True)))
    slow = _peer(options, "restore")
    if clients:
        slow += [("librdkafka", c.librdkafka_produce), ("java", c.java_produce)]
    return Group("restore", "file", _turns(options, quick, slow), before=partial(_archives, options))


def _archives(options: Options, stage: Stage) -> None:
    c.engine_backup(stage, keep=True)
    if options.peer is not None:
        c.peer_backup(options.peer, stage, keep=True)


def _s3(options: Options) -> list[Group]:
    backup: list[tuple[str, Contender]] = [("engine", c.engine_backup)]
    restore: list[tuple[str, Contender]] = [("engine", c.engine_restore)]
    return [
        Group("backup", "s3", _turns(options, backup, _peer(options, "backup"))),
        Group("restore", "s3", _turns(options, restore, _peer(options, "restore")), before=partial(_archives, options)),
    ]


def _spark(options: Options) -> list[Group]:
    archive = partial(_archives, replace(options, peer=None))
    return [
        Group("backup", "file", _turns(options, [], [("spark", c.spark_backup)])),
        Group("restore", "file", _turns(options, [], [("spark", c.spark_restore)]), before=archive),
    ]


def _trust(options: Options) -> Group:
    """A restore of everything, one to a point in the middle, and a drill, from one archive."""
    slow: list[tuple[str, Contender]] = [
        ("restore of everything", c.engine_restore),
        ("restore to a point", c.engine_restore_to_point),
        ("drill", c.engine_drill),
    ]
    return Group("trust", "file", _turns(options, [], slow), before=partial(_archives, replace(options, peer=None)))


def _formats(options: Options) -> list[Group]:
    """Backups in each format, then restores and conversions of these archives."""
    backups: list[tuple[str, Contender]] = [
        (f"backup, {label}", partial(c.engine_backup, **spec)) for label, spec in c.FORMATS.items()
    ]
    restores: list[tuple[str, Contender]] = [
        (f"restore, {label}", partial(c.engine_restore, label=label)) for label in c.FORMATS
    ]
    conversions: list[tuple[str, Contender]] = [
        (f"convert, {source} to {target}", partial(c.engine_convert, source=source, target=target))
        for source, target in CONVERSIONS
    ]
    return [
        Group("formats", "file", _turns(options, [], backups)),
        Group("formats", "file", _turns(options, [], restores + conversions), before=_format_archives),
    ]


def _format_archives(stage: Stage) -> None:
    for label, spec in c.FORMATS.items():
        c.engine_backup(stage, keep=True, label=label, **spec)


def _scaling(options: Options) -> tuple[Turn, ...]:
    quick: list[tuple[str, Contender]] = [
        ("1 process", partial(c.engine_backup, processes=1)),
        ("2 processes", partial(c.engine_backup, processes=2)),
    ]
    slow: list[tuple[str, Contender]] = [
        ("Spark local[1]", partial(c.spark_backup, cores=1)),
        ("Spark local[2]", partial(c.spark_backup, cores=2)),
    ]
    return _turns(options, quick, slow)
