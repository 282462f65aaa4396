"""Log folders for the tests of this folder, as a broker leaves them, and a command line that runs in this process."""

import json
import os
import pty
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from logkeep_engine.cli import app
from logkeep_engine.log.batch import HEADER_SIZE, headers_of, walk
from logkeep_engine.log.segment import pack_txn_entry
from logkeep_engine.log.transactions import TransactionTracker
from tests.unit.log.batches import build_indexes, with_header


def write_log(folder: Path, batches: Sequence[bytes], tracker: TransactionTracker | None = None) -> Path:
    """A segment of these batches with its indexes, named by the first offset; entries every 100 bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    tracker = tracker or TransactionTracker()
    data = b"".join(batches)
    headers = headers_of(walk(data))
    base = headers[0][1].base_offset
    path = folder / f"{base:020}.log"
    path.write_bytes(data)
    index, timeindex = build_indexes(data, base, index_interval_bytes=INTERVAL)
    path.with_suffix(".index").write_bytes(index)
    path.with_suffix(".timeindex").write_bytes(timeindex)
    aborted = [txn for at, header in headers if (txn := tracker.observe(data, at, header)) is not None]
    if aborted:
        path.with_suffix(".txnindex").write_bytes(b"".join(map(pack_txn_entry, aborted)))
    return path


INTERVAL = 100


def emptied(whole: bytes) -> bytes:
    """The last batch of a producer as compaction leaves it: its header."""
    ((_, header),) = walk(whole)
    return with_header(
        whole[:8] + struct.pack(">i", HEADER_SIZE - 12) + whole[12:HEADER_SIZE],
        producer_id=header.producer_id,
        record_count=0,
    )


def run(*arguments: object) -> Result:
    """`logkeep log …`; stdout and stderr are apart."""
    return CliRunner().invoke(app, ["log", *map(str, arguments)])


def run_json(*arguments: object) -> Any:
    """The document it prints with -o json."""
    return json.loads(run(*arguments, "-o", "json").stdout)


def command(*arguments: object) -> list[str]:
    """`logkeep log …` as a process of its own."""
    return [sys.executable, "-m", "logkeep_engine.cli", "log", *map(str, arguments)]


def piped(*arguments: object, **environ: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a process that writes into pipes."""
    done = subprocess.run(command(*arguments), capture_output=True, env={**os.environ, **environ}, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def on_a_terminal(*arguments: object) -> tuple[int, str]:
    """Exit code, and what a terminal of 200 columns gets."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, "COLUMNS": "200", "TERM": "xterm"}
    with subprocess.Popen(command(*arguments), stdout=theirs, stderr=subprocess.PIPE, env=environ) as running:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 4096):
                shown += part
        except OSError:  # what a terminal says when its last writer has gone
            pass
        code = running.wait(60)
    os.close(ours)
    return code, shown.decode()
