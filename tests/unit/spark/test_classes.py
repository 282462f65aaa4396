"""Which archive of classes a JVM is given."""

import os
from pathlib import Path

import pytest

from logkeep_engine.spark.classes import ENV_CLASS_ARCHIVE, ClassArchive, class_archive


@pytest.fixture
def java(tmp_path: Path) -> Path:
    for name in ("bin/java", "lib/modules"):
        (tmp_path / "jvm" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "jvm" / name).write_text(name)
    return tmp_path / "jvm" / "bin" / "java"


@pytest.fixture
def jars(tmp_path: Path) -> list[Path]:
    jar = tmp_path / "a.jar"
    jar.write_text("jar")
    return [jar]


def cache(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


def finish(archive: ClassArchive) -> Path:
    """Do what a JVM and a session do at the end."""
    assert archive.made is not None
    assert archive.kept is not None
    archive.made.write_text("classes")
    archive.keep()
    return archive.kept


def test_first_run_makes_it_the_next_uses_it(java: Path, jars: list[Path], tmp_path: Path) -> None:
    first = class_archive(java, jars, cache(tmp_path))
    assert first.used is None
    assert f"-XX:ArchiveClassesAtExit={first.made}" in first.options
    kept = finish(first)
    assert class_archive(java, jars, cache(tmp_path)) == ClassArchive(used=kept)
    assert (kept.parent.stat().st_mode & 0o777) == 0o700


def test_home_has_the_cache_when_nothing_else_is_said(java: Path, jars: list[Path], tmp_path: Path) -> None:
    made = class_archive(java, jars, {"HOME": str(tmp_path)}).made
    assert made is not None
    assert made.parent == tmp_path / ".cache" / "logkeep" / "java"


@pytest.mark.parametrize("changed", ["a.jar", "jvm/lib/modules"])
def test_another_spark_or_java_has_another(java: Path, jars: list[Path], tmp_path: Path, changed: str) -> None:
    kept = finish(class_archive(java, jars, cache(tmp_path)))
    (tmp_path / changed).write_text("another version")
    other = class_archive(java, jars, cache(tmp_path))
    assert other.used is None
    assert other.kept != kept


def test_environment_names_one_or_none(java: Path, jars: list[Path], tmp_path: Path) -> None:
    environ = cache(tmp_path)
    assert class_archive(java, jars, {**environ, ENV_CLASS_ARCHIVE: "/image.jsa"}) == ClassArchive(Path("/image.jsa"))
    assert class_archive(java, jars, {**environ, ENV_CLASS_ARCHIVE: ""}) == ClassArchive()
    assert ClassArchive().options == []
    assert not (tmp_path / "cache").exists()


def test_none_where_there_is_no_home(java: Path, jars: list[Path]) -> None:
    assert class_archive(java, jars, {}) == ClassArchive()
    assert class_archive(java, jars, {"HOME": "relative"}) == ClassArchive()


def test_none_where_others_may_write(java: Path, jars: list[Path], tmp_path: Path) -> None:
    kept = finish(class_archive(java, jars, cache(tmp_path)))
    kept.parent.chmod(0o777)
    assert class_archive(java, jars, cache(tmp_path)) == ClassArchive()


def test_none_where_the_cache_cannot_be_made(java: Path, jars: list[Path], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    assert class_archive(java, jars, cache(tmp_path)) == ClassArchive()


def test_old_ones_and_what_was_abandoned_go(java: Path, jars: list[Path], tmp_path: Path) -> None:
    kept = []
    for age in (4000, 3000, 2000, 1000):
        jars[0].write_text(str(age))
        kept.append(finish(class_archive(java, jars, cache(tmp_path))))
        os.utime(kept[-1], (kept[-1].stat().st_mtime - age,) * 2)
    abandoned, growing = kept[0].with_name("classes-x.jsa.1"), kept[0].with_name("classes-x.jsa.2")
    for file in (abandoned, growing):
        file.write_text("half")
    os.utime(abandoned, (growing.stat().st_mtime - 7200,) * 2)
    jars[0].write_text("newest")
    newest = finish(class_archive(java, jars, cache(tmp_path)))
    assert sorted(newest.parent.iterdir()) == sorted([newest, kept[3], kept[2], growing])


def test_one_that_was_not_written_is_not_kept(java: Path, jars: list[Path], tmp_path: Path) -> None:
    archive = class_archive(java, jars, cache(tmp_path))
    archive.keep()
    archive.drop()
    assert class_archive(java, jars, cache(tmp_path)).used is None
