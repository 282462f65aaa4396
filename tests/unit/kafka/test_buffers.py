"""Receive buffers are used again, but never under somebody's eyes."""

import sys
import threading

import pytest

from logkeep_engine.kafka.buffers import KEEP_BYTES, AnswerFrame, Buffers

MEGABYTE = 1 << 20


def memory(frame: AnswerFrame) -> object:
    return frame.view.obj


def test_released_memory_is_lent_again() -> None:
    buffers = Buffers()
    first = buffers.lend(MEGABYTE)
    before = memory(first)
    first.release()
    first.release()
    assert buffers.idle == 1
    second = buffers.lend(MEGABYTE - 5)
    assert memory(second) is before
    assert (len(second.view), buffers.idle) == (MEGABYTE - 5, 0)


def test_frame_is_writable_and_has_the_size_asked_for() -> None:
    for size in (0, 4, 100_000, 3 * MEGABYTE + 1):
        frame = Buffers().lend(size)
        frame.view[:] = b"x" * size
        assert frame.view == b"x" * size


def test_smallest_buffer_that_holds_a_frame_is_taken() -> None:
    buffers = Buffers()
    frames = [buffers.lend(size * MEGABYTE) for size in (8, 2, 4)]
    held = [memory(frame) for frame in frames]
    for frame in frames:
        frame.release()
    assert memory(buffers.lend(3 * MEGABYTE)) is held[2]
    assert memory(buffers.lend(MEGABYTE)) is held[1]
    assert memory(buffers.lend(9 * MEGABYTE)) not in held


def test_no_more_than_the_limit_is_kept() -> None:
    buffers = Buffers(keep_bytes=3 * MEGABYTE)
    for frame in [buffers.lend(2 * MEGABYTE) for _ in range(3)]:
        frame.release()
    assert buffers.idle == 1
    for frame in [buffers.lend(MEGABYTE), buffers.lend(MEGABYTE)]:
        frame.release()
    assert buffers.idle == 2


def test_released_view_cannot_be_read() -> None:
    frame = Buffers().lend(MEGABYTE)
    view = frame.view
    frame.release()
    with pytest.raises(ValueError, match="released"):
        view[0]


def test_memory_that_somebody_still_sees_is_not_lent_again() -> None:
    buffers = Buffers()
    frame = buffers.lend(MEGABYTE)
    frame.view[:3] = b"abc"
    kept = frame.view[:3]
    frame.release()
    assert buffers.idle == 0
    buffers.lend(MEGABYTE).view[:3] = b"xyz"
    assert bytes(kept) == b"abc"


def test_memory_that_is_being_read_is_not_lent_again() -> None:
    buffers = Buffers()
    frame = buffers.lend(MEGABYTE)
    reading = memoryview(frame.view)  # as a hash in another thread does
    frame.release()
    assert buffers.idle == 0
    assert len(reading) == MEGABYTE


def test_small_answers_are_not_kept() -> None:
    buffers = Buffers()
    buffers.lend(1000).release()
    assert buffers.idle == 0


def test_no_two_threads_are_lent_the_same_memory() -> None:
    buffers, held, twice = Buffers(), set[int](), list[int]()
    lock = threading.Lock()

    def work() -> None:
        for _ in range(5_000):
            frame = buffers.lend(100_000)
            place = id(memory(frame))
            with lock:
                if place in held:
                    twice.append(place)
                held.add(place)
            with lock:
                held.discard(place)
            frame.release()

    threads = [threading.Thread(target=work) for _ in range(8)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert twice == []
    assert 0 < buffers.idle * MEGABYTE <= KEEP_BYTES
