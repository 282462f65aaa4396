"""A restore that can be resumed is found by what decides what it restores to where, and by nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from logkeep_engine.contract.restore_spec import parse_restore
from logkeep_engine.errors import ArchiveDamaged
from logkeep_engine.restore.model.state import RestoreState
from logkeep_engine.restore.planning.restored_before import RestoreKey
from logkeep_engine.restore.planning.resuming import finished_before
from logkeep_engine.storage import LocalStorage


def settings(*, archive: str = "a1", cluster: str = "k1", **more: object) -> RestoreKey:
    spec = {"cluster": {"bootstrapServers": ["b:9092"]}, "source": {"storage": {"uri": "file:///archive"}}, **more}
    return RestoreKey.of(parse_restore(spec), archive, cluster)


def test_what_happens_to_topics_that_are_there_makes_no_difference() -> None:
    plain = settings().path
    assert plain.startswith("runs/begun-")
    assert settings(ifTopicExists="Resume").path == plain
    assert settings(ifTopicExists="Append").path == plain
    assert settings(ifTopicExists="Replace", confirm=["a"]).path == plain
    assert settings(verify="Full", limits={"bytesPerSecond": "1Mi"}).path == plain


def test_what_decides_makes_a_difference() -> None:
    paths = {
        settings().path,
        settings(archive="a2").path,
        settings(cluster="k2").path,
        settings(offsets="Same").path,
        settings(topics={"include": ["a"]}).path,
        settings(topics={"partitions": [{"topic": "a", "partition": 0}]}).path,
        settings(topics={"configs": {"override": {"a": "1"}}}).path,
        settings(point={"run": "r"}).path,
        settings(onDamagedArchive="Skip").path,
    }
    assert len(paths) == 9


def test_an_object_that_names_no_run_is_no_answer(tmp_path: Path) -> None:
    state = RestoreState(LocalStorage(tmp_path.as_uri()), "second")
    assert finished_before(settings(), state) is None
    state.storage.put(settings().path, b"{}")
    with pytest.raises(ArchiveDamaged, match="not a note of a run"):
        finished_before(settings(), state)
