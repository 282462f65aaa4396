"""Log folders for the tests of this folder, as a broker leaves them, and a command line that runs in this process."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from logkeep_engine.cli import app
from logkeep_engine.log.batch import walk
from logkeep_engine.log.segment import build_indexes, pack_txn_entry
from logkeep_engine.log.transactions import TransactionTracker


def write_log(folder: Path, batches: Sequence[bytes], tracker: TransactionTracker | None = None) -> Path:
    """A segment of these batches with its indexes, named by the first offset; entries every 100 bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    tracker = tracker or TransactionTracker()
    data = b"".join(batches)
    headers = list(walk(data))
    base = headers[0][1].base_offset
    path = folder / f"{base:020}.log"
    path.write_bytes(data)
    made = build_indexes(headers, base, index_interval_bytes=INTERVAL)
    path.with_suffix(".index").write_bytes(made.index)
    path.with_suffix(".timeindex").write_bytes(made.timeindex)
    aborted = [txn for at, header in headers if (txn := tracker.observe(data, at, header)) is not None]
    if aborted:
        path.with_suffix(".txnindex").write_bytes(b"".join(map(pack_txn_entry, aborted)))
    return path


INTERVAL = 100


def run(*arguments: object) -> Result:
    """`logkeep log …`; stdout and stderr are apart."""
    return CliRunner().invoke(app, ["log", *map(str, arguments)])


def run_json(*arguments: object) -> Any:
    """The document it prints with -o json."""
    return json.loads(run(*arguments, "-o", "json").stdout)
