"""Which batches belong to which transactions of their producer."""

import pytest

from logkeep_engine.log.batch import parse_header
from logkeep_engine.log.transactions import Spans
from tests.unit.log.batches import batch, marker

INSIDE_ONE_ANOTHER = [(4, 5, 13), (4, 6, 7), (4, 20, 21), (9, 30, 40)]


@pytest.mark.parametrize("offset", range(45))
def test_a_batch_is_in_a_transaction_of_its_producer(offset: int) -> None:
    """This holds however the transactions lie: a segment's index may know only a part of one."""
    header = parse_header(batch(offset, producer_id=4, transactional=True))
    assert (header in Spans(INSIDE_ONE_ANOTHER)) is (5 <= offset <= 13 or 20 <= offset <= 21)


def test_what_was_written_outside_of_transactions_is_in_none() -> None:
    assert parse_header(batch(6, producer_id=4)) not in Spans(INSIDE_ONE_ANOTHER)
    assert parse_header(marker(6, 4, commit=False)) not in Spans(INSIDE_ONE_ANOTHER)
