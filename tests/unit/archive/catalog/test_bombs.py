"""Objects of a catalog that are small where they lie and large in memory: who may write to the bucket made them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import cramjam
import pytest

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog import bundle, checkpoint, commits, documents
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import RunOutcome
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.contract import nesting
from logkeep_engine.errors import ArchiveDamaged, ObjectTooLarge
from logkeep_engine.storage import NOTE_BYTES, WHOLE_BYTES, Storage, open_uri
from tests.unit.archive.build import ORDERS, begin, chunk
from tests.unit.log import hostile

GIB = 1 << 30


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """An archive with a run of three commits."""
    made = open_uri(f"file://{tmp_path}/archive")
    with begin(made) as writer:
        writer.commit(topics=[ORDERS], receipts=[chunk(made, 0, 50)])
        writer.end(RunOutcome.SUCCEEDED, "done", [])
    return made


def zeros(size: int, *, announced: bool) -> bytes:
    """A zstd frame of spaces, which JSON may begin with, that says how many they are or does not."""
    if announced:
        return bytes(cramjam.zstd.compress(b" " * size, level=3))
    stream = cramjam.zstd.Compressor(level=3)
    for _ in range(size >> 20):
        stream.compress(b" " * (1 << 20))
    return bytes(stream.finish())


def with_checkpoint(storage: Storage, frames: list[bytes], **head: Any) -> str:
    """A checkpoint of the last commit, whose frames hold what they like."""
    body = b"".join(frames)
    archive = Archive.open(storage)
    last = archive.listing().last
    document = {"format": 1, "archiveId": archive.info.archive_id, "commit": last, "epoch": 1, "layout": 1} | head
    document |= {"frames": [len(frame) for frame in frames], "sha256": hashlib.sha256(body).hexdigest()}
    path = names.checkpoint_path(last, 9)
    storage.put(path, json.dumps(document).encode() + b"\n" + body)
    return path


@pytest.mark.parametrize("announced", [True, False], ids=["which says its size", "which does not"])
def test_a_checkpoint_of_some_kilobytes_that_unpacks_to_much_costs_no_memory(
    storage: Storage, announced: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = with_checkpoint(storage, [zeros(512 << 20, announced=announced)])
    assert len(storage.read(path)) < 64 << 10

    def load() -> None:
        assert Archive.open(storage).load().coverage == {(ORDERS.topic_id, 0): [(0, 50)]}

    assert hostile.peak_of(load) < 32 << 20
    assert "the commits hold the same" in caplog.text
    assert ("which is too much" if announced else "does not state its unpacked size") in caplog.text


def test_a_driver_of_little_memory_reads_the_commits_in_the_place_of_a_bomb(storage: Storage) -> None:
    """The address space is that of a driver's Python: nothing of the size that is announced can be reserved."""
    with_checkpoint(storage, [zeros(GIB, announced=False)])
    program = (
        "import resource; from logkeep_engine.archive.catalog.archive import Archive\n"
        "from logkeep_engine.storage import open_uri\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({GIB}, {GIB}))\n"
        f"print(Archive.open(open_uri({storage.uri!r})).load().commit)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=dict(os.environ), capture_output=True, text=True, check=False
    )
    assert done.stdout == "2\n", done.stderr


def test_frames_may_not_unpack_to_much_together(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "checkpoint_most", lambda: 8 << 20)
    some = [bytes(cramjam.zstd.compress(b'{"a":1}' + b" " * (3 << 20))) for _ in range(4)]
    _, body = checkpoint.split(storage.read(with_checkpoint(storage, some)), "c")
    contents = checkpoint.frames_of(body, [len(frame) for frame in some])
    assert [len(next(contents)) for _ in range(2)] == [len(b'{"a":1}') + (3 << 20)] * 2
    with pytest.raises(ValueError, match="says that it unpacks to 3145735, which is too much"):
        next(contents)


@pytest.mark.parametrize("announced", [True, False])
def test_a_bundle_is_bounded_like_a_checkpoint(announced: bool) -> None:
    frame = zeros(256 << 20, announced=announced)
    place = bundle.FramePlace(0, 1, 0, len(frame))

    def refused() -> None:
        with pytest.raises(ArchiveDamaged, match=r"catalog/a\.bundle: ValueError: a frame of \d+ bytes"):
            bundle.lines(frame, place, "catalog/a.bundle")

    assert hostile.peak_of(refused) < 16 << 20


def sealed(body: bytes) -> bytes:
    """A commit with its own hash."""
    return body[:-1] + b',"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (b"[" * 5000 + b"]" * 5000, "it is not complete JSON .*: it nests too deeply"),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, "it is not complete JSON .*: it nests too deeply"),
        (
            b"[" + b"[]," * (1 << 20) + b"0]",
            "it is not complete JSON .*: it has about 2097162 values, more than 1048576",
        ),
    ],
    ids=["lists", "objects", "values"],
)
def test_a_commit_may_not_nest_or_have_more_than_a_catalog_has(
    value: bytes, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "checkpoint_most", lambda: 64 << 20)
    commit = sealed(b'{"format":1,"archiveId":"a","commit":1,"kind":"Data","x":%b}' % value)

    def refused() -> None:
        with pytest.raises(ArchiveDamaged, match=what):
            commits.load_commit(commit, "catalog/1.json")

    assert hostile.peak_of(refused) < 16 << 20


def test_a_frame_of_a_checkpoint_may_not_nest_either(storage: Storage, caplog: pytest.LogCaptureFixture) -> None:
    deep = bytes(cramjam.zstd.compress(b'{"more":' + b"[" * 100_000 + b"]" * 100_000 + b"}"))
    with_checkpoint(storage, [deep])
    assert Archive.open(storage).load().commit == 2
    assert "it nests too deeply" in caplog.text


@pytest.mark.parametrize("path", [names.ARCHIVE, names.commit_path(1)])
def test_an_object_that_is_too_large_to_be_one_is_named_and_not_read(storage: Storage, path: str) -> None:
    size, most = 40 * GIB, NOTE_BYTES if path == names.ARCHIVE else WHOLE_BYTES
    os.truncate(Path(storage.uri.removeprefix("file://")) / path, size)

    def refused() -> None:
        with pytest.raises(ObjectTooLarge) as error:
            Archive.open(storage).load()
        assert error.value.message == (
            f"{storage.uri}/{path} has {size} bytes or more; an object of its kind has at most {most}."
        )
        assert "find out who can write here" in error.value.hint

    assert hostile.peak_of(refused) < 16 << 20


def test_a_checkpoint_that_is_too_large_is_left_out(storage: Storage, caplog: pytest.LogCaptureFixture) -> None:
    path = with_checkpoint(storage, [])
    os.truncate(Path(storage.uri.removeprefix("file://")) / path, 40 * GIB)
    assert Archive.open(storage).load().commit == 2
    assert "the commits hold the same" in caplog.text


def test_verify_names_a_checkpoint_that_is_too_large(storage: Storage) -> None:
    path = with_checkpoint(storage, [])
    os.truncate(Path(storage.uri.removeprefix("file://")) / path, 40 * GIB)
    (fault,) = verify(Archive.open(storage)).faults
    assert fault.object == f"{storage.uri}/{path}"
    assert f"has {40 * GIB} bytes or more; an object of its kind has at most" in fault.what


@pytest.mark.parametrize("frames", [[[1000, 40 * GIB]], [[500, 9], [500, 300 << 20]]])
def test_a_bundle_may_not_have_a_frame_that_nobody_would_read(frames: list[list[int]]) -> None:
    head = {"format": 1, "archiveId": "a", "first": 0, "last": 999, "frames": frames, "sha256": "x"}
    head |= {"previous": "", "commitSha256": "f" * 64}
    with pytest.raises(ArchiveDamaged, match=r"a\.bundle: ValueError: a frame of \d+ bytes"):
        bundle.load(json.dumps(head).encode() + b"\n", 0, "catalog/a.bundle")


def test_a_commit_that_nobody_would_read_is_not_written(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    before = storage.list(names.CATALOG)
    monkeypatch.setattr(commits, "WHOLE_BYTES", 1000)
    with begin(storage, run_id="run-2") as writer:
        monkeypatch.setattr(commits, "WHOLE_BYTES", 10)
        with pytest.raises(ObjectTooLarge, match=r"would have \d+ bytes; a commit has at most 10\. It was not written"):
            writer.end(RunOutcome.SUCCEEDED, "done", [])
    assert len(storage.list(names.CATALOG)) == len(before) + 1


def test_what_a_catalog_says_is_far_from_the_bounds() -> None:
    """Topics of many partitions without records, and groups in all of them, pack best of all."""
    lists = documents.dumps([[ORDERS.topic_id, number, [[0, 0]], [], 0] for number in range(200_000)])
    frame = memoryview(bytes(cramjam.zstd.compress(lists, level=3)))
    assert len(lists) > 8 << 20
    assert documents.unpacked(frame, len(lists)) == lists
    assert len(documents.loads(lists)) == 200_000
    assert nesting.loads(lists.decode()) == documents.loads(lists)
