"""The look at everything before a strict archive is written: what it could not see is never taken for seen."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.writer import Writer
from logkeep_engine.backup.model.plan import Piece
from logkeep_engine.backup.pieces.losses import ArchivePieces, LossSearch, OnPieces, Work
from logkeep_engine.backup.pieces.task import PieceDone, PieceFailure
from logkeep_engine.backup.pieces.writer import BackupSetting
from logkeep_engine.contract.archive_format import FormatName
from logkeep_engine.contract.cluster import ClusterSpec
from logkeep_engine.errors import CorruptBatch
from logkeep_engine.formats.base import Loss, LossKind
from logkeep_engine.formats.losses import LOSS_FILE, dump_losses, load_losses, load_unchecked
from logkeep_engine.kafka.connection import connection_from
from logkeep_engine.storage import Storage, open_uri
from logkeep_engine.tasks import no_update
from tests.runners import Job, Runner
from tests.unit.archive.build import begin

DAMAGE = CorruptBatch("The batch at offset 500 has a wrong CRC.", hint="Everything before it is archived.")
BELOW_THE_DAMAGE = Loss(LossKind.TOMBSTONE, "orders", 0, 2, 100)
OTHER = Loss(LossKind.TOMBSTONE, "orders", 1, 7, 30)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(f"file://{tmp_path}/archive")


@dataclass
class Answers(Runner):
    """A runner that knows what its tasks will find, by the number of the piece."""

    found: dict[int, PieceDone]
    asked: list[int] = field(default_factory=list)

    def perform(self, job: Job) -> None:
        for index, pieces in enumerate(job.work):
            self.asked += (piece.number for piece in pieces)
            job.on_result(index, tuple(self.found[piece.number] for piece in pieces))


PIECES = [Piece(number, "orders", "a" * 22, number, 0, 1000, 1, 100) for number in range(3)]
DAMAGED = {
    0: PieceDone(0, None, DAMAGE, losses=(BELOW_THE_DAMAGE,)),
    1: PieceDone(1, None, losses=(OTHER,)),
    2: PieceDone(2, None),
}


def check(
    storage: Storage, writer: Writer, answers: Answers, pieces: Sequence[Piece] = PIECES
) -> tuple[tuple[Loss, ...], frozenset[int], list[PieceFailure]]:
    connection = connection_from(ClusterSpec(bootstrap_servers=("localhost:1",)), {})
    setting = BackupSetting(connection, storage, writer.epoch, 1 << 20, format=FormatName.AVRO)

    def run_tasks(work: Sequence[Work], function: ArchivePieces, on_result: OnPieces) -> None:
        answers.run(work, function, on_result, no_update)

    found = LossSearch(writer.archive, "run-1", setting, 8).search(pieces, len(PIECES), run_tasks)
    return found.losses, frozenset(found.failures), list(found.failures.values())


def test_chunk_with_a_damaged_batch_is_left_out_and_fails_the_run(storage: Storage) -> None:
    with begin(storage) as writer:
        losses, unchecked, failures = check(storage, writer, Answers(DAMAGED))
    assert losses == (BELOW_THE_DAMAGE, OTHER), "what was seen counts, also of the damaged one"
    assert unchecked == {0}
    (failure,) = failures
    assert isinstance(failure, CorruptBatch)
    assert str(failure) == (
        "The batch at offset 500 has a wrong CRC. It was not checked for what the format cannot hold, so "
        "nothing of its chunk was archived in this attempt. Move the leadership to an intact replica."
    )


def test_next_attempt_looks_through_what_the_first_could_not_and_nothing_else(storage: Storage) -> None:
    behind = Loss(LossKind.TOMBSTONE, "orders", 0, 5, 100)
    with begin(storage) as writer:
        check(storage, writer, Answers(DAMAGED))
        stored = storage.read(names.run_file("run-1", LOSS_FILE))
        assert (load_losses(stored), load_unchecked(stored, len(PIECES))) == ((OTHER,), frozenset({0}))
        answers = Answers({0: PieceDone(0, None, losses=(behind,))})
        losses, unchecked, failures = check(storage, writer, answers, PIECES[:1])
        assert (losses, unchecked, failures) == ((behind, OTHER), frozenset(), [])
        assert answers.asked == [0]
        assert storage.read(names.run_file("run-1", LOSS_FILE)) == dump_losses((behind, OTHER), chunks=len(PIECES))


def test_damage_that_stays_is_found_by_every_attempt(storage: Storage) -> None:
    with begin(storage) as writer:
        check(storage, writer, Answers(DAMAGED))
        losses, unchecked, failures = check(storage, writer, Answers(DAMAGED), PIECES[:1])
    assert (losses, unchecked, len(failures)) == ((BELOW_THE_DAMAGE, OTHER), frozenset({0}), 1)


def test_whole_check_is_done_once(storage: Storage) -> None:
    with begin(storage) as writer:
        whole = {number: DAMAGED[number] for number in (1, 2)}
        check(storage, writer, Answers(whole), PIECES[1:])
        answers = Answers({})
        assert check(storage, writer, answers, PIECES[1:])[:2] == ((OTHER,), frozenset())
        assert answers.asked == []


def test_file_of_a_whole_check_says_nothing_of_chunks() -> None:
    assert b"unchecked" not in dump_losses((OTHER,))
    assert load_unchecked(dump_losses((OTHER,), [4, 2], chunks=5), 5) == {2, 4}


def test_chunks_that_a_later_attempt_has_added_to_the_plan_are_not_looked_through_yet() -> None:
    assert load_unchecked(dump_losses((OTHER,), [1], chunks=3), 5) == {1, 3, 4}


def test_all_chunks_are_looked_through_if_the_file_says_nothing_of_a_plan() -> None:
    assert load_unchecked(dump_losses((OTHER,)), 3) == {0, 1, 2}
