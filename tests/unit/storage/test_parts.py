"""Parts of uploads: what memory they take, and that they are bodies without a copy."""

import io
import os
import threading
from collections.abc import Iterator

import pytest
from crc32c import crc32c

from logkeep_engine.storage import PART_BYTES
from logkeep_engine.storage.parts import MEMORY_BYTES, SLAB_BYTES, UploadBody, UploadMemory, UploadPart, slabs_of


def filled(memory: UploadMemory, data: bytes) -> UploadPart:
    part = UploadPart()
    rest = memoryview(data)
    while rest:
        rest = rest[part.write(rest, memory) :]
    return part


@pytest.mark.parametrize("size", [1, SLAB_BYTES - 1, SLAB_BYTES, SLAB_BYTES + 1, 3 * SLAB_BYTES + 7])
def test_a_part_is_what_was_written(size: int) -> None:
    data = os.urandom(size)
    memory = UploadMemory()
    part = filled(memory, data)
    assert len(part) == len(UploadBody(part)) == size
    assert b"".join(part.views()) == data
    assert part.crc32c() == crc32c(data)
    assert memory.lent == -(-size // SLAB_BYTES) * SLAB_BYTES


def test_a_part_is_full_at_its_size_and_not_before() -> None:
    part = filled(UploadMemory(), bytes(PART_BYTES - 1))
    assert not part.full
    assert part.write(memoryview(b"xyz"), UploadMemory()) == 1
    assert part.full


def test_a_body_reads_as_a_file_does() -> None:
    data = os.urandom(2 * SLAB_BYTES + 10)
    part = filled(UploadMemory(), data)
    body, file = UploadBody(part), io.BytesIO(data)
    for offset, whence in ((0, io.SEEK_END), (5, io.SEEK_SET), (SLAB_BYTES, io.SEEK_CUR), (-3, io.SEEK_END)):
        assert body.seek(offset, whence) == file.seek(offset, whence)
        assert body.tell() == file.tell()
        assert b"".join(chunks(body.read)) == file.read()
    assert b"".join(chunks(UploadBody(part).read)) == data, "another attempt begins at the beginning"


@pytest.mark.parametrize("size", [0, 1, SLAB_BYTES, 2 * SLAB_BYTES + 10])
def test_bytes_and_parts_are_cut_alike_from_any_place_on(size: int) -> None:
    data = os.urandom(size)
    part = filled(UploadMemory(), data)
    for start in (0, 1, SLAB_BYTES - 1, SLAB_BYTES, SLAB_BYTES + 5, size):
        assert b"".join(slabs_of(part, start)) == b"".join(slabs_of(data, start)) == data[start:]
    assert all(0 < len(slab) <= SLAB_BYTES for slab in (*slabs_of(part), *slabs_of(data)))


def chunks(read: object) -> Iterator[bytes]:
    assert callable(read)
    return iter(lambda: bytes(read(16_384)), b"")


def test_a_body_is_sent_without_a_copy() -> None:
    part = filled(UploadMemory(), b"abc")
    (view,) = part.views()
    view[0:1] = b"x"
    assert UploadBody(part).read() == b"xbc"


def test_memory_is_used_again() -> None:
    memory = UploadMemory()
    part = filled(memory, bytes(3 * SLAB_BYTES))
    slabs = [view.obj for view in part.views()]
    memory.let_go(part, reuse=True)
    assert len(part) == 0
    again = [view.obj for view in filled(memory, bytes(3 * SLAB_BYTES)).views()]
    assert sorted(map(id, again)) == sorted(map(id, slabs))


def test_memory_that_a_failed_request_may_read_is_not_used_again() -> None:
    memory = UploadMemory()
    part = filled(memory, b"old")
    body = UploadBody(part)
    memory.let_go(part, reuse=False)
    filled(memory, b"new")
    assert body.read() == b"old"
    assert memory.lent == SLAB_BYTES


def test_a_writer_waits_for_what_is_on_its_way() -> None:
    memory = UploadMemory(4 * SLAB_BYTES)
    sent = filled(memory, bytes(4 * SLAB_BYTES))
    memory.begin_sending()
    began, done = threading.Event(), threading.Event()

    def write() -> None:
        began.set()
        filled(memory, b"more")
        done.set()

    writing = threading.Thread(target=write)
    writing.start()
    assert began.wait(60)
    assert not done.wait(0.2)
    assert memory.lent == 4 * SLAB_BYTES
    memory.end_sending(sent, reuse=True)
    assert done.wait(60)
    writing.join()
    assert memory.lent == SLAB_BYTES


def test_writers_that_hold_all_memory_do_not_wait_for_each_other() -> None:
    memory = UploadMemory(2 * SLAB_BYTES)
    parts = [filled(memory, bytes(2 * SLAB_BYTES)) for _ in range(3)]
    assert memory.lent == 6 * SLAB_BYTES
    for part in parts:
        memory.let_go(part, reuse=True)
    assert memory.lent == 0


def test_what_writers_of_a_task_collect_is_no_more_than_what_is_lent() -> None:
    assert 2 * PART_BYTES <= MEMORY_BYTES
    assert MEMORY_BYTES % SLAB_BYTES == PART_BYTES % SLAB_BYTES == 0
