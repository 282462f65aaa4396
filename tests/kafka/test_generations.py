"""Generations of compacted topics: read again from the log start, active when whole, healed."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.contract.retention import AT_ONCE
from logkeep_engine.errors import SpecError
from tests import examples
from tests.cluster.kafka import KafkaBroker
from tests.kafka.keyed import Keyed

FORMATS = ["Kafka", "Records", "Avro"]
MakeKeyed = Callable[..., Keyed]


@pytest.fixture
def keyed(kafka: KafkaBroker, unique: str, tmp_path: Path) -> MakeKeyed:
    """Makes `Keyed`."""
    return lambda format_name="Kafka", **config: Keyed(kafka, unique, tmp_path / "archive", format_name, **config)


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_tombstone_that_was_cleaned_before_it_was_archived_is_healed_by_a_new_generation(
    keyed: MakeKeyed, format_name: str
) -> None:
    topic = keyed(format_name)
    topic.put({"a": "1", "b": "1", "c": "1"})
    topic.back_up()
    first = topic.generation
    assert (first.number, first.passive, first.exact) == (1, None, 3)
    topic.put({"a": None})
    topic.clean_until_gone(3)
    topic.back_up()
    assert topic.archived[b"a"] == b"1", "nobody has told the archive that it is gone"

    topic.back_up(again=True)

    assert topic.archived == topic.live
    assert b"a" not in topic.archived
    second = topic.generation
    assert (second.number, second.passive, second.last) == (2, None, 2)
    assert second.began > first.began
    assert topic.verified().orphans == []
    topic.put({"b": "2"})
    topic.back_up(retention={"grace": AT_ONCE})
    assert topic.state.unpurged == ()
    assert topic.verified().orphans == []
    assert topic.archived == topic.live == topic.restored()
    assert topic.generation == second


def test_points_are_exact_from_the_end_that_a_generation_caught_up_with(keyed: MakeKeyed) -> None:
    topic = keyed()
    topic.put({"a": "1"})
    topic.put({"a": "2", "b": "1"})
    topic.back_up(run_id="early")
    point: dict[str, Any] = {"offsets": [{"topic": topic.topic, "partition": 0, "offset": 1}]}
    assert topic.restored("whole", point=point) == {b"a": b"1"}, "nothing was cleaned yet"
    topic.clean_until_gone(0)
    topic.back_up(again=True, run_id="late")
    exact = topic.generation.exact
    assert exact == topic.state.accounted_for(*topic.key)[-1][1]

    with pytest.raises(SpecError) as refused:
        topic.restored("refused", point=point)
    assert f"generation 2 of it is exact from offset {exact} on, not at offset 1" in str(refused.value)
    assert "Points later than 20" in str(refused.value)
    assert topic.restored("old", point={"run": "early"}) == {b"a": b"2", b"b": b"1"}, "as long as it is there"
    topic.back_up(run_id="purging", retention={"grace": AT_ONCE})
    with pytest.raises(SpecError, match="had generation 1, which has been gone since generation 2 became active"):
        topic.restored("gone", point={"run": "early"})
    assert topic.restored("same", point={"run": "late"}) == topic.live

    topic.put({"a": "3"})
    topic.back_up(run_id="later")
    assert topic.restored("again", point={"run": "late"})[b"a"] == b"2"
    point["offsets"][0]["offset"] = exact
    assert topic.restored("offsets", point=point)[b"a"] == b"2"
    assert topic.verified().orphans == []


@pytest.mark.deep
@pytest.mark.parametrize("format_name", FORMATS[:: examples.number(2, deep=1)])
def test_a_kill_behind_any_step_leaves_one_whole_generation(keyed: MakeKeyed, tmp_path: Path, format_name: str) -> None:
    topic = keyed(format_name)
    topic.put({"a": "1", "b": "1"})
    topic.back_up()
    topic.put({"a": None, "b": "2"})
    topic.clean_until_gone(2)
    topic.back_up()
    before = topic.archived
    assert before[b"a"] == b"1"
    topic.put({"c": "1"})
    topic.wait_for_the_cycle()
    spec = topic.spec("1s", retention={"grace": AT_ONCE})
    command = [sys.executable, "-m", "tests.kafka.generations_killed", json.dumps(spec), str(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    steps = int(subprocess.run(command, check=True, capture_output=True, text=True, env=environ).stdout)
    assert steps > 12
    seen = []
    for step in range(1, steps):
        topic.root = tmp_path / f"killed-{step}"
        topic.verified()
        assert topic.archived in (before, topic.live), step
        known = topic.generation
        seen.append((known.number, known.passive is not None))
        topic.back_up(run_id="killed", generations={"cycle": "1s"})
        assert topic.archived == topic.live, step
        assert topic.generation.number >= 2
        topic.verified()
    assert {(1, False), (1, True), (2, False)} == set(seen), "it was killed before, while and behind"
