"""Checkpoints: one layout is written and read, the rest is refused."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cramjam
import pytest

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog import checkpoint, fields
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.checkpoint import CheckpointPolicy
from logkeep_engine.archive.catalog.facts import Coverage, Gap, RunOutcome, branch_id
from logkeep_engine.archive.catalog.held_lines import HeldLine, PartitionFacts
from logkeep_engine.archive.catalog.lines import Line
from logkeep_engine.archive.catalog.packed import pack
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.unpurged import Unpurged
from logkeep_engine.archive.maintenance.catalog_check import check_catalog
from logkeep_engine.errors import ArchiveDamaged, ArchiveMismatch
from logkeep_engine.log.compression import Codec, decompress
from logkeep_engine.storage import open_uri
from tests.unit.archive.build import ORDERS, begin, chunk
from tests.unit.archive.catalog.test_state import BLAKE3_DIGEST, SHA256_DIGEST, entry
from tests.unit.log import hostile

ID = ORDERS.topic_id


def test_a_state_larger_than_a_frame_is_read_again() -> None:
    state = _large(segments=5000)
    data = checkpoint.dump(state, "a")
    assert len(json.loads(data.partition(b"\n")[0])["frames"]) > 3
    assert checkpoint.load(data, "c")[1].same_facts(state)


@pytest.fixture
def _small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state of few segments has as many frames as a large one."""
    monkeypatch.setattr(checkpoint, "FRAME_BYTES", checkpoint.FRAME_BYTES // 100)


FRAMES = pytest.mark.usefixtures("_small_frames")


def _large(*blake3: int, segments: int = 50) -> ArchiveState:
    """Three partitions of so many segments; those that begin at the offsets `blake3` have such a digest."""
    state = ArchiveState()
    state.add_facts(
        [ORDERS],
        [Coverage(ID, partition, 10, 10 + segments) for partition in range(3)],
        [
            entry(base, base + 1, partition=partition, digest=BLAKE3_DIGEST if base in blake3 else SHA256_DIGEST)
            for partition in range(3)
            for base in range(10, 10 + segments)
        ],
        [Gap(ID, 7, 0, 5, "gelöscht\n")],
    )
    return state


def _head(data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(data.partition(b"\n")[0])
    return found


@FRAMES
def test_a_state_with_both_digests_is_read_again() -> None:
    state = _large(10, 47)
    data = checkpoint.dump(state, "a")
    assert _head(data)["layout"] == 1
    found = checkpoint.load(data, "c")[1]
    assert found.same_facts(state)
    assert [one.digest.name for one in found.segments[ID, 2] if one.base_offset in (10, 11, 47)] == [
        "BLAKE3", "SHA-256", "BLAKE3",
    ]  # fmt: skip


@FRAMES
@pytest.mark.parametrize("where", ["removed", "branch"])
def test_the_digest_of_a_removed_segment_or_of_a_branch_is_kept(where: str) -> None:
    state = _large()
    other = pack(entry(0, 5, digest=BLAKE3_DIGEST))
    if where == "removed":
        state.unpurged = (Unpurged(1, 5),)
        state.unpurged[0].segments.set_rows((ID, 0), other)
        state.removed[ID, 0] = [(0, 5)]
    else:
        old = HeldLine(Line(), PartitionFacts(other, [(0, 5)]), branch_id=branch_id(ID, 1))
        state.lines[ID, 0] = [old, HeldLine(Line(0, 0), PartitionFacts())]
        state.show((ID, 0))
    assert checkpoint.load(checkpoint.dump(state, "a"), "c")[1].same_facts(state)


@FRAMES
@pytest.mark.parametrize(
    ("place", "what"), [(-3, "flags of number 64"), (-2, "a layout of number 64"), (-1, "a digest of number 64")]
)
def test_a_number_in_a_row_that_is_not_known_is_refused(place: int, what: str) -> None:
    head, contents = _taken_apart(checkpoint.dump(_large(10), "a"))
    rows = bytearray(contents[1])
    rows[place] = 64
    frames = _packed([contents[0], bytes(rows), *contents[2:]])
    with pytest.raises(ArchiveMismatch, match=f"A segment has {what}") as caught:
        checkpoint.load(_sealed({**head, "frames": [len(frame) for frame in frames]}, frames), "c")
    assert caught.value.hint == "It was written by a newer Logkeep: use that version or a later one."


@FRAMES
def test_states_that_differ_are_distinguished() -> None:
    changes: list[Callable[[ArchiveState], None]] = [
        lambda state: state.add_facts((), [Coverage(ID, 9, 0, 1)], (), ()),
        lambda state: state.add_facts((), (), [entry(9000, 9001)], ()),
        lambda state: state.add_facts((), (), (), [Gap(ID, 9, 0, 1, "x")]),
        lambda state: state.topics.clear(),
        lambda state: setattr(state, "epoch", 4),
    ]
    for change in changes:
        state = _large()
        assert state.same_facts(_large())
        change(state)
        assert not state.same_facts(_large())


def _sealed(head: dict[str, Any], frames: list[bytes]) -> bytes:
    body = b"".join(frames)
    return json.dumps({**head, "sha256": hashlib.sha256(body).hexdigest()}).encode() + b"\n" + body


def _taken_apart(data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    line, _, body = data.partition(b"\n")
    head = json.loads(line)
    contents, at = [], 0
    for length in head["frames"]:
        contents.append(bytes(cramjam.zstd.decompress(body[at : at + length])))
        at += length
    return head, contents


def _packed(contents: list[bytes]) -> list[bytes]:
    return [bytes(cramjam.zstd.compress(content)) for content in contents]


def _with(change: Callable[[list[bytes]], object]) -> bytes:
    head, contents = _taken_apart(checkpoint.dump(_large(), "a"))
    change(contents)
    frames = _packed(contents)
    return _sealed({**head, "frames": [len(frame) for frame in frames]}, frames)


@FRAMES
def test_a_checkpoint_that_cannot_be_is_damage() -> None:
    whole = checkpoint.dump(_large(), "a")
    head, contents = _taken_apart(whole)
    frames = _packed(contents)
    lengths = [len(frame) for frame in frames]
    cases = {
        "does not match its content": whole[:-1],
        "it is not complete JSON": whole[:20],
        "3 partitions where 4 are announced|2 partitions where 4": _with(lambda parts: parts.pop()),
        r"bytes of rows where \d+ are announced": _with(lambda parts: parts.append(parts.pop() + b"x")),
        r"bytes of rows where \d+ more rows are announced": _with(lambda parts: parts.append(parts.pop()[:-1])),
        "bytes of frames where": _sealed({**head, "frames": lengths}, [*frames, b"x"]),
        "JSONDecodeError": _sealed({**head, "frames": []}, []),
        "KeyError: 'commitSha256'": _with(
            lambda parts: parts.insert(0, parts.pop(0).replace(b'"commitSha256":"",', b""))
        ),
        "commitSha256 is 'x', which is not a SHA-256": _with(
            lambda parts: parts.insert(0, parts.pop(0).replace(b'"commitSha256":""', b'"commitSha256":"x"'))
        ),
        "KeyError: 'commit'": _sealed(
            {**{key: value for key, value in head.items() if key != "commit"}, "frames": lengths}, frames
        ),
    }
    for what, data in cases.items():
        with pytest.raises(ArchiveDamaged, match=what):
            checkpoint.load(data, "c")


def test_a_checkpoint_whose_frame_unpacks_to_too_much_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "checkpoint_most", lambda: 64 << 20)
    contents = [_taken_apart(checkpoint.dump(_large(), "a"))[1][0], bytes(128 << 20)]
    frames = _packed(contents)
    head, _ = _taken_apart(checkpoint.dump(_large(), "a"))
    bomb = _sealed({**head, "frames": [len(frame) for frame in frames]}, frames)
    del contents

    def refused() -> None:
        with pytest.raises(
            ArchiveDamaged, match=r"catalog/checkpoint: .* says that it unpacks to 134217728, which is too much"
        ):
            checkpoint.load(bomb, "catalog/checkpoint")

    assert hostile.peak_of(refused) < 80 << 20


def test_a_checkpoint_of_a_large_frame_is_read_however_large_the_room_is_at_first() -> None:
    content = bytes(40 << 20)
    assert decompress(Codec.ZSTD, memoryview(bytes(cramjam.zstd.compress(content))), limit=1 << 30) == content


@FRAMES
def test_a_checkpoint_of_a_newer_version_is_refused() -> None:
    head, contents = _taken_apart(checkpoint.dump(_large(), "a"))
    frames = _packed(contents)
    lengths = [len(frame) for frame in frames]
    columns = json.dumps([*fields.ROW_COLUMNS, "more"]).encode()
    old = json.dumps(list(fields.ROW_COLUMNS), separators=(",", ":")).encode()
    cases = {
        "c: checkpoint layout 2, this version of Logkeep reads layout 1": _sealed({**head, "layout": 2}, frames),
        "c: unknown keys more": _sealed({**head, "frames": lengths, "more": 1}, frames),
        "c: unknown columns": _with(lambda parts: parts.insert(0, parts.pop(0).replace(old, columns))),
        "c: unknown keys x": _with(
            lambda parts: parts.insert(0, parts.pop(0).replace(b'"epoch"', b'"x":1,"epoch"', 1))
        ),
    }
    for what, data in cases.items():
        with pytest.raises(ArchiveMismatch, match=what) as caught:
            checkpoint.load(data, "c")
        assert caught.value.hint == "It was written by a newer Logkeep: use that version or a later one."


def test_a_damaged_checkpoint_is_reported_and_the_commits_hold_the_same(tmp_path: Path) -> None:
    storage = open_uri(f"file://{tmp_path}/archive")
    with begin(storage, "nightly-1") as writer:
        writer.commit(topics=[ORDERS], receipts=[chunk(storage, 0, 20)])
        writer.checkpoint()
        writer.end(RunOutcome.SUCCEEDED)
    archive = Archive.open(storage)
    path = names.checkpoint_path(1, 1)
    storage.put(path, storage.read(path)[:-1])
    assert archive.load().commit == 2
    faults = check_catalog(archive).damage
    assert [(fault.object.rpartition("/")[2], fault.what) for fault in faults] == [
        (path.rpartition("/")[2], "its SHA-256 does not match its content")
    ]


def test_a_checkpoint_is_due_by_size_and_by_number_of_commits() -> None:
    policy = CheckpointPolicy(commits=64, min_bytes=1000, most_commits=500)
    assert not policy.due(0, 0, 0)
    assert not policy.due(63, 999, 0)
    assert policy.due(63, 1000, 1000)
    assert policy.due(64, 125, 1000)
    assert not policy.due(499, 124, 1000)
    assert policy.due(500, 1, 1000)
