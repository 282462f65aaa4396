"""Reports are proofs: a later one gets a name of its own, and nothing overwrites an earlier one."""

from pathlib import Path

import pytest

from logkeep_engine.archive.reports import create_report, reports_of
from logkeep_engine.errors import ObjectExists
from logkeep_engine.storage import Storage, open_uri


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(tmp_path.as_uri())


def test_each_report_has_a_name_of_its_own(storage: Storage) -> None:
    names = [create_report(storage, "r1", "found.json", b"%d" % number) for number in range(11)]
    assert names == ["found.json", *(f"found-{number}.json" for number in range(2, 12))]
    assert [storage.read(f"runs/r1/{name}") for name in names] == [b"%d" % number for number in range(11)]
    assert reports_of(storage, "r1", "found.json") == names


def test_a_number_that_another_kind_of_the_report_has_is_taken(storage: Storage) -> None:
    """A page whose document a killed driver has not written."""
    storage.put("runs/r1/found.html", b"")
    storage.put("runs/r1/found-4.html", b"")
    assert reports_of(storage, "r1", "found.json") == []
    assert create_report(storage, "r1", "found.json", b"") == "found-5.json"


@pytest.mark.parametrize(
    "other",
    [
        "found-0.json",
        "found-01.json",
        "found-1234567890.json",
        "found-x.json",
        "founder.json",
        "found/9.json",
        "found-7",
    ],
)
def test_what_only_looks_like_a_report_is_none(storage: Storage, other: str) -> None:
    storage.put(f"runs/r1/{other}", b"")
    storage.put("runs/r10/found-3.json", b"")
    assert reports_of(storage, "r1", "found.json") == []
    assert create_report(storage, "r1", "found.json", b"") == "found.json"


def test_two_that_write_at_once_do_not_overwrite_each_other(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    create = storage.create

    def late(path: str, data: bytes) -> None:
        if path.endswith("/found.json"):
            create(path, b"of somebody else")
            raise ObjectExists(path)
        create(path, data)

    monkeypatch.setattr(storage, "create", late)
    assert create_report(storage, "r1", "found.json", b"mine") == "found-2.json"
    assert storage.read("runs/r1/found.json") == b"of somebody else"
    assert storage.read("runs/r1/found-2.json") == b"mine"
