"""`logkeep log extract`: the files that Kafka's own tools read."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.cli import app
from logkeep_engine.contract.archive_format import Compression
from logkeep_engine.contract.model import replace
from logkeep_engine.storage import LocalStorage
from tests.unit.archive.build import Batch
from tests.unit.archive.packing import AUDIT, ORDERS, pack_paths, packed


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage((tmp_path / "archive").as_uri())


def extracted(storage: LocalStorage, folder: Path, *more: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["log", "extract", storage.uri, str(folder), *more])
    return done.exit_code, done.output


LOG = [Batch(0).encode(), Batch(10).encode()]


@pytest.mark.parametrize("compression", list(Compression))
def test_segments_of_packs_and_others_become_a_brokers_files(
    storage: LocalStorage, tmp_path: Path, compression: Compression
) -> None:
    packed(storage, (ORDERS, 0, LOG), (AUDIT, 0, LOG), own=[(ORDERS, 1, LOG)], compression=compression)
    code, output = extracted(storage, tmp_path / "out")
    assert code == 0, output
    for folder in ("orders-0", "orders-1", "audit-0"):
        files = {path.name: path.read_bytes() for path in (tmp_path / "out" / folder).iterdir()}
        assert sorted(files) == [
            "00000000000000000000.index",
            "00000000000000000000.log",
            "00000000000000000000.timeindex",
        ] or (sorted(files) == ["00000000000000000000.log", "00000000000000000000.timeindex"])
        assert files["00000000000000000000.log"] == b"".join(LOG)
    assert "orders-0/00000000000000000000.log: " in output


def test_only_what_was_chosen_is_written(storage: LocalStorage, tmp_path: Path) -> None:
    packed(storage, (ORDERS, 0, LOG), (AUDIT, 0, LOG))
    assert extracted(storage, tmp_path / "out", "--topic", "audit", "-o", "json")[0] == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["audit-0"]


def test_a_pack_is_a_source(storage: LocalStorage, tmp_path: Path) -> None:
    packed(storage, (ORDERS, 0, LOG), (AUDIT, 0, LOG))
    packed(storage, (ORDERS, 0, [Batch(20).encode()]), run_id="run-2")
    source = f"{storage.uri}/{pack_paths(storage)[1]}"
    done = CliRunner().invoke(app, ["log", "extract", source, str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert [path.name for path in (tmp_path / "out" / "orders-0").glob("*.log")] == ["00000000000000000020.log"]


def test_incarnations_have_folders_of_their_own(storage: LocalStorage, tmp_path: Path) -> None:
    again = replace(ORDERS, topic_id="ccccccccccccccccccccc_")
    packed(storage, (ORDERS, 0, LOG))
    packed(storage, (again, 0, LOG), run_id="run-2")
    assert extracted(storage, tmp_path / "out")[0] == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [ORDERS.topic_id, again.topic_id]


def test_a_file_that_is_there_is_not_overwritten(storage: LocalStorage, tmp_path: Path) -> None:
    packed(storage, (ORDERS, 0, LOG))
    assert extracted(storage, tmp_path / "out")[0] == 0
    code, output = extracted(storage, tmp_path / "out")
    assert code == 2
    assert "is there already" in output


def test_what_can_be_read_of_a_damaged_segment_is_written(storage: LocalStorage, tmp_path: Path) -> None:
    (entry,) = packed(storage, (ORDERS, 0, LOG))
    (path,) = pack_paths(storage)
    storage.put(path, storage.read(path)[: len(LOG[0]) + 5])
    code, output = extracted(storage, tmp_path / "out")
    assert code == 6
    assert f"{entry.bytes}" in output
    assert (tmp_path / "out" / "orders-0" / "00000000000000000000.log").stat().st_size == len(LOG[0]) + 5


def test_a_brokers_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "orders-0"
    folder.mkdir()
    (folder / "00000000000000000000.log").write_bytes(b"".join(LOG))
    done = CliRunner().invoke(app, ["log", "extract", str(folder), str(tmp_path / "out")])
    assert done.exit_code == 2
    assert "only segments of an archive of format Kafka" in done.output


def test_an_empty_archive_has_nothing_to_write(storage: LocalStorage, tmp_path: Path) -> None:
    Archive.create_or_open(storage, "MkU3OEVBNTcwNTJENDM2Qg")
    assert extracted(storage, tmp_path / "out") == (0, "")
