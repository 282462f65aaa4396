"""Who has keys takes no document of a run, and no archive.json, that no trusted key has signed for its place."""

import base64
import hashlib
import json
import pickle
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog import cluster_state, run_note, signed_documents
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.claim import ArchiveClaim
from logkeep_engine.archive.catalog.facts import RunOutcome
from logkeep_engine.archive.catalog.holds import Hold, HoldKind, HoldOrigin
from logkeep_engine.archive.catalog.lost_tail import store_record
from logkeep_engine.archive.catalog.signed_documents import SigningStorage, is_document, opened
from logkeep_engine.archive.catalog.signing import NO_KEYS, SigningKeys
from logkeep_engine.archive.maintenance.increments import VerifyCycle
from logkeep_engine.archive.maintenance.retaining import change_holds
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.contract.names import ENV_SIGNING_DIR
from logkeep_engine.erasure.run import AUDIT_FILE
from logkeep_engine.errors import ArchiveUnsigned
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import ORDERS
from tests.unit.archive.catalog.test_signing import ALICE, OWNER, READER, a_run, keys_of
from tests.unit.archive.catalog.test_signing import opened as archive_of
from tests.unit.erasure.erasing import Killed, Mortal

PLAN = "runs/nightly/plan.json"
NOTE = "runs/restore-1/started.json"
BODY = b'{"format":1,"runId":"nightly"}'
BOTH = keys_of(1, 2, own=2)
TRUSTS_BOTH = keys_of(1, 2, own=1)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(f"file://{tmp_path}/archive")


def signing(storage: Storage, keys: SigningKeys = ALICE, archive_id: str = "archive-1") -> SigningStorage:
    return SigningStorage(storage, keys, archive_id)


def refused(storage: Storage, path: str, keys: SigningKeys = ALICE, archive_id: str = "archive-1") -> str:
    with pytest.raises(ArchiveUnsigned) as caught:
        signing(storage, keys, archive_id).read(path)
    assert path in caught.value.message
    assert (
        "delete it, or start the run under another id" in caught.value.hint
        or "restore what was altered" in caught.value.hint
    )
    return caught.value.message


# ---- one document


@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize("how", ["put", "create", "put_all", "writer"])
def test_a_document_has_its_signature_as_last_keys_and_is_read_without_it(
    storage: Storage, how: str, end: bytes
) -> None:
    place, content = signing(storage), BODY + end
    if how == "put_all":
        place.put_all({PLAN: content})
    elif how == "writer":
        with place.writer(PLAN) as out:
            for number in range(len(content)):  # byte by byte: the last ones are held back
                assert out.write(content[number : number + 1]) == 1
            out.complete()
    else:
        getattr(place, how)(PLAN, content)
    stored = json.loads(storage.read(PLAN))
    assert list(stored) == ["format", "runId", "signer", "signature"]
    assert storage.read(PLAN).endswith(b"}" + end)
    for keys in (ALICE, READER, BOTH, NO_KEYS):
        assert signing(storage, keys).read(PLAN) == content
        assert signing(storage, keys).read_range(PLAN, 0, None) == content
        assert signing(storage, keys).read_range(PLAN, 0, 8) == content[:8]
        with pytest.raises(ValueError, match="is a document"):
            signing(storage, keys).reader(PLAN)
        with pytest.raises(ValueError, match="is a document"):
            signing(storage, keys).read_into(PLAN, 0, memoryview(bytearray(1)))


def test_openssl_says_that_a_document_is_signed(storage: Storage, tmp_path: Path) -> None:
    signing(storage).put(PLAN, BODY)
    text = f"logkeep document archive-1 {PLAN} {hashlib.sha256(BODY).hexdigest()}".encode()
    (key,) = ALICE.trusted.values()
    (tmp_path / "text").write_bytes(text)
    (tmp_path / "key").write_bytes(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    (tmp_path / "signature").write_bytes(base64.b64decode(json.loads(storage.read(PLAN))["signature"]))
    command = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", "key", "-rawin", "-in", "text", "-sigfile"]
    done = subprocess.run([*command, "signature"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "Signature Verified Successfully"


ALTERED: dict[str, Callable[[bytes], bytes]] = {
    "content": lambda data: data.replace(b"nightly", b"nightlu"),
    "signature": lambda data: data.replace(b'"signature":"', b'"signature":"AAAA', 1)[:-6] + b'"}',
    "no signature": lambda data: BODY,
    "no signer": lambda data: data.replace(b'"signer":"', b'"signer_":"'),
    "cut": lambda data: data[:-40],
    "empty": lambda data: b"",
}


@pytest.mark.parametrize("change", ALTERED)
@pytest.mark.parametrize("keys", [ALICE, READER], ids=["writer", "reader"])
def test_a_document_of_a_writer_that_was_altered_is_refused(storage: Storage, change: str, keys: SigningKeys) -> None:
    signing(storage).put(PLAN, BODY)
    storage.put(PLAN, ALTERED[change](storage.read(PLAN)))
    refused(storage, PLAN, keys)
    with pytest.raises(ArchiveUnsigned):
        signing(storage, keys).read_range(PLAN, 0, 4)
    with pytest.raises(ArchiveUnsigned):
        opened(signing(storage, keys), PLAN)


@pytest.mark.parametrize("to", ["runs/nightly-2/plan.json", "runs/nightly/plan-2.json", "runs/restore-1/result.json"])
def test_a_document_of_another_place_is_refused(storage: Storage, to: str) -> None:
    signing(storage).put(PLAN, BODY)
    storage.put(to, storage.read(PLAN))
    assert "did not make this signature" in refused(storage, to)


def test_a_document_of_another_archive_is_refused(storage: Storage) -> None:
    signing(storage).put(PLAN, BODY)
    assert "did not make this signature" in refused(storage, PLAN, archive_id="archive-2")


def test_a_document_that_another_key_has_signed_is_refused(storage: Storage) -> None:
    mallory = keys_of(9, own=9)
    signing(storage, mallory).put(PLAN, BODY)
    assert f"key {mallory.signer}, which is not trusted" in refused(storage, PLAN)
    assert f"key {mallory.signer}, which is not trusted" in refused(storage, PLAN, READER)


def test_who_has_only_public_keys_takes_what_a_restore_without_a_key_has_stored(storage: Storage) -> None:
    signing(storage, READER).put(NOTE, BODY)
    assert storage.read(NOTE) == BODY
    assert signing(storage, READER).read(NOTE) == BODY
    assert "it has no signature" in refused(storage, NOTE)  # who has a key signs what he stores
    signing(storage).put(NOTE, BODY)
    storage.put(NOTE, ALTERED["content"](storage.read(NOTE)))
    assert "did not make this signature" in refused(storage, NOTE, READER)


@pytest.mark.parametrize(
    "path",
    [
        "runs/a/heartbeat.json",
        "runs/a/convert-plan.json",
        "runs/a/plan-12.json",
        "runs/a/lost-tail-0000000007.json",
        "runs/a/format-loss.json",
        "digests/orders/id/0.json",
        "verified.json",
        "archive.json",
    ],
)
def test_who_has_only_public_keys_refuses_what_decides_for_all(storage: Storage, path: str) -> None:
    storage.put(path, BODY)
    refused(storage, path, READER)


def test_what_is_a_document(storage: Storage) -> None:
    assert {run_note.ALIVE, cluster_state.CLUSTER_STATE, AUDIT_FILE} == signed_documents.NOT_SIGNED
    for path in (
        "archive.json", "verified.json", "digests/a/b/0.json", "runs/of-1/restore.json", "runs/r/offset-maps/t/0.json",
        "runs/r/offset-maps/original/0.json", "runs/open-drills/r.t.json",
    ):  # fmt: skip
        assert is_document(path), path
    for path in (
        "catalog/00000000000000000000.json", "topics/t.json/a.log", "runs/r/alive.json", "runs/r/erasure.json",
        "runs/r/cluster-state.json", "runs/r/original/topics/t/x.json", "runs/r/verification.html", "runs/x.json",
    ):  # fmt: skip
        assert not is_document(path), path
        signing(storage).put(path, BODY)
        assert storage.read(path) == signing(storage, READER).read(path) == BODY


def test_what_is_no_object_is_not_stored(storage: Storage) -> None:
    for wrong in (b"[]", b"text", b"", b'{"a":1} \n'):
        with pytest.raises(ValueError, match="not as a JSON object"):
            signing(storage).put(PLAN, wrong)
        with pytest.raises(ValueError, match="not as a JSON object"), signing(storage).writer(PLAN) as out:
            out.write(wrong)
    assert storage.list() == []


def test_in_another_process_the_keys_are_those_of_its_environment(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pickled = pickle.dumps(signing(storage))
    assert b"Ed25519" not in pickled
    monkeypatch.delenv(ENV_SIGNING_DIR, raising=False)
    pickle.loads(pickled).put(PLAN, BODY)
    assert storage.read(PLAN) == BODY
    (tmp_path / "ed25519").write_bytes(base64.b64encode(bytes([1]) * 32))
    monkeypatch.setenv(ENV_SIGNING_DIR, str(tmp_path))
    pickle.loads(pickled).put(PLAN, BODY)
    assert signing(storage, READER).read(PLAN) == BODY


@pytest.mark.parametrize("keys", [ALICE, READER, NO_KEYS], ids=["writer", "reader", "none"])
@pytest.mark.parametrize("writer", [ALICE, NO_KEYS], ids=["signed", "unsigned"])
def test_a_large_document_is_read_in_parts(storage: Storage, keys: SigningKeys, writer: SigningKeys) -> None:
    content = b'{"rows":[\n' + b",\n".join(b"[%d,1,2]" % number for number in range(20_000)) + b"\n]}\n"
    with signing(storage, writer).writer(NOTE) as out:
        for at in range(0, len(content), 999):
            out.write(content[at : at + 999])
    if keys is ALICE and writer is NO_KEYS:
        with pytest.raises(ArchiveUnsigned):
            opened(signing(storage, keys), NOTE)
        return
    found = opened(signing(storage, keys), NOTE)
    assert found.size == len(content)
    for start, end in ((0, 10), (500, 700), (len(content) - 5, len(content)), (len(content) - 1, len(content) + 9)):
        assert found.read(start, end) == content[start:end]
    assert found.read(0, 1 << 30) == content


# ---- an archive


def paths(storage: Storage) -> list[str]:
    return [info.path for info in storage.list() if is_document(info.path)]


def signers(storage: Storage) -> dict[str, str]:
    return {path: json.loads(storage.read(path)).get("signer", "") for path in paths(storage)}


def test_all_documents_of_a_signed_archive_are_signed(storage: Storage) -> None:
    a_run(storage, 0, ALICE)
    assert signers(storage) == {"archive.json": ALICE.signer, "runs/run-0/heartbeat.json": ALICE.signer}
    cycle = VerifyCycle.load(archive_of(storage, ALICE), 7)
    replace(cycle, done=3, epoch=1).store(archive_of(storage, ALICE))
    assert VerifyCycle.load(archive_of(storage), 7).done == 3


def test_a_cycle_of_verifications_that_nobody_has_signed_is_not_used(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    a_run(storage, 0, ALICE)
    replace(VerifyCycle.load(archive_of(storage), 7), done=3, epoch=1).store(archive_of(storage))
    assert VerifyCycle.load(archive_of(storage), 7).done == 0
    assert "verified.json: it has no signature" in caplog.text


@pytest.mark.parametrize("change", ["clusterId", "owner", "archiveId", "unsigned"])
def test_an_altered_archive_json_is_refused(storage: Storage, change: str) -> None:
    a_run(storage, 0, ALICE)
    data = storage.read(names.ARCHIVE)
    document = json.loads(data)
    if change == "unsigned":
        altered = data[: data.index(b',"signer"')] + b"}"
    elif change == "owner":
        altered = data.replace(b'"name": "nightly"', b'"name": "another"')
    else:
        altered = data.replace(document[change].encode(), b"another")
    assert altered != data
    storage.put(names.ARCHIVE, altered)
    for keys in (READER, ALICE):
        with pytest.raises(ArchiveUnsigned, match=r"archive\.json"):
            archive_of(storage, keys).load()
    if change == "owner":
        assert archive_of(storage, NO_KEYS).load().commit == 2  # who has no keys sees nothing


def test_a_witness_that_nobody_has_signed_is_left_out_by_name(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    a_run(storage, 0, ALICE)
    beat = json.loads(storage.read("runs/run-0/heartbeat.json")) | {"commit": 99}
    del beat["signer"], beat["signature"]
    storage.put("runs/evil/heartbeat.json", json.dumps(beat).encode())
    archive = archive_of(storage, NO_KEYS)
    lost = archive.lost_tails(archive.load())
    assert len(lost) == 1
    store_record(storage, "evil", 9, lost)
    for keys in (READER, ALICE):
        caplog.clear()
        archive = archive_of(storage, keys)
        assert archive.lost_tails(archive.load()) == ()
        assert "runs/evil/heartbeat.json: it has no signature" in caplog.text
        assert "runs/evil/lost-tail-0000000009.json: it has no signature" in caplog.text


def test_an_archive_takes_the_place_of_another_that_was_signed(storage: Storage) -> None:
    a_run(storage, 0, ALICE)
    storage.delete([info.path for info in storage.list() if not info.path.startswith("runs/")])
    a_run(storage, 10, ALICE)  # heartbeats of the other one lie there still
    archive = archive_of(storage)
    assert archive.lost_tails(archive.load()) == ()


# ---- the beginning of the signing, and another key


def test_the_first_signed_run_signs_what_is_there(storage: Storage) -> None:
    known = a_run(storage, 0, NO_KEYS)
    plain = Archive.open(storage).storage
    plain.put(PLAN, BODY)
    plain.put("runs/restore-1/alive.json", BODY)
    storage.put("runs/restore-1/point.json", b"[1]")  # no object: left as it is
    assert set(signers_of_objects(storage).values()) == {""}
    a_run(storage, 10, ALICE, known=known)
    assert set(signers_of_objects(storage).values()) == {ALICE.signer}
    assert archive_of(storage).storage.read(PLAN) == BODY
    assert storage.read("runs/restore-1/point.json") == b"[1]"
    assert b"signer" not in storage.read("runs/restore-1/alive.json")


def signers_of_objects(storage: Storage) -> dict[str, str]:
    return {
        path: json.loads(storage.read(path)).get("signer", "")
        for path in paths(storage)
        if storage.read(path).startswith(b"{")
    }


def test_another_key_signs_everything_so_the_old_one_may_go(storage: Storage) -> None:
    a_run(storage, 0, ALICE)
    archive_of(storage, ALICE).storage.put(PLAN, BODY)
    a_run(storage, 10, BOTH)
    assert set(signers(storage).values()) == {BOTH.signer}
    new = archive_of(storage, keys_of(2))
    assert (new.load().commit, new.storage.read(PLAN)) == (5, BODY)
    before = {path: storage.version(path) for path in paths(storage)}
    a_run(storage, 20, BOTH)
    assert {path: storage.version(path) for path in before} == before  # and that was all


def test_another_key_signs_everything_in_the_first_backup_also_after_a_run_of_another_kind(storage: Storage) -> None:
    a_run(storage, 0, ALICE)
    archive_of(storage, ALICE).storage.put(PLAN, BODY)
    owned = Archive.open(storage, ArchiveClaim(owner=OWNER, keys=BOTH))
    change_holds(owned, "hold-1", [Hold(HoldKind.RUN, "run-0", HoldOrigin.COMMAND)], release=False)
    assert signers(storage)[PLAN] == ALICE.signer, "a hold may have a key of its own, for once"
    a_run(storage, 10, BOTH)
    assert set(signers(storage).values()) == {BOTH.signer}
    assert archive_of(storage, keys_of(2)).storage.read(PLAN) == BODY


def test_what_was_forged_is_not_signed_with_another_key(storage: Storage) -> None:
    a_run(storage, 0, ALICE)
    storage.put(PLAN, BODY)
    signing(storage, keys_of(9, own=9)).put(NOTE, BODY)
    a_run(storage, 10, BOTH)
    for path in (PLAN, NOTE):
        with pytest.raises(ArchiveUnsigned):
            archive_of(storage, BOTH).storage.read(path)
    forged = storage.read("runs/run-0/heartbeat.json")
    storage.put("runs/run-0/result.json", forged)  # by its name signed with the key that is trusted still
    with pytest.raises(ArchiveUnsigned, match=r"runs/run-0/result\.json: key .* did not make this signature"):
        a_run(storage, 20, TRUSTS_BOTH)


# ---- kills

START = {"new": None, "unsigned": NO_KEYS, "signed": ALICE, "another key": BOTH}
"""By whose keys the archive is signed in which the run that is killed begins; None: there is none."""


@pytest.mark.parametrize("before", START)
@pytest.mark.parametrize("often", [False, True], ids=["commits", "checkpoints"])
def test_after_a_kill_behind_any_write_the_same_run_continues(tmp_path: Path, before: str, often: bool) -> None:
    """Whatever is signed already when the run is killed, it continues when it is begun again, and signs the rest."""
    deaths = 0
    for left in range(60):
        storage, known, start = Mortal(f"file://{tmp_path}/archive-{left}"), None, 0
        if (keys := START[before]) is not None:
            known, start = a_run(storage, 0, keys), 10
            SigningStorage(storage, keys, Archive.open(storage).info.archive_id).put(NOTE, BODY)
        storage.left = left
        try:
            a_run(storage, start, TRUSTS_BOTH, often=often, known=known)
        except Killed:
            deaths += 1
        alive = open_uri(storage.uri)
        if storage.left < 0:
            a_run(alive, start, TRUSTS_BOTH, often=often, known=known)
        assert set(signers(alive).values()) == {ALICE.signer}, left
        assert not verify(archive_of(alive)).faults
        state = archive_of(alive).load()
        assert (state.accounted_for(ORDERS.topic_id, 0), state.runs[f"run-{start}"].outcome) == (
            [(0, start + 10)],
            RunOutcome.SUCCEEDED,
        )
        if keys is not None:
            assert archive_of(alive).storage.read(NOTE) == BODY
        if storage.left >= 0:
            break
    assert deaths == left >= 5


def test_a_reader_meets_a_run_that_was_killed_and_refuses_nothing(tmp_path: Path) -> None:
    for left in range(20):
        storage = Mortal(f"file://{tmp_path}/archive-{left}")
        a_run(storage, 0, ALICE)
        storage.left = left
        try:
            a_run(storage, 10, ALICE, often=True)
        except Killed:
            archive = archive_of(open_uri(storage.uri))
            assert archive.lost_tails(archive.load()) == ()
            continue
        return
    raise AssertionError("it was killed each time")
