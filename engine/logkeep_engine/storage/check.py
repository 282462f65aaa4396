"""Tries on a storage what an archive needs of it, by the same interface that runs use.

    report = check_place(open_uri("s3://backups/kafka-prod/checks/1"), "s3")     # a place of its own
    report.lacking(Role.WRITER)                                                  # the steps that such a user lacks

Each step says who needs it, and which right is missing in the words of the store. What a check has written it deletes;
what it may not delete it names.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from logkeep_engine.contract.roles import Role
from logkeep_engine.errors import (
    BucketMissing,
    CredentialsMissing,
    LogkeepError,
    ObjectExists,
    ObjectMissing,
    StorageDenied,
    StorageUnavailable,
)
from logkeep_engine.storage.base import PART_BYTES, LockedObject, Storage, UnseenObject
from logkeep_engine.storage.local import LocalStorage

PREFIX = "checks/"
"""Checks write below this, each in a folder of its own. No archive has an object there."""

_SKEW = 900  # seconds between two clocks at which S3 refuses requests
_AT_ONCE = 8
_PAGED, _PAGE = 21, 10
_BYTES = os.urandom(1000)
_SEEN_AFTER = 10.0  # seconds in which a store may show what was sent to it
_BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"


def require_place(storage: Storage) -> None:
    """Raises BucketMissing for a folder that is not there. Of a bucket the first step says it."""
    if isinstance(storage, LocalStorage):
        storage.require_folder()


class StepOutcome(StrEnum):
    OK = "ok"
    DENIED = "denied"  # a right is missing
    FAILED = "failed"  # the store does something else
    SKIPPED = "not tried"  # what it needs has not succeeded


RIGHTS: Mapping[str, Mapping[str, str]] = {
    "s3": {
        "list": "s3:ListBucket",
        "read": "s3:GetObject",
        "create": "s3:PutObject",
        "replace": "s3:PutObject",
        "give up": "s3:AbortMultipartUpload",
        "delete": "s3:DeleteObject",
        "unseen": "s3:ListBucketVersions and s3:ListBucketMultipartUploads",
        "purge": "s3:DeleteObjectVersion",
    },
    "gs": {
        "list": "storage.objects.list",
        "read": "storage.objects.get",
        "create": "storage.objects.create",
        "replace": "storage.objects.delete",
        "give up": "storage.objects.create",
        "delete": "storage.objects.delete",
        "unseen": "storage.buckets.get and storage.objects.list",
        "purge": "storage.objects.delete",
    },
    "az": {
        "list": f"{_BLOBS}/read (SAS: l)",
        "read": f"{_BLOBS}/read (SAS: r)",
        "create": f"{_BLOBS}/write (SAS: c)",
        "replace": f"{_BLOBS}/write (SAS: w)",
        "give up": f"{_BLOBS}/write (SAS: w)",
        "delete": f"{_BLOBS}/delete (SAS: d)",
        "unseen": f"{_BLOBS}/read (SAS: l)",
        "purge": f"{_BLOBS}/deleteBlobVersion/action (SAS: x)",
    },
    "file": dict.fromkeys(
        ("list", "read", "create", "replace", "give up", "delete", "unseen", "purge"), "the right to use the folder"
    ),
}
"""The rights of steps, by the scheme of the URI, in the words of the store."""


@dataclass(frozen=True, slots=True)
class CheckedStep:
    """A step, who needs it, and how it went. `right` is the one that is missing, in the words of the store."""

    name: str
    role: Role
    outcome: StepOutcome
    message: str = ""
    right: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "step": self.name,
            "role": self.role.value,
            "outcome": self.outcome.value,
            "message": self.message,
            "missingRight": self.right or None,
        }


@dataclass
class CheckReport:
    """`left`: objects of the check that it could not delete. `ended_by`: the error after which no other step was
    tried."""

    steps: list[CheckedStep] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    ended_by: LogkeepError | None = None

    def lacking(self, role: Role) -> list[CheckedStep]:
        """Return the steps that did not succeed and that such a user needs."""
        return [step for step in self.steps if role.includes(step.role) and step.outcome is not StepOutcome.OK]


class _Differs(Exception):
    """The store has done something else than an archive needs."""


class _Steps:
    """Does steps one after the other, and notes how each went."""

    def __init__(self, storage: Storage, scheme: str) -> None:
        self.storage = storage
        self.report = CheckReport()
        self._rights = RIGHTS[scheme]

    def do(self, name: str, role: Role, right: str, action: Callable[[], str | None], *, after: bool = True) -> bool:
        """Do a step, unless what it needs (`after`) has failed. Return whether it has succeeded."""
        if not after or self.report.ended_by is not None:
            self.report.steps.append(CheckedStep(name, role, StepOutcome.SKIPPED))
            return False
        try:
            step = CheckedStep(name, role, StepOutcome.OK, action() or "")
        except StorageDenied as error:
            step = CheckedStep(name, role, StepOutcome.DENIED, error.message, self._rights[right])
        except (_Differs, LogkeepError) as error:
            text = f"{error.message} {error.hint}".strip() if isinstance(error, LogkeepError) else str(error)
            step = CheckedStep(name, role, StepOutcome.FAILED, text)
            if isinstance(error, (BucketMissing, CredentialsMissing, StorageUnavailable)):
                self.report.ended_by = error
        self.report.steps.append(step)
        return step.outcome is StepOutcome.OK


def check_reading(storage: Storage, scheme: str, known: str, prefix: str) -> CheckReport:
    """Try what a reader needs on an archive that is there, and write nothing. `known`: an object that it has; `prefix`:
    where it has others."""
    steps = _Steps(storage, scheme)
    do = steps.do
    listed = do("list", Role.READER, "list", lambda: _list_of_archive(storage, prefix))
    found = do("read", Role.READER, "read", lambda: _nothing(storage.read(known)), after=listed)
    do("read a part", Role.READER, "read", lambda: _read_part(storage, known), after=found)
    do("see that an object is missing", Role.READER, "list", lambda: _see_missing(storage), after=found)
    return steps.report


def check_place(storage: Storage, scheme: str) -> CheckReport:
    """Try all that an archive needs in a place of its own, and delete what was written."""
    steps = _Steps(storage, scheme)
    try:
        _try_all(steps, storage)
    finally:
        if steps.report.steps and steps.report.steps[0].outcome is StepOutcome.OK:
            steps.report.left = _clean(storage)
        if isinstance(storage, LocalStorage):
            storage.remove_folders()
    return steps.report


def _try_all(steps: _Steps, storage: Storage) -> None:
    do = steps.do
    listed = do("list", Role.READER, "list", storage.check)
    made = do("create an object", Role.WRITER, "create", lambda: storage.create("object", _BYTES))
    read = do("read it", Role.READER, "read", lambda: _expect(storage.read("object"), _BYTES), after=made)
    do("create it once", Role.WRITER, "create", lambda: _create_once(storage), after=read)
    do("read a part", Role.READER, "read", lambda: _read_part(storage, "object"), after=read)
    do("see that an object is missing", Role.READER, "list", lambda: _see_missing(storage), after=read)
    replaced = do("replace it", Role.WRITER, "replace", lambda: _replace(storage), after=read)
    do("replace only what was seen", Role.WRITER, "replace", lambda: _replace_seen(storage), after=replaced)
    do("list all, in pages", Role.READER, "list", lambda: _list_in_pages(storage), after=listed and made)
    do("agree about the time", Role.READER, "list", lambda: _compare_clocks(storage), after=listed and made)
    sent = do("write in parts", Role.WRITER, "create", lambda: _write_in_parts(storage), after=read)
    do("write in parts once", Role.WRITER, "give up", lambda: _write_in_parts_once(storage), after=sent)
    # These before the deletion: they are about what a deletion leaves.
    seen = do("see what no list shows", Role.ERASER, "unseen", lambda: _see_unseen(storage), after=sent)
    gone = do("delete", Role.PRUNER, "delete", lambda: _delete(storage), after=made)
    do("replace nothing that is gone", Role.ERASER, "replace", lambda: _replace_gone(storage), after=gone)
    do("delete what no list shows", Role.ERASER, "purge", lambda: _purge(storage), after=seen and gone)


def _nothing(_: object) -> None:
    return None


def _expect(found: object, expected: object, what: str = "what was read is not what was written") -> None:
    if found != expected:
        raise _Differs(what)


def _create_once(storage: Storage) -> None:
    try:
        storage.create("object", b"another")
    except ObjectExists:
        pass
    else:
        raise _Differs("the store has replaced an object that was to be created (If-None-Match is ignored)")
    names = [f"{number}".encode() for number in range(_AT_ONCE)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        done = [*pool.map(lambda name: _creates(storage, name), names)]
    won = [name for name, created in zip(names, done, strict=True) if created]
    if len(won) != 1 or storage.read("race") != won[0]:
        raise _Differs(f"{len(won)} of {_AT_ONCE} that created one object at once were told that they had")


def _creates(storage: Storage, data: bytes) -> bool:
    try:
        storage.create("race", data)
    except ObjectExists:
        return False
    return True


def _read_part(storage: Storage, path: str) -> None:
    whole = storage.read(path)
    middle = len(whole) // 2
    _expect(storage.read_range(path, middle, middle + 10), whole[middle : middle + 10], "a part is another one")
    _expect(storage.read_range(path, len(whole), len(whole) + 10), b"", "there is something behind the end")


def _see_missing(storage: Storage) -> None:
    try:
        storage.read(f"{PREFIX}missing")
    except ObjectMissing:
        return
    raise _Differs("an object that is not there can be read")


def _replace(storage: Storage) -> None:
    storage.put("object", _BYTES[::-1])
    _expect(storage.read("object"), _BYTES[::-1], "after it was replaced, an object is as before")


def _replace_seen(storage: Storage) -> None:
    old = storage.version("object")
    if not _writes(storage, "object", b"new", old):
        raise _Differs("an object is not replaced although it is the one that was seen (If-Match)")
    if _writes(storage, "object", b"newer", old) or storage.read("object") != b"new":
        raise _Differs("an object is replaced although it is not the one that was seen (If-Match is ignored)")


def _replace_gone(storage: Storage) -> None:
    """Some stores take a condition on an object that is gone for none: a writer that hangs could bring back what was
    erased."""
    storage.put("object", _BYTES)
    seen = storage.version("object")
    storage.delete(["object"])
    if _writes(storage, "object", b"new", seen):
        storage.delete(["object"])
        raise _Differs("an object that is gone is replaced although another was seen (If-Match is ignored)")


def _writes(storage: Storage, path: str, data: bytes, replaces: str | None) -> bool:
    writer = storage.writer(path, replaces=replaces)
    try:
        writer.write(data)
        writer.commit()
    except (ObjectExists, ObjectMissing):
        return False
    finally:
        writer.abort()
    return True


def _list_in_pages(storage: Storage) -> str:
    paths = sorted(f"list/{number}" for number in range(_PAGED))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda path: storage.put(path, b"x"), paths))
    for found in (storage.list("list/"), storage.list_in_pages("list/", _PAGE)):
        _expect([info.path for info in found], paths, f"a list shows {len(found)} of {_PAGED} objects, or others")
    return f"{_PAGED} objects, {_PAGE} at a time"


def _compare_clocks(storage: Storage) -> str:
    before = time.time()
    storage.put("clock", b"")
    (info,) = storage.list("clock")
    skew = max(before - info.modified, info.modified - time.time(), 0)
    if skew > _SKEW:
        raise _Differs(f"the clocks of the store and of this machine differ by {skew:.0f} s")
    return f"{skew:.0f} s apart" if skew > 2 else ""


def _write_in_parts(storage: Storage) -> str:
    """Below topics/, so that the object gets the storage class that large ones get."""
    data = os.urandom(1 << 20)
    with storage.writer("topics/parts", replaces=None) as writer:
        for _ in range(PART_BYTES >> 20):
            writer.write(data)
        writer.write(b"end")
        if storage.list("topics/parts"):
            raise _Differs("an object is visible before it is complete")
    _expect(storage.read_range("topics/parts", PART_BYTES - 5, None), data[-5:] + b"end")
    (info,) = storage.list("topics/parts")
    _expect(info.size, PART_BYTES + 3, "the object is not as large as what was written")
    return f"storage class {info.storage_class}" if info.storage_class else ""


def _write_in_parts_once(storage: Storage) -> None:
    writer = storage.writer("topics/parts", replaces=None)
    try:
        writer.write(bytes(PART_BYTES + 1))
        try:
            writer.commit()
        except ObjectExists:
            return
        raise _Differs("an upload in parts replaces an object that was to be created (If-None-Match is ignored)")
    finally:
        writer.abort()
        _require_given_up(storage)


def _require_given_up(storage: Storage) -> None:
    """Raises StorageDenied if an upload that was given up is still there, and cannot be ended. A user who may not see
    such uploads learns nothing of it."""
    try:
        left = _unfinished(storage)
    except LogkeepError:
        return
    storage.delete_unseen(left)


def _unfinished(storage: Storage) -> list[UnseenObject]:
    return [item for item in storage.unseen("") if not item.is_version]


def _see_unseen(storage: Storage) -> str:
    writer = storage.writer("unfinished")
    try:
        writer.write(bytes(PART_BYTES + 1))
        seen = _seen_soon(storage)
    finally:
        writer.abort()
    if not seen and not storage.forgets_unfinished:
        raise _Differs(
            "an upload that was begun and not ended is not shown: an erasure cannot delete what killed runs have left"
        )
    versions = [item for item in storage.unseen("") if item.is_version]
    return "the bucket keeps older versions" if versions else ""


def _seen_soon(storage: Storage) -> bool:
    until = time.monotonic() + (0 if storage.forgets_unfinished else _SEEN_AFTER)
    while True:
        if _unfinished(storage):
            return True
        if time.monotonic() > until:
            return False
        time.sleep(0.2)


def _delete(storage: Storage) -> str:
    locked = storage.delete_unlocked([info.path for info in storage.list()])
    if locked:
        return f"{len(locked)} objects stay, because the store locks them: {locked[0]}"
    try:
        storage.read("object")
    except ObjectMissing:
        _expect(storage.list(), [], "a list shows what was deleted")
        return ""
    raise _Differs("an object that was deleted can be read")


def _purge(storage: Storage) -> str:
    locked = storage.delete_unseen(storage.unseen(""))
    if locked:
        return f"{len(locked)} older versions stay, because the store locks them: {locked[0]}"
    _expect(storage.unseen(""), (), "what no list shows is still there after it was deleted")
    return ""


def _clean(storage: Storage) -> list[str]:
    """Delete what the check has written, and return what is still there, as far as this user may know."""
    left: list[str] = []
    try:
        locked: tuple[LockedObject, ...] = storage.delete_unlocked([info.path for info in storage.list()])
        left += [item.path for item in locked]
    except LogkeepError:
        left += _paths(storage)
    unseen: tuple[UnseenObject, ...] = ()
    try:
        unseen = storage.unseen("")
        left += [f"{item.path} (older version)" for item in storage.delete_unseen(unseen)]
    except LogkeepError:
        left += [f"{item.path} ({'older version' if item.is_version else 'unfinished upload'})" for item in unseen]
    return left


def _paths(storage: Storage) -> list[str]:
    try:
        return [info.path for info in storage.list()]
    except LogkeepError:
        return ["all that is there"]


def _list_of_archive(storage: Storage, prefix: str) -> str:
    paths = [info.path for info in storage.list(prefix)]
    _expect([info.path for info in storage.list_in_pages(prefix, max(1, len(paths) // 2))], paths, "lists differ")
    return f"{len(paths)} objects below {prefix}"
