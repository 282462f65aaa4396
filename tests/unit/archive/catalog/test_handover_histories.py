"""A former owner of an archive is suspended at any step of its run, and the archive is handed on meanwhile."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.anchor import newest
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.checkpoint import CheckpointPolicy
from logkeep_engine.archive.catalog.claim import ArchiveClaim, Owner
from logkeep_engine.archive.catalog.facts import RunOutcome
from logkeep_engine.archive.catalog.writer import Timing, begin_run
from logkeep_engine.archive.maintenance.bundling import bundle_old_commits
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.contract.anchor import Anchor
from logkeep_engine.errors import LogkeepError
from logkeep_engine.storage import Storage, open_uri
from logkeep_engine.storage.local import LocalStorage
from tests.unit.archive.build import CLUSTER, ORDERS, chunk

FORMER, NEW_ONE = Owner("team", "nightly", "uid-1"), Owner("other-team", "other", "uid-2")
QUIET = Timing(heartbeat=1000, watch=0.02, poll=0.01)
STEPS = ("create", "put", "read", "list", "delete", "version")


class Suspended(LocalStorage):
    """Lets `happen` happen before its n-th step."""

    left = 0
    happen: Callable[[], None] = staticmethod(lambda: None)


def _suspending(name: str) -> Any:
    own = getattr(LocalStorage, name)

    def step(self: Suspended, *args: Any, **more: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            self.happen()
        return own(self, *args, **more)

    return step


for _name in STEPS:
    setattr(Suspended, _name, _suspending(_name))


def a_run(storage: Storage, run_id: str, owner: Owner, known: list[Anchor], **claim: Any) -> None:
    archive = Archive.create_or_open(storage, CLUSTER, claim=ArchiveClaim(owner=owner, **claim))
    writer = None
    try:
        with begin_run(archive, run_id, wait=QUIET, checkpoints=CheckpointPolicy(commits=2)) as writer:
            end = writer.state.coverage[ORDERS.topic_id, 0][-1][1] if writer.state.coverage else 0
            writer.commit(topics=[ORDERS], receipts=[chunk(storage, end, end + 10, epoch=writer.epoch)])
            writer.end(RunOutcome.SUCCEEDED)
            bundle_old_commits(writer, lambda: 1 << 50)
    finally:
        if writer is not None and (anchor := newest(writer.state)) is not None:
            known.append(anchor)


@pytest.mark.parametrize("runs", [1, pytest.param(2, marks=pytest.mark.deep)])
def test_a_former_owner_that_wakes_up_does_nothing_to_the_archive(tmp_path: Path, runs: int) -> None:
    step = 1
    with patch.object(names, "BUNDLED", 3):
        while _handed_on_before(step, open_uri(f"file://{tmp_path}/{step}"), runs):
            step += 1
    assert step > 10


def _handed_on_before(step: int, plain: Storage, runs: int) -> bool:
    """Whether a run of the former owner takes so many steps."""
    known: list[Anchor] = []
    for number in range(3):
        a_run(plain, f"before-{number}", FORMER, known)
    anchor, lines = known[-1], []

    def take_over() -> None:
        consent = str(newest(Archive.open(plain).load()))
        for number in range(runs):
            a_run(plain, f"new-{number}", NEW_ONE, known, consent=consent)
        lines.append(consent)

    sleeping = Suspended(plain.uri)
    sleeping.left, sleeping.happen = step, take_over
    try:
        a_run(sleeping, "late", FORMER, known, anchor=anchor)
    except LogkeepError as error:
        lines.append(type(error).__name__)
    if sleeping.left > 0:
        return False
    assert Archive.open(plain).info.owner == NEW_ONE, (step, lines)
    for anchor in known:
        Archive.open(plain, ArchiveClaim(anchor)).load()
    assert verify(Archive.open(plain), anchor=known[0]).faults == [], (step, lines)
    a_run(plain, "again", NEW_ONE, known, anchor=max(known, key=lambda item: item.commit))
    with pytest.raises(LogkeepError):
        a_run(plain, "late", FORMER, known)
    return True
