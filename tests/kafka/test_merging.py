"""Backups of a real broker that merge what they have archived, and what restores bring of it."""

from pathlib import Path

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.storage import LocalStorage
from tests.cluster.kafka import KafkaBroker
from tests.kafka.backing_up import Topics
from tests.kafka.restores import back_up, backup_spec, bring_back, committed, restore_spec, without_offsets

RUNS = 9


def test_points_of_all_runs_are_restored_from_merged_segments_with_transactions_across_their_ends(
    kafka: KafkaBroker, tmp_path: Path, topics: Topics, unique: str
) -> None:
    topics.create(unique, partitions=1)
    root = tmp_path / "archive"
    spec = backup_spec(kafka, root, unique, segment={"mergeCount": 3}, retention={"grace": "0s"})
    had = []
    across = None
    text = ""
    for number in range(RUNS):
        topics.produce(unique, [b"plain %d %d" % (number, at) for at in range(3)])
        topics.transaction(unique, [b"kept %d" % number], commit=True)
        topics.transaction(unique, [b"gone %d" % number], commit=False)
        if across is not None:  # below it lies the end of the run before, above it what others have committed
            topics.end(across, unique, commit=number % 2 == 0)
        across = topics.open_transaction(unique, [b"across %d" % number])
        topics.transaction(unique, [b"beside %d" % number], commit=number % 3 > 0)
        done = back_up(spec, f"backup-{number}")
        text += done.message
        had.append(without_offsets(committed(kafka, unique)))
    assert across is not None
    topics.end(across, unique, commit=False)
    assert text.count("merged ") >= 2, text
    archive = Archive.open(LocalStorage(root.as_uri()))
    state = archive.load()
    assert sum(map(len, state.segments.values())) <= 5
    assert max(entry.archived_last - entry.archived_first for table in state.segments.values() for entry in table) >= 2
    report = verify(archive)
    assert (report.faults, report.orphans) == ([], [])
    for number in (0, 3, 4, RUNS - 1):
        point = {} if number == RUNS - 1 else {"point": {"run": f"backup-{number}"}}
        restored = bring_back(restore_spec(kafka, root, suffix=f"-{number}", **point), f"restore-{number}")
        assert restored.outcome == "Succeeded", restored.message
        assert without_offsets(committed(kafka, f"{unique}-{number}")) == had[number]
