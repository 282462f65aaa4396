"""`python -m tests.ledger --rounds 100 --seed 0`: rounds of the ledger, one line each."""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from tests.cluster.kafka_cluster import KafkaCluster
from tests.ledger.rounds import Failed, Round


def main() -> int:
    """Plays the rounds; 1 if one has failed. The folders of those are kept."""
    parser = argparse.ArgumentParser(prog="make ledger")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the first round")
    arguments = parser.parse_args()
    failed = []
    with KafkaCluster() as cluster:
        for seed in range(arguments.seed, arguments.seed + arguments.rounds):
            folder = Path(tempfile.mkdtemp(prefix="logkeep-ledger-"))
            try:
                print(Round(cluster, seed, folder).play(), flush=True)
                shutil.rmtree(folder)
            except Failed as error:
                failed.append(seed)
                print(error, flush=True)
                cluster.restore()
    print(f"{arguments.rounds - len(failed)} rounds without a fault" + (f", with: {failed}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
