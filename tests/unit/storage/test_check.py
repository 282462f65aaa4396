"""The check of a place for an archive, on stores that do something else than an archive needs. What real ones do is in
tests/kafka/test_storage_check.py."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from logkeep_engine.cli.options import Output
from logkeep_engine.cli.storage import show_check
from logkeep_engine.contract.roles import Role
from logkeep_engine.errors import ObjectMissing, StorageDenied, StorageUnavailable
from logkeep_engine.storage import LocalStorage, ObjectInfo, ObjectWriter, UnseenObject
from logkeep_engine.storage import check as checking
from logkeep_engine.storage.base import ANYTHING, StorageAround
from logkeep_engine.storage.check import CheckedStep, CheckReport, StepOutcome, check_place, check_reading


class Overwrites(LocalStorage):
    """Ignores that an object is to be created."""

    def create(self, path: str, data: bytes) -> None:
        self.put(path, data)


class CreatesLate(LocalStorage):
    """Looks whether a name is free, and takes it a moment later."""

    def create(self, path: str, data: bytes) -> None:
        if self.version(path) is not None:
            super().create(path, data)
        time.sleep(0.05)
        self.put(path, data)


class IgnoresWhatWasSeen(LocalStorage):
    def writer(self, path: str, *, replaces: str | None = ANYTHING) -> ObjectWriter:
        return super().writer(path, replaces=replaces if replaces is None else ANYTHING)


class IgnoresItOfPartsAlone(LocalStorage):
    def writer(self, path: str, *, replaces: str | None = ANYTHING) -> ObjectWriter:
        return super().writer(path, replaces=ANYTHING if "parts" in path else replaces)


class BringsBackWhatIsGone(LocalStorage):
    def writer(self, path: str, *, replaces: str | None = ANYTHING) -> ObjectWriter:
        return super().writer(path, replaces=ANYTHING if self.version(path) is None else replaces)


class ReadsStale(LocalStorage):
    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self._first: dict[str, bytes] = {}

    def read(self, path: str, *, most: int = 1 << 28) -> bytes:
        if path not in self._first:
            self._first[path] = super().read(path, most=most)
        return self._first[path]


class ReadsPartsFromTheStart(LocalStorage):
    def read_range(self, path: str, start: int, end: int | None) -> bytes:
        return super().read_range(path, 0, None if end is None else end - start)


class ForgetsPages(LocalStorage):
    def list_in_pages(self, prefix: str, size: int) -> list[ObjectInfo]:
        return self.list(prefix)[:size]


class IsLate(LocalStorage):
    def list(self, prefix: str = "") -> list[ObjectInfo]:
        return [ObjectInfo(info.path, info.size, info.modified - 1000) for info in super().list(prefix)]


class HidesUploads(LocalStorage):
    def unseen(self, prefix: str) -> tuple[UnseenObject, ...]:
        return ()


class KeepsDeleted(LocalStorage):
    def delete_unlocked(self, paths: object) -> tuple[()]:
        return ()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "PART_BYTES", 1 << 20)
    monkeypatch.setattr(checking, "_SEEN_AFTER", 0.0)


def failed(report: CheckReport) -> dict[str, str]:
    return {step.name: step.message for step in report.steps if step.outcome is StepOutcome.FAILED}


@pytest.mark.parametrize(
    ("kind", "step", "message", "roles"),
    [
        (Overwrites, "create it once", "has replaced an object that was to be created", 1),
        (CreatesLate, "create it once", "of 8 that created one object at once", 1),
        (IgnoresWhatWasSeen, "replace only what was seen", "although it is not the one that was seen", 1),
        (IgnoresItOfPartsAlone, "write in parts once", "an upload in parts replaces an object", 1),
        (BringsBackWhatIsGone, "replace nothing that is gone", "although another was seen", 3),
        (ReadsStale, "replace it", "after it was replaced, an object is as before", 1),
        (ReadsPartsFromTheStart, "read a part", "a part is another one", 0),
        (ForgetsPages, "list all, in pages", "a list shows 10 of 21 objects", 0),
        (IsLate, "agree about the time", "differ by 1000 s", 0),
        (HidesUploads, "see what no list shows", "begun and not ended is not shown", 3),
        (KeepsDeleted, "delete", "an object that was deleted can be read", 2),
    ],
)
def test_what_a_store_does_otherwise_is_named(
    kind: Callable[[str], LocalStorage], step: str, message: str, roles: int, tmp_path: Path
) -> None:
    report = check_place(kind(f"file://{tmp_path}"), "file")
    assert message in failed(report)[step], report.steps
    assert [role for role in Role if not report.lacking(role)] == list(Role)[:roles]


def test_a_folder_has_everything_and_is_empty_afterwards(tmp_path: Path) -> None:
    report = check_place(LocalStorage(f"file://{tmp_path}/a/checks/1"), "file")
    assert report.lacking(Role.ERASER) == []
    assert report.left == []
    assert not any(tmp_path.rglob("*")) or [path.name for path in tmp_path.rglob("*")] == ["a"]


def test_what_needs_a_step_that_failed_is_not_tried(tmp_path: Path) -> None:
    class Denied(LocalStorage):
        def create(self, path: str, data: bytes) -> None:
            raise StorageDenied(f"{path}: no.")

    report = check_place(Denied(f"file://{tmp_path}"), "s3")
    assert [step.name for step in report.steps if step.outcome is StepOutcome.OK] == ["list"]
    (denied,) = [step for step in report.steps if step.outcome is StepOutcome.DENIED]
    assert (denied.name, denied.right) == ("create an object", "s3:PutObject")
    assert report.lacking(Role.READER), "nothing could be read"


def test_nothing_more_is_tried_when_the_store_is_gone(tmp_path: Path) -> None:
    class Gone(LocalStorage):
        def read(self, path: str, *, most: int = 1) -> bytes:
            raise StorageUnavailable("no answer.")

    report = check_place(Gone(f"file://{tmp_path}"), "s3")
    assert isinstance(report.ended_by, StorageUnavailable)
    assert {step.outcome for step in report.steps[4:]} == {StepOutcome.SKIPPED}
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_a_reader_needs_lists_objects_and_that_a_missing_one_is_missing(tmp_path: Path) -> None:
    storage = LocalStorage(f"file://{tmp_path}")
    storage.put("archive.json", b"{}" * 20)
    storage.put("catalog/1", b"")
    assert check_reading(storage, "file", "archive.json", "catalog/").lacking(Role.READER) == []

    class Hides(LocalStorage):
        def read(self, path: str, *, most: int = 1 << 28) -> bytes:
            try:
                return super().read(path, most=most)
            except ObjectMissing:
                raise StorageDenied(f"{path}: 403.") from None

    report = check_reading(Hides(storage.uri), "s3", "archive.json", "catalog/")
    (lacking,) = report.lacking(Role.READER)
    assert (lacking.name, lacking.right) == ("see that an object is missing", "s3:ListBucket")


@pytest.mark.parametrize(
    ("role", "said"),
    [
        (
            Role.READER,
            "these credentials suffice for: no one; missing for a reader: list, 1 step that could not be tried",
        ),
        (
            Role.ERASER,
            "these credentials suffice for: no one; missing for an eraser: list, 2 steps that could not be tried",
        ),
    ],
)
def test_what_was_not_tried_is_counted_and_not_called_missing(
    role: Role, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = CheckReport(
        [
            CheckedStep("list", Role.READER, StepOutcome.DENIED, "The store refuses it.", "s3:ListBucket"),
            CheckedStep("read it", Role.READER, StepOutcome.SKIPPED),
            CheckedStep("delete", Role.PRUNER, StepOutcome.SKIPPED),
        ]
    )
    with pytest.raises(typer.Exit):
        show_check(report, "s3://b", role, Output.TEXT)
    assert capsys.readouterr().out.splitlines()[-1] == said


def test_a_storage_around_another_one_forgets_what_that_one_forgets(tmp_path: Path) -> None:
    under = LocalStorage(tmp_path.as_uri())
    assert not StorageAround(under).forgets_unfinished
    under.forgets_unfinished = True
    assert StorageAround(under).forgets_unfinished
