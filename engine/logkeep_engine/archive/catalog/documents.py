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
from logkeep_engine.contract.archive_format import FormatName
from logkeep_engine.contract.stored import Maybe, StoredDocument
from logkeep_engine.errors import ArchiveDamaged, ArchiveMismatch, BatchTooLarge, CorruptBatch, LogkeepError
from logkeep_engine.log.compression import Codec, announced_zstd, decompress
from logkeep_engine.log.memory import checkpoint_most
from logkeep_engine.stored import reading

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
    something that another tool wrote; it has no cluster (`cluster_id` is "-"), and no backup continues it. `owner` is
    who writes it, None without an owner; `taken_over` is the consent with which the owner has it, "" if it has made it
    or found it without an owner.
    """

    archive_id: str
    cluster_id: str
    created_at: str
    created_by: str
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
_INFO = StoredDocument(
    "description of an archive",
    FORMAT,
    {
        **dict.fromkeys(_TEXTS, str),
        "segments": str,
        "imported": bool,
        "owner": Maybe({"namespace": str, "name": str, "uid": str}),
        "takenOver": str,
    },
)


def dump_info(info: ArchiveInfo) -> bytes:
    """`archive.json`, in lines for people."""
    document = {
        **{key: getattr(info, name) for key, name in _TEXTS.items()},
        "segments": info.segments.value,
        "imported": info.imported,
        "owner": None if info.owner is None else asdict(info.owner),
        "takenOver": info.taken_over,
    }
    return _INFO.dumps(document, indent=2) + b"\n"


def load_info(data: bytes, name: str) -> ArchiveInfo:
    """Read `archive.json`. Messages name the object as `name`."""
    with reading(_INFO, data, name, hint=_COPY) as document:
        if empty := [key for key in _TEXTS if not document[key]]:
            raise ValueError(f"{empty[0]} is empty")
        if document["segments"] not in list(FormatName):
            raise ArchiveMismatch(f"{name}: segments {document['segments']!r}.", hint=NEWER)
        owner, taken_over = document["owner"], document["takenOver"]
        if taken_over and not is_consent(taken_over):
            raise ValueError(f"takenOver {taken_over!r}")
        return ArchiveInfo(
            **{attribute: document[key] for key, attribute in _TEXTS.items()},
            segments=FormatName(document["segments"]),
            imported=document["imported"],
            owner=None if owner is None else Owner(**owner),
            taken_over=taken_over,
        )


_COPY = "Restore this object from a copy of the archive."
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
        raise damaged(name, f"it is not complete JSON ({len(data)} bytes){why}") from error
    if not isinstance(document, dict):
        raise damaged(name, "it is not a JSON object")
    found = document.get("format")
    if found != FORMAT:
        raise ArchiveMismatch(
            f"{name}: archive format {found!r}, this version of Logkeep reads and writes format {FORMAT}.", hint=NEWER
        )
    return document


def loads(data: bytes) -> Any:
    """Return the value of JSON. Raises ValueError for anything else, and for what takes more memory than a catalog
    may."""
    return nesting.loads(data, most=checkpoint_most() // _BYTES_OF_VALUE)


def unpacked(frame: memoryview, most: int) -> bytes:
    """Return the content of a zstd frame, at most `most` bytes. Raises ValueError, before anything is unpacked, for a
    frame that cannot be of a catalog."""
    size = announced_zstd(frame)
    if size < 0:
        raise ValueError(f"a frame of {len(frame)} bytes does not state its unpacked size")
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
    """Return the rows of a table, none if it is not there. Raises ArchiveMismatch for other columns."""
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
    """Return the error for a damaged object of the catalog."""
    return ArchiveDamaged(f"{name}: {what}.", hint=_COPY)
