"""Fixtures of the simulation's tests."""

from collections.abc import Iterator

import pytest

from tests.simulation.cluster import World


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as made:
        yield made
