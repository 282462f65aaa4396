"""Which test files run in which lane."""

import pytest

from tests.lanes.plan import DEFAULT_SECONDS, bed, choose

UNIT = [f"tests/unit/log/test_{number}.py" for number in range(40)]
KAFKA = [f"tests/kafka/test_{number}.py" for number in range(10)]
NODE = ["tests/e2e/test_a.py", "tests/e2e/test_b.py", "tests/e2e/test_c.py"]


def length(lane: list[str], seconds: dict[str, float]) -> float:
    return sum(seconds.get(path, DEFAULT_SECONDS) for path in lane)


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_each_file_is_in_one_lane_and_lanes_end_at_about_the_same_time(lanes: int) -> None:
    seconds = dict.fromkeys(UNIT, 3.0) | dict.fromkeys(KAFKA, 30.0) | dict.fromkeys(NODE, 20.0)
    chosen = choose([*UNIT, *KAFKA, *NODE], seconds, lanes)
    assert sorted(path for lane in chosen for path in lane) == sorted([*UNIT, *KAFKA, *NODE])
    lengths = [length(lane, seconds) for lane in chosen]
    assert max(lengths) - min(lengths) <= 30.0


def test_the_recorded_durations_decide() -> None:
    seconds = dict.fromkeys(UNIT, 1.0) | dict.fromkeys(KAFKA, 4.0)
    assert choose([*UNIT, *KAFKA], seconds, 2) == [sorted(UNIT), sorted(KAFKA)]
    slower = {**seconds, **dict.fromkeys(KAFKA, 12.0)}
    assert len(choose([*UNIT, *KAFKA], slower, 2)[1]) < len(KAFKA)


def test_files_on_one_node_stay_together() -> None:
    seconds = dict.fromkeys(NODE, 100.0) | dict.fromkeys(UNIT, 1.0)
    assert choose([*NODE, *UNIT], seconds, 2) == [NODE, sorted(UNIT)]


def test_a_file_without_a_record_takes_as_long_as_the_others_of_its_bed() -> None:
    new = "tests/kafka/test_new.py"
    recorded = dict.fromkeys(KAFKA, 40.0) | dict.fromkeys(UNIT, 1.0)
    known = choose([*KAFKA, *UNIT, new], recorded | {new: 40.0}, 2)
    assert choose([*KAFKA, *UNIT, new], recorded | {"tests/gone/test_a.py": 1.0}, 2) == known
    assert choose([*KAFKA, *UNIT, new], recorded | {new: 1000.0}, 2) != known
    assert choose(KAFKA, {}, 2) == choose(KAFKA, dict.fromkeys(KAFKA, DEFAULT_SECONDS), 2)


def test_lanes_without_a_file_are_empty() -> None:
    assert sorted(choose(KAFKA[:1], {}, 2)) == [[], KAFKA[:1]]
    assert choose([], {}, 2) == [[], []]


def test_a_folder_without_a_bed_is_named() -> None:
    assert bed("tests/kafka/test_gaps.py") > bed("tests/kafka/test_cli.py")
    with pytest.raises(LookupError, match=r"tests/new/test_a\.py is in no bed"):
        bed("tests/new/test_a.py")
