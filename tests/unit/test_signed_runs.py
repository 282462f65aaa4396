"""Erasures and conversions of signed archives that are killed before any of their writes, and begun again."""

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.signed_documents import is_document
from logkeep_engine.archive.catalog.signing import signing_keys
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.contract.archive_format import FormatName
from logkeep_engine.contract.names import ENV_SIGNING_DIR
from logkeep_engine.errors import ArchiveUnsigned
from logkeep_engine.storage import LocalStorage
from tests.unit.convert.converting import convert
from tests.unit.erasure.erasing import (
    ALICE,
    BOB,
    GONE,
    KEY,
    Inside,
    Killed,
    Mortal,
    archive_batches,
    batch_of,
    copied,
    erase_whole,
    erased,
    seen,
    without,
)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalStorage:
    """A signed archive of format Kafka. Its keys are in the environment."""
    folder = tmp_path / "keys"
    folder.mkdir()
    (folder / "ed25519").write_bytes(base64.b64encode(bytes([1]) * 32))
    monkeypatch.setenv(ENV_SIGNING_DIR, str(folder))
    storage = LocalStorage(f"file://{tmp_path}/source")
    archive_batches(storage, [[batch_of(0, [ALICE, GONE, BOB])], [batch_of(3, [GONE, ALICE])]])
    return storage


def require_signed(storage: LocalStorage) -> None:
    """All documents are signed by the key of the environment, or the test fails."""
    documents = [info.path for info in storage.list() if is_document(info.path)]
    signer = signing_keys({ENV_SIGNING_DIR: str(Path(storage.uri[7:]).parent / "keys")}).signer
    assert {json.loads(storage.read(path)).get("signer") for path in documents} == {signer}
    assert {"archive.json"} < set(documents)


def ended_after_a_kill(
    at: Callable[[int], Mortal], run: Callable[[Mortal], object], again: Callable[[Mortal], None]
) -> int:
    """How often `run` was killed, before each of its writes; each time `again` has ended it then."""
    for left in range(80):
        storage = at(left)
        storage.left = left
        try:
            run(storage)
        except Killed:
            storage.left = None
            again(storage)
            continue
        return left
    raise AssertionError("it never comes to its end")


def test_an_erasure_continues(source: LocalStorage, tmp_path: Path) -> None:
    expected = without(seen(source), GONE)

    def at(left: int) -> Mortal:
        return Mortal(copied(source, tmp_path / f"copy-{left}").as_uri())

    def again(storage: Mortal) -> None:
        erase_whole(storage, GONE)
        assert seen(storage) == expected
        require_signed(storage)

    assert ended_after_a_kill(at, lambda storage: erased(storage, GONE, runner=Inside()), again) > 8


def test_a_conversion_continues(source: LocalStorage, tmp_path: Path) -> None:
    def again(storage: Mortal) -> None:
        done = convert(source, storage, FormatName.KAFKA, runner=Inside()).result
        assert (done.outcome, done.message) == ("Succeeded", "")
        archive = Archive.open(storage)
        assert verify(archive).faults == []
        assert sum(entry.records for entries in archive.load().segments.values() for entry in entries) == 5
        require_signed(storage)

    killed = ended_after_a_kill(
        lambda left: Mortal(f"file://{tmp_path}/target-{left}"),
        lambda storage: convert(source, storage, FormatName.KAFKA, runner=Inside()),
        again,
    )
    assert killed >= 8


def test_a_conversion_takes_no_plan_that_nobody_has_signed(source: LocalStorage, tmp_path: Path) -> None:
    target = LocalStorage(f"file://{tmp_path}/target")
    convert(source, target, FormatName.KAFKA)
    plan = "runs/convert-1/convert-plan.json"
    target.put(plan, Archive.open(target).storage.read(plan))
    reported = convert(source, target, FormatName.KAFKA, run_id="convert-2").result
    assert (reported.outcome, reported.error_code) == ("Failed", ArchiveUnsigned.__name__)
    assert f"{plan}: it has no signature" in reported.message


def test_an_erasure_leaves_no_digests_that_it_cannot_trust(source: LocalStorage) -> None:
    digests = f"digests/orders/{KEY[0]}/{KEY[1]}.json"
    source.put(digests, b'{"format":1}')
    erase_whole(source, GONE)
    assert source.version(digests) is None
