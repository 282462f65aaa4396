"""Checkpoints as bytes: the fold of commits 0..n, so that a reader need not read them all. No I/O.

A checkpoint is a line of JSON, then zstd frames, each complete (`tail -n +2 | zstd -d` shows their content):

    {"format":1,"archiveId":…,"commit":40,"epoch":3,"layout":1,"frames":[<compressed bytes of each>],"sha256":…,
     "signer":…,"signature":…}
    frame 0        {"epoch":…,"commitSha256":…,"signedSince":…,"removals":[[commit,time],…],
                   "rowLayout":"<9q…","rowColumns":[…],"partitions":<n>,"topics":{…},"groups":{…},"runs":{…},"holds":{…}}
    other frames   [<partition>,…] and a line feed, then the rows of their segments, packed as `packed` says

    partition      [topicId,partition,<facts>…,[<line>,…] lines from 1 on,[[commit,<segments>],…] unpurged,
                   […] replaced,<next generation>]
    facts          <segments>,[[start,end],…] archived,[[start,end,reason],…] gaps,[[start,end],…] removed,
                   [[epoch,start],…],leader (-1: none),[[end,leader epoch,time,<parts>],…] snapshots
    line           [start,end,again,epoch,branch id of the line before,dense,
                   null or [generation,began,since,exact],<facts>…]
    next generation  null or [last,due,null or [number,began,start,end,<facts>…]]

`sha256` is that of all frames. Tables of frame 0 are those of commits: one without rows is not written. `removals` are
the commits that have removed segments whose objects may still be there. The rows of a partition lie in the order in
which its item counts them: the segments of line 0 and the parts of its snapshots, those of its other lines, what is
unpurged, what stands in place of replaced segments (see `replacements`), and the passive generation.

Frames are made and read one after another, so neither side holds the state a second time.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import cramjam

from logkeep_engine.archive.catalog import documents, fields, packed, tables
from logkeep_engine.archive.catalog.facts import Gap, Partition
from logkeep_engine.archive.catalog.generations import PASSIVE, NextGeneration, PassiveGeneration, passive_of
from logkeep_engine.archive.catalog.held_lines import HeldLine, PartitionFacts, Rereading
from logkeep_engine.archive.catalog.held_snapshots import HeldSnapshot
from logkeep_engine.archive.catalog.kinds import (
    COUNT,
    EPOCH,
    FLAG,
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
from logkeep_engine.archive.catalog.lines import Line
from logkeep_engine.archive.catalog.replacements import replacements_in, replacements_out
from logkeep_engine.archive.catalog.signing import NO_KEYS, SigningKeys, of_checkpoint, unsigned
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.unpurged import Unpurged
from logkeep_engine.archive.names import MAX_EPOCH
from logkeep_engine.errors import ArchiveMismatch
from logkeep_engine.log.memory import checkpoint_most

# ---- policies

# When the writer of an archive writes checkpoints. Pure.


@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """A checkpoint is due after `commits` commits if they are an eighth of the last checkpoint, once they are as large
    as it, or after `most_commits` whatever their size: each is an object that opening the archive reads.

    Small archives are not below `min_bytes` in the second rule. KIP-630 does the same with
    `metadata.log.max.record.bytes.between.snapshots`.
    """

    commits: int = 64
    min_bytes: int = 4 << 20
    most_commits: int = 1000

    def due(self, commits: int, size: int, last_checkpoint: int) -> bool:
        if commits == 0:
            return False
        if size >= max(self.min_bytes, last_checkpoint) or commits >= self.most_commits:
            return True
        return commits >= self.commits and size * 8 >= last_checkpoint


LAYOUT = 1
FRAME_BYTES = 1 << 20  # the content of a frame: a small one keeps the memory of writers and readers small

_HEAD_KEYS = {"format", "archiveId", "commit", "epoch", "layout", "frames", "sha256", "signer", "signature"}
_COMMIT_SHA256 = "commitSha256"
_SIGNED_SINCE = "signedSince"
_KEYS = {"epoch", _COMMIT_SHA256, _SIGNED_SINCE, "removals", "rowLayout", "rowColumns", "partitions"}
_TABLES: dict[str, tables.Table[Any]] = {
    "topics": tables.TOPICS,
    "groups": tables.GROUPS,
    "runs": tables.RUNS,
    "holds": tables.HOLDS,
}
_ROW_FORM: dict[str, Any] = {"rowLayout": fields.ROW_LAYOUT, "rowColumns": list(fields.ROW_COLUMNS)}
_FACTS = 7  # items
_BETWEEN = "\0"
_SPLIT = b',"\\u0000",'  # no JSON of an item has this: a quotation mark within a string is escaped


def dump(state: ArchiveState, archive_id: str, signing: SigningKeys = NO_KEYS) -> bytes:
    """Return the state as of `state.commit`."""
    frames = [bytes(cramjam.zstd.compress(content, level=3)) for content in _contents(state, keys_of(state))]
    hashed = hashlib.sha256()
    for frame in frames:
        hashed.update(frame)
    head = {
        "format": documents.FORMAT,
        "archiveId": archive_id,
        "commit": state.commit,
        "epoch": state.epoch,
        "layout": LAYOUT,
        "frames": [len(frame) for frame in frames],
        "sha256": hashed.hexdigest(),
        "signer": signing.signer,
        "signature": signing.sign(of_checkpoint(archive_id, state.commit, state.epoch, hashed.hexdigest())),
    }
    return b"".join([documents.dumps(head), b"\n", *frames])


def keys_of(state: ArchiveState) -> list[Partition]:
    """Return the partitions of a checkpoint, in its order."""
    logs = {*state.partitions(), *state.epochs, *state.leaders, *state.lines}
    return sorted({*logs, *state.snapshots, *state.next_generations})


def _contents(state: ArchiveState, keys: list[Partition]) -> Iterator[bytes]:
    yield first_content(state, len(keys))
    own = [rows_of(state, key) for key in keys]
    for some in frame_bounds(list(map(len, own))):
        yield b"[%b]\n%b" % (b",".join(items_of(state, keys[some])), b"".join(own[some]))


def first_content(state: ArchiveState, partitions: int) -> bytes:
    """Return the content of frame 0."""
    facts: tuple[Sequence[Any], ...] = (
        list(state.topics.values()),
        state.groups,
        list(state.runs.values()),
        state.retention_holds,
    )
    return documents.dumps(
        {
            "epoch": state.epoch,
            _COMMIT_SHA256: state.sha256,
            _SIGNED_SINCE: state.signed_since,
            "removals": [[item.commit, item.time] for item in state.unpurged],
            **_ROW_FORM,
            "partitions": partitions,
            **tables.tables_out({key: (_TABLES[key], items) for key, items in zip(_TABLES, facts, strict=True)}),
        }
    )


def items_of(state: ArchiveState, keys: Sequence[Partition]) -> list[bytes]:
    """Return the items of partitions in the JSON of their frames."""
    items: list[Any] = []
    more = _has_more(state)
    for key in keys:
        rest = _more_out(state, key) if more else ((), (), (), None)
        items += ((*key, *_facts_out(state.own_facts(key)[0]), *rest), _BETWEEN)
    # One call for all takes a third of the time of a call for each.
    return documents.dumps([*items, 0])[1:].split(_SPLIT)[:-1]


def _has_more(state: ArchiveState) -> bool:
    """Return whether there is more than segments of logs. Most archives have none of it, and may have a million
    partitions."""
    return bool(state.unpurged or state.snapshots or state.lines or state.replaced or state.next_generations)


def _more_out(state: ArchiveState, key: Partition) -> tuple[Any, ...]:
    """Return the last items of a partition: other lines, what is unpurged, what is replaced, the next generation."""
    lines = [list(_line_out(*pair)) for pair in pairwise(state.lines.get(key, ()))]
    gone = [(item.commit, item.segments.rows(key)) for item in state.unpurged if key in item.segments]
    counts = [[commit, len(rows) // packed.ROW_BYTES] for commit, rows in gone]
    replaced, _ = replacements_out(state.replaced.get(key, ()))
    return lines, counts, replaced, _next_generation_out(state, key)


def _line_out(base: HeldLine, item: HeldLine) -> Iterator[Any]:
    """Yield a line and what is known of the one before it since."""
    line, again = item.line, item.again
    yield from (line.start, line.end, line.again, item.epoch, base.branch_id, item.dense)
    yield None if again is None else [again.number, again.began, again.since, again.exact]
    yield from _facts_out(item.held)


def rows_of(state: ArchiveState, key: Partition) -> bytes | bytearray:
    """Return the rows of a partition. They are not to be changed, and may grow with the state."""
    if not _has_more(state):
        return state.segments.rows(key)
    own, *others = [
        rows for facts in state.own_facts(key) for rows in (facts.rows, *(item.rows for item in facts.snapshots))
    ]
    others += [item.segments.rows(key) for item in state.unpurged]
    others.append(replacements_out(state.replaced.get(key, ()))[1])
    if passive_of(state, key) is not None:
        others.append(state.of_generation(PASSIVE).held(key).rows)
    return b"".join((own, *others)) if any(others) else own


def frame_bounds(sizes: Sequence[int]) -> Iterator[slice]:
    """Yield the partitions of each frame, by the bytes of their rows: as many as go into it, and one at least."""
    ends = list(accumulate(sizes))
    start = before = 0
    while start < len(ends):
        end = max(start + 1, bisect_right(ends, before + FRAME_BYTES))
        yield slice(start, end)
        start, before = end, ends[end - 1]


def _facts_out(held: PartitionFacts) -> list[Any]:
    return [
        len(held.rows) // packed.ROW_BYTES,
        held.coverage,
        [[gap.start, gap.end, gap.reason] for gap in held.gaps],
        held.removed,
        held.epochs,
        held.leader,
        [[item.end, item.leader_epoch, item.time, len(item.rows) // packed.ROW_BYTES] for item in held.snapshots],
    ]


def _next_generation_out(state: ArchiveState, key: Partition) -> list[Any] | None:
    known = state.next_generations.get(key)
    if known is None:
        return None
    passive = known.passive
    if passive is None:
        return [known.last, known.due, None]
    held = state.of_generation(PASSIVE).held(key)
    own = [passive.number, passive.began, passive.start, passive.end, *_facts_out(held)]
    return [known.last, known.due, own]


def load(data: bytes, name: str, signing: SigningKeys = NO_KEYS) -> tuple[str, ArchiveState]:
    """Read a checkpoint: (archive id, state). Messages name the object as `name`.

    Raises ArchiveMismatch for one of a newer version, ArchiveDamaged for one that is cut short or altered, and
    ArchiveUnsigned if there are keys to trust and none has signed it.
    """
    head, body = split(data, name)
    check_signature(head, name, signing)

    def build() -> tuple[str, ArchiveState]:
        state = _load_frames(body, head, name)
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
    """Return the line of a checkpoint, and its frames. Raises as `load` does."""
    end = data.find(b"\n")
    head = documents.parse(data[: end if end >= 0 else len(data)], name)
    if head.get("layout") != LAYOUT:
        raise ArchiveMismatch(
            f"{name}: checkpoint layout {head.get('layout')!r}, this version of Logkeep reads layout {LAYOUT}.",
            hint=documents.NEWER,
        )
    documents.know(head, _HEAD_KEYS, name)
    body = memoryview(data)[end + 1 :] if end >= 0 else memoryview(b"")
    if hashlib.sha256(body).hexdigest() != head.get("sha256"):
        raise documents.damaged(name, "its SHA-256 does not match its content")
    return head, body


def frames_of(body: memoryview, lengths: list[int]) -> Iterator[bytes]:
    """Yield the contents of the frames. Raises ValueError for anything else."""
    at, left = 0, checkpoint_most()
    for length in lengths:
        content = documents.unpacked(body[at : at + length], left)
        left -= len(content)
        yield content
        at += length
    if at != len(body):
        raise ValueError(f"{len(body)} bytes of frames where {at} are announced")


def _load_frames(body: memoryview, head: dict[str, Any], name: str) -> ArchiveState:
    contents = frames_of(body, head["frames"])
    first = documents.loads(next(contents, b""))
    documents.know(first, {*_KEYS, *_TABLES}, name)
    if {key: first[key] for key in _ROW_FORM} != _ROW_FORM:
        raise ArchiveMismatch(f"{name}: unknown columns {first['rowColumns']}.", hint=documents.NEWER)
    state = _state_in(first, name)
    # Each topic id is kept once, and not once for each partition.
    ids = {topic_id: topic_id for topic_id in state.topics}
    partitions = 0
    for content in contents:
        cut = content.index(b"\n")
        rows = _FrameRows(content, cut + 1)
        for topic_id, partition, *item in documents.loads(content[:cut]):
            if type(partition) is not int or not 0 <= partition < MOST_PARTITIONS:
                raise ValueError(f"partition {ascii(partition)[:100]}")
            if topic_id not in ids:
                raise ValueError(f"a partition of topic id {ascii(topic_id)[:100]}, which is not one of its topics")
            _partition_in(state, (ids[topic_id], partition), item, rows)
            partitions += 1
        rows.end()
    if partitions != first["partitions"]:
        raise ValueError(f"{partitions} partitions where {first['partitions']} are announced")
    return state


class _FrameRows:
    """The rows of a frame, which are taken from it in their order. Raises ArchiveMismatch for rows with numbers that
    this version does not know."""

    def __init__(self, content: bytes, start: int) -> None:
        packed.check_numbers(content, start)
        self._rows = memoryview(content)[start:]
        self._at = 0

    def take(self, count: int) -> bytes:
        """Return the next rows. Raises ValueError if there are fewer."""
        found = bytes(self._rows[self._at : self._at + count * packed.ROW_BYTES])
        if len(found) != count * packed.ROW_BYTES:
            raise ValueError(f"{len(self._rows)} bytes of rows where {count} more rows are announced")
        self._at += len(found)
        return found

    def end(self) -> None:
        """Raises ValueError if something is left."""
        if self._at != len(self._rows):
            raise ValueError(f"{len(self._rows)} bytes of rows where {self._at} are announced")


def _partition_in(state: ArchiveState, key: Partition, item: list[Any], rows: _FrameRows) -> None:
    """Add a partition, of which `items_of` has made this item."""
    lines, unpurged, replaced, coming = item[_FACTS:]
    state.hold(key, _facts_in(key, item[:_FACTS], rows))
    if lines:
        state.lines[key] = [HeldLine(Line(), state.held(key))]
        for line in lines:
            _line_in(state.lines[key], key, line, rows)
        state.show(key)
    if unpurged:
        removals = {found.commit: found.segments for found in state.unpurged}
        for commit, count in unpurged:
            removals[commit].set_rows(key, rows.take(count))
    if replaced:
        state.replaced[key] = replacements_in(replaced, rows.take)
    if coming is not None:
        state.next_generations[key] = _next_generation_in(state, key, coming, rows)


def _line_in(held: list[HeldLine], key: Partition, item: list[Any], rows: _FrameRows) -> None:
    """Add a line. Raises TypeError and ValueError for anything else."""
    start, end, is_again, epoch, branch_id, dense, again, *facts = item
    NUMBER.check((start, end), "an offset of a line")
    EPOCH.check((epoch,), "the epoch of a line")
    FLAG.check((is_again, dense), "a flag of a line")
    TEXT.check((branch_id,), "the id of a branch")
    if again is not None:
        NUMBER.check(again, "a number of a generation")
    if bool(branch_id) == is_again:
        raise ValueError(f"line {len(held)} of {key}: a line is a branch if the log was cut off, and only then")
    held[-1].branch_id = branch_id
    line = Line(len(held) - 1, start, end, is_again)
    own = _facts_in(key, facts, rows)
    held.append(HeldLine(line, own, epoch, dense=dense, again=None if again is None else Rereading(*again)))


def _facts_in(key: Partition, facts: Sequence[Any], rows: _FrameRows) -> PartitionFacts:
    segments, coverage, gaps, removed, epochs, leader, snapshots = facts
    if type(leader) is not int or not UNKNOWN <= leader <= MAX_EPOCH:
        raise TypeError(f"{ascii(leader)[:100]} is not a leader epoch")
    return PartitionFacts(
        rows.take(segments),
        ranges_of(coverage),
        _gaps_in(key, gaps),
        ranges_of(removed),
        epochs_of(epochs),
        leader,
        [_snapshot_in(rows, *item) for item in snapshots],
    )


def _snapshot_in(rows: _FrameRows, end: int, leader_epoch: int, time: int, parts: int) -> HeldSnapshot:
    NUMBER.check((end, leader_epoch), "a number of a snapshot")
    TIME.check((time,), "the time of a snapshot")
    return HeldSnapshot(end, leader_epoch, time, rows.take(parts))


def _gaps_in(key: Partition, gaps: Iterable[tuple[int, int, str]]) -> list[Gap]:
    found = [Gap(*key, start, end, reason) for start, end, reason in gaps]
    ranges_of((gap.start, gap.end) for gap in found)
    TEXT.check([gap.reason for gap in found], "the reason of a gap")
    return found


def _next_generation_in(state: ArchiveState, key: Partition, found: list[Any], rows: _FrameRows) -> NextGeneration:
    last, due, passive = found
    NUMBER.check((last,), "the number of a generation")
    FLAG.check((due,), "due")
    if passive is None:
        return NextGeneration(last, due=due)
    own, facts = passive[:-_FACTS], passive[-_FACTS:]
    NUMBER.check(own, "a number of a generation")
    state.of_generation(PASSIVE).hold(key, _facts_in(key, facts, rows))
    return NextGeneration(last, PassiveGeneration(*own), due)


def _state_in(document: dict[str, Any], name: str) -> ArchiveState:
    """Return the state of frame 0."""
    check_values(document, {"epoch": EPOCH, "removals": LIST})
    state = ArchiveState()
    state.epoch = document["epoch"]
    state.sha256 = check_hash(document[_COMMIT_SHA256], _COMMIT_SHA256)
    NUMBER.check((document[_SIGNED_SINCE],), _SIGNED_SINCE)
    state.signed_since = document[_SIGNED_SINCE]
    state.unpurged = tuple(Unpurged(commit, time) for commit, time in document["removals"])
    COUNT.check([item.commit for item in state.unpurged], "the commit of a removal")
    TIME.check([item.time for item in state.unpurged], "the time of a removal")
    facts = {key: list(table.read(document, key, name)) for key, table in _TABLES.items()}
    state.topics = {topic.topic_id: topic for topic in facts["topics"]}
    state.groups = tuple(facts["groups"])
    state.runs = {run.run_id: run for run in facts["runs"]}
    state.retention_holds = tuple(facts["holds"])
    return state
