"""Who has keys takes nothing that no trusted key has signed; and an archive that is signed stays signed."""

import base64
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog import checkpoint
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.checkpoint import CheckpointPolicy
from logkeep_engine.archive.catalog.claim import ArchiveClaim, Owner
from logkeep_engine.archive.catalog.facts import RunOutcome
from logkeep_engine.archive.catalog.signing import NO_KEYS, SigningKeys, name_of, of_commit, signing_keys
from logkeep_engine.archive.catalog.writer import Writer, begin_run
from logkeep_engine.archive.maintenance import bundling
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.contract.anchor import Anchor
from logkeep_engine.contract.names import ENV_SIGNING_DIR
from logkeep_engine.errors import ArchiveDamaged, ArchiveUnsigned, CredentialsMissing
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import CLUSTER, FAST, ORDERS, chunk
from tests.unit.archive.forge import altered, later, relinked, rewritten

OWNER = Owner("team", "nightly", "uid-1")
NEVER = CheckpointPolicy(commits=1000, min_bytes=1 << 30, most_commits=1000)
OFTEN = CheckpointPolicy(commits=1, min_bytes=1, most_commits=1)


def keys_of(*seeds: int, own: int | None = None) -> SigningKeys:
    """Keys made of these numbers: those to trust, and that which signs."""
    private = {seed: Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32) for seed in (*seeds, own) if seed}
    public = [key.public_key() for key in private.values()]
    return SigningKeys({name_of(key): key for key in public}, private.get(own or 0))


ALICE, READER = keys_of(1, own=1), keys_of(1)
MALLORY = keys_of(9, own=9)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(f"file://{tmp_path}/archive")


def begun(
    storage: Storage, run_id: str, keys: SigningKeys, *, often: bool = False, known: Anchor | None = None
) -> Writer:
    archive = Archive.create_or_open(storage, CLUSTER, claim=ArchiveClaim(known, owner=OWNER, keys=keys))
    return begin_run(archive, run_id, wait=FAST, checkpoints=OFTEN if often else NEVER)


def a_run(storage: Storage, start: int, keys: SigningKeys, **options: Any) -> Anchor:
    """A run that archives ten offsets from `start` on; returns the anchor of the archive then."""
    with begun(storage, f"run-{start}", keys, **options) as writer:
        writer.commit(topics=[ORDERS], receipts=[chunk(storage, start, start + 10, epoch=writer.epoch)])
        writer.end(RunOutcome.SUCCEEDED)
    return Anchor(writer.state.commit, writer.state.sha256)


def opened(storage: Storage, keys: SigningKeys = READER) -> Archive:
    return Archive.open(storage, ArchiveClaim(keys=keys))


def faults(storage: Storage, keys: SigningKeys = READER) -> list[str]:
    return [str(fault) for fault in verify(opened(storage, keys)).faults]


def without_signature(storage: Storage, number: int) -> None:
    path = names.commit_path(number)
    data = storage.read(path)
    storage.put(path, data[: data.rindex(b',"signature"')] + b"}")


def strip(found: dict[str, object]) -> None:
    """Let a commit be one that nobody has signed."""
    found.update(signer="")


def signed_again(storage: Storage, number: int, keys: SigningKeys, change: Callable[[dict[str, object]], None]) -> None:
    """Alter a commit, and sign it with other keys."""

    def forge(found: dict[str, object]) -> None:
        change(found)
        found.update(signer=keys.signer)

    altered(storage, number, forge)
    path = names.commit_path(number)
    data = storage.read(path)
    signature = keys.sign(of_commit(number, json.loads(data)["sha256"]))
    storage.put(path, data[:-1] + b',"signature":"%b"}' % signature.encode())


# ---- commits


def test_each_commit_is_signed_by_the_key_that_it_names_and_openssl_says_so(storage: Storage, tmp_path: Path) -> None:
    pem = tmp_path / "private.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", pem], check=True)
    public = subprocess.run(["openssl", "pkey", "-in", pem, "-pubout"], check=True, capture_output=True).stdout
    folder = tmp_path / "keys"
    folder.mkdir()
    shutil.copy(pem, folder / "ed25519")
    (folder / "publicKeys").write_bytes(public)
    a_run(storage, 0, signing_keys({ENV_SIGNING_DIR: str(folder)}))
    document = json.loads(storage.read(names.commit_path(2)))
    (tmp_path / "text").write_bytes(f"logkeep commit 2:{document['sha256']}".encode())
    (tmp_path / "signature").write_bytes(base64.b64decode(document["signature"]))
    (tmp_path / "public.pem").write_bytes(public)
    command = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", "public.pem", "-rawin", "-in", "text"]
    done = subprocess.run(
        [*command, "-sigfile", "signature"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "Signature Verified Successfully"
    (folder / "ed25519").unlink()
    signing_keys.__globals__["_read"].cache_clear()
    assert opened(storage, signing_keys({ENV_SIGNING_DIR: str(folder)})).load().signed_since == 0


def test_who_has_the_key_reads_and_so_does_who_has_none(storage: Storage) -> None:
    for start in (0, 10):
        a_run(storage, start, ALICE, often=True)
    for keys in (ALICE, READER, NO_KEYS, keys_of(1, 9)):
        archive = opened(storage, keys)
        assert (archive.load().commit, archive.load_at(2).commit) == (5, 2)
        assert faults(storage, keys) == []


@pytest.mark.parametrize("often", [False, True])
def test_who_trusts_another_key_takes_nothing(storage: Storage, often: bool) -> None:
    a_run(storage, 0, ALICE, often=often)
    before = {info.path: storage.read(info.path) for info in storage.list()}
    with pytest.raises(ArchiveUnsigned, match="no trusted key has signed commit 2") as caught:
        opened(storage, MALLORY).load()
    assert "publicKeys" in caught.value.hint
    with pytest.raises(ArchiveUnsigned):
        begun(storage, "next", MALLORY)
    assert faults(storage, MALLORY)
    assert {info.path: storage.read(info.path) for info in storage.list()} == before, "nothing was written"


def test_a_history_that_somebody_else_has_rewritten_is_refused(storage: Storage) -> None:
    """The chain is whole, and who has no keys sees nothing."""
    a_run(storage, 0, ALICE)
    relinked(storage, range(3), strip)
    assert opened(storage, NO_KEYS).load().signed_since == -1
    with pytest.raises(ArchiveUnsigned, match="no trusted key has signed commit 2"):
        opened(storage).load()


def test_a_history_that_another_key_has_signed_is_refused(storage: Storage) -> None:
    a_run(storage, 0, MALLORY)
    with pytest.raises(ArchiveUnsigned, match="no trusted key has signed commit 2"):
        opened(storage).load()
    assert "no trusted key has signed commit 2" in faults(storage)[0]


@pytest.mark.parametrize("number", range(3))
def test_a_commit_that_has_lost_its_signature_is_refused_by_all(storage: Storage, number: int) -> None:
    a_run(storage, 0, ALICE)
    without_signature(storage, number)
    for keys in (READER, NO_KEYS):
        with pytest.raises(ArchiveDamaged, match=f"signer '{ALICE.signer}', and no signature"):
            opened(storage, keys).load()
        assert f"signer '{ALICE.signer}', and no signature" in faults(storage, keys)[0]


def test_no_commit_after_a_signed_one_is_unsigned(storage: Storage) -> None:
    a_run(storage, 0, ALICE)
    altered(storage, 2, strip)
    for keys in (READER, NO_KEYS):
        with pytest.raises(ArchiveDamaged, match="commit 2 is not signed, but all are from commit 0 on"):
            opened(storage, keys).load()
        assert "commit 2 is not signed, but all are from commit 0 on" in faults(storage, keys)[0]


@pytest.mark.parametrize("signature", ["A" * 86 + "==", "other"])
def test_a_wrong_signature_of_a_trusted_key_is_refused(storage: Storage, signature: str) -> None:
    a_run(storage, 0, ALICE)
    path = names.commit_path(2)
    other = json.loads(storage.read(names.commit_path(1)))["signature"] if signature == "other" else signature
    data = storage.read(path)
    storage.put(path, data[: data.rindex(b',"signature"')] + b',"signature":"%b"}' % other.encode())
    with pytest.raises(ArchiveUnsigned, match=f"{path}: key {ALICE.signer} did not make this signature"):
        opened(storage).load()
    assert f"key {ALICE.signer} did not make this signature" in faults(storage)[0]


def test_the_newest_commit_that_somebody_else_has_added_is_refused(storage: Storage) -> None:
    a_run(storage, 0, ALICE)
    signed_again(storage, 2, MALLORY, later)
    with pytest.raises(ArchiveUnsigned, match="no trusted key has signed commit 2"):
        opened(storage).load()


def test_verify_names_the_first_wrong_signature_also_where_the_chain_stands(storage: Storage) -> None:
    a_run(storage, 0, ALICE)
    path = names.commit_path(1)
    data = storage.read(path)
    storage.put(path, data[: data.rindex(b',"signature"')] + b',"signature":"%b"}' % (b"A" * 86 + b"=="))
    assert opened(storage).load().commit == 2, "what stands on it is signed, and so is it"
    assert f"{path}: key {ALICE.signer} did not make this signature" in faults(storage)[0]


# ---- switching on, and writers


def test_an_archive_is_signed_from_a_commit_on_with_all_that_was_there(storage: Storage) -> None:
    known = a_run(storage, 0, NO_KEYS, often=True)
    with pytest.raises(ArchiveUnsigned, match="no trusted key has signed commit 2") as caught:
        opened(storage).load()
    assert "The next backup signs an archive without signatures if it knows the newest commit" in caught.value.hint
    a_run(storage, 10, ALICE, known=known)
    archive = opened(storage)
    assert (archive.load().signed_since, archive.load().commit) == (3, 5)
    assert archive.load_at(2).sha256 == opened(storage, NO_KEYS).load_at(2).sha256
    assert faults(storage) == []
    assert max(number for number, _, _ in archive.listing().checkpoints) == 3, "readers with keys need no older one"


def test_the_run_that_signs_an_archive_first_can_read_it_again(storage: Storage) -> None:
    known = a_run(storage, 0, NO_KEYS)
    with begun(storage, "signs", ALICE, known=known) as writer:
        writer.end(RunOutcome.SUCCEEDED)
    assert writer.archive.load().commit == writer.state.commit


def test_what_was_there_before_cannot_be_changed_any_more(storage: Storage) -> None:
    known = a_run(storage, 0, NO_KEYS)
    a_run(storage, 10, ALICE, known=known)
    storage.delete([info.path for _, _, info in opened(storage).listing().checkpoints])
    rewritten(storage, 0, later)
    for number in (0, 1):
        altered(storage, number, later)
    with pytest.raises((ArchiveDamaged, ArchiveUnsigned)):
        opened(storage).load_at(2)


def test_a_killed_first_run_leaves_an_archive_that_is_signed_or_not(storage: Storage) -> None:
    known = a_run(storage, 0, NO_KEYS)
    begun(storage, "killed", ALICE, known=known).close()  # after its begin commit
    assert opened(storage).load().signed_since == 3
    a_run(storage, 10, ALICE)
    assert faults(storage) == []


def test_nobody_writes_a_signed_archive_without_a_key(storage: Storage) -> None:
    a_run(storage, 0, ALICE)
    for keys in (NO_KEYS, READER):
        with pytest.raises(
            ArchiveUnsigned, match="has been signed since commit 0, but this run has no key to sign with"
        ) as caught:
            begun(storage, "next", keys)
        assert ENV_SIGNING_DIR in caught.value.hint
    assert opened(storage).load().commit == 2


def test_who_trusts_keys_and_has_none_writes_no_archive(storage: Storage) -> None:
    """He would not read it again."""
    with pytest.raises(ArchiveUnsigned, match="is to be signed, but this run has no key to sign with"):
        begun(storage, "first", READER)
    assert storage.list(names.CATALOG) == []


def test_only_the_owner_signs_what_nobody_has_signed_and_only_if_he_names_the_newest_commit(storage: Storage) -> None:
    """Else somebody would take all signatures away, and have the next run sign what he has written."""
    before = a_run(storage, 0, NO_KEYS)
    known = a_run(storage, 10, NO_KEYS)
    strange = Archive.open(storage, ArchiveClaim(known, keys=ALICE))
    with pytest.raises(ArchiveUnsigned):
        begin_run(strange, "retention", kind="Retention", wait=FAST)
    for wrong in (None, before):
        with pytest.raises(ArchiveUnsigned):
            begun(storage, "next", ALICE, known=wrong)
    assert opened(storage, NO_KEYS).load().commit == known.commit
    claim = ArchiveClaim(before, OWNER, consent=str(known), keys=ALICE)
    begin_run(Archive.open(storage, claim), "next", wait=FAST).close()
    assert opened(storage).load().signed_since == known.commit + 1


def test_an_archive_that_has_lost_all_signatures_is_not_signed_again(storage: Storage) -> None:
    known = a_run(storage, 0, ALICE)
    relinked(storage, range(3), strip)
    for anchor in (None, known):
        with pytest.raises(ArchiveUnsigned):
            begun(storage, "next", ALICE, known=anchor)


def test_keys_are_exchanged_while_several_are_trusted(storage: Storage) -> None:
    """The newest private key signs, and what an old one has signed is under it."""
    a_run(storage, 0, keys_of(1, own=1))
    a_run(storage, 10, keys_of(1, own=2))
    a_run(storage, 20, keys_of(2, own=2), often=True)
    for keys in (keys_of(1, 2), keys_of(2)):
        assert opened(storage, keys).load().commit == 8
        assert opened(storage, keys).load_at(1).commit == 1
        assert faults(storage, keys) == []
    with pytest.raises(ArchiveUnsigned, match="no trusted key has signed commit 8"):
        opened(storage, keys_of(1)).load()
    with pytest.raises(ArchiveUnsigned):
        begun(storage, "next", keys_of(3, own=3))


# ---- checkpoints and bundles


@pytest.mark.parametrize("forger", [NO_KEYS, MALLORY])
def test_a_forged_checkpoint_is_left_out_by_who_has_keys(
    storage: Storage, forger: SigningKeys, caplog: pytest.LogCaptureFixture
) -> None:
    """It has the right hash of its commit and other facts: only its signature shows it, or a verification."""
    a_run(storage, 0, ALICE)
    archive = opened(storage)
    state = archive.load()
    del state.runs["run-0"]
    path = names.checkpoint_path(2, 1)
    storage.put(path, checkpoint.dump(state, archive.info.archive_id, forger))
    assert list(opened(storage, NO_KEYS).load().runs) == []
    assert list(opened(storage).load().runs) == ["run-0"]
    assert f"{path} is left out" in caplog.text
    assert "no trusted key has signed it" in caplog.text
    assert [path in fault and "no trusted key has signed it" in fault for fault in faults(storage)] == [True]


def test_a_checkpoint_of_another_place_or_with_another_signature_is_left_out(storage: Storage) -> None:
    a_run(storage, 0, ALICE, often=True)
    archive = opened(storage)
    (_, _, info), *_ = archive.listing().checkpoints
    line, _, frames = storage.read(info.path).partition(b"\n")
    head = json.loads(line)
    for wrong in ({"signature": "A" * 86 + "=="}, {"signature": 7}, {"epoch": 7}, {"signer": None}):
        storage.put(info.path, json.dumps(head | wrong).encode() + b"\n" + frames)
        with pytest.raises(ArchiveUnsigned):
            archive.read_checkpoint(info.path)


def test_bundles_keep_signatures(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "BUNDLED", 4)
    for start in (0, 10, 20):
        a_run(storage, start, ALICE)
    writer = begun(storage, "bundler", ALICE, often=True)
    writer.end(RunOutcome.SUCCEEDED)
    while bundling.bundle_old_commits(writer, lambda: 10**15) != bundling.BundlingDone():
        pass
    storage.delete([info.path for _, _, info in writer.archive.listing().checkpoints])
    archive = opened(storage)
    assert sorted(archive.listing().bundles) == [0, 1]
    assert archive.load().commit == 10
    assert archive.load_at(3).commit == 3
    assert faults(storage) == []


# ---- keys


def folder_of(tmp_path: Path, **files: bytes | str) -> dict[str, str]:
    folder = tmp_path / "signing"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return {ENV_SIGNING_DIR: str(folder)}


def test_without_a_folder_there_are_no_keys() -> None:
    assert not signing_keys({})


def test_keys_are_in_pem_or_in_base64(tmp_path: Path) -> None:
    raw = [bytes([seed]) * 32 for seed in (1, 2, 3)]
    public = [Ed25519PrivateKey.from_private_bytes(data).public_key().public_bytes_raw() for data in raw]
    lines = "\n".join(base64.b64encode(data).decode() for data in public[1:])
    found = signing_keys(folder_of(tmp_path, ed25519=base64.b64encode(raw[0]) + b"\n", publicKeys=lines))
    assert (set(found.trusted), found.signer) == (set(keys_of(1, 2, 3).trusted), ALICE.signer)
    assert "Ed25519PrivateKey" not in repr(found)


@pytest.mark.parametrize(
    ("files", "what"),
    [
        ({}, "has no key"),
        ({"ed25519": "c2VjcmV0"}, "ed25519 cannot be used: it holds something other than Ed25519 keys"),
        ({"ed25519": "not base64!"}, "ed25519 cannot be used: it holds something other"),
        ({"ed25519": b"\xff\xfe"}, "ed25519 cannot be used: UnicodeDecodeError"),
        ({"ed25519": " ".join([base64.b64encode(b"s" * 32).decode()] * 2)}, "it has more than one key"),
        ({"publicKeys": "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----"}, "publicKeys cannot be used"),
        ({"publicKeys": "-----BEGIN"}, "publicKeys cannot be used"),
    ],
)
def test_what_is_no_key_is_refused_and_not_repeated(tmp_path: Path, files: dict[str, str], what: str) -> None:
    with pytest.raises(CredentialsMissing, match=what) as caught:
        signing_keys(folder_of(tmp_path, **files))
    for content in files.values():
        assert str(content) not in str(caught.value)


@pytest.mark.parametrize("algorithm", ["X25519", "RSA"])
def test_keys_of_other_kinds_are_refused(tmp_path: Path, algorithm: str) -> None:
    pem = subprocess.run(["openssl", "genpkey", "-algorithm", algorithm], check=True, capture_output=True).stdout
    public = subprocess.run(["openssl", "pkey", "-pubout"], input=pem, check=True, capture_output=True).stdout
    environ = folder_of(tmp_path, ed25519=pem)
    with pytest.raises(CredentialsMissing, match="something other than Ed25519"):
        signing_keys(environ)
    shutil.rmtree(environ[ENV_SIGNING_DIR])
    with pytest.raises(CredentialsMissing, match="something other than Ed25519"):
        signing_keys(folder_of(tmp_path, publicKeys=public))


def test_an_archive_is_opened_with_the_keys_of_the_environment(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_run(storage, 0, MALLORY)
    environ = folder_of(tmp_path, ed25519=base64.b64encode(bytes([1]) * 32))
    monkeypatch.setenv(ENV_SIGNING_DIR, environ[ENV_SIGNING_DIR])
    with pytest.raises(ArchiveUnsigned):
        Archive.open(storage).load()
