"""How many examples hypothesis makes."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.examples import DEEP, LIGHT, covered, number, positions, scaled

TESTS = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _profile() -> Iterator[None]:
    before = settings.get_current_profile_name()
    yield
    settings.load_profile(before)


def test_the_light_profile_makes_fewer_and_the_deep_one_more() -> None:
    settings.load_profile(LIGHT)
    assert (scaled(100), scaled(8), scaled(1), number(5, deep=50)) == (15, 2, 2, 5)
    settings.load_profile(DEEP)
    assert (scaled(100), scaled(8), number(5, deep=50)) == (1000, 80, 50)


def test_an_expensive_test_makes_few_in_every_run_and_as_many_as_others_in_the_deep_one() -> None:
    settings.load_profile(LIGHT)
    assert (scaled(200, light=20), scaled(200)) == (20, 30)
    settings.load_profile(DEEP)
    assert scaled(200, light=20) == scaled(200) == 2000


def test_positions_have_both_ends_and_some_between_them_and_all_in_the_deep_profile() -> None:
    settings.load_profile(LIGHT)
    assert list(positions(30, 7, edges=3)) == [0, 1, 2, 7, 14, 21, 27, 28, 29]
    assert list(positions(5, 7, edges=3)) == [0, 1, 2, 3, 4]
    assert list(positions(0, 7)) == []
    settings.load_profile(DEEP)
    assert list(positions(30, 7, edges=3)) == list(range(30))


def test_each_value_of_each_axis_is_in_every_run_and_each_combination_in_the_deep_profile() -> None:
    settings.load_profile(LIGHT)
    assert list(covered("ab", (1, 2, 3))) == [("a", 1), ("b", 2), ("a", 3)]
    settings.load_profile(DEEP)
    assert list(covered("ab", (1, 2))) == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]


def test_the_deep_profile_looks_for_new_ones_and_says_how_to_see_them_again() -> None:
    assert settings.get_profile(LIGHT).derandomize
    assert not settings.get_profile(DEEP).derandomize
    assert settings.get_profile(DEEP).print_blob


def test_no_test_keeps_a_number_of_its_own() -> None:
    """It would be the same in both profiles."""
    fixed = [path.name for path in TESTS.rglob("test_*.py") if re.search(r"max_examples=\d", path.read_text())]
    assert fixed == []
