"""How a task looks at its target, passes over the archive, and looks again."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.errors import ProduceRefused, TargetChanged, TopicExists
from logkeep_engine.kafka.batch_queue import BatchQueue
from logkeep_engine.restore.claim.fence import TaskFence
from logkeep_engine.restore.model.offset_map import OutletSummary, PartitionSummary
from logkeep_engine.restore.model.state import RestoreState
from logkeep_engine.restore.sending import stream as stream_module
from logkeep_engine.restore.sending import task as task_module
from logkeep_engine.restore.sending.side_by_side import Shared
from logkeep_engine.restore.sending.written import Mark, PositionLost, WrittenRecords
from logkeep_engine.storage import open_uri
from logkeep_engine.tasks import TaskProgress
from tests.runners import Context
from tests.unit.restore.tasks import NOWHERE, task_of
from tests.unit.restore.test_outgoing_ahead import Stream


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("records", [0, 5])
def test_batches_are_made_while_a_fresh_run_looks_at_its_target(
    monkeypatch: pytest.MonkeyPatch, fresh: bool, records: int
) -> None:
    """They are dropped if the target holds records of the run all the same: then it must begin behind these."""
    stream = Stream(1000)

    async def look(*_: Any, **__: Any) -> dict[int, WrittenRecords]:
        if fresh:
            assert await asyncio.to_thread(stream.begun.wait, 10), "nothing is made before the broker has answered"
        return {7: WrittenRecords(records)}

    async def main(pool: ThreadPoolExecutor) -> None:
        (written,), sending = await begin(pool, fresh=fresh)
        assert written.records == records
        assert (sending is not None) == (fresh and not records)
        assert stream.closed.is_set() == (fresh and records > 0)
        if sending is not None:
            await sending.stop()

    patch_task(monkeypatch, look, stream)
    with ThreadPoolExecutor(2) as pool:
        asyncio.run(main(pool))


def test_no_thread_reads_on_when_the_target_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(1000)

    async def look(*_: Any, **__: Any) -> dict[int, WrittenRecords]:
        raise TopicExists("somebody else's")

    patch_task(monkeypatch, look, stream)
    with ThreadPoolExecutor(2) as pool, pytest.raises(TopicExists):
        asyncio.run(begin(pool, fresh=True))
    assert stream.closed.is_set() or not stream.begun.is_set()
    assert stream.given < 1000


class Panic(BaseException):
    """The error of compiled code that finds a mistake of its own (PyO3's PanicException)."""


class Broker:
    """Acknowledges every batch at once, at offset 0, 1, 2."""

    def __init__(self) -> None:
        self.sent = 0

    async def produce_many(self, topic: str, partition: int, queue: BatchQueue, **_: Any) -> AsyncIterator[int]:
        while not queue.over:
            if queue.ready:
                queue.ready.popleft()
                self.sent += 1
                yield self.sent - 1
            else:
                await queue.wait(None)


@pytest.mark.parametrize("error", [ValueError("broken"), Panic(), asyncio.CancelledError(), GeneratorExit()], ids=repr)
def test_batches_that_could_not_be_made_are_no_success(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: BaseException
) -> None:
    """Batches that are missing must not look like the end."""
    stream, broker = Stream(7, error), Broker()
    patch_task(monkeypatch, None, stream)
    work = task_of(open_uri(tmp_path.as_uri()))

    async def main(pool: ThreadPoolExecutor) -> None:
        sending = task_module._Pass(work, shared(pool, broker))
        try:
            with pytest.raises(type(error)):
                await asyncio.wait_for(sending.run([WrittenRecords(log_end=0)], contested=False), 30)
        finally:
            await sending.stop()

    with ThreadPoolExecutor(2) as pool:
        asyncio.run(main(pool))
    assert not list(tmp_path.rglob("*.json"))


def test_batches_that_were_made_are_sent_and_written_down(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    patch_task(monkeypatch, None, Stream(7))
    work = task_of(open_uri(tmp_path.as_uri()))

    async def main(pool: ThreadPoolExecutor) -> None:
        sending = task_module._Pass(work, shared(pool, Broker()))
        summary = await sending.run([WrittenRecords(log_end=0)], contested=False)
        await sending.stop()
        assert (summary.records, summary.outlets) == (7, (OutletSummary(0, 7, 0, 7),))
        assert work.finished() == summary

    with ThreadPoolExecutor(2) as pool:
        asyncio.run(main(pool))


@pytest.mark.parametrize(
    ("gained", "looks"), [([], 20), ([0] * 19 + [1], 40), ([1, 2, 3], 23)], ids=["never", "at last", "at first"]
)
def test_a_position_that_is_lost_without_progress_ends_the_restore(
    monkeypatch: pytest.MonkeyPatch, gained: list[int], looks: int
) -> None:
    """Each look that finds more than the ones before it begins the count again."""
    found = iter([*gained, *[max(gained, default=0)] * 100])
    seen: list[int] = []

    async def look(*_: Any, **__: Any) -> dict[int, WrittenRecords]:
        seen.append(next(found) if seen else 0)
        return {7: WrittenRecords(seen[-1], mark=Mark(1, seen[-1]))}

    async def lost(*_: Any, **__: Any) -> PartitionSummary:
        raise PositionLost

    patch_task(monkeypatch, look, Stream(0))
    monkeypatch.setattr(task_module._Pass, "run", lost)
    with (
        ThreadPoolExecutor(2) as pool,
        pytest.raises(
            TargetChanged, match=r"orders.* partition 0: the restore lost its position 20 times without making"
        ),
    ):
        asyncio.run(task_module._restore(task_of(), shared(pool, None), task_module._SharedLook([])))
    assert len(seen) == 1 + looks


def test_a_batch_that_is_refused_although_all_is_known_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Refusing(Broker):
        async def produce_many(self, *_: Any, **__: Any) -> AsyncIterator[int]:
            raise ProduceRefused("INVALID_RECORD", hint="")
            yield 0

    async def look(*_: Any, **__: Any) -> dict[int, WrittenRecords]:
        looks.append(1)
        return {7: WrittenRecords(log_end=0)}

    looks: list[int] = []
    patch_task(monkeypatch, look, Stream(3))
    work = task_of(open_uri(tmp_path.as_uri()))
    with ThreadPoolExecutor(2) as pool, pytest.raises(ProduceRefused):
        asyncio.run(task_module._restore(work, shared(pool, Refusing()), task_module._SharedLook([])))
    assert len(looks) == 2


def patch_task(monkeypatch: pytest.MonkeyPatch, look: Any, stream: Stream) -> None:
    monkeypatch.setattr(task_module, "look", look)
    monkeypatch.setattr(stream_module, "stream_of", lambda *_: stream.items())


def shared(pool: ThreadPoolExecutor, client: Any) -> Shared:
    context = Context(0)
    state = RestoreState(NOWHERE, "restore-1")
    return Shared(client, pool, TaskProgress(context), context, TaskFence(state, pool))


async def begin(pool: ThreadPoolExecutor, *, fresh: bool) -> tuple[task_module.Written, task_module._Pass | None]:
    return await task_module._begin(task_of(), shared(pool, None), task_module._SharedLook([]), fresh=fresh)
