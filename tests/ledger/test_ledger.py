"""Twenty rounds of the ledger; `make ledger ROUNDS=` plays any number."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.kafka_cluster import KafkaCluster
from tests.ledger.rounds import Round


@pytest.fixture(scope="module")
def ledger_cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster() as cluster:
        yield cluster


@pytest.mark.parametrize("seed", range(20))
def test_each_acknowledged_record_comes_back_once_in_order(
    ledger_cluster: KafkaCluster, seed: int, tmp_path: Path
) -> None:
    print(Round(ledger_cluster, seed, tmp_path).play())
