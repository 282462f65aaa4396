"""The writer that all object stores share: what it has on its way, and that what fails leaves nothing."""

import threading
from collections.abc import Sequence

import pytest

from logkeep_engine.errors import StorageUnavailable
from logkeep_engine.storage import parts
from logkeep_engine.storage.parts import SLAB_BYTES, PartSender, UploadPart, slabs_of
from logkeep_engine.storage.upload import PartsWriter

PART = 2 * SLAB_BYTES


class Written(PartsWriter[int]):
    """A writer into memory. `fails`: the numbers of the parts that do, or "begin"."""

    def __init__(self, sender: PartSender, *fails: object, in_order: bool = False) -> None:
        super().__init__("object", sender)
        self.in_order = in_order
        self.fails = fails
        self.visible: bytes | None = None
        self.dropped = 0
        self.found: dict[int, bytes] = {}
        self.places: dict[int, int] = {}
        self.most = self.now = 0
        self.lock = threading.Lock()
        self.together = threading.Barrier(2)

    def _put(self, part: UploadPart) -> None:
        self.visible = b"".join(slabs_of(part))

    def _begin(self) -> None:
        if "begin" in self.fails:
            raise StorageUnavailable("no upload", hint="")

    def _send(self, number: int, at: int, part: UploadPart, last: bool) -> int:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
            if self.in_order:
                assert sorted(self.found) == list(range(number))
        if not self.in_order and number < 2:
            self.together.wait(60)  # the first two are on their way at once
        if number in self.fails:
            raise StorageUnavailable(f"no part {number}", hint="")
        with self.lock:
            self.now -= 1
            self.found[number], self.places[number] = b"".join(slabs_of(part)), at
        return number

    def _finish(self, parts: Sequence[int]) -> None:
        self.visible = b"".join(self.found[number] for number in parts)

    def _drop(self) -> None:
        self.dropped += 1
        raise StorageUnavailable("the store is gone", hint="")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", PART)


@pytest.mark.parametrize("in_order", [False, True])
def test_parts_are_sent_side_by_side_or_in_their_order_with_bounded_memory(in_order: bool) -> None:
    sender = PartSender()
    writer = Written(sender, in_order=in_order)
    data = bytes(range(256)) * (7 * PART // 256) + b"end"
    for start in range(0, len(data), 1_000_003):
        writer.write(data[start : start + 1_000_003])
        assert sender.memory.lent <= 6 * PART, "one that fills, four on their way, and one that is let go"
    writer.commit()
    assert writer.visible == data
    assert writer.places == {number: number * PART for number in range(8)}
    assert (writer.most == 1) if in_order else (2 <= writer.most <= 4)
    assert (sender.memory.lent, writer.dropped) == (0, 0)


def _write_all(writer: Written) -> None:
    for _ in range(20):
        writer.write(bytes(PART))


@pytest.mark.parametrize("fails", ["begin", 0, 1])
def test_a_writer_that_has_failed_takes_and_shows_nothing_more(fails: object) -> None:
    sender = PartSender()
    writer = Written(sender, fails)
    with pytest.raises(StorageUnavailable, match=r"no upload|no part"):
        _write_all(writer)
    for act in (lambda: writer.write(b"more"), writer.commit):
        with pytest.raises(ValueError, match="after commit or abort"):
            act()
    writer.abort()
    assert writer.visible is None
    assert writer.dropped == (0 if fails == "begin" else 1)
    assert sender.memory.lent == 0
