"""Text of somebody who wants a terminal, a log or a reader to do something, and an archive full of it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.cluster_state import ClusterState, state_path
from logkeep_engine.archive.catalog.facts import Coverage, GroupEntry, Receipt, RunOutcome, TopicEntry
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.records import Record, encode
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import ORDERS, TIME, begin, write_segment
from tests.unit.archive.forge import Document, relinked

FORGED = "\nerror: forged"
HOSTILE = f"pwned\x1b]0;title\x07\x1b[2J\x9b2J\x7f\r\u202eevil\u2066\u2028\u200b\ud800{FORGED}"
"""Escape sequences with 7 and 8 bits, DEL, a carriage return, overrides of direction, a line separator, a character
without width, half of a character, and a line that looks like one of ours."""

NAME = HOSTILE.replace("\ud800", "")
"""The same without what no file name can hold; it has no slash either."""


def doing(text: str) -> list[str]:
    """Find what a terminal would do with the text: characters that are not printable, and lines that are forged."""
    found = sorted({ascii(one) for one in text if not one.isprintable() and one not in "\n\t"})
    return found + re.findall(r"^error: forged.*", text, re.MULTILINE)


def hostile_archive(folder: Path) -> str:
    """The URI of a readable archive whose writer has put hostile text wherever text can be, and damage beside it."""
    storage = open_uri(folder.as_uri())
    topic = TopicEntry(ORDERS.name, ORDERS.topic_id, 1, 1, {f"k{NAME}": NAME})
    raw = NAME.encode()
    batch = encode(
        [Record(at, TIME + at, raw, raw, ((raw, raw),)) for at in range(10)], codec=Codec.NONE, base_offset=0
    )
    state = ClusterState(
        "run-1",
        TIME,
        acls=(("TOPIC", HOSTILE, "LITERAL", f"User:{HOSTILE}", HOSTILE, "READ", "ALLOW"),),
        quotas=(((("user", HOSTILE),), HOSTILE, 1.0),),
        reasons={"scramUsers": HOSTILE},
    )
    with begin(storage) as writer:
        segment = write_segment(storage, [batch], topic=topic)
        writer.commit(topics=[topic], receipts=[Receipt((Coverage(topic.topic_id, 0, 0, 10),), (segment,))])
        storage.put(state_path("run-1"), state.to_json())
        groups = [GroupEntry(f"g{HOSTILE}", topic.name, topic.topic_id, 0, 3, -1, HOSTILE)]
        writer.end(RunOutcome.SUCCEEDED, HOSTILE, groups, cluster_state=state.entry(state.to_json()))
    _spoil(folder, storage)
    return storage.uri


def _spoil(folder: Path, storage: Storage) -> None:
    """Name the writer in hostile words, and leave objects that no commit names."""
    info = json.loads((folder / "archive.json").read_bytes())
    (folder / "archive.json").write_text(json.dumps(info | {"createdBy": f"logkeep {HOSTILE}"}))
    (folder / "topics" / f"x{NAME}").write_bytes(b"orphan")
    (folder / "runs" / f"r{NAME}").mkdir()
    (folder / "runs" / f"r{NAME}" / "plan.json").write_text('{"format":1}')
    (folder / "runs" / f"r{NAME}" / "cluster-state.json").write_text("{}")
    beat = {"format": 1, "runId": HOSTILE, "epoch": 9, "beat": 3, "commit": 7, "writer": HOSTILE, "time": ""}
    beat["archiveId"] = info["archiveId"]
    (folder / "runs" / "zz").mkdir()
    (folder / "runs" / "zz" / "heartbeat.json").write_text(json.dumps(beat))


NAMES: Sequence[object] = (
    HOSTILE, "../../../../tmp/evil", "a/../b", "..", "", "x" * 5000, 7, None, ["a"], "<script>alert(1)</script>"
)  # fmt: skip
"""Values that somebody may write where a catalog has the name of a topic."""


def renamed(folder: Path, name: object) -> Archive:
    """The archive after somebody has given its topics this name, with digests that fit."""

    def rename(document: Document) -> None:
        for row in document.get("topics", {"rows": ()})["rows"]:
            row[0] = name

    storage = open_uri(folder.as_uri())
    relinked(storage, range(len(list((folder / "catalog").glob("*.json")))), rename)
    return Archive.open(storage)
