"""The catalog's documents as JSON, and the smallest of them, `archive.json`. Format 1. No I/O.

A document of another format, or with keys or columns this version does not know, is refused with ArchiveMismatch: what
a newer version added may change what the rest means. One that is cut short or altered is ArchiveDamaged. `commits` has
the commits, `checkpoint` the checkpoints, `tables` the rows that both have.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from logkeep_engine.archive.catalog.claim import Owner
from logkeep_engine.contract import nesting
from logkeep_engine.contract.anchor import is_consent
from logkeep_engine.contract.spec import FormatName
from logkeep_engine.errors import ArchiveDamaged, ArchiveMismatch, BatchTooLarge, CorruptBatch, LogkeepError
from logkeep_engine.log.compression import Codec, announced_zstd, decompress
from logkeep_engine.log.memory import checkpoint_most

FORMAT = 1
# What the catalog says packs to a tenth or more: it has digests, times and offsets. A frame that says it unpacks to
# more than this many times its size, or that does not say, is not Logkeep's. Small frames may.
_MOST_TIMES = 200
_SMALL_FRAME = 4 << 20
_BYTES_OF_VALUE = 64
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ArchiveInfo:
    """The content of `archive.json`. `created_at` is ISO 8601 in UTC.

    `segments` is the format of the archive's segments: Kafka, Records or Avro. `imported`: the archive was made from
    something that another tool wrote; it has no cluster (`cluster_id` is "-"), and no backup goes on in it. `owner` is
    who writes it, None if nobody owns it; `taken_over` is the consent with which the owner has it, "" if it has made it
    or found it without an owner.
    """

    archive_id: str
    cluster_id: str
    created_at: str
    created_by: str
    format: int = FORMAT
    segments: FormatName = FormatName.KAFKA
    imported: bool = False
    owner: Owner | None = None
    taken_over: str = ""


_TEXTS = {
    "archiveId": "archive_id",
    "clusterId": "cluster_id",
    "createdAt": "created_at",
    "createdBy": "created_by",
}
_INFO = {*_TEXTS, "format", "segments", "imported", "owner", "takenOver"}


def dump_info(info: ArchiveInfo) -> bytes:
    """`archive.json`, in lines for people."""
    document = {
        "format": info.format,
        **{key: getattr(info, name) for key, name in _TEXTS.items()},
        "segments": info.segments.value,
        "imported": info.imported,
        "owner": None if info.owner is None else asdict(info.owner),
        "takenOver": info.taken_over,
    }
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def load_info(data: bytes, name: str) -> ArchiveInfo:
    """Read `archive.json`. Messages name the object as `name`."""
    document = parse(data, name)
    know(document, _INFO, name)
    if missing := sorted(_INFO - document.keys()):
        raise damaged(name, f"key {missing[0]!r} is missing")
    facts = {attribute: document[key] for key, attribute in _TEXTS.items()}
    if not all(isinstance(value, str) and value for value in facts.values()):
        raise damaged(name, "a value is not a string")
    segments, imported = document["segments"], document["imported"]
    if segments not in list(FormatName) or not isinstance(imported, bool):
        raise ArchiveMismatch(f"{name}: segments {segments!r}, imported {imported!r}.", hint=NEWER)
    owner, taken_over = building(lambda: _ownership(document), name)
    return ArchiveInfo(**facts, segments=FormatName(segments), imported=imported, owner=owner, taken_over=taken_over)


def _ownership(document: dict[str, Any]) -> tuple[Owner | None, str]:
    """Whose the archive is, and the consent that made it so. Raises ValueError and TypeError."""
    said, taken_over = document["owner"], document["takenOver"]
    if taken_over != "" and not (isinstance(taken_over, str) and is_consent(taken_over)):
        raise ValueError(f"takenOver {taken_over!r}")
    if said is not None and not (isinstance(said, dict) and all(isinstance(value, str) for value in said.values())):
        raise TypeError("owner: not an object of strings")
    return None if said is None else Owner(**said), taken_over


NEWER = "It was written by a newer Logkeep: use that version or a later one."


def dumps(document: Any) -> bytes:
    """Compact JSON in UTF-8."""
    return _ENCODER.encode(document).encode("utf-8", "surrogatepass")


def parse(data: bytes, name: str) -> dict[str, Any]:
    """Read a JSON object of this format. Raises ArchiveDamaged and ArchiveMismatch, which name the object as `name`."""
    try:
        document = loads(data)
    except ValueError as error:
        why = "" if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)) else f": {error}"
        raise damaged(name, f"it is not whole JSON ({len(data)} bytes){why}") from error
    if not isinstance(document, dict):
        raise damaged(name, "it is not a JSON object")
    found = document.get("format")
    if found != FORMAT:
        raise ArchiveMismatch(
            f"{name}: archive format {found!r}, this version of Logkeep reads and writes format {FORMAT}.", hint=NEWER
        )
    return document


def loads(data: bytes) -> Any:
    """The value of JSON. Raises ValueError for what is none, or takes more memory than a catalog may."""
    return nesting.loads(data, most=checkpoint_most() // _BYTES_OF_VALUE)


def unpacked(frame: memoryview, most: int) -> bytes:
    """The content of a zstd frame, at most `most` bytes. Raises ValueError, before anything is unpacked, for a
    frame that cannot be of a catalog."""
    size = announced_zstd(frame)
    if size < 0:
        raise ValueError(f"a frame of {len(frame)} bytes does not say to how many it unpacks")
    if size > min(most, max(_SMALL_FRAME, _MOST_TIMES * len(frame))):
        raise ValueError(f"a frame of {len(frame)} bytes says that it unpacks to {size}, which is too much")
    try:
        return decompress(Codec.ZSTD, frame, limit=size)
    except (BatchTooLarge, CorruptBatch) as problem:
        raise ValueError(problem.message) from problem


def know(document: dict[str, Any], known: set[str], name: str) -> None:
    """Check the keys of a document. Raises ArchiveMismatch for keys that this version does not know."""
    unknown = sorted(set(document) - known)
    if unknown:
        raise ArchiveMismatch(f"{name}: unknown keys {', '.join(unknown)}.", hint=NEWER)


def rows_of(document: Mapping[str, Any], key: str, columns: Sequence[str], name: str) -> list[list[Any]]:
    """The rows of a table, none if it is not there. Raises ArchiveMismatch for other columns."""
    if key not in document:
        return []
    table = document[key]
    if table["columns"] != columns:
        raise ArchiveMismatch(f"{name}: unknown columns {table['columns']} of {key}.", hint=NEWER)
    rows: list[list[Any]] = table["rows"]
    return rows


def building(build: Callable[[], T], name: str) -> T:
    """Call `build` and return its result. A value that is missing or impossible becomes ArchiveDamaged."""
    try:
        return build()
    except LogkeepError:
        raise
    except nesting.WRONG as error:
        raise damaged(name, f"{type(error).__name__}: {error}") from error


def damaged(name: str, what: str) -> ArchiveDamaged:
    """The error for a damaged object of the catalog."""
    return ArchiveDamaged(f"{name}: {what}.", hint="Restore this object from a copy of the archive.")
