"""This module finds out what another tool wrote into a folder, from the names of the objects alone. Pure.

    found = scan(storage.list(), storage.uri)     # layout, segments, files with positions of consumer groups

Three layouts can be adopted where they are: topics' folders of the Records format under `topics/` or next to each other
at the root, and the Avro format under `topics/`. An object whose name does not fit, or could mean two things, is
refused by name, since an archive finds what it adopted by name ever after. An object with the name of data that does
not lie where data lies is refused, too. Objects without a name of the format are left out, and reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.entry import Layout
from logkeep_engine.contract.archive_format import FormatName
from logkeep_engine.contract.values import so_many
from logkeep_engine.errors import FolderRefused
from logkeep_engine.formats import osodevops
from logkeep_engine.formats.records_names import FileKind, parse_name
from logkeep_engine.log.varints import INT64_MAX
from logkeep_engine.storage import ObjectInfo

FORMATS = {
    Layout.RECORDS: FormatName.RECORDS,
    Layout.RECORDS_AT_ROOT: FormatName.RECORDS,
    Layout.AVRO: FormatName.AVRO,
}
OWN_FOLDERS = (names.CATALOG, names.RUNS)
"""The folders that Logkeep itself puts next to the topics' folders and `archive.json`."""

_WORDS = {
    Layout.RECORDS: "the Records format under topics/",
    Layout.RECORDS_AT_ROOT: "the Records format",
    Layout.AVRO: "the Avro format",
}
_AVRO = re.compile(r"topics/([^/]+)/partition=([0-9]+)/([^/]+)\.data")
_AVRO_AT_ROOT = re.compile(r"[^/]+/partition=[0-9]+/[^/]+\.data")
_LOOKS_LIKE_AVRO = re.compile(r"[^/]+(\+[0-9]+-[0-9]+\.(data|avro)|-[0-9]+-[0-9]+\.avro)")
_LOOKS_LIKE_RECORDS = re.compile(r"segment_partition_[0-9]+_from_offset_[0-9]+_(records|index)")
_MAX_PARTITIONS = 100_000
"""No topic has as many partitions. A larger number is that of a stray file, and an archive lists all partitions below
it."""


@dataclass(frozen=True, slots=True)
class FoundSegment:
    """A segment that was found. `number` is the one in its name: the first offset (Records), or the number of the
    object (Avro) with `width` digits. `index_size` is None if the segment has no index."""

    topic: str
    partition: int
    number: int
    width: int
    path: str
    size: int
    index_path: str = ""
    index_size: int | None = None


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file that a partition has once."""

    topic: str
    partition: int
    path: str


@dataclass(frozen=True, slots=True)
class Folder:
    """The content of a folder. `partitions` has the number of partitions of each topic that has any object; `others`
    are objects that have no name of the format; `groups` are files with positions of consumer groups."""

    layout: Layout
    segments: tuple[FoundSegment, ...]
    groups: tuple[FoundFile, ...]
    partition_indexes: tuple[FoundFile, ...]
    partitions: dict[str, int]
    others: tuple[str, ...]

    @property
    def format(self) -> FormatName:
        return FORMATS[self.layout]


def manifests(objects: Iterable[ObjectInfo]) -> list[str]:
    """Paths of the manifests of `osodevops/kafka-backup`, at the root or one folder below."""
    return [
        info.path
        for info in objects
        if info.path.rpartition("/")[2] == osodevops.MANIFEST and info.path.count("/") <= 1
    ]


def scan(objects: Sequence[ObjectInfo], uri: str) -> Folder:
    """Find out what is in a folder. Raises FolderRefused, which names the object that does not fit."""
    theirs = [info for info in objects if info.path != names.ARCHIVE and not info.path.startswith(OWN_FOLDERS)]
    layouts: dict[Layout, str] = {}
    for info in theirs:
        layout = _layout(info.path)
        if layout is not None:
            layouts.setdefault(layout, info.path)
    for info in objects:
        _check_own_names(info.path, uri)  # of all objects: `theirs` lacks those in the folders that are asked about
    if not layouts:
        _refuse_nothing(theirs, uri)
    if len(layouts) > 1:
        first, second = list(layouts.items())[:2]
        raise FolderRefused(
            f"{uri} holds {_WORDS[first[0]]} ({first[1]}) and {_WORDS[second[0]]} ({second[1]}): "
            "an archive has one format.",
            hint="Import them from separate folders.",
        )
    (layout,) = layouts
    return _avro(theirs, uri) if layout is Layout.AVRO else _records(theirs, uri, layout)


def _layout(path: str) -> Layout | None:
    if _AVRO.fullmatch(path):
        return Layout.AVRO
    folder, _, name = path.rpartition("/")
    if not _LOOKS_LIKE_RECORDS.fullmatch(name):
        return None
    if folder.startswith(names.TOPICS) and folder.count("/") == 1:
        return Layout.RECORDS
    return Layout.RECORDS_AT_ROOT if folder and "/" not in folder else None


def _check_own_names(path: str, uri: str) -> None:
    """Refuse a topic with the name of something that Logkeep puts there itself."""
    folder, _, name = path.rpartition("/")
    taken = folder == names.ARCHIVE or f"{folder}/" in OWN_FOLDERS
    if taken and (_LOOKS_LIKE_RECORDS.fullmatch(name) or parse_name(name)):
        raise FolderRefused(
            f"{uri}/{path}: a topic named {folder!r} cannot be adopted where it is, since the archive has something "
            "of that name itself.",
            hint="Move the topics' folders into a folder `topics` first: the archive's own are then next to it.",
        )


def _refuse_nothing(objects: Sequence[ObjectInfo], uri: str) -> None:
    hint = "It must hold topics' folders with segment_partition_… files, or topics/<topic>/partition=<n>/….data."
    for info in objects:
        if _AVRO_AT_ROOT.fullmatch(info.path):
            hint = "The topics' folders of the Avro format must be in a folder `topics`: import the folder above it."
    what = f"{so_many(len(objects), 'object')}, none of them a segment" if objects else "nothing"
    raise FolderRefused(f"{uri} holds {what} of a format that can be imported.", hint=hint)


def _records(objects: Sequence[ObjectInfo], uri: str, layout: Layout) -> Folder:
    root = names.TOPICS if layout is Layout.RECORDS else ""
    records: dict[tuple[str, int, int], ObjectInfo] = {}
    indexes: dict[tuple[str, int, int], ObjectInfo] = {}
    groups: list[FoundFile] = []
    partition_indexes: list[FoundFile] = []
    widths: dict[tuple[str, int, int], int] = {}
    others: list[str] = []
    partitions: dict[str, int] = {}
    for info in objects:
        folder, _, name = info.path.rpartition("/")
        topic = folder.removeprefix(root)
        file = parse_name(name)
        if not folder.startswith(root.rstrip("/")) or "/" in topic or not topic or file is None:
            _check_other(info.path, uri)
            others.append(info.path)
            continue
        _check_topic(topic, uri, info.path)
        _check_partition(file.partition, uri, info.path)
        partitions[topic] = max(partitions.get(topic, 0), file.partition + 1)
        if file.start_offset is not None:
            kept = records if file.kind is FileKind.RECORDS else indexes
            key = (topic, file.partition, file.start_offset)
            if key in kept:
                raise FolderRefused(
                    f"{uri}/{info.path} and {uri}/{kept[key].path} are the same segment: an erasure has rewritten one "
                    "of them, and did not finish.",
                    hint="Erase the keys again in the archive, or remove the one with fewer digits.",
                )
            kept[key] = info
            widths[key] = file.width
        elif file.kind is FileKind.CONSUMER_OFFSETS:
            groups.append(FoundFile(topic, file.partition, info.path))
        elif file.kind is FileKind.PARTITION_INDEX:
            partition_indexes.append(FoundFile(topic, file.partition, info.path))
    for key in sorted(set(indexes) - set(records)):  # sorted, so that each look at the folder names the same one
        raise FolderRefused(
            f"{uri}/{indexes[key].path} is the index of a missing segment.",
            hint="Restore the segment from a copy, or remove its index.",
        )
    segments = []
    for key in sorted(records):
        index = indexes.get(key)
        path = records[key].path
        segments.append(
            FoundSegment(
                *key,
                width=widths[key],
                path=path,
                size=records[key].size,
                index_path=path.removesuffix(names.RECORDS) + names.RECORDS_INDEX,
                index_size=None if index is None else index.size,
            )
        )
    return Folder(layout, tuple(segments), tuple(groups), tuple(partition_indexes), partitions, tuple(others))


def _avro(objects: Sequence[ObjectInfo], uri: str) -> Folder:
    segments, others = [], []
    partitions: dict[str, int] = {}
    for info in objects:
        match = _AVRO.fullmatch(info.path)
        if match is None:
            _check_other(info.path, uri)
            others.append(info.path)
            continue
        topic, partition, name = match[1], match[2], match[3]
        _check_topic(topic, uri, info.path)
        digits = name.removeprefix(f"{topic}+{partition}-")
        # Bounded before `int`, which refuses very long texts with an error of its own.
        if digits == name or not re.fullmatch(r"[0-9]{1,40}", digits, re.ASCII) or int(digits) > INT64_MAX:
            raise FolderRefused(
                f"{uri}/{info.path} is not named as an object of topic {topic!r} partition {partition}: "
                f"{topic}+{partition}-<number>.data is expected.",
                hint="Rename or move it.",
            )
        if str(int(partition)) != partition:  # the archive would look for the name without zeros
            raise FolderRefused(
                f"{uri}/{info.path}: partition {partition} is written with leading zeros.", hint="Rename its folder."
            )
        number = int(partition)
        _check_partition(number, uri, info.path)
        partitions[topic] = max(partitions.get(topic, 0), number + 1)
        segments.append(FoundSegment(topic, number, int(digits), len(digits), info.path, info.size))
    return Folder(Layout.AVRO, tuple(segments), (), (), partitions, tuple(others))


def _check_other(path: str, uri: str) -> None:
    """Refuse an object that is named as if it held something of the format: if it were left out, a whole topic might be
    missed."""
    name = path.rpartition("/")[2]
    if _LOOKS_LIKE_RECORDS.fullmatch(name):
        raise FolderRefused(
            f"{uri}/{path} looks like a segment but is not named or placed as one: partitions have at least 3 digits, "
            "and no zeros beyond that, offsets at least 10.",
            hint="Rename or move it.",
        )
    if parse_name(name) is not None:
        raise FolderRefused(
            f"{uri}/{path} is named like a file of the Records format but is not where the segments are.",
            hint="Move it.",
        )
    if _LOOKS_LIKE_AVRO.fullmatch(name):
        raise FolderRefused(
            f"{uri}/{path} is named like an object of the Avro format but is not where one belongs: "
            "topics/<topic>/partition=<n>/<topic>+<n>-<number>.data is expected.",
            hint="Rename or move it.",
        )


def _check_partition(partition: int, uri: str, path: str) -> None:
    if partition >= _MAX_PARTITIONS:
        raise FolderRefused(
            f"{uri}/{path}: it would be of partition {partition}, and no topic has more than {_MAX_PARTITIONS}.",
            hint="Rename or move it.",
        )


def _check_topic(topic: str, uri: str, path: str) -> None:
    try:
        names.check_topic(topic)
    except ValueError as error:
        raise FolderRefused(f"{uri}/{path}: {error}.", hint="Rename or move its folder.") from error
