"""Keys of the archive beside those of a log that is cleaned while it is read: no false alarm, and no miss."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logkeep_engine.backup.reconcile.comparing import CleanerTooFast, ComparedKeys, LiveLog, compare_keys
from logkeep_engine.log.consumed import PlainRecord
from logkeep_engine.log.key_comparison import ALL_KEYS, MOST_OFFSETS, KeyNotes, new_secret
from logkeep_engine.log.rows import Rows, as_rows
from tests.examples import scaled

ENOUGH = 1 << 20
ROOM_FOR_FEW = 1  # the least: shares of a key or two
KEYS = 12
STEPS = st.sampled_from(["put", "put", "put", "delete", "clean", "backup", "retain"])
MEANWHILE = st.sampled_from(["replace", "replace", "put", "delete", "clean", "retain"])


@dataclass
class Cluster:
    """A partition as Kafka keeps it: its cleaner takes away what is replaced, and tombstones."""

    log: dict[int, tuple[int, bool]] = field(default_factory=dict)  # offset: (key, is a tombstone)
    start: int = 0
    end: int = 0

    def put(self, key: int, *, tombstone: bool) -> None:
        self.log[self.end] = (key, tombstone)
        self.end += 1

    def clean(self, until: int, *, tombstones: bool) -> None:
        """Clean the segments below an offset. Tombstones go, if their delete.retention.ms has passed."""
        last = {key: offset for offset, (key, _) in self.log.items()}
        self.log = {
            offset: (key, tombstone)
            for offset, (key, tombstone) in self.log.items()
            if offset >= until or (last[key] == offset and not (tombstone and tombstones))
        }

    def retain(self, start: int) -> None:
        self.start = max(self.start, start)
        self.log = {offset: record for offset, record in self.log.items() if offset >= self.start}

    def has(self, key: int, since: int) -> bool:
        return any(own == key and offset >= since for offset, (own, _) in self.log.items())


@dataclass
class Archive:
    """The records that backups have read of it."""

    log: dict[int, tuple[int, bool]] = field(default_factory=dict)
    end: int = 0

    def backup(self, cluster: Cluster) -> None:
        self.log |= {offset: record for offset, record in cluster.log.items() if offset >= self.end}
        self.end = cluster.end

    def last(self) -> dict[int, tuple[int, bool]]:
        """By key: the offset of its last record, and whether it is a tombstone."""
        return {key: (offset, tombstone) for offset, (key, tombstone) in sorted(self.log.items())}

    def note(self, keys: KeyNotes) -> None:
        keys.note(_rows(self.log), live=False)


def _rows(log: dict[int, tuple[int, bool]]) -> Rows:
    return as_rows(
        [
            PlainRecord(offset, 0, 0, b"%d" % key, None if tombstone else b"v", ())
            for offset, (key, tombstone) in sorted(log.items())
        ]
    )


class Reader:
    """Reads the log in pieces, between which the cluster does something. It remembers which records of which keys were
    gone at a moment, and which were so at all moments."""

    def __init__(self, cluster: Cluster, archive: Archive, data: Any) -> None:
        self.cluster = cluster
        self.data = data
        self.begin = 0
        self.last = {key: offset for key, (offset, tombstone) in archive.last().items() if not tombstone}
        self.sometimes_gone = set[int]()
        self.always_gone = set(self.last)
        self._look()

    def _look(self) -> None:
        gone = {key for key, offset in self.last.items() if not self.cluster.has(key, offset)}
        self.sometimes_gone |= gone
        self.always_gone &= gone

    def _meanwhile(self) -> None:
        for step in self.data.draw(st.lists(MEANWHILE, max_size=3)):
            act(self.cluster, None, step, self.data)
            self._look()

    async def start(self) -> int:
        return self.cluster.start

    async def stable_end(self) -> int:
        return self.cluster.end

    async def note(self, keys: KeyNotes, start: int, end: int) -> bool:
        found = 0
        at = start
        while at < end:
            until = min(end, at + self.data.draw(st.integers(1, 6)))
            at = max(at, self.cluster.start)
            seen = {offset: record for offset, record in self.cluster.log.items() if at <= offset < until}
            keys.note(_rows(seen), live=True)
            found += len(seen)
            at = until
            self._meanwhile()
        return found == end - start


def act(cluster: Cluster, archive: Archive | None, step: str, data: Any) -> None:
    match step:
        case "put" | "delete":
            cluster.put(data.draw(st.integers(0, KEYS - 1)), tombstone=step == "delete")
        case "replace":
            cluster.put(data.draw(st.integers(0, KEYS - 1)), tombstone=False)
            cluster.clean(cluster.end, tombstones=False)
        case "clean":
            cluster.clean(data.draw(st.integers(cluster.start, cluster.end)), tombstones=data.draw(st.booleans()))
        case "retain" if data.draw(st.integers(0, 4)) == 0:
            cluster.retain(data.draw(st.integers(cluster.start, cluster.end)))
        case "backup" if archive is not None:
            archive.backup(cluster)


def compared(reader: LiveLog, archive: Archive, map_bytes: int) -> ComparedKeys | None:
    accounted = [(0, archive.end)] if archive.end else []
    try:
        return asyncio.run(compare_keys(archive.note, reader, archive.end, accounted, map_bytes=map_bytes, most=100))
    except CleanerTooFast:
        return None


def cluster_and_archive(data: Any) -> tuple[Cluster, Archive]:
    cluster, archive = Cluster(), Archive()
    for step in data.draw(st.lists(STEPS, max_size=60)):
        act(cluster, archive, step, data)
    return cluster, archive


@given(st.data(), st.sampled_from([ENOUGH, ROOM_FOR_FEW]))
@settings(max_examples=scaled(300), deadline=None)
def test_a_key_is_stale_if_and_only_if_the_log_has_nothing_more_of_it(data: Any, map_bytes: int) -> None:
    cluster, archive = cluster_and_archive(data)
    reader = Reader(cluster, archive, data)
    found = compared(reader, archive, map_bytes)
    if found is None:
        return
    keys = {archive.log[offset][0] for offset in found.stale}
    assert found.counts.stale == len(found.stale) == len(keys)
    assert keys <= reader.sometimes_gone
    assert {key for key in reader.always_gone if reader.last[key] >= found.start} <= keys
    assert all(archive.last()[archive.log[offset][0]][0] == offset for offset in found.stale)
    if found.shares == 1:
        assert found.start == cluster.start
        assert all(offset >= cluster.start for offset in found.stale)
    assert found.counts.keys == len(archive.last())
    assert found.counts.wrong == 0


@given(st.data())
@settings(max_examples=scaled(200), deadline=None)
def test_a_record_that_the_archive_has_lost_is_found_as_long_as_it_is_the_last_of_its_key(data: Any) -> None:
    cluster, archive = cluster_and_archive(data)
    lost = set(data.draw(st.lists(st.sampled_from(sorted(archive.log)), max_size=4))) if archive.log else set()
    whole = dict(archive.log)
    archive.log = {offset: record for offset, record in archive.log.items() if offset not in lost}
    reader = Reader(cluster, archive, data)
    before = dict(cluster.log)
    found = compared(reader, archive, ENOUGH)
    if found is None:
        return
    assert set(found.wrong) <= lost
    stayed = {
        offset for offset in lost & before.keys() & cluster.log.keys() if _is_last(offset, whole[offset][0], cluster)
    }
    known = archive.last()
    for offset in stayed:
        key, tombstone = whole[offset]
        if key in known or not tombstone:  # a deleted key that the archive does not know is no difference
            assert offset in found.wrong


def _is_last(offset: int, key: int, cluster: Cluster) -> bool:
    return max(at for at, (own, _) in cluster.log.items() if own == key) == offset


def test_a_key_that_is_replaced_after_the_end_of_the_read_is_no_stale_key() -> None:
    """The record goes before the read comes by, and its successor lies after the end that was asked for."""
    cluster, archive = Cluster(), Archive()
    for key in (0, 1):
        cluster.put(key, tombstone=False)
    archive.backup(cluster)

    class Log:
        stretches = 0

        async def start(self) -> int:
            return 0

        async def stable_end(self) -> int:
            return cluster.end

        async def note(self, keys: KeyNotes, start: int, end: int) -> bool:
            if not self.stretches:
                cluster.put(1, tombstone=False)
                cluster.clean(2, tombstones=False)
            self.stretches += 1
            seen = {offset: record for offset, record in cluster.log.items() if start <= offset < end}
            keys.note(_rows(seen), live=True)
            return len(seen) == end - start

    log = Log()
    found = compared(log, archive, ENOUGH)
    assert found is not None
    assert found.counts.stale == 0
    assert log.stretches == 2


def test_offsets_are_held_up_to_the_most() -> None:
    keys = KeyNotes.of(new_secret(), ALL_KEYS, MOST_OFFSETS + 1, [(0, MOST_OFFSETS + 1)], map_bytes=1 << 16)
    keys.note(_rows({MOST_OFFSETS - 1: (1, False)}), live=False)
    with pytest.raises(ValueError, match="no log has such an offset"):
        keys.note(_rows({MOST_OFFSETS: (2, False)}), live=False)
