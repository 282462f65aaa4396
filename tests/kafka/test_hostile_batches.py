"""Batches of kilobytes that unpack to more than a task may take, on a real broker."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.backup.run.backup_run import run_backup
from logkeep_engine.contract.names import ExitCode
from logkeep_engine.contract.run import RunRequest, RunResult
from logkeep_engine.contract.spec import parse_backup
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.memory import TASK_BYTES, unpacked_most
from logkeep_engine.report import Reporter
from logkeep_engine.storage import open_uri
from tests.cluster.kafka import KafkaBroker
from tests.data.topics import create_topic
from tests.kafka.raw import batch, each, plain, run
from tests.kafka.raw import batches as whole_batches
from tests.kafka.restores import ThreadRunner, back_up, backup_spec, bring_back, committed, restore_spec
from tests.unit.log import hostile

CODECS = (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)
BOMBS, LARGE = "of-64-mebibytes", "of-just-enough"
BEFORE = 10  # ordinary records in front


@pytest.fixture(scope="module")
def bombs(kafka: KafkaBroker) -> KafkaBroker:
    """The broker with two topics: `BOMBS` has a partition for each codec, `LARGE` one with records that just fit."""
    ordinary = batch([b"v%d" % at for at in range(BEFORE)])
    for topic, partitions in ((BOMBS, len(CODECS)), (LARGE, 1)):
        create_topic(kafka.bootstrap, topic, partitions, {"max.message.bytes": "16777216", "retention.ms": "-1"})

    async def fill() -> None:
        async with RawClient(plain(kafka.bootstrap)) as client:
            for partition, codec in enumerate(CODECS):
                for data in (ordinary, hostile.zeros(codec), ordinary):
                    async for _ in client.produce_many(BOMBS, partition, each([data])):
                        pass
                async for _ in client.produce_many(LARGE, 0, each([hostile.zeros(codec, unpacked_most() - 100)])):
                    pass

    run(fill())
    return kafka


def contents(broker: KafkaBroker, topic: str, partition: int) -> list[bytes]:
    """The contents of a partition's batches, as they are stored."""

    async def read() -> list[bytes]:
        async with RawClient(plain(broker.bootstrap)) as client:
            fetched = await client.fetch(topic, partition, 0, max_bytes=32 << 20)
            return [data[61:] for data in whole_batches(fetched.data)]

    return run(read())


def test_format_kafka_moves_them_as_they_are(bombs: KafkaBroker, tmp_path: Path) -> None:
    taken: list[int] = []
    taken.append(hostile.peak_of(lambda: back_up(backup_spec(bombs, tmp_path, BOMBS))))
    taken.append(hostile.peak_of(lambda: bring_back(restore_spec(bombs, tmp_path))))
    for partition in range(len(CODECS)):
        there = contents(bombs, BOMBS + "-copy", partition)
        assert len(there) == 3
        assert there == contents(bombs, BOMBS, partition)
    assert max(taken) < TASK_BYTES


@pytest.mark.parametrize("name", ["Records", "Avro"])
def test_formats_of_records_refuse_them_by_name_and_keep_what_lies_before(
    bombs: KafkaBroker, tmp_path: Path, name: str
) -> None:
    spec = backup_spec(bombs, tmp_path, BOMBS, format=name)
    request = RunRequest(kind="KafkaBackup", name="test", namespace="", run_id="backup-1", spec=spec)

    results: list[RunResult] = []

    def refused() -> None:
        results.append(
            run_backup(request, parse_backup(spec), ThreadRunner, Reporter("backup-1"), os.environ),
        )

    assert hostile.peak_of(refused) < TASK_BYTES
    (result,) = results
    assert (result.outcome, result.error_code, result.exit_code) == ("Failed", "BatchTooLarge", ExitCode.REFUSED)
    assert f"Topic '{BOMBS}' partition" in result.message
    assert f"The batch at offset {BEFORE} is too large to be unpacked" in result.message
    assert "LOGKEEP_TASK_MEMORY" in result.message
    state = Archive.open(open_uri(tmp_path.as_uri())).load()
    # An archive of format Avro has `__consumer_offsets` too, once the broker has it.
    covered = [state.coverage[key] for key in sorted(state.coverage) if state.topics[key[0]].name == BOMBS]
    assert covered == [[(0, BEFORE)]] * len(CODECS)


_RUN = """
import json, sys
from tests.kafka.restores import back_up, bring_back
from tests.unit.log.hostile import _status
what, spec = sys.argv[1], json.loads(sys.argv[2])
bare = _status("VmHWM")
result = {"backup": back_up, "restore": bring_back}[what](spec)
assert result.outcome == "Succeeded", result
print(_status("VmHWM") - bare)
"""


def peak(what: str, spec: dict[str, Any]) -> int:
    """The peak memory of a process that does nothing else."""
    command = [sys.executable, "-c", _RUN, what, json.dumps(spec)]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


@pytest.mark.parametrize("name", ["Records", "Avro"])
def test_what_just_fits_goes_there_and_back_within_the_memory_of_a_task(
    bombs: KafkaBroker, tmp_path: Path, name: str
) -> None:
    suffix = f"-from-{name}"
    assert peak("backup", backup_spec(bombs, tmp_path, LARGE, format=name)) < TASK_BYTES
    assert peak("restore", restore_spec(bombs, tmp_path, suffix=suffix)) < TASK_BYTES

    assert [len(value or b"") for _, _, value, *_ in committed(bombs, LARGE + suffix)] == [unpacked_most() - 100] * len(
        CODECS
    )
