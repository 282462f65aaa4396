"""An archive has one owner, and is handed on only by a consent that names what was seen."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog import documents
from logkeep_engine.archive.catalog.anchor import newest
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.claim import ArchiveClaim, Owner
from logkeep_engine.archive.catalog.facts import RunOutcome
from logkeep_engine.archive.catalog.writer import Writer, begin_run
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import ERASURE, RETENTION
from logkeep_engine.errors import ArchiveBusy, ArchiveDamaged, ArchiveFenced, ArchiveMismatch, ArchiveOwned
from logkeep_engine.storage import ObjectWriter, Storage, open_uri
from logkeep_engine.storage.local import LocalStorage
from tests.unit.archive.build import CLUSTER, FAST, ORDERS, chunk

NIGHTLY = Owner("team", "nightly", "uid-1")
OTHER = Owner("other-team", "other", "uid-2")
AT_A_DESK = Owner("", "nightly", "")


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(f"file://{tmp_path}/archive")


def begin(storage: Storage, run_id: str, owner: Owner | None, **claim: object) -> Writer:
    known = ArchiveClaim(owner=owner, **claim)  # type: ignore[arg-type]
    return begin_run(Archive.create_or_open(storage, CLUSTER, claim=known), run_id, wait=FAST)


def a_run(storage: Storage, run_id: str, owner: Owner | None, start: int = 0, **claim: object) -> str:
    """A run that archives ten offsets; returns the consent that names what it leaves."""
    with begin(storage, run_id, owner, **claim) as writer:
        writer.commit(topics=[ORDERS], receipts=[chunk(storage, start, start + 10, epoch=writer.epoch)])
        writer.end(RunOutcome.SUCCEEDED)
    return str(newest(writer.state))


def owner_of(storage: Storage) -> Owner | None:
    return Archive.open(storage).info.owner


@contextmanager
def nothing_written(storage: Storage) -> Iterator[None]:
    before = {info.path: storage.read(info.path) for info in storage.list()}
    yield
    assert {info.path: storage.read(info.path) for info in storage.list()} == before


@pytest.mark.parametrize("owner", [NIGHTLY, AT_A_DESK])
def test_the_first_backup_owns_the_archive_and_continues_in_it(storage: Storage, owner: Owner) -> None:
    a_run(storage, "one", owner)
    a_run(storage, "two", owner, 10)
    document = json.loads(storage.read(names.ARCHIVE))
    assert document["owner"] == {"namespace": owner.namespace, "name": owner.name, "uid": owner.uid}
    assert document["takenOver"] == ""


@pytest.mark.parametrize(
    "other", [OTHER, AT_A_DESK, replace(NIGHTLY, uid="uid-9"), replace(NIGHTLY, namespace="team-2"), None]
)
def test_another_writer_is_refused_before_it_writes(storage: Storage, other: Owner | None) -> None:
    consent = a_run(storage, "one", NIGHTLY)
    with nothing_written(storage), pytest.raises(ArchiveOwned) as caught:
        begin(storage, "two", other)
    who = f", not {other}" if other is not None else ""
    assert caught.value.message == (
        f"The archive at {storage.uri} belongs to KafkaBackup team/nightly (uid uid-1){who}."
    )
    if other is not None:
        assert f"logkeep.dev/take-over={consent} (and logkeep.dev/run" in caught.value.hint
        assert f"`logkeep backup` --take-over {consent}" in caught.value.hint
    else:
        assert caught.value.hint.endswith("act once for its owner with --owner team/nightly.")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("kind", [RETENTION, ERASURE])
def test_whoever_names_the_owner_acts_for_it_once(storage: Storage, kind: str) -> None:
    a_run(storage, "one", NIGHTLY)
    with pytest.raises(ArchiveOwned, match="--owner says 'nightly', but its owner is 'team/nightly'"):
        begin_run(Archive.open(storage, ArchiveClaim(acts_for="nightly")), "care", kind=kind, wait=FAST)
    with begin_run(
        Archive.open(storage, ArchiveClaim(acts_for="team/nightly")), "care", kind=kind, wait=FAST
    ) as writer:
        writer.end(RunOutcome.SUCCEEDED)
    assert owner_of(storage) == NIGHTLY


def test_an_archive_without_an_owner_becomes_that_of_the_first_backup(storage: Storage) -> None:
    a_run(storage, "convert", None)
    assert owner_of(storage) is None
    with begin_run(Archive.open(storage, ArchiveClaim(owner=OTHER)), "care", kind=RETENTION, wait=FAST) as writer:
        writer.end(RunOutcome.SUCCEEDED)
    assert owner_of(storage) is None, "care takes nothing"
    a_run(storage, "two", NIGHTLY, 10)
    assert owner_of(storage) == NIGHTLY
    with pytest.raises(ArchiveOwned):
        begin(storage, "three", OTHER)


def test_a_consent_hands_the_archive_on(storage: Storage) -> None:
    seen = a_run(storage, "one", NIGHTLY)
    later = a_run(storage, "two", OTHER, 10, consent=seen)
    assert json.loads(storage.read(names.ARCHIVE))["takenOver"] == seen
    with pytest.raises(ArchiveOwned, match="belongs to KafkaBackup other-team/other"):
        begin(storage, "three", NIGHTLY)
    a_run(storage, "four", NIGHTLY, 20, consent=later)
    assert owner_of(storage) == NIGHTLY


def test_a_consent_to_what_is_not_the_newest_any_more_is_refused(storage: Storage) -> None:
    seen = a_run(storage, "one", NIGHTLY)
    now = a_run(storage, "two", NIGHTLY, 10)
    with nothing_written(storage), pytest.raises(ArchiveOwned) as caught:
        begin(storage, "three", OTHER, consent=seen)
    assert f"The consent {seen} does not name its newest commit, {now}." in caught.value.message


def test_a_consent_is_used_up_by_the_handover(storage: Storage) -> None:
    seen = a_run(storage, "one", NIGHTLY)
    a_run(storage, "two", OTHER, 10, consent=seen)
    a_run(storage, "three", OTHER, 20, consent=seen)  # it stands in the annotation still
    with pytest.raises(ArchiveOwned):
        begin(storage, "four", replace(OTHER, uid="uid-3"), consent=seen)


def test_a_living_run_is_not_interrupted_by_a_handover(storage: Storage) -> None:
    a_run(storage, "one", NIGHTLY)
    with begin(storage, "two", NIGHTLY) as writer:
        consent = str(newest(writer.state))
        before = storage.read(names.ARCHIVE)
        with pytest.raises(ArchiveBusy, match="is being written by run two"):
            begin(storage, "three", OTHER, consent=consent)
        assert storage.read(names.ARCHIVE) == before


def test_a_former_owner_that_was_suspended_is_fenced(storage: Storage) -> None:
    a_run(storage, "one", NIGHTLY)
    sleeper = begin(storage, "two", NIGHTLY)
    sleeper.close()  # its machine is suspended: no heartbeat
    seen = str(newest(Archive.open(storage).load()))
    a_run(storage, "three", OTHER, consent=seen)
    with pytest.raises(ArchiveFenced):
        sleeper.commit(receipts=[chunk(storage, 50, 60, epoch=sleeper.epoch)])
    assert owner_of(storage) == OTHER


def test_a_run_that_was_replaced_while_it_began_does_nothing(storage: Storage) -> None:
    """The other one writes archive.json between the look of this run and its first commit."""
    a_run(storage, "one", NIGHTLY)

    class Meanwhile(LocalStorage):
        def create(self, path: str, data: bytes) -> None:
            if names.parse_commit(path) is not None:
                taker = Archive.open(storage)
                taker.change_info(lambda info: replace(info, owner=OTHER))
            super().create(path, data)

    slow = Meanwhile(storage.uri)
    with pytest.raises(ArchiveOwned, match="belongs to KafkaBackup other-team/other"):
        begin(slow, "two", NIGHTLY)
    state = Archive.open(storage).load()
    assert state.runs["two"].outcome is RunOutcome.FAILED
    assert state.running == []


def test_of_two_takers_one_wins(storage: Storage) -> None:
    seen = a_run(storage, "one", NIGHTLY)
    takers = [Owner("ns", f"taker-{number}", f"uid-{number}") for number in range(4)]
    barrier = threading.Barrier(len(takers))
    done: dict[Owner, object] = {}

    class AtOnce(LocalStorage):
        def version(self, path: str) -> str | None:
            found = super().version(path)
            if path == names.ARCHIVE:
                barrier.wait(30)
            return found

    def take(number: int, owner: Owner) -> None:
        try:
            with begin(AtOnce(storage.uri), f"taker-{number}", owner, consent=seen) as writer:
                writer.end(RunOutcome.SUCCEEDED)
            done[owner] = "won"
        except (ArchiveOwned, ArchiveBusy, threading.BrokenBarrierError) as error:
            barrier.abort()
            done[owner] = error

    threads = [threading.Thread(target=take, args=item) for item in enumerate(takers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [owner for owner, how in done.items() if how == "won"]
    assert len(winners) <= 1
    assert owner_of(storage) in takers
    assert winners in ([], [owner_of(storage)])


class Killed(BaseException):
    """The process was killed."""


class Mortal(LocalStorage):
    """Dies before or after its n-th change."""

    left = -1
    before = False

    def _step(self, *, before: bool) -> None:
        if before is self.before:
            self.left -= 1
            if self.left == 0:
                raise Killed

    def create(self, path: str, data: bytes) -> None:
        self._step(before=True)
        super().create(path, data)
        self._step(before=False)

    def writer(self, path: str, *, replaces: str | None = "*") -> ObjectWriter:
        writer = super().writer(path, replaces=replaces)
        if path == names.ARCHIVE:
            commit = writer.commit

            def dying() -> None:
                self._step(before=True)
                commit()
                self._step(before=False)

            writer.commit = dying  # type: ignore[method-assign]
        return writer


@pytest.mark.parametrize("before", [True, False])
def test_a_kill_at_any_step_of_a_handover_leaves_one_owner_that_continues(tmp_path: Path, before: bool) -> None:
    died = 0
    for step in range(1, 20):
        storage = open_uri(f"file://{tmp_path}/{step}")
        seen = a_run(storage, "one", NIGHTLY)
        mortal = Mortal(storage.uri)
        mortal.left, mortal.before = step, before
        try:
            with begin(mortal, "two", OTHER, consent=seen) as writer:
                mortal.left = -1
                writer.end(RunOutcome.SUCCEEDED)
        except Killed:
            died += 1
        owner = owner_of(storage)
        assert owner in (NIGHTLY, OTHER)
        unfinished = bool(Archive.open(storage).load().running)
        assert owner == OTHER or not unfinished, "a run of the new owner has begun only if it owns the archive"
        a_run(storage, "two", OTHER, 10, consent=seen)  # the same run again, with the same request
        assert owner_of(storage) == OTHER
        if mortal.left > 0:
            break
    assert died >= 2, "archive.json and the first commit"


def test_a_kill_after_archive_json_was_made_leaves_an_archive_for_whoever_comes(storage: Storage) -> None:
    Archive.create_or_open(storage, CLUSTER, claim=ArchiveClaim(owner=NIGHTLY))
    a_run(storage, "one", OTHER)
    assert owner_of(storage) == OTHER
    with pytest.raises(ArchiveOwned):
        begin(storage, "two", NIGHTLY)


def test_archive_json_says_the_owner_byte_by_byte(storage: Storage) -> None:
    info = replace(Archive.create_or_open(storage, CLUSTER).info, owner=NIGHTLY, taken_over="new")
    assert documents.load_info(documents.dump_info(info), "a") == info
    assert documents.dump_info(info).decode().splitlines()[-7:] == [
        '  "owner": {',
        '    "namespace": "team",',
        '    "name": "nightly",',
        '    "uid": "uid-1"',
        "  },",
        '  "takenOver": "new"',
        "}",
    ]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("owner", {}),
        ("owner", "team/nightly"),
        ("owner", {"namespace": "team", "name": "nightly", "uid": ""}),
        ("owner", {"namespace": "", "name": "", "uid": ""}),
        ("owner", {"namespace": 1, "name": "a", "uid": "b"}),
        ("takenOver", "yes"),
        ("takenOver", 1),
    ],
)
def test_a_wrong_owner_is_damage(storage: Storage, key: str, value: object) -> None:
    document = json.loads(documents.dump_info(Archive.create_or_open(storage, CLUSTER).info)) | {key: value}
    with pytest.raises(ArchiveDamaged, match="a: "):
        documents.load_info(json.dumps(document).encode(), "a")


@pytest.mark.parametrize("key", ["archiveId", "segments", "imported", "owner", "takenOver"])
def test_archive_json_has_all_keys(storage: Storage, key: str) -> None:
    document = json.loads(documents.dump_info(Archive.create_or_open(storage, CLUSTER).info))
    owner = {"namespace": "a", "name": "b", "uid": "c", "more": "d"}
    with pytest.raises(ArchiveMismatch, match=r"a: description of an archive: unknown keys \['more'\] of owner"):
        documents.load_info(json.dumps({**document, "owner": owner}).encode(), "a")
    del document[key]
    with pytest.raises(ArchiveDamaged, match=f"a: not a description of an archive: key '{key}' is missing"):
        documents.load_info(json.dumps(document).encode(), "a")
    with pytest.raises(ArchiveMismatch, match=r"a: description of an archive: unknown keys \['later'\]"):
        documents.load_info(json.dumps({**document, "later": 1}).encode(), "a")
