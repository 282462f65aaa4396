"""Fixtures of the simulation's tests."""

from collections.abc import Iterator

import pytest

from tests.simulation.cluster import SimulatedCluster, World


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as made:
        yield made


@pytest.fixture(scope="module")
def clusters(world: World) -> Iterator[tuple[SimulatedCluster, SimulatedCluster]]:
    """One to back up, and one to restore into."""
    with SimulatedCluster(world, 1, name="source") as source, SimulatedCluster(world, 1) as target:
        yield source, target


@pytest.fixture
def source(clusters: tuple[SimulatedCluster, SimulatedCluster]) -> SimulatedCluster:
    """A cluster without topics."""
    return _emptied(clusters[0])


@pytest.fixture
def target(clusters: tuple[SimulatedCluster, SimulatedCluster]) -> SimulatedCluster:
    """A cluster without topics."""
    return _emptied(clusters[1])


def _emptied(cluster: SimulatedCluster) -> SimulatedCluster:
    cluster.do(cluster.topics.clear)
    return cluster
