"""Some rounds of the ledger. Two of them kill a broker (seeds 0 and 4), one goes to a point (4), one divides records
and resumes runs (0), one brings everything back with the source offsets (1). `make ledger ROUNDS=` plays any number."""

from pathlib import Path

import pytest

from tests.cluster.kafka_cluster import KafkaCluster
from tests.examples import number
from tests.ledger.rounds import Round

ROUNDS = (0, 1, 4, *range(5, 40), 2, 3)[: number(3, deep=40)]


@pytest.mark.deep
@pytest.mark.parametrize("seed", ROUNDS)
def test_each_acknowledged_record_comes_back_once_in_order(
    three_brokers: KafkaCluster, seed: int, tmp_path: Path
) -> None:
    print(Round(three_brokers, seed, tmp_path).play())
