"""Which test file a lane runs next."""

import heapq

import pytest

from tests.lanes.plan import DEFAULT_SECONDS, Queue, bed

UNIT = [f"tests/unit/log/test_{number}.py" for number in range(40)]
KAFKA = [f"tests/kafka/test_{number}.py" for number in range(10)]
NODE = ["tests/e2e/test_a.py", "tests/e2e/test_b.py", "tests/e2e/test_c.py"]


def played(files: list[str], seconds: dict[str, float], lanes: int) -> dict[int, list[tuple[float, str]]]:
    """The files that each lane would run, with the second in which it ends, if the files took as long as was
    recorded."""
    queue = Queue(files, seconds)
    done: dict[int, list[tuple[float, str]]] = {lane: [] for lane in range(lanes)}
    clocks = [(0.0, lane) for lane in range(lanes)]
    while clocks:
        now, lane = heapq.heappop(clocks)
        path = queue.take(lane)
        if path is not None:
            ends = now + seconds.get(path, DEFAULT_SECONDS)
            done[lane].append((ends, path))
            heapq.heappush(clocks, (ends, lane))
    assert queue.left == []
    return done


def of_lanes(done: dict[int, list[tuple[float, str]]]) -> list[list[str]]:
    return [[path for _, path in files] for files in done.values()]


@pytest.mark.parametrize("lanes", [1, 2, 3, 4])
def test_each_file_is_run_once_and_lanes_end_at_about_the_same_time(lanes: int) -> None:
    seconds = dict.fromkeys(UNIT, 3.0) | dict.fromkeys(KAFKA, 30.0) | dict.fromkeys(NODE, 20.0)
    done = played([*UNIT, *KAFKA, *NODE], seconds, lanes)
    assert sorted(path for lane in of_lanes(done) for path in lane) == sorted([*UNIT, *KAFKA, *NODE])
    ends = [files[-1][0] for files in done.values()]
    assert max(ends) - min(ends) <= 30.0


def test_a_lane_stays_in_its_bed_and_helps_in_the_longest_when_nothing_is_left_there() -> None:
    seconds = dict.fromkeys(UNIT, 1.0) | dict.fromkeys(KAFKA, 12.0)
    kafka, unit = of_lanes(played([*UNIT, *KAFKA], seconds, 2))
    assert set(kafka) < set(KAFKA)
    assert set(unit[: len(UNIT)]) == set(UNIT)
    assert set(unit[len(UNIT) :]) == set(KAFKA) - set(kafka)
    assert unit[len(UNIT) :]


def test_the_longest_file_of_a_bed_comes_first() -> None:
    seconds = {path: float(number) for number, path in enumerate(KAFKA)}
    assert of_lanes(played(KAFKA, seconds, 1)) == [KAFKA[::-1]]


@pytest.mark.parametrize("lanes", [2, 3, 4])
def test_only_one_lane_is_on_the_node(lanes: int) -> None:
    seconds = dict.fromkeys(NODE, 100.0) | dict.fromkeys(UNIT, 1.0)
    done = of_lanes(played([*NODE, *UNIT], seconds, lanes))
    assert [set(lane) & set(NODE) for lane in done if set(lane) & set(NODE)] == [set(NODE)]


def test_beds_that_cannot_be_shared_come_first() -> None:
    seconds = dict.fromkeys(UNIT, 10.0) | dict.fromkeys(KAFKA, 90.0) | dict.fromkeys(NODE, 5.0)
    first, second = of_lanes(played([*NODE, *UNIT, *KAFKA], seconds, 2))
    assert set(first[: len(NODE)]) == set(NODE), "or they would be left at the end, with lanes that have nothing to do"
    assert second[0] in KAFKA


def test_a_file_without_a_record_takes_as_long_as_the_others_of_its_bed() -> None:
    new = "tests/kafka/test_new.py"
    recorded = {path: float(number) for number, path in enumerate(KAFKA)} | dict.fromkeys(UNIT, 1.0)
    for other in ({}, {"tests/gone/test_a.py": 1.0}):
        ((first, *_),) = of_lanes(played([*KAFKA, new], recorded | other, 1))
        assert first == KAFKA[-1]
    ((first, *_),) = of_lanes(played([*KAFKA, new], recorded | {new: 1000.0}, 1))
    assert first == new
    (order,) = of_lanes(played([*KAFKA, new], recorded, 1))
    assert order[-1] == KAFKA[0]
    assert order.index(new) in (5, 6), "4.5 seconds, the average"


def test_a_lane_for_which_nothing_is_left_has_no_file() -> None:
    queue = Queue(KAFKA[:1], {})
    assert (queue.take(1), queue.take(2), queue.take(1), queue.left) == (KAFKA[0], None, None, [])
    assert Queue([], {}).take(1) is None


def test_a_folder_without_a_bed_is_named() -> None:
    assert bed("tests/kafka/test_gaps.py") > bed("tests/kafka/test_cli.py")
    with pytest.raises(LookupError, match=r"tests/new/test_a\.py is in no bed"):
        bed("tests/new/test_a.py")
