"""The books find what they are there for."""

from dataclasses import replace

import pytest

from tests.ledger.ledger import Fate, Found, Sent, by_pairs, differences, divided, doubled, problems
from tests.ledger.points import POINTS, Point, promised, within
from tests.ledger.shapes import Shape

LEDGER = [
    Sent("a", 0, 0, b"v0", 1, Fate.COMMITTED, 5),
    Sent("b", 0, 0, b"w0", 2, Fate.COMMITTED, 6),
    Sent("a", 1, 0, b"v1", 3, Fate.COMMITTED, 7),
    Sent("a", 2, 0, b"v2", 4, Fate.UNKNOWN),
    Sent("c", 0, 0, b"x0", 5, Fate.ABORTED, 8),
]


def found(*numbers: int) -> list[Found]:
    return [Found(item.key, item.value, item.timestamp, tuple(item.headers)) for item in (LEDGER[n] for n in numbers)]


@pytest.mark.parametrize("numbers", [(0, 1, 2), (0, 1, 2, 3)])
def test_what_nobody_was_told_of_may_be_there_or_not(numbers: tuple[int, ...]) -> None:
    assert list(problems(LEDGER, {0: found(*numbers)})) == []


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ((0, 2), "offset 6 (b'b:0') was acknowledged and is not there"),
        ((0, 1, 1, 2), "appears twice"),
        ((1, 0, 2), "had offset 5, and comes behind offset 6"),
        ((0, 1, 3, 2), "comes behind record 2 of its producer"),
        ((0, 1, 2, 4), "is of an aborted transaction"),
    ],
)
def test_lost_doubled_disordered_and_aborted_records_are_named(numbers: tuple[int, ...], says: str) -> None:
    assert says in "\n".join(problems(LEDGER, {0: found(*numbers)}))


def test_foreign_changed_and_misplaced_records_are_named() -> None:
    first, *rest = found(0, 1, 2)
    assert "was never sent" in "\n".join(problems(LEDGER, {0: [replace(first, key=b"z:0"), *rest]}))
    assert "has another value" in "\n".join(problems(LEDGER, {0: [replace(first, value=b""), *rest]}))
    assert "was sent to partition 0" in "\n".join(problems(LEDGER, {1: [first], 0: rest}))


def test_what_the_source_itself_has_twice_may_come_back_twice() -> None:
    """This holds for records of plain producers only."""
    plain = Found(b"plain-1:0", b"v", 1, ())
    idempotent = Found(b"idempotent-1:0", b"v", 1, ())
    source = {0: [plain, idempotent, plain, idempotent]}
    assert doubled(source) == {b"plain-1:0"}
    sent = [Sent("plain-1", 0, 0, b"v", 1, Fate.COMMITTED, 2)]
    twice = [Found(sent[0].key, b"v", 1, tuple(sent[0].headers))] * 2
    assert list(problems(sent, {0: twice}, doubled(source))) == []
    assert len(list(problems(sent, {0: twice}))) == 1


def test_a_restored_topic_that_differs_from_its_source_is_named() -> None:
    whole = found(0, 1, 2)
    assert list(differences({0: whole}, {0: whole})) == []
    for other in (whole[:2], [*whole, whole[0]], [whole[1], whole[0], whole[2]], []):
        assert len(list(differences({0: whole}, {0: other}))) == 1


def test_a_record_at_another_offset_is_named_where_offsets_count() -> None:
    here = {0: [replace(record, offset=number) for number, record in enumerate(found(0, 1, 2))]}
    there = {0: [*here[0][:2], replace(here[0][2], offset=7)]}
    assert list(differences(here, there)) == []
    assert list(differences(here, there, offsets=True)) == ["partition 0 record 2 was at offset 2 and is at 7"]


SOURCE = [Found(b"%d" % offset, b"", when, (), offset) for offset, when in enumerate([10, 30, 20, 90, 40, 50])]
OPEN = {1: (7, 4), 3: (7, 9)}  # of producer 7: a transaction with its marker after offset 3, and one behind all
SPLIT = {0: (7, 8), 3: (7, 8)}


@pytest.mark.parametrize(
    ("point", "transactions", "keys"),
    [
        (Point(), OPEN, b"012345"),
        (Point("offsets", ends={0: 5}), OPEN, b"0124"),
        (Point("offsets", ends={0: 4}), OPEN, b"02"),
        (Point("offsets", ends={1: 1}), OPEN, b"012345"),
        (Point("timestamp", 40), OPEN, b"012"),
        (Point("timestamp", 50), SPLIT, b"124"),
        (Point("timestamp", 91), SPLIT, b"012345"),
    ],
)
def test_transactions_lie_within_a_point_as_a_whole(
    point: Point, transactions: dict[int, tuple[int, int]], keys: bytes
) -> None:
    assert b"".join(record.key or b"" for record in within(point, SOURCE, 0, transactions)) == keys


def test_what_was_acknowledged_before_a_point_is_promised() -> None:
    ledger = [
        Sent("a", 0, 0, b"", 10, Fate.COMMITTED, 3, acknowledged=20),
        Sent("a", 1, 0, b"", 11, Fate.COMMITTED, 5, acknowledged=40),
        Sent("b", 0, 0, b"", 12, Fate.COMMITTED, 6, transaction=0),
        Sent("b", 1, 0, b"", 35, Fate.COMMITTED, 8, transaction=0),
        Sent("a", 2, 0, b"", 13, Fate.ABORTED),
    ]
    every = {item.key for item in ledger[:4]}
    assert promised(Point(), ledger) == every
    assert promised(Point("timestamp", 30), ledger) == {b"a:0", b"a:1"}
    assert promised(Point("timestamp", 36), ledger) == every
    assert promised(Point("asOf", 30), ledger) == {b"a:0"}
    assert promised(Point("offsets", ends={0: 5}), ledger) == {b"a:0"}
    assert "offset 5 (b'a:1') was acknowledged and is not there" in "\n".join(
        problems(ledger, {}, promised=promised(Point(), ledger))
    )


def test_records_that_were_divided_are_checked_pair_by_pair() -> None:
    """Keys of LEDGER fall to two of three partitions at least."""
    source = {0: found(0, 1, 2)}
    pairs = divided(source, 3)
    there = {pair.target: list(records) for pair, records in pairs.items()}
    assert len(there) > 1
    assert list(differences(pairs, by_pairs(LEDGER, there))) == []
    assert list(problems(LEDGER, by_pairs(LEDGER, there))) == []
    first, second, *_ = sorted(there)
    moved = {**there, first: there[first][:-1], second: [*there[second], there[first][-1]]}
    doubled_one = {**there, first: [there[first][0], *there[first]]}
    foreign = {**there, first: [*there[first], replace(there[first][0], key=b"z:0")]}
    for wrong, says in ((moved, "partition"), (doubled_one, "appears twice"), (foreign, "was never sent")):
        assert list(differences(pairs, by_pairs(LEDGER, wrong)))
        lines = [*differences(pairs, by_pairs(LEDGER, wrong)), *problems(LEDGER, by_pairs(LEDGER, wrong))]
        assert says in "\n".join(lines)


def test_records_of_one_pair_in_another_order_are_named() -> None:
    keys = [item.key for item in LEDGER[:3]]
    whole = {0: found(0, 1, 2)}
    turned = {0: [whole[0][1], whole[0][0], whole[0][2]]}
    assert [record.key for record in whole[0]] == keys
    assert len(list(differences(divided(whole, 1), by_pairs(LEDGER, turned)))) == 1


def test_fifty_rounds_have_every_shape() -> None:
    shapes = [Shape.of(seed, full=True) for seed in range(50)]
    assert {shape.point for shape in shapes if shape.divided} == set(POINTS)
    assert {shape.partitions for shape in shapes} == {1, 2, 3, 4, 5, 7}
    for name in ("divided", "everything", "same"):
        chosen = [shape for shape in shapes if getattr(shape, name)]
        assert len(chosen) >= 10, name
        assert {shape.resumes for shape in chosen} == {True, False}, name
    assert not [shape for shape in shapes if shape.divided and (shape.full or shape.same or shape.everything)]
