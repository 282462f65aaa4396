"""The figures that the design asks for, beside those that were measured.

Ratios are made within one run: contenders take turns at the same topic on the same machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bench.plan import VERIFIED
from bench.requests import per_tib, writes
from bench.results import Results, Row

Line = tuple[str, str, str, str]  # figure, topic, wanted, measured

MAIN = ("plain-1k", "zstd-1k", "lz4-1k", "lz4-100")
BACKUP_OF_PEER = {"single-100": 1.0, "single-2m": 1.0, "five-100": 2.0}
RESTORE_OF_PEER = {**BACKUP_OF_PEER, "skewed": 3.0, "txn": 3.0, "random-10k": 3.0}
OF_PEER = 5.0  # where nothing else is said
OF_NATIVE = {"backup": 0.4, "restore": 0.3}
WHOLE_PROCESS = ("single-2m",)
FORMAT_TOPIC = "lz4-100"
WRITES_A_TIB = 50_000
DIGESTS_A_SECOND = 10_000_000


def lines(found: Results, peer: str) -> Iterator[Line]:
    """All of them that were measured. `peer` is the name of the other tool, "" without one."""
    for topic in found.topics:
        yield from _compared(
            found, "pinned", topic, "floor", "1: backup, one core, MB/s of the floor", _main(topic, 0.8)
        )
        yield from _compared(
            found, "backup", topic, "floor", "1: backup, two cores, MB/s of the floor", _main(topic, 0.9)
        )
    if peer:
        yield from _of_peer(found, peer)
    for topic in found.topics:
        engine, verified = found.find("restore", topic, "engine"), found.find("restore", topic, VERIFIED)
        if engine and verified:
            yield "Full verification, records/s of the restore", topic, "≥ 0.5", _rates(verified, engine)
    for topic in found.topics:
        yield from _compared(found, "decode", topic, "librdkafka", "records taken apart, records/s of librdkafka", 4.0)
    yield from _of_native(found)
    yield from _facts(found)
    for topic in found.topics:
        one, two = found.find("scaling", topic, "1 process"), found.find("scaling", topic, "2 processes")
        if one and two:
            reached = ratio(two.mb_per_second, one.mb_per_second)
            yield "5: two cores, times one (the broker shares them)", topic, "≥ 1.6", reached


def ratio(this: float, that: float | None) -> str:
    """How many times that."""
    return "" if not that else f"{this / that:.2f}"


def _main(topic: str, wanted: float) -> float | None:
    return wanted if topic in MAIN else None


def _of_peer(found: Results, peer: str) -> Iterator[Line]:
    for topic, facts in found.topics.items():
        backup = BACKUP_OF_PEER.get(topic, None if facts.get("codec") == "none" else OF_PEER)
        yield from _compared(found, "backup", topic, peer, "2: backup, records/s of the peer", backup)
        restore = RESTORE_OF_PEER.get(topic, OF_PEER)
        yield from _compared(found, "restore", topic, peer, "3: restore, records/s of the peer", restore)
        for section, number in (("backup", 2), ("restore", 3)):
            ours, theirs = found.find(section, topic, "engine"), found.find(section, topic, peer)
            if topic in WHOLE_PROCESS and ours and theirs:
                title = f"{number}: {section}, whole process, times the peer's"
                yield title, topic, "≥ 1", ratio(theirs.median("wall") or 0, ours.median("wall"))
        spark, other = found.find("backup", topic, "spark"), found.find("backup", topic, peer)
        if spark and other:
            reached = ratio(other.median("wall") or 0, spark.median("wall"))
            yield "2: backup, whole Spark run, times the peer's", topic, "> 1 from 2 GB", reached


def _of_native(found: Results) -> Iterator[Line]:
    """The formats of records against the native one."""
    for verb, wanted in OF_NATIVE.items():
        native = found.find("formats", FORMAT_TOPIC, f"{verb}, Kafka")
        for label in ("Records", "Avro"):
            row = found.find("formats", FORMAT_TOPIC, f"{verb}, {label}")
            if native and row:
                title = f"format {label}: {verb}, records/s of the native format"
                yield title, FORMAT_TOPIC, f"≥ {wanted:g}", _rates(row, native)


def _facts(found: Results) -> Iterator[Line]:
    """The sections that are not rows of samples."""
    for row in found.facts.get("digest", ()):
        yield (
            "record digest, a core, M records/s",
            str(row["topic"]),
            f"≥ {DIGESTS_A_SECOND / 1e6:g}",
            f"{row['records/s'] / 1e6:.1f}",
        )
    facts = found.facts.get("requests")
    if facts:
        number = per_tib(writes(facts["backup"]["segments"]), facts["wire"])
        yield "requests that write, a backup of a TiB", facts["topic"], f"≤ {WRITES_A_TIB:,}", f"{number:,.0f}"
    for row in found.facts.get("memory", ()):
        yield f"4: {row['what']} of {row['gb']} GB, MB above the interpreter", "memory", "≤ 268", _above(found, row)
    for row in found.facts.get("hostile", ()):
        title = f"4: {row['what']} in {row['format']}, MB above the interpreter"
        yield title, f"hostile: {row['topic']}", "≤ 268", _above(found, row)
    for row in found.facts.get("scale", ()):
        if row["step"].endswith("planning"):
            where = f"{row.get('partitions', 0):,} partitions"
            yield "6: planning, seconds", where, "≤ 60", f"{row['seconds']:.1f}"
            yield "6: planning, MiB of the driver", where, "≤ 1024", f"{row['peak_mib']}"


def _above(found: Results, row: Mapping[str, float]) -> str:
    return f"{(row['peak'] - found.bare) / 1e6:.0f}"


def _compared(found: Results, section: str, topic: str, other: str, title: str, wanted: float | None) -> Iterator[Line]:
    """The engine against another contender of a section; nothing if nothing is wanted there."""
    ours, theirs = found.find(section, topic, "engine"), found.find(section, topic, other)
    if wanted is not None and ours and theirs:
        yield title, topic, f"≥ {wanted:g}", _rates(ours, theirs)


def _rates(ours: Row, theirs: Row) -> str:
    return ratio(ours.records_per_second, theirs.records_per_second)
