"""Documents of a catalog in which somebody has put something else in the place of each value, under digests that fit.

Whoever may write to the bucket can do so. Every value of every document is tried: a reader names the object, or leaves
it out, or takes what it says for a fact, and never fails by something that is no error of ours.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cramjam
import pytest

from logkeep_engine.archive.catalog import checkpoint
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.cluster_state import ClusterState, read_cluster_state, state_path
from logkeep_engine.archive.catalog.entry import Layout
from logkeep_engine.archive.catalog.facts import GroupEntry, RemovedSegment, RunOutcome
from logkeep_engine.archive.catalog.held_tables import held_tables, removed_tables
from logkeep_engine.archive.catalog.kinds import MOST_PARTITIONS
from logkeep_engine.archive.maintenance.inspect import describe
from logkeep_engine.archive.maintenance.points import KeepRules
from logkeep_engine.archive.maintenance.retention import RetentionLimits, expired
from logkeep_engine.archive.reading.beginnings import missing_beginnings
from logkeep_engine.archive.reading.completeness import complete_until
from logkeep_engine.archive.reading.view import ends_of_runs
from logkeep_engine.errors import ArchiveDamaged, LogkeepError
from logkeep_engine.storage import Storage, open_uri
from tests.examples import number
from tests.unit.archive import forge
from tests.unit.archive.build import ORDERS, TIME, begin, changed, chunk, reread

VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 1 << 31, 1 << 32, 1 << 63, 10**400, 1.5, float("nan"), float("inf"), "", "x", "../x",
    "\ud800", "b" * 22, [], [None], ["x"], [[]], {}, {"x": 1},
)  # fmt: skip
GONE = object()
Spot = tuple[Any, ...]
Case = tuple[Path, bytes]


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """An archive of three runs, with ACLs, groups, a generation that was read again, and a segment that was removed."""
    made = open_uri((tmp_path / "archive").as_uri())
    acls = (("TOPIC", "orders", "LITERAL", "User:a", "*", "READ", "ALLOW"),)
    users = ClusterState("run-1", TIME, acls, (((("user", "x"),), "producer_byte_rate", 1.0),), None, {"users": "no"})
    group = GroupEntry("g", ORDERS.name, ORDERS.topic_id, 0, 3, -1, "m")
    with begin(made) as writer:
        writer.commit(topics=[ORDERS], receipts=[chunk(made, 0, 40), chunk(made, 0, 20, partition=1)])
        made.put(state_path("run-1"), users.to_json())
        writer.end(RunOutcome.SUCCEEDED, "fine", [group], cluster_state=users.entry(users.to_json()))
    reread(made, "run-2", 40)
    with begin(made, "run-3") as writer:
        writer.commit(receipts=[chunk(made, 20, 40, partition=1, epoch=writer.epoch)])
        writer.end(RunOutcome.SUCCEEDED, "fine", [group])
        writer.remove([RemovedSegment(ORDERS.topic_id, 1, 0)], [])
    return made


def spots(value: Any, at: Spot = ()) -> Iterator[Spot]:
    """The places of all values in a document; names of columns are none of them."""
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if key not in ("columns", "rowColumns"):
            yield from spots(item, (*at, key))


def forged(document: Any, at: Spot, value: Any) -> Any:
    """The document with another value there, or without one."""
    if not at:
        return value
    whole = copy.deepcopy(document)
    place = whole
    for key in at[:-1]:
        place = place[key]
    if value is GONE:
        del place[at[-1]]
    else:
        place[at[-1]] = value
    return whole


def dumped(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def sealed(document: Any) -> bytes:
    """A commit under its own hash."""
    return forge.sealed(document) if isinstance(document, dict) and document else dumped(document)


def of_documents(folder: Path) -> list[Case]:
    """Each document of JSON with each value in each place."""
    cases = []
    for path in sorted(folder.rglob("*.json")):
        document = json.loads(path.read_bytes())
        dump = sealed if path.parent.name == "catalog" else dumped
        for at in spots(document):
            cases += [(path, dump(forged(document, at, value))) for value in (*VALUES, *([GONE] if at else []))]
    return cases


def of_checkpoint(folder: Path, storage: Storage) -> list[Case]:
    """A checkpoint with each value in each place of its line and frames, and with other bytes in its rows."""
    archive = Archive.open(storage)
    state = archive.load()
    data = checkpoint.dump(state, archive.info.archive_id)
    head, body = checkpoint.split(data, "c")
    first, rest = checkpoint.frames_of(body, head["frames"])
    items, _, rows = rest.partition(b"\n")

    def whole(frames: list[bytes], at: Spot = (), value: Any = None) -> Case:
        packed = [bytes(cramjam.zstd.compress(frame, level=1)) for frame in frames]
        found = head | {"frames": list(map(len, packed)), "sha256": hashlib.sha256(b"".join(packed)).hexdigest()}
        path = folder / "catalog" / f"{state.commit:020d}-{state.epoch:010d}.checkpoint"
        return path, dumped(forged(found, at, value) if at else found) + b"\n" + b"".join(packed)

    def each(document: Any) -> Iterator[bytes]:
        return (dumped(forged(document, at, value)) for at in spots(document) for value in VALUES)

    cases = [whole([one, rest]) for one in each(json.loads(first))]
    cases += [whole([first, one + b"\n" + rows]) for one in each(json.loads(items))]
    cases += [whole([first, rest], at, value) for at in spots(head) if at for value in VALUES]
    for at in range(0, len(rows) - 8, 4):
        for some in (b"\xff" * 8, b"\xff" * 7 + b"\x7f", b"\0" * 8):
            cases.append(whole([first, items + b"\n" + rows[:at] + some + rows[at + 8 :]]))
    return cases


def look(storage: Storage) -> None:
    """Read the archive as `inspect`, retention and the writer of a checkpoint do."""
    archive = Archive.open(storage)
    state = archive.load()
    end = next(iter(ends_of_runs(archive, state.commit)), None)
    described = describe(
        archive.info,
        state,
        beginnings=missing_beginnings(archive, state),
        complete=complete_until(archive, state, state.topics),
        lost_tails=archive.lost_tails(state),
        shows=lambda topic: True,
        cluster_state=None if end is None else read_cluster_state(archive, end),
    )
    json.dumps(described.to_json())
    expired(state, RetentionLimits(86_400_000, 1), TIME * 2, KeepRules(1, 1, 1, 1), ())
    for table in (*held_tables(state), *removed_tables(state)):
        for entry in table.segments:
            entry.objects(state.topics[table.key[0]].name)
    checkpoint.load(checkpoint.dump(state, archive.info.archive_id), "again")


@pytest.mark.deep
@pytest.mark.parametrize("where", ["documents", "checkpoint"])
def test_no_value_of_a_document_makes_a_reader_fail_by_another_error(
    storage: Storage, tmp_path: Path, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    folder = tmp_path / "archive"
    cases = of_documents(folder) if where == "documents" else of_checkpoint(folder, storage)
    wanted = min(len(cases), number(300, deep=100_000))
    damaged = 0
    for path, data in random.Random(1).sample(cases, wanted):
        before = path.read_bytes() if path.exists() else None
        path.write_bytes(data)
        try:
            look(storage)
        except LogkeepError:
            damaged += 1
        if before is None:
            path.unlink()
        else:
            path.write_bytes(before)
    assert 0 < damaged < wanted


def damage(storage: Storage) -> str:
    with pytest.raises(ArchiveDamaged) as error:
        Archive.open(storage).load()
    return str(error.value)


@pytest.mark.parametrize("count", [MOST_PARTITIONS + 1, (1 << 31) - 1])
def test_a_topic_of_more_partitions_than_kafka_can_hold_is_damage(storage: Storage, count: int) -> None:
    forge.rewritten(storage, 1, lambda found: found["topics"]["rows"][0].__setitem__(2, count))
    assert f"catalog/{1:020d}.json: ValueError: topic orders with {count!r} partitions" in damage(storage)


@pytest.mark.parametrize("count", [1.5, "2", True])
def test_partitions_that_are_no_number_are_damage(storage: Storage, count: Any) -> None:
    forge.rewritten(storage, 1, lambda found: found["topics"]["rows"][0].__setitem__(2, count))
    assert f"catalog/{1:020d}.json: TypeError: partitions is {count!r}, which is not a valid number" in damage(storage)


def test_many_topics_of_many_partitions_are_damage(storage: Storage) -> None:
    def add(found: dict[str, Any]) -> None:
        topic = found["topics"]["rows"][0]
        more = [[topic[0], f"{at:022d}", MOST_PARTITIONS, *topic[3:]] for at in range(9)]
        found["topics"]["rows"] += more

    forge.rewritten(storage, 1, add)
    assert f"its topics have {9 * MOST_PARTITIONS + 2} partitions" in damage(storage)


def test_a_segment_of_a_partition_that_no_topic_can_have_is_damage(storage: Storage) -> None:
    forge.rewritten(storage, 1, lambda found: found["segments"]["rows"][0].__setitem__(1, 1 << 40))
    assert "the partition of a segment is 1099511627776, which is not a valid partition" in damage(storage)


def test_records_of_a_topic_that_is_not_there_are_damage(storage: Storage) -> None:
    forge.rewritten(storage, 1, lambda found: found["coverage"]["rows"].append(["b" * 22, 0, 0, 1]))
    assert f"it has records of topic id '{'b' * 22}', and no such topic" in damage(storage)


@pytest.mark.parametrize("layout", [Layout.AVRO, Layout.RECORDS])
def test_a_name_of_billions_of_digits_is_refused_before_it_is_made(storage: Storage, layout: Layout) -> None:
    entry = Archive.open(storage).load().segments[ORDERS.topic_id, 0][0]
    with pytest.raises(ValueError, match="sequence_width=4294967295"):
        changed(entry, layout=layout, sequence_width=(1 << 32) - 1)
