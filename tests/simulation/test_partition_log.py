"""The simulated log does what a broker's does: it is what the simulation's judgement rests on."""

from logkeep_engine.log.batch import parse_header
from tests.simulation.partition_log import OUT_OF_ORDER, Partition, Replica, batch


def rows(*names: str) -> list[tuple[bytes | None, bytes]]:
    return [(name[:1].encode(), name.encode()) for name in names]


def values(log: Replica) -> list[bytes]:
    return [record.value or b"" for record in log.committed()]


def test_aborted_and_open_transactions_are_not_read() -> None:
    partition = Partition((1,))
    partition.append(batch(rows("a1"), producer_id=7, epoch=0, sequence=0, transactional=True))
    partition.append(batch(rows("b1"), producer_id=8, epoch=0, sequence=0, transactional=True))
    partition.mark(7, commit=False)
    partition.append(batch(rows("c1")))

    assert partition.log.last_stable == 1
    assert values(partition.log) == []

    partition.mark(8, commit=True)
    assert values(partition.log) == [b"b1", b"c1"]
    assert [(item.producer_id, item.first, item.last) for item in partition.log.aborted] == [(7, 0, 2)]


def test_an_unclean_election_cuts_off_and_the_epochs_tell_where() -> None:
    partition = Partition((1, 2))
    partition.append(batch(rows("a1", "a2")))
    partition.leave_isr(2)
    partition.append(batch(rows("b1", "b2")))

    partition.elect(2)
    partition.append(batch(rows("c1")))
    partition.heal()

    assert [values(replica) for replica in partition.replicas.values()] == [[b"a1", b"a2", b"c1"]] * 2
    assert partition.log.epoch_end(0) == (0, 2)
    assert partition.log.epoch_end(1) == (1, 3)
    assert partition.log.epoch_end(2) == (-1, -1)


def test_a_batch_that_comes_again_is_known_and_one_out_of_order_is_refused() -> None:
    partition = Partition((1,))
    first = batch(rows("a1", "a2"), producer_id=7, epoch=0, sequence=0)
    assert partition.append(first) == (0, 0)
    assert partition.append(first) == (0, 0)
    assert partition.log.end == 2
    assert partition.append(batch(rows("a3"), producer_id=7, epoch=0, sequence=5)) == (OUT_OF_ORDER, -1)

    partition.log.producers.clear()
    assert partition.append(batch(rows("a3"), producer_id=7, epoch=0, sequence=5)) == (0, 2)


def test_compaction_keeps_the_last_of_each_key_and_the_offsets() -> None:
    partition = Partition((1,))
    partition.append(batch(rows("a1", "b1", "a2")))
    partition.append(batch(rows("b2")))
    partition.append(batch(rows("c1")))

    partition.log.compact(4, keep_markers=True)

    assert [(record.offset, record.value) for record in partition.log.committed()] == [
        (2, b"a2"),
        (3, b"b2"),
        (4, b"c1"),
    ]
    header = parse_header(partition.log.batches[0].data)
    assert (header.base_offset, header.next_offset, header.record_count) == (0, 3, 1)


def test_a_leader_that_has_just_been_elected_knows_an_old_high_watermark() -> None:
    partition = Partition((1, 2))
    partition.append(batch(rows("a1")))
    partition.append(batch(rows("a2")))

    partition.elect(2, stale_answers=1)
    assert (partition.log.high_watermark, partition.log.end) == (1, 2)

    partition.answered()
    assert partition.log.high_watermark == 2
