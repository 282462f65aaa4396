"""Twenty rounds of the ledger; `make ledger ROUNDS=` plays any number."""

from pathlib import Path

import pytest

from tests.cluster.kafka_cluster import KafkaCluster
from tests.ledger.rounds import Round


@pytest.mark.parametrize("seed", range(20))
def test_each_acknowledged_record_comes_back_once_in_order(
    three_brokers: KafkaCluster, seed: int, tmp_path: Path
) -> None:
    print(Round(three_brokers, seed, tmp_path).play())
