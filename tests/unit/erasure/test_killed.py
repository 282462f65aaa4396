"""Erasures that are killed, and what other runs find then before the erasure continues."""

from collections.abc import Callable
from pathlib import Path

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import Coverage, Receipt, RunOutcome
from logkeep_engine.archive.catalog.writer import Timing, Writer, begin_run
from logkeep_engine.archive.history.compacted import with_snapshots
from logkeep_engine.archive.maintenance.points import KeepRules
from logkeep_engine.archive.maintenance.retaining import RetentionRules, retain
from logkeep_engine.archive.maintenance.retention import RetentionLimits
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.archive.reading import view
from logkeep_engine.compaction.partition import compact_partition
from logkeep_engine.contract.archive_format import FormatName
from logkeep_engine.contract.model import replace
from logkeep_engine.erasure.run import _ErasureRun
from logkeep_engine.storage import LocalStorage
from tests.runners import Context
from tests.unit.archive.build import FAST, ORDERS, write_segment
from tests.unit.compaction.made import setting_of, work_of
from tests.unit.convert.converting import converted
from tests.unit.erasure.erasing import (
    ALICE,
    BOB,
    GONE,
    KEY,
    Inside,
    Killed,
    Mortal,
    Seen,
    archive_batches,
    archive_records,
    batch_of,
    copied,
    erase_whole,
    erased,
    records_in,
    seen,
    traces,
    without,
)

KEYS = [[ALICE, GONE], [GONE, BOB], [BOB, ALICE], [GONE, GONE]]
NEW = [(8, BOB), (9, ALICE)]
SHORT = Timing(heartbeat=0.05, watch=0.02, poll=0.02)
"""Enough to watch an erasure that is dead."""


def removes(writer: Writer) -> None:
    """Retention at the end of a backup: it takes all but the newest segments, and deletes at once."""
    last = list(writer.state.segments[KEY])[-1]
    rules = RetentionRules(RetentionLimits(max_bytes=2 * last.bytes), KeepRules(), 0)
    assert retain(writer, rules).removed.segments > 0


def compacts(writer: Writer) -> None:
    """The snapshot that a backup makes of a compacted partition."""
    setting = setting_of(writer.archive.storage, epoch=writer.epoch)
    work = work_of(writer.state.segments[KEY], end=10)
    writer.snapshot([compact_partition(setting, work, Context()).snapshot])


def backed_up(storage: LocalStorage, then: Callable[[Writer], None]) -> None:
    with begin_run(Archive.open(storage), "backup-2", wait=SHORT) as writer:
        entry = write_segment(
            storage, [batch_of(NEW[0][0], [key for _, key in NEW], leader_epoch=0)], epoch=writer.epoch
        )
        writer.commit(receipts=[Receipt((Coverage(*KEY, 8, 10),), (entry,))])
        writer.end(RunOutcome.SUCCEEDED)
        then(writer)


@pytest.mark.parametrize("then", [removes, compacts])
def test_a_backup_after_a_killed_erasure_loses_nothing_and_the_erasure_continues(
    tmp_path: Path, then: Callable[[Writer], None]
) -> None:
    storage = LocalStorage((tmp_path / "archive").as_uri())
    topic = replace(ORDERS, configs={"cleanup.policy": "compact"} if then is compacts else {})
    content = [[batch_of(2 * at, some, leader_epoch=0)] for at, some in enumerate(KEYS)]
    archive_batches(storage, content, topics=[topic])
    there = {item[0]: item for item in seen(storage)}
    for left in range(60):
        path = copied(storage, tmp_path / f"copy-{left}")
        mortal = Mortal(path.as_uri(), left)
        try:
            erased(mortal, GONE, runner=Inside())
        except Killed:
            pass
        else:
            assert left > 8, "there are more steps"
            return
        reader = LocalStorage(path.as_uri())
        backed_up(reader, then)
        assert [str(fault) for fault in verify(Archive.open(reader)).faults] == []
        after = seen(reader)
        erase_whole(reader, GONE)
        assert seen(reader) == without(after, GONE)
        expected = {number for number, item in there.items() if item[2] != GONE} | {8, 9}
        found = {item[0] for item in seen(reader)}
        assert found == (expected if then is compacts else {number for number in expected if number >= min(found)})
        assert max(found) == 9
        if then is compacts:
            assert {item[2]: item[0] for item in of_snapshot(reader)} == {BOB: 8, ALICE: 9}
    raise AssertionError("it never comes to its end")


def of_snapshot(storage: LocalStorage) -> list[Seen]:
    return records_in(storage, with_snapshots(view.choose(Archive.open(storage)).state))


def test_an_erasure_that_another_run_has_overtaken_writes_and_deletes_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage((tmp_path / "archive").as_uri())
    content = [[(2 * at + n, key) for n, key in enumerate(some)] for at, some in enumerate(KEYS)]
    archive_records(storage, FormatName.RECORDS, content)
    index, log = "topics/orders/index_partition_000", "topics/orders/other"
    commit = _ErasureRun._commit

    def sleeps_behind_it(run: _ErasureRun, writer: Writer) -> None:
        commit(run, writer)
        if not storage.list(log):
            with begin_run(Archive.open(storage), "backup-2", wait=FAST) as other:
                storage.put(index, b"of the other run")
                storage.put(log, GONE)
                other.commit()

    monkeypatch.setattr(_ErasureRun, "_commit", sleeps_behind_it)
    result = erased(storage, GONE, runner=Inside())
    assert (result.outcome, result.error_code) == ("Failed", "ArchiveFenced")
    assert (storage.read(index), storage.read(log)) == (b"of the other run", GONE)


@pytest.mark.parametrize("format_name", list(FormatName))
def test_an_archive_that_was_converted_from_another_loses_the_key_and_the_other_keeps_it(
    tmp_path: Path, format_name: FormatName
) -> None:
    source, target = LocalStorage((tmp_path / "source").as_uri()), LocalStorage((tmp_path / "target").as_uri())
    archive_batches(source, [[batch_of(2 * at, some)] for at, some in enumerate(KEYS)])
    converted(source, target, format_name)
    before = seen(target)
    assert erase_whole(target, GONE).records == 4
    assert (seen(target), len(before)) == (without(before, GONE), 8)
    assert traces(source, GONE)
