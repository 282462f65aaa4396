"""The choice of names by `include` and `exclude`."""

import pytest

from logkeep_engine.contract.patterns import NamePatterns


@pytest.mark.parametrize(
    ("name", "chosen"),
    [("orders", True), ("orders-2", True), ("my-orders", False), ("orders.tmp", False), ("users", True), ("", False)],
)
def test_a_pattern_must_match_the_whole_name_and_exclude_wins(name: str, chosen: bool) -> None:
    assert NamePatterns(["orders.*", "users"], [r".*\.tmp"]).chooses(name) is chosen


def test_exclude_alone_tells_what_it_leaves_out() -> None:
    patterns = NamePatterns([], ["a.*"])
    assert [patterns.excludes(name) for name in ("ab", "ba")] == [True, False]


def test_patterns_that_match_no_name_are_found_by_their_places() -> None:
    assert NamePatterns(["a", "b.*", "a"], ["bc"]).unmatched(["bc", "c"]) == [0, 2]
