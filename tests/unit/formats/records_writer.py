"""A process that appends to a folder of the Records format until it is killed.

    python -m tests.unit.formats.records_writer FOLDER SEED

It continues where the folder ends, hands records over in runs of random length, some of them again, and says the
committed position on its standard output after each commit. It stops after some commits, if it is killed late.
"""

import random
import sys
import time
from pathlib import Path

from logkeep_engine.log.consumed import PlainRecord
from tests.unit.formats.records_folder import RecordsFolder

COUNT = 3000
SEGMENT_BYTES = 20_000
COMMITS = 6


def records() -> list[PlainRecord]:
    """The records that are written, always the same: all kinds of records, with gaps."""
    made = []
    for number in range(COUNT):
        kind = (None, 0, 1)[number % 3]
        made.append(
            PlainRecord(
                offset=number * 2 + number % 2 + 100,
                timestamp=None if kind is None or number % 7 == 0 else 1_700_000_000_000 + number,
                timestamp_type=kind,
                key=None if number % 5 == 0 else b"key-%d" % number,
                value=None if number % 11 == 0 else b"%d" % number * (number % 40),
                headers=(("h", b"%d" % number), ("h", None)) if number % 4 == 0 else (),
            )
        )
    return made


def main() -> None:
    folder, seed = Path(sys.argv[1]), int(sys.argv[2])
    rng = random.Random(seed)
    everything = records()
    commits = 0
    with RecordsFolder(folder, 0, SEGMENT_BYTES) as partition:
        at = sum(record.offset < partition.next_offset for record in everything)
        at = max(0, at - rng.randrange(20))
        while at < len(everything):
            run = rng.randrange(1, 30)
            partition.append(everything[at : at + run])
            at += run
            if rng.random() < 0.3:
                print(partition.commit(), flush=True)
                commits += 1
                if commits == COMMITS:
                    time.sleep(60)
        print(partition.commit(), flush=True)


if __name__ == "__main__":
    main()
