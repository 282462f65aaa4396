"""A dry run of an erasure says what would go, and changes nothing."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import TopicEntry
from logkeep_engine.cli import app
from logkeep_engine.contract.archive_format import FormatName
from logkeep_engine.erasure.preview import ErasurePreview, preview
from logkeep_engine.erasure.run import ErasureAsked
from logkeep_engine.errors import NoTopicMatches
from logkeep_engine.report import Reporter
from logkeep_engine.storage import Storage
from logkeep_engine.storage.local import LocalStorage
from tests.runners import HereRunner
from tests.unit.erasure.erasing import ALICE, GONE, archive_batches, batch_of, erase_whole
from tests.unit.erasure.test_erasure import FORMATS, archived


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage((tmp_path / "archive").as_uri())


def previewed(storage: Storage, *keys: bytes, topic: str = "orders") -> ErasurePreview:
    return preview("dry", Archive.open(storage), ErasureAsked(topic, keys), HereRunner, Reporter("dry"))


def content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@FORMATS
def test_a_dry_run_counts_what_the_erasure_then_takes_and_changes_nothing(
    storage: LocalStorage, tmp_path: Path, format_name: FormatName
) -> None:
    archived(storage, format_name)
    before = content(tmp_path)
    found = previewed(storage, GONE)
    assert content(tmp_path) == before
    assert (found.records, found.segments, found.read, found.partitions, found.keys) == (3, 2, 3, 1, 1)
    assert found.faults == ()
    done = erase_whole(storage, GONE)
    assert (done.records, done.segments) == (found.records, found.segments)
    assert (previewed(storage, GONE).records, previewed(storage, GONE, ALICE).records) == (0, 3)


def test_a_dry_run_names_what_would_make_the_erasure_fail(storage: LocalStorage, tmp_path: Path) -> None:
    archived(storage, FormatName.KAFKA)
    log = max((tmp_path / "archive").rglob("*.log"))
    log.write_bytes(log.read_bytes()[:-3])
    (fault,) = previewed(storage, GONE).faults
    assert log.name in fault


def test_a_dry_run_is_refused_as_the_erasure_would_be(storage: LocalStorage) -> None:
    archived(storage, FormatName.KAFKA)
    with pytest.raises(NoTopicMatches, match="has no topic 'other'"):
        previewed(storage, GONE, topic="other")


def test_an_erasure_is_of_one_topic(storage: LocalStorage) -> None:
    for number, name in enumerate(("a.v1", "a-v1", "b")):
        topic = TopicEntry(name, f"{'abc'[number] * 21}_", 1, 1)
        archive_batches(storage, [[batch_of(0, [GONE])]], run_id=f"backup-{number}", topics=[topic], topic=topic)
    done = CliRunner().invoke(app, ["erase", storage.uri, "--topic", "a.v1", "--key", "k"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "error: --topic 'a.v1' matches 2 topics of the archive: a-v1, a.v1\n" in done.stderr
    assert "hint: An erasure is of one topic. In a name, write a dot as \\.: 'orders\\.v1'." in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing.*", "NoTopicMatches: The archive at"),
        ("ord(", "--topic 'ord(' is not a valid regular expression"),
    ],
)
def test_the_topic_of_an_erasure_is_a_pattern_that_must_match(storage: LocalStorage, text: str, said: str) -> None:
    archived(storage, FormatName.KAFKA)
    done = CliRunner().invoke(app, ["erase", storage.uri, "--topic", text, "--key", "k"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr
