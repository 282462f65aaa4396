"""Archives as `osodevops/kafka-backup` 0.17 writes them, made from the description of the format."""

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cramjam

NONE, ZSTD, LZ4 = 0, 1, 2
SUFFIXES = {NONE: "", ZSTD: ".zst", LZ4: ".lz4"}


@dataclass(frozen=True)
class Written:
    """A record as the tool was given it. `tracked`: the tool adds its headers."""

    offset: int
    timestamp: int
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    tracked: bool = False

    def pack(self) -> bytes:
        headers = list(self.headers)
        if self.tracked:
            headers.append((b"x-original-offset", struct.pack("<q", self.offset)))
            headers.append((b"x-original-timestamp", struct.pack("<q", self.timestamp)))
            headers.append((b"x-source-cluster", b"prod"))
        body = struct.pack("<qq", self.timestamp, self.offset) + _sized(self.key) + _sized(self.value)
        body += struct.pack("<H", len(headers))
        for key, value in headers:
            body += struct.pack("<H", len(key)) + key + _sized(value)
        return struct.pack("<I", len(body)) + body


def segment(records: Sequence[Written], compression: int = ZSTD, **changes: Any) -> bytes:
    """A whole segment; `changes` (`version`, `method`, `count`, `first`, `last`, `body`) make it a wrong one whose CRC
    is right."""
    body: bytes = changes.get("body", b"".join(record.pack() for record in records))
    if compression == ZSTD:
        body = bytes(cramjam.zstd.compress(body))
    elif compression == LZ4:
        body = bytes(cramjam.lz4.compress_block(body))
    head = struct.pack(
        "<4sBB2xQqq",
        b"KBAK",
        changes.get("version", 1),
        changes.get("method", compression),
        changes.get("count", len(records)),
        changes.get("first", records[0].offset if records else -1),
        changes.get("last", records[-1].offset if records else -1),
    )
    return head + body + struct.pack("<I4s", zlib.crc32(head + body), b"BKAE")


@dataclass
class OsoArchive:
    """A backup in the making, below `root`/`backup_id`."""

    root: Path
    backup_id: str = "nightly"
    compression: int = ZSTD
    topics: dict[str, dict[int, list[dict[str, Any]]]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    gaps: dict[tuple[str, int], list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.root / self.backup_id

    def add(self, topic: str, partition: int, records: Sequence[Written]) -> Path:
        """A segment of these records; returns its file."""
        data = segment(records, self.compression)
        name = f"segment-{records[0].offset:020d}.bin{SUFFIXES[self.compression]}"
        key = f"{self.backup_id}/topics/{topic}/partition={partition}/{name}"
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        entry = {
            "key": key,
            "start_offset": records[0].offset,
            "end_offset": records[-1].offset,
            "start_timestamp": records[0].timestamp,
            "end_timestamp": records[-1].timestamp,
            "record_count": len(records),
            "uncompressed_size": sum(len(record.pack()) for record in records),
            "compressed_size": len(data),
        }
        self.topics.setdefault(topic, {}).setdefault(partition, []).append(entry)
        return path

    def gap(self, topic: str, partition: int, start: int, end: int) -> None:
        gap = {"start_offset": start, "end_offset": end, "reason": "offset_out_of_range", "detected_at": 1}
        self.topics.setdefault(topic, {}).setdefault(partition, [])
        self.gaps.setdefault((topic, partition), []).append(gap)

    def finish(self, groups: Mapping[str, Mapping[str, Mapping[int, int]]] | None = None, **changes: Any) -> Path:
        """Write the manifest, and the snapshot of `groups` (group, topic, partition, offset); returns the folder."""
        topics = [
            {
                "name": topic,
                "original_partition_count": self.counts.get(topic),
                "partitions": [
                    {"partition_id": number, "segments": segments}
                    | ({"gaps": self.gaps[topic, number]} if (topic, number) in self.gaps else {})
                    for number, segments in partitions.items()
                ],
            }
            for topic, partitions in self.topics.items()
        ]
        manifest = {
            "backup_id": self.backup_id,
            "created_at": 1_700_000_000_000,
            "source_cluster_id": "MkU3OEVBNTcwNTJENDM2Qg",
            "source_brokers": ["localhost:9092"],
            "compression": {NONE: "none", ZSTD: "zstd", LZ4: "lz4"}[self.compression],
            "topics": topics,
            **changes,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "manifest.json").write_text(json.dumps(manifest, indent=2))
        if groups is not None:
            snapshot = {
                "snapshot_time": 1_700_000_000_000,
                "groups": [
                    {
                        "group_id": group,
                        "offsets": {
                            topic: {str(part): offset for part, offset in parts.items()}
                            for topic, parts in topics.items()
                        },
                    }
                    for group, topics in groups.items()
                ],
            }
            (self.folder / "consumer-groups-snapshot.json").write_text(json.dumps(snapshot, indent=2))
        return self.folder


def _sized(content: bytes | None) -> bytes:
    return struct.pack("<i", -1) if content is None else struct.pack("<i", len(content)) + content
