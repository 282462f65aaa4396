"""The throughput of each kind of storage beside S3: one object written as a stream, and read as one.

    python -m bench.stores                   # 256 MiB each, three times, in turns
    python -m bench.stores --mib 512 --times 5

It starts the servers of the test bed, which keep objects in files (S3) or in memory (Google, Azure). The bytes are
random, and come and go in pieces of 1 MiB. Prints a JSON object for each storage: the least seconds of the clock and of
this process's processor, to write and to read, and MiB/s. A server is on the same machine, so compare this process's
seconds of a processor; those of the clock are mostly the server's.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from logkeep_engine.storage import Storage, open_uri
from tests.cluster.azure import AzureServer
from tests.cluster.gcs import GcsServer
from tests.cluster.s3 import S3Server

PIECE = 1 << 20


@contextmanager
def opened(folder: Path) -> Iterator[Mapping[str, Storage]]:
    """Each kind of storage, by its scheme, with its server."""
    name = f"bench-{secrets.token_hex(4)}"
    with ExitStack() as stack:
        s3 = stack.enter_context(S3Server())
        gcs = stack.enter_context(GcsServer())
        azure = stack.enter_context(AzureServer())
        s3.create_bucket(name)
        gcs.create_bucket(name)
        azure.create_container(name)
        keys = {"AWS_ACCESS_KEY_ID": s3.access_key, "AWS_SECRET_ACCESS_KEY": s3.secret_key}
        yield {
            "file": open_uri(folder.as_uri()),
            "s3": open_uri(f"s3://{name}/bench", s3.endpoint, s3.region, keys),
            "gs": open_uri(f"gs://{name}/bench", gcs.endpoint, environ={"LOGKEEP_GOOGLE_KEY": gcs.account_key()}),
            "az": open_uri(f"az://{name}/bench", azure.endpoint, environ={"AZURE_STORAGE_KEY": azure.key}),
        }


def write(storage: Storage, piece: bytes, count: int) -> None:
    """Write the object: `count` pieces, one after the other."""
    with storage.writer("object") as writer:
        for _ in range(count):
            writer.write(piece)


def read(storage: Storage, size: int) -> None:
    """Read the object. Raises ValueError if it is not as long as it was."""
    with storage.reader("object") as reader:
        found = sum(map(len, iter(reader.read_block, b"")))
    if found != size:
        raise ValueError(f"{found} of {size} bytes were read")


def timed(action: Callable[[], None]) -> tuple[float, float]:
    """Seconds of the clock, and of this process's processor."""
    clock, processor = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - clock, time.process_time() - processor


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.stores", description=__doc__)
    parser.add_argument("--mib", type=int, default=256, help="size of the object")
    parser.add_argument("--times", type=int, default=3, help="how often each is measured, after once that is not")
    options = parser.parse_args()
    piece, size = os.urandom(PIECE), options.mib * PIECE
    seconds: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder)) as storages:
        for turn in range(options.times + 1):
            for scheme, storage in storages.items():
                found = {
                    "write": timed(lambda storage=storage: write(storage, piece, options.mib)),  # type: ignore[misc]
                    "read": timed(lambda storage=storage: read(storage, size)),  # type: ignore[misc]
                }
                storage.delete(["object"])
                for kind, took in found.items() if turn else ():
                    seconds.setdefault((scheme, kind), []).append(took)
    for (scheme, kind), rows in seconds.items():
        clock, processor = min(each for each, _ in rows), min(each for _, each in rows)
        row = {"storage": scheme, "what": kind, "clock": round(clock, 3), "cpu": round(processor, 3)}
        print(json.dumps({**row, "mib_per_s": round(options.mib / clock)}))


if __name__ == "__main__":
    main()
