"""Which incarnation has records that consumers see: the catalog counts those of aborted transactions too."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import Coverage, Receipt, RunOutcome, TopicEntry
from logkeep_engine.archive.reading.incarnations import taken_topics
from logkeep_engine.archive.reading.visible import shows
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.storage import LocalStorage
from tests.unit.archive.build import ORDERS, begin, chunk, write_segment
from tests.unit.log.batches import batch, marker

AGAIN = TopicEntry("orders", "cccccccccccccccccccccc", 2, 1)
ABORTED = (batch(0, 5, producer_id=9, transactional=True), marker(5, 9, commit=False))
COMMITTED = (batch(0, 5, producer_id=9, transactional=True), marker(5, 9, commit=True))


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path.as_uri())


def write(storage: LocalStorage, batches: Sequence[bytes], aborted: Sequence[AbortedTxn] = ()) -> Receipt:
    entry = write_segment(storage, batches, topic=AGAIN, partition=1, aborted=aborted)
    return Receipt((Coverage(AGAIN.topic_id, 1, 0, entry.next_offset),), (entry,))


def taken(storage: LocalStorage, receipt: Receipt) -> str:
    with begin(storage) as writer:
        writer.commit(topics=[ORDERS, AGAIN], receipts=[chunk(storage, 0, 10), receipt])
        writer.end(RunOutcome.SUCCEEDED)
    state = Archive.open(storage).load()
    return taken_topics(state, shows=shows(storage, state))["orders"].topic_id


@pytest.mark.parametrize(
    ("batches", "seen"),
    [
        pytest.param(ABORTED, False, id="aborted"),
        pytest.param(COMMITTED, True, id="committed"),
        pytest.param((*ABORTED, batch(6, 1)), True, id="aborted, and a record of no transaction"),
        pytest.param((marker(0, 9, commit=True),), False, id="a marker alone"),
    ],
)
def test_incarnation_without_committed_records_is_not_the_one_that_is_taken(
    storage: LocalStorage, batches: Sequence[bytes], seen: bool
) -> None:
    assert taken(storage, write(storage, batches)) == (AGAIN if seen else ORDERS).topic_id


def test_transaction_that_the_list_alone_calls_aborted_is_not_seen(storage: LocalStorage) -> None:
    receipt = write(storage, ABORTED[:1], [AbortedTxn(9, 0, 4, 0)])
    assert taken(storage, receipt) == ORDERS.topic_id


def test_damaged_incarnation_is_not_passed_over(storage: LocalStorage) -> None:
    receipt = write(storage, ABORTED)
    (entry,) = receipt.segments
    storage.delete([entry.stem("orders") + ".log"])
    assert taken(storage, receipt) == AGAIN.topic_id


def test_where_nobody_has_committed_records_the_newest_with_records_is_taken(storage: LocalStorage) -> None:
    with begin(storage) as writer:
        writer.commit(topics=[ORDERS, AGAIN], receipts=[write(storage, ABORTED)])
        writer.end(RunOutcome.SUCCEEDED)
    state = Archive.open(storage).load()
    assert taken_topics(state, shows=shows(storage, state))["orders"] == AGAIN
