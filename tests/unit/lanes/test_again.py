"""The second attempt of tests that failed in CI."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.lanes import __main__ as lanes
from tests.lanes import again
from tests.lanes.relay import Relay

ONE = "tests/kafka/test_a.py::test_one"
TWO = "tests/kafka/test_a.py::test_one[a - b]"
THREE = "tests/e2e/test_b.py::test_three"
UNIT = "tests/unit/log/test_c.py::test_four"
ALL = (ONE, TWO, THREE, UNIT)
HINT = "a defect to be mended; the first attempt is in test-logs/"
Captured = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("failures", "chosen"),
    [
        ([], []),
        ([f"FAILED {ONE} - AssertionError"], [ONE]),
        ([f"FAILED {TWO} - assert 1 - 2 == 3", f"ERROR {TWO} - RuntimeError", f"FAILED {THREE}"], [TWO, THREE]),
        ([f"FAILED {UNIT} - AssertionError"], []),
        ([f"FAILED {ONE} - AssertionError", f"FAILED {UNIT}"], []),
        ([f"FAILED {ONE}", f"FAILED {TWO}", f"FAILED {THREE}"], []),
        ([f"FAILED {ONE}", "ERROR tests/kafka/test_d.py - SyntaxError"], []),
    ],
)
def test_few_tests_with_real_parts_may_run_again(failures: list[str], chosen: list[str]) -> None:
    assert again.candidates(failures, ALL) == chosen


RARE = """
from pathlib import Path

def test_rare():
    seen = Path(__file__).with_name("seen")
    first = not seen.exists()
    seen.touch()
    assert not first
"""


@pytest.mark.parametrize(
    ("source", "code", "said"),
    [
        (RARE, 0, "PASSED AT THE SECOND ATTEMPT ONLY test_it.py::test_rare"),
        ("def test_rare():\n    assert False\n", 1, ""),
    ],
    ids=["rare", "always"],
)
def test_what_fails_again_fails_the_run_and_what_passes_is_named(
    source: str, code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    (tmp_path / "test_it.py").write_text(source)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.setattr(lanes, "ROOT", tmp_path)
    assert not again.passes(["test_it.py"], tmp_path, tmp_path / "first.log")
    capsys.readouterr()
    assert lanes._second_attempt([lane_with("test_it.py::test_rare", tmp_path)], tmp_path) == code
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if line.startswith("PASSED")] == [f"{said}: {HINT}"] * bool(said)
    assert "again| " in shown
    assert (tmp_path / "lane-again.log").exists()


def lane_with(failed: str, folder: Path) -> lanes.Lane:
    """A lane that has ended, in which this test has failed."""
    relay = Relay("1", -1, folder / "lane-1.log")
    relay.failures.append(f"FAILED {failed} - AssertionError")
    seconds = folder / "lane-1.times"
    seconds.write_text(json.dumps({"test": failed, "seconds": 1.0}) + "\n")
    return lanes.Lane(1, [], subprocess.Popen(["true"], stdout=subprocess.PIPE), relay, seconds, 0.0)
