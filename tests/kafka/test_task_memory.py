"""The memory of a backup task does not depend on how much it archives."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from logkeep_engine.contract import names
from logkeep_engine.kafka.batch_queue import BatchQueue
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.topics import NewTopicPlan
from logkeep_engine.restore.sending.window import Window
from tests import examples
from tests.cluster.kafka import KafkaBroker
from tests.cluster.s3 import S3Server
from tests.kafka.raw import batch, plain, run
from tests.unit.log.batches import rewrite

MEGABYTE = 1 << 20
RECORDS = 100
LIMIT = 256 * MEGABYTE
SIZE = 400 * MEGABYTE

# Archives offsets [0, end) of a partition as one piece, or as eight, and prints peak memory before and after.
_TASK = """
import json, resource, sys

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

bare = peak()
from logkeep_engine.backup.model.plan import Piece
from logkeep_engine.backup.pieces.writer import BackupSetting
from logkeep_engine.backup.pieces.task import archive_pieces
from logkeep_engine.contract.cluster import ClusterSpec
from logkeep_engine.kafka.connection import connection_from
from logkeep_engine.limits import UNLIMITED
from logkeep_engine.storage import open_uri

bootstrap, topic, topic_id, end, pieces, uri, endpoint = sys.argv[1:]
end, count = int(end), int(pieces)

class Context:
    attempt = 0
    throttle = UNLIMITED

    def report(self, updates):
        pass

storage = open_uri(uri, endpoint or None, "us-east-1")
setting = BackupSetting(connection_from(ClusterSpec(bootstrap_servers=(bootstrap,)), {}), storage, 1, 128 << 20)
work = [
    Piece(number, topic, topic_id, 0, end * number // count, end * (number + 1) // count, 1, 1 << 30)
    for number in range(count)
]
done = archive_pieces(setting, work, Context())
size = sum(segment.bytes for piece in done for segment in piece.receipt.segments)
print(json.dumps({"bare": bare, "peak": peak(), "bytes": size}))
"""


@pytest.fixture(scope="module")
def big(kafka: KafkaBroker) -> tuple[str, str, int, int]:
    """Topic, its id, its end, and the offset at a quarter of it: one partition, larger than a task may become."""
    topic = "large"
    topic_id = ControlPlane(plain(kafka.bootstrap)).create_topics([NewTopicPlan(topic, 1, 1)])[topic]
    template = batch([os.urandom(5_000) for _ in range(RECORDS)])
    count = SIZE // len(template)

    async def fill() -> None:
        async with RawClient(plain(kafka.bootstrap)) as client:
            producer_id, _ = await client.init_producer_id()

            queue, window = BatchQueue(), Window(10)

            async def fed() -> None:
                for number in range(count):
                    await window.take(1)
                    queue.put(
                        rewrite(
                            template,
                            base_offset=0,
                            producer_id=producer_id,
                            producer_epoch=0,
                            base_sequence=number * RECORDS,
                        )
                    )
                queue.end()

            feeding = asyncio.create_task(fed())
            async for _ in client.produce_many(topic, 0, queue):
                window.give_back(1)
            await feeding

    run(fill(), 600)
    return topic, topic_id, count * RECORDS, count // 4 * RECORDS


@pytest.mark.deep
@pytest.mark.parametrize("to", ["s3", "files"][: examples.number(1, deep=2)])
def test_a_task_needs_as_much_memory_for_all_of_a_partition_as_for_a_quarter(
    kafka: KafkaBroker, s3: S3Server, bucket: str, big: tuple[str, str, int, int], tmp_path: Path, to: str
) -> None:
    topic, topic_id, end, quarter = big

    def peak(upto: int, pieces: int) -> int:
        uri, endpoint = (f"s3://{bucket}/{upto}-{pieces}", s3.endpoint) if to == "s3" else (f"file://{tmp_path}", "")
        command = [kafka.bootstrap, topic, topic_id, str(upto), str(pieces), uri, endpoint]
        keys = {names.ENV_S3_ACCESS_KEY: s3.access_key, names.ENV_S3_SECRET_KEY: s3.secret_key}
        done = subprocess.run(
            [sys.executable, "-c", _TASK, *command], env={**os.environ, **keys}, capture_output=True, check=True
        )
        said = json.loads(done.stdout)
        assert said["bytes"] > upto * 5_000
        assert said["peak"] - said["bare"] < LIMIT
        return int(said["peak"])

    # Three hundred megabytes more are archived. How many parts are on their way at once is a matter of luck.
    for pieces in (1, 8):
        assert peak(end, pieces) < peak(quarter, pieces) + 80 * MEGABYTE
