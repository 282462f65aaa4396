"""What is certain of the transactions of a partition whose segments do not follow one another without a hole."""

from pathlib import Path

import pytest

from logkeep_engine.archive.model import Range
from logkeep_engine.restore.salvage import survey
from logkeep_engine.storage import LocalStorage
from tests.unit.archive.build import write_segment
from tests.unit.log.batches import batch, marker

PRODUCER = 7


@pytest.mark.parametrize(
    ("kept", "lost"),
    [
        ([(0, 7)], []),  # compaction has removed 1 to 4
        ([(0, 1), (5, 7)], [(0, 1)]),
        ([(0, 3), (4, 7)], [(0, 1)]),
        ([], [(0, 1)]),
    ],
)
def test_only_where_records_may_be_missing_a_transaction_is_undecided(
    tmp_path: Path, kept: list[Range], lost: list[Range]
) -> None:
    storage = LocalStorage(tmp_path.as_uri())
    entries = [
        write_segment(storage, [batch(0, producer_id=PRODUCER, transactional=True)]),
        write_segment(storage, [marker(5, PRODUCER, commit=True), batch(6)]),
    ]
    found = survey(storage, "orders", entries, kept, (), undecided=True)
    assert [(part.start, part.end) for part in found.lost] == lost
    assert [(txn.first_offset, txn.last_offset) for txn in found.aborted or ()] == [(0, 0) for _ in lost]


def test_a_marker_behind_removed_segments_decides_nothing_of_what_lies_before(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path.as_uri())
    entries = [
        write_segment(storage, [batch(0, producer_id=PRODUCER, transactional=True)]),
        write_segment(storage, [marker(1, PRODUCER, commit=True)]),
    ]
    assert survey(storage, "orders", entries, [], (), undecided=True).lost == ()
