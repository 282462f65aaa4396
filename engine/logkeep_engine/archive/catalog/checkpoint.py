"""Checkpoints as bytes: the fold of commits 0..n, so that a reader need not read them all. No I/O.

A checkpoint is a line of JSON, then zstd frames, each complete (`tail -n +2 | zstd -d` shows their content):

    {"format":1,"archiveId":…,"commit":40,"epoch":3,"layout":2,"frames":[<compressed bytes of each>],"sha256":…,
     "signer":…,"signature":…}
    frame 0        {"epoch":…,"commitSha256":…,"signedSince":…,"topics":[…],"groups":{…},"runs":{…},
                   "rowLayout":"<9q…","rowColumns":[…],"partitions":<n>}
    other frames   [[topicId,partition,[[start,end],…],[[start,end,reason],…],<segments>],…] and a line feed, then the
                   rows of their segments, in this order, packed as `packed` says

`sha256` is that of all frames. Frames are made and read one after another, so neither side holds the state a second
time.

Layout 3 is written once retention has removed a segment. Its partitions have two items more:
[…,<segments>,[[start,end],…] removed,<segments whose objects may be there still>], and the rows of the latter follow
those of the partition's segments. Layout 4 is written once the archive says leader epochs. Its partitions have three
items more than those of layout 3: [[epoch,start],…], the epoch of the last leader seen (-1: none), and of its branches
[[branch id,offset,[[start,end],…],[[start,end,reason],…],[[start,end],…] removed,[[epoch,start],…],leader,<segments>],
…], whose rows follow the others. Layout 5 is written once a segment has a digest that is not SHA-256. Its items are
those of layout 4, and each row has one byte more: the number of the digest's algorithm (`fields.DIGEST_NUMBERS`).
Layout 6 is written once there is a fact for its objects `more`: frame 0 has the key `more`, and each partition has an
object more than in layout 5. The rows that it counts follow the others. A fact that is not there has no key:
    frame 0        "removals":[[commit,time],…]   the commits that have removed segments whose objects may be there
                   still. With a time of 0 they are those that were removed up to this commit: the checkpoint of an
                   earlier version has not told by which
                   "holds":{…}   as in a commit
    a partition    "unpurged":[[commit,<segments>],…]   how many of them are of the partition; none are counted where
                   layout 3 has them
                   "snapshots":[[end,leader epoch,time,<parts>],…]
                   "branchSnapshots":[[branch id,end,leader epoch,time,<parts>],…]
                   "replaced":[…]   see `replacements`
                   "generation":{…}   see `generations`
Layout 1, without the keys `layout` and `frames`, is one frame of JSON with a row of JSON for each segment; it is read,
not written. Versions that do not know a layout refuse it.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, starmap
from typing import Any

import cramjam

from logkeep_engine.archive.catalog import documents, fields, packed, tables
from logkeep_engine.archive.catalog.branches import Branch, PartitionFacts
from logkeep_engine.archive.catalog.facts import Gap, Partition
from logkeep_engine.archive.catalog.fields import Since
from logkeep_engine.archive.catalog.generations import generation_in, generation_out
from logkeep_engine.archive.catalog.held_snapshots import HeldSnapshot
from logkeep_engine.archive.catalog.kinds import (
    COUNT,
    EPOCH,
    LIST,
    MOST_PARTITIONS,
    NUMBER,
    TEXT,
    TIME,
    check_hash,
    check_values,
    epochs_of,
    ranges_of,
)
from logkeep_engine.archive.catalog.lineage import UNKNOWN
from logkeep_engine.archive.catalog.replacements import replacements_in, replacements_out
from logkeep_engine.archive.catalog.signing import NO_KEYS, SigningKeys, of_checkpoint, unsigned
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.unpurged import NOT_KNOWN, Unpurged
from logkeep_engine.errors import ArchiveMismatch
from logkeep_engine.log.memory import checkpoint_most

LAYOUT = 2
LAYOUT_WITH_REMOVED = 3
LAYOUT_WITH_EPOCHS = 4
LAYOUT_WITH_DIGESTS = 5
LAYOUT_WITH_MORE = 6
FRAME_BYTES = 1 << 20  # the content of a frame: a small one keeps the memory of writers and readers small

_HEAD_KEYS = {"format", "archiveId", "commit", "epoch", "sha256", "signer", "signature"}
_NONE: list[Any] = [(), 0, (), UNKNOWN, (), {}]  # what the older layouts do not say of a partition
_COMMIT_SHA256 = "commitSha256"
_SIGNED_SINCE = "signedSince"
_BODY_KEYS = {"epoch", "topics", "groups", "runs", _COMMIT_SHA256, _SIGNED_SINCE}
_BETWEEN = "\0"
_SPLIT = b',"\\u0000",'  # no JSON of an item has this: a quotation mark within a string is escaped
_REMOVALS, _UNPURGED, _HOLDS = "removals", "unpurged", "holds"
_SNAPSHOTS, _BRANCH_SNAPSHOTS, _REPLACED = "snapshots", "branchSnapshots", "replaced"
_MORE_OF_ARCHIVE: set[str] = {_REMOVALS, _HOLDS}
_MORE_OF_PARTITION: set[str] = {_UNPURGED, _SNAPSHOTS, _BRANCH_SNAPSHOTS, _REPLACED, "generation"}


def dump(state: ArchiveState, archive_id: str, signing: SigningKeys = NO_KEYS) -> bytes:
    """The state as of `state.commit`, in the oldest layout that can hold it."""
    keys = keys_of(state)
    layout = max([layout_of_archive(state), *(layout_of_partition(state, key) for key in keys)])
    frames = [bytes(cramjam.zstd.compress(content, level=3)) for content in _contents(state, keys, layout)]
    hashed = hashlib.sha256()
    for frame in frames:
        hashed.update(frame)
    head = {
        "format": documents.FORMAT,
        "archiveId": archive_id,
        "commit": state.commit,
        "epoch": state.epoch,
        "layout": layout,
        "frames": [len(frame) for frame in frames],
        "sha256": hashed.hexdigest(),
        "signer": signing.signer,
        "signature": signing.sign(of_checkpoint(archive_id, state.commit, state.epoch, hashed.hexdigest())),
    }
    return b"".join([documents.dumps(head), b"\n", *frames])


def keys_of(state: ArchiveState) -> list[Partition]:
    """The partitions of a checkpoint, in its order."""
    logs = {*state.partitions(), *state.epochs, *state.leaders, *state.branches}
    return sorted({*logs, *state.snapshots, *state.generations})


def layout_of_archive(state: ArchiveState) -> int:
    """The oldest layout that can hold what the first frame says."""
    return LAYOUT_WITH_MORE if _more_of_archive(state) else LAYOUT


def layout_of_partition(state: ArchiveState, key: Partition) -> int:
    """The oldest layout that can hold what the state says of a partition."""
    if _more_of_partition(state, key)[0]:
        return LAYOUT_WITH_MORE
    branches = state.branches.get(key, ())
    tables_of = [state.segments.rows(key), *(branch.held.rows for branch in branches)]
    if any(map(packed.needs_digests, tables_of)):
        return LAYOUT_WITH_DIGESTS
    if key in state.epochs or key in state.leaders or branches:
        return LAYOUT_WITH_EPOCHS
    return LAYOUT_WITH_REMOVED if key in state.removed else LAYOUT


def _more_of_archive(state: ArchiveState) -> dict[str, Any]:
    """The facts of the whole archive that only layout 6 has."""
    removals = [[item.commit, item.time] for item in state.unpurged]
    found = {_REMOVALS: removals, _HOLDS: tables.HOLDS.out(state.retention_holds) if state.retention_holds else None}
    return {name: value for name, value in found.items() if value}


def _more_of_partition(state: ArchiveState, key: Partition) -> tuple[dict[str, Any], bytes]:
    """The facts of a partition that only layout 6 has, and the rows of segments that they count."""
    if not (state.unpurged or state.snapshots or state.branches or state.replaced or state.generations):
        return {}, b""  # most archives have none of it, and may have a million partitions
    gone = [(item.commit, item.segments.rows(key)) for item in state.unpurged if key in item.segments]
    own: list[tuple[list[str], HeldSnapshot]] = [([], item) for item in state.snapshots.get(key, ())]
    others = [([branch.id], item) for branch in state.branches.get(key, ()) for item in branch.held.snapshots]
    replaced, last = replacements_out(state.replaced.get(key, ()))
    found: dict[str, list[Any]] = {
        _UNPURGED: [[commit, len(rows) // packed.ROW_BYTES] for commit, rows in gone],
        _SNAPSHOTS: list(starmap(_snapshot_out, own)),
        _BRANCH_SNAPSHOTS: list(starmap(_snapshot_out, others)),
        _REPLACED: replaced,
    }
    rows = b"".join([*(rows for _, rows in gone), *(item.rows for _, item in (*own, *others))])
    generation, passive = generation_out(state, key)
    more: dict[str, Any] = {**found, "generation": generation}
    return {name: value for name, value in more.items() if value}, rows + last + passive


def _snapshot_out(branch: list[str], item: HeldSnapshot) -> list[Any]:
    return [*branch, item.end, item.leader_epoch, item.time, len(item.rows) // packed.ROW_BYTES]


def _take_more_of_archive(state: ArchiveState, more: dict[str, Any]) -> None:
    """Add what `_more_of_archive` has written."""
    state.unpurged = tuple(Unpurged(commit, time) for commit, time in more.get(_REMOVALS, ()))
    COUNT.check([item.commit for item in state.unpurged], "the commit of a removal")
    TIME.check([item.time for item in state.unpurged], "the time of a removal")
    state.retention_holds = tuple(tables.HOLDS.read(more, _HOLDS, "more"))


def _take_more_of_partition(state: ArchiveState, key: Partition, more: dict[str, Any], rows: memoryview) -> int:
    """Add what `_more_of_partition` has written. `rows` begins with its rows; returns how many bytes they are."""
    at = 0
    tables_by_commit = {item.commit: item.segments for item in state.unpurged}
    for commit, count in more.get(_UNPURGED, ()):
        size = count * packed.ROW_BYTES
        tables_by_commit[commit].set_rows(key, rows[at : at + size])
        at += size
    own = [(state.snapshots.setdefault(key, []), item) for item in more.get(_SNAPSHOTS, ())]
    others = [(state.branch(key, name).held.snapshots, item) for name, *item in more.get(_BRANCH_SNAPSHOTS, ())]
    for held, (end, leader_epoch, time, parts) in (*own, *others):
        NUMBER.check((end, leader_epoch, parts), "a number of a snapshot")
        TIME.check((time,), "the time of a snapshot")
        size = parts * packed.ROW_BYTES
        held.append(HeldSnapshot(end, leader_epoch, time, bytes(rows[at : at + size])))
        at += size
    if _REPLACED in more:
        state.replaced[key], size = replacements_in(more[_REPLACED], rows[at:])
        at += size
    return at + (generation_in(state, key, more["generation"], rows[at:]) if "generation" in more else 0)


def _contents(state: ArchiveState, keys: list[Partition], layout: int) -> Iterator[bytes]:
    yield first_content(state, len(keys), layout)
    own = [rows_of(state, key, layout) for key in keys]
    for some in frame_bounds(list(map(len, own))):
        index = b",".join(items_of(state, keys[some], layout))
        yield b"[%b]\n%b" % (index, rows_out(b"".join(own[some]), layout))


def first_content(state: ArchiveState, partitions: int, layout: int) -> bytes:
    """The content of frame 0."""
    return documents.dumps(
        {
            "epoch": state.epoch,
            _COMMIT_SHA256: state.sha256,
            _SIGNED_SINCE: state.signed_since,
            "topics": [tables.topic_out(topic) for topic in state.topics.values()],
            "groups": tables.GROUPS.out(state.groups),
            "runs": tables.RUNS.out(state.runs.values()),
            **_row_form(layout),
            "partitions": partitions,
            **({"more": _more_of_archive(state)} if layout >= LAYOUT_WITH_MORE else {}),
        }
    )


def items_of(state: ArchiveState, keys: Sequence[Partition], layout: int) -> list[bytes]:
    """The items of partitions in the JSON of their frames."""
    items: list[Any] = []
    for key in keys:
        item: list[Any] = [*key, *_ranges(state, key), len(state.segments.rows(key)) // packed.ROW_BYTES]
        if layout >= LAYOUT_WITH_REMOVED:
            item += [state.removed.get(key, []), 0]
        if layout >= LAYOUT_WITH_EPOCHS:
            branches = state.branches.get(key, [])
            item += [state.epochs.get(key, []), state.leaders.get(key, UNKNOWN), list(map(_branch_out, branches))]
        if layout >= LAYOUT_WITH_MORE:
            item.append(_more_of_partition(state, key)[0])
        items += (item, _BETWEEN)
    # One call for all takes a third of the time of a call for each.
    return documents.dumps([*items, 0])[1:].split(_SPLIT)[:-1]


def rows_of(state: ArchiveState, key: Partition, layout: int) -> bytes | bytearray:
    """The rows of a partition. They are not to be changed, and may grow with the state."""
    others: list[bytes | bytearray] = [branch.held.rows for branch in state.branches.get(key, ())]
    if layout >= LAYOUT_WITH_MORE:
        others.append(_more_of_partition(state, key)[1])
    own = state.segments.rows(key)
    return b"".join((own, *others)) if any(others) else own


def frame_bounds(sizes: Sequence[int]) -> Iterator[slice]:
    """The partitions of each frame, by the bytes of their rows: as many as go into it, and one at least."""
    ends = list(accumulate(sizes))
    start = before = 0
    while start < len(ends):
        end = max(start + 1, bisect_right(ends, before + FRAME_BYTES))
        yield slice(start, end)
        start, before = end, ends[end - 1]


def rows_out(rows: bytes, layout: int) -> bytes:
    """The rows as a checkpoint of that layout has them."""
    return rows if layout >= LAYOUT_WITH_DIGESTS else packed.plain_rows(rows)


def _row_form(layout: int) -> dict[str, Any]:
    """The keys that say how a row is laid out."""
    if layout >= LAYOUT_WITH_DIGESTS:
        return {"rowLayout": fields.ROW_LAYOUT, "rowColumns": list(fields.ROW_COLUMNS)}
    return {"rowLayout": fields.PLAIN_ROW_LAYOUT, "rowColumns": list(fields.PLAIN_ROW_COLUMNS)}


def _branch_out(branch: Branch) -> list[Any]:
    held = branch.held
    gaps = [[gap.start, gap.end, gap.reason] for gap in held.gaps]
    count = len(held.rows) // packed.ROW_BYTES
    return [branch.id, branch.offset, held.coverage, gaps, held.removed, held.epochs, held.leader, count]


def _ranges(state: ArchiveState, key: Partition) -> tuple[Any, Any]:
    return state.coverage.get(key, []), [[gap.start, gap.end, gap.reason] for gap in state.gaps.get(key, ())]


def load(data: bytes, name: str, signing: SigningKeys = NO_KEYS) -> tuple[str, ArchiveState]:
    """Read a checkpoint: (archive id, state). Messages name the object as `name`.

    Raises ArchiveMismatch for one of a newer version, ArchiveDamaged for one that is cut short or altered, and
    ArchiveUnsigned if there are keys to trust and none has signed it.
    """
    head, body = split(data, name)
    check_signature(head, name, signing)
    layout = head.get("layout", 1)

    def build() -> tuple[str, ArchiveState]:
        state = _load_rows(body, name) if layout == 1 else _load_frames(body, head, layout, name)
        check_values(head, {"commit": NUMBER, "archiveId": TEXT})
        state.commit = head["commit"]
        return head["archiveId"], state

    return documents.building(build, name)


def check_signature(head: Mapping[str, Any], name: str, signing: SigningKeys) -> None:
    """Raises ArchiveUnsigned for the line of a checkpoint that no trusted key has signed, if there are such keys."""
    if not signing:
        return
    facts = (head.get(key) for key in ("archiveId", "commit", "epoch", "sha256"))
    text = of_checkpoint(*facts)  # type: ignore[arg-type]
    if not signing.check(str(head.get("signer")), text, str(head.get("signature")), name):
        raise unsigned(f"{name}: no trusted key has signed it")


def split(data: bytes, name: str) -> tuple[dict[str, Any], memoryview]:
    """The line of a checkpoint, and its frames. Raises as `load` does."""
    end = data.find(b"\n")
    head = documents.parse(data[: end if end >= 0 else len(data)], name)
    layout = head.get("layout", 1)
    if layout not in range(1, LAYOUT_WITH_MORE + 1):
        raise ArchiveMismatch(
            f"{name}: checkpoint layout {layout!r}, this version of Logkeep reads 1 to {LAYOUT_WITH_MORE}.",
            hint=documents.NEWER,
        )
    documents.know(head, _HEAD_KEYS if layout == 1 else _HEAD_KEYS | {"layout", "frames"}, name)
    body = memoryview(data)[end + 1 :] if end >= 0 else memoryview(b"")
    if hashlib.sha256(body).hexdigest() != head.get("sha256"):
        raise documents.damaged(name, "its SHA-256 does not fit its content")
    return head, body


def _load_frames(body: memoryview, head: dict[str, Any], layout: int, name: str) -> ArchiveState:
    contents = frames_of(body, head["frames"])
    first = documents.loads(next(contents, b""))
    documents.know(first, _BODY_KEYS | {"rowLayout", "rowColumns", "partitions", "more"}, name)
    documents.know(first.get("more", {}), _MORE_OF_ARCHIVE, name)
    if {key: first[key] for key in ("rowLayout", "rowColumns")} != _row_form(layout):
        raise ArchiveMismatch(f"{name}: unknown columns {first['rowColumns']}.", hint=documents.NEWER)
    state = _load_body(first, name)
    _take_more_of_archive(state, first.get("more", {}))
    unknown = Unpurged(head["commit"], NOT_KNOWN)
    # Each topic id is kept once, and not once for each partition.
    ids = {topic_id: topic_id for topic_id in state.topics}
    partitions = 0
    for content in contents:
        cut = content.index(b"\n")
        rows = memoryview(_rows_in(content[cut + 1 :], layout))
        at = 0
        for topic_id, partition, coverage, gaps, segments, *gone in documents.loads(content[:cut]):
            if type(partition) is not int or not 0 <= partition < MOST_PARTITIONS:
                raise ValueError(f"partition {ascii(partition)[:100]}")
            if topic_id not in ids:
                raise ValueError(f"a partition of topic id {ascii(topic_id)[:100]}, which is none of its topics")
            key = (ids[topic_id], partition)
            _add_ranges(state, key, coverage, gaps)
            rest: list[Any] = [*gone, *_NONE[len(gone) :]]
            removed, unpurged, epochs, leader, branches, more = rest
            documents.know(more, _MORE_OF_PARTITION, name)
            if removed:
                state.removed[key] = ranges_of(removed)
            if epochs:
                state.epochs[key] = epochs_of(epochs)
            if leader != UNKNOWN:
                if type(leader) is not int:
                    raise TypeError(f"{ascii(leader)[:100]} is no leader epoch")
                state.leaders[key] = leader
            for table, count in ((state.segments, segments), (unknown.segments, unpurged)):
                if count:
                    table.set_rows(key, rows[at : at + count * packed.ROW_BYTES])
                at += count * packed.ROW_BYTES
            for branch in branches:
                own = bytes(rows[at : at + branch[-1] * packed.ROW_BYTES])
                state.branches.setdefault(key, []).append(_branch_in(key, own, *branch[:-1]))
                at += len(own)
            at += _take_more_of_partition(state, key, more, rows[at:])
            partitions += 1
        if at != len(rows):
            raise ValueError(f"{len(rows)} bytes of rows where {at} are announced")
    if partitions != first["partitions"]:
        raise ValueError(f"{partitions} partitions where {first['partitions']} are announced")
    if unknown.segments:
        state.unpurged = (unknown, *state.unpurged)
    return state


def _rows_in(rows: bytes, layout: int) -> bytes:
    if layout < LAYOUT_WITH_DIGESTS:
        return packed.of_plain_rows(rows)
    packed.check_digests(rows)
    return rows


def _branch_in(
    key: Partition,
    rows: bytes,
    branch_id: str,
    offset: int,
    coverage: Iterable[tuple[int, int]],
    gaps: Iterable[tuple[int, int, str]],
    removed: Iterable[tuple[int, int]],
    epochs: Iterable[tuple[int, int]],
    leader: int,
) -> Branch:
    NUMBER.check((offset, leader), "a number of a branch")
    held = PartitionFacts(
        rows,
        ranges_of(coverage),
        _gaps_in(key, gaps),
        ranges_of(removed),
        epochs_of(epochs),
        leader,
    )
    return Branch(key, branch_id, offset, held)


def frames_of(body: memoryview, lengths: list[int]) -> Iterator[bytes]:
    """The contents of the frames. Raises ValueError for what is none."""
    at, left = 0, checkpoint_most()
    for length in lengths:
        content = documents.unpacked(body[at : at + length], left)
        left -= len(content)
        yield content
        at += length
    if at != len(body):
        raise ValueError(f"{len(body)} bytes of frames where {at} are announced")


def _load_rows(body: memoryview, name: str) -> ArchiveState:
    """The state of a checkpoint of layout 1."""
    document = documents.loads(documents.unpacked(body, checkpoint_most()))
    documents.know(document, _BODY_KEYS | {"segmentColumns", "partitions"}, name)
    if document.get("segmentColumns") not in (fields.columns(Since.FIRST), fields.columns(Since.COMPRESSED)):
        raise ArchiveMismatch(f"{name}: unknown columns {document.get('segmentColumns')}.", hint=documents.NEWER)
    state = _load_body(document, name)
    for topic_id, partition, coverage, gaps, segments in document["partitions"]:
        _add_ranges(state, (topic_id, partition), coverage, gaps)
        for row in segments:
            state.segments.add_row((topic_id, partition), tables.packed_segment(row))
    return state


def _load_body(document: dict[str, Any], name: str) -> ArchiveState:
    state = ArchiveState()
    check_values(document, {"epoch": EPOCH, "topics": LIST})
    state.epoch = document["epoch"]
    state.sha256 = check_hash(document[_COMMIT_SHA256], _COMMIT_SHA256)
    NUMBER.check((document[_SIGNED_SINCE],), _SIGNED_SINCE)
    state.signed_since = document[_SIGNED_SINCE]
    for topic in map(tables.topic_in, document["topics"]):
        state.topics[topic.topic_id] = topic
    state.groups = tuple(tables.GROUPS.read(document, "groups", name))
    for run in tables.RUNS.read(document, "runs", name):
        state.runs[run.run_id] = run
    return state


def _gaps_in(key: Partition, gaps: Iterable[tuple[int, int, str]]) -> list[Gap]:
    found = [Gap(*key, start, end, reason) for start, end, reason in gaps]
    ranges_of((gap.start, gap.end) for gap in found)
    TEXT.check([gap.reason for gap in found], "the reason of a gap")
    return found


def _add_ranges(
    state: ArchiveState, key: Partition, coverage: Iterable[tuple[int, int]], gaps: Iterable[tuple[int, int, str]]
) -> None:
    if ranges := ranges_of(coverage):
        state.coverage[key] = ranges
    noted = _gaps_in(key, gaps)
    if noted:
        state.gaps[key] = noted
