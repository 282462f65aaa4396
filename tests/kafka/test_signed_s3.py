"""A signed archive on a real S3 server, with a real cluster: whose keys do what, and restores that are killed."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.signed_documents import is_document
from logkeep_engine.archive.catalog.signing import signing_keys
from logkeep_engine.backup.run.backup_run import run_backup
from logkeep_engine.contract.names import ENV_ERASURES_DIR, ENV_SIGNING_DIR
from logkeep_engine.contract.restore_spec import parse_restore
from logkeep_engine.contract.run import RunRequest, RunResult
from logkeep_engine.contract.spec import API_VERSION, parse_backup
from logkeep_engine.report import Reporter
from logkeep_engine.restore.run.entry import run_of
from logkeep_engine.storage import open_uri
from tests.cluster.kafka import KafkaBroker
from tests.cluster.s3 import S3Server
from tests.command import logkeep, script
from tests.data.compare import compare_topics
from tests.data.topics import Record, create_topic, produce, topic_names
from tests.examples import positions
from tests.kafka.backing_up import POD, WATCH
from tests.kafka.restores import ThreadRunner, backup_spec, restore_spec
from tests.unit.archive.forge import sealed

pytestmark = pytest.mark.usefixtures("storage_environment")
SIGNED = {"signing": {"secretRef": {"name": "archive-keys"}}}


class Keys:
    """Folders of keys, as Secrets are mounted: one key of each name, made with openssl as
    docs/guides/sign-an-archive.md shows it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        for name in ("alice", "bob"):
            subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", root / name], check=True)
            subprocess.run(["openssl", "pkey", "-in", root / name, "-pubout", "-out", root / f"{name}.pub"], check=True)

    def folder(self, *trusted: str, own: str = "") -> str:
        """A folder with these public keys, and `own` to sign with."""
        folder = self._root / f"trusts {' and '.join(trusted)}, is {own or 'nobody'}"
        folder.mkdir(exist_ok=True)
        (folder / "publicKeys").write_text("".join((self._root / f"{name}.pub").read_text() for name in trusted))
        if own:
            (folder / "ed25519").write_text((self._root / own).read_text())
        return str(folder)

    def signer(self, name: str) -> str:
        """The name of a key in what it has signed."""
        return signing_keys({ENV_SIGNING_DIR: self.folder(name, own=name)}).signer


class Signed:
    """The archive of a topic in a bucket: backups, restores and checks of it, each with the keys of a folder."""

    def __init__(self, kafka: KafkaBroker, s3: S3Server, bucket: str, topic: str, root: Path) -> None:
        self.kafka, self.topic = kafka, topic
        self.keys = Keys(root)
        self.place = {"uri": f"s3://{bucket}/kafka", "endpoint": s3.endpoint, "region": s3.region}
        self.state = {**self.place, "uri": f"s3://{bucket}/state"}
        self.storage, self.stored = (
            open_uri(place["uri"], s3.endpoint, s3.region) for place in (self.place, self.state)
        )
        self._root = root
        self._written = 0
        create_topic(kafka.bootstrap, topic, 3)

    def write(self) -> None:
        """Produce 60 records to three partitions."""
        first, when = self._written, int(time.time() * 1000) - 3_600_000
        self._written += 60
        numbers = range(first, self._written)
        records = (Record(b"k%d" % number, b"v%d" % number, when + number, [], number % 3) for number in numbers)
        produce(self.kafka.bootstrap, self.topic, records)

    def back_up(self, run_id: str, keys: str) -> RunResult:
        """Back up what is new."""
        spec = backup_spec(self.kafka, self._root, self.topic) | {"storage": {**self.place, **SIGNED}}
        request = RunRequest(
            kind="KafkaBackup", name="nightly", namespace="team", run_id=run_id, spec=spec, uid="uid-of-nightly"
        )
        with environment(keys) as environ:
            here = {**environ, **POD}
            return run_backup(request, parse_backup(spec), ThreadRunner, Reporter(run_id), here, timing=WATCH)

    def spec(self, suffix: str, **more: Any) -> dict[str, Any]:
        """The restore of the topic with a suffix after its name."""
        source = {"source": {"storage": {**self.place, **SIGNED}}}
        return restore_spec(self.kafka, self._root, suffix=suffix, **more) | source | {"state": self.state}

    def bring_back(self, suffix: str, keys: str, **more: Any) -> RunResult:
        """Restore the topic with a suffix after its name, or continue with that."""
        spec, run_id = self.spec(suffix, **more), f"restore{suffix}"
        request = RunRequest(kind="KafkaRestore", name="again", namespace="team", run_id=run_id, spec=spec)
        with environment(keys) as environ:
            return run_of(request, parse_restore(spec), ThreadRunner, Reporter(run_id), environ).perform()

    def verify(self, keys: str) -> "subprocess.CompletedProcess[str]":
        """Run `logkeep verify`."""
        options = ["--endpoint", self.place["endpoint"], "--region", self.place["region"], "--signing-dir", keys]
        login = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        return logkeep("verify", self.place["uri"], *options, environ=login)

    def objects(self) -> dict[str, bytes]:
        """All objects of the archive."""
        return {info.path: self.storage.read(info.path) for info in self.storage.list()}

    def state_of(self, suffix: str) -> dict[str, bytes]:
        """All objects that a restore has stored."""
        found = self.stored.list(f"runs/restore{suffix}/")
        return {info.path: self.stored.read(info.path) for info in found}

    def require_restored(self, suffix: str) -> None:
        """Raise unless the restored topic has the records of the topic, each once and in order."""
        comparison = compare_topics(self.kafka.bootstrap, self.topic, f"{self.topic}{suffix}")
        assert comparison.equal, str(comparison)


@contextmanager
def environment(keys: str) -> Iterator[Mapping[str, str]]:
    """Let this process have the keys of a folder, as a pod has those of its Secret."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENV_SIGNING_DIR, keys)
        yield os.environ


def signers(objects: Mapping[str, bytes]) -> set[str]:
    """The keys that have signed the documents among these objects, "" for none."""
    return {json.loads(data).get("signer", "") for path, data in objects.items() if is_document(path)}


@pytest.fixture
def archive(kafka: KafkaBroker, s3: S3Server, bucket: str, unique: str, tmp_path: Path) -> Signed:
    """An archive in which nothing is yet, and 60 records for it."""
    found = Signed(kafka, s3, bucket, unique, tmp_path)
    found.write()
    return found


def test_who_has_the_public_key_verifies_and_restores_what_a_signer_has_written(archive: Signed) -> None:
    keys, alice = archive.keys, archive.keys.folder(own="alice")
    for run_id in ("one", "two"):
        assert archive.back_up(run_id, alice).outcome == "Succeeded"
        archive.write()
    assert archive.back_up("three", alice).outcome == "Succeeded"
    there = archive.objects()
    commits = [json.loads(data) for path, data in there.items() if names.parse_commit(path) is not None]
    assert len(commits) > 6
    assert {commit["signer"] for commit in commits} == signers(there) == {keys.signer("alice")}
    reader = keys.folder("alice")
    checked = archive.verify(reader)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    result = archive.bring_back("-copy", reader, verify="Full")
    assert (result.outcome, result.records) == ("Succeeded", 180), result.message
    assert result.verification is not None
    assert result.verification.outcome == "Verified"
    archive.require_restored("-copy")
    assert signers(archive.state_of("-copy")) == {""}, "who has a public key alone signs nothing"
    assert signers(archive.objects()) == {keys.signer("alice")}, "nor does he add to the archive"


def test_who_trusts_another_key_takes_nothing(archive: Signed) -> None:
    keys = archive.keys
    assert archive.back_up("one", keys.folder(own="alice")).outcome == "Succeeded"
    before = archive.objects()
    for stranger in (keys.folder("bob"), keys.folder(own="bob")):
        checked = archive.verify(stranger)
        assert checked.returncode == 6, checked.stderr
        assert "no trusted key has signed commit" in checked.stdout
        refused = archive.bring_back("-copy", stranger)
        assert (refused.outcome, refused.error_code) == ("Failed", "ArchiveUnsigned"), refused.message
    assert archive.back_up("two", keys.folder(own="bob")).error_code == "ArchiveUnsigned"
    assert archive.objects() == before, "nothing was written"
    assert "runs/restore-copy/restore-plan.json" not in archive.state_of("-copy")
    assert f"{archive.topic}-copy" not in topic_names(archive.kafka.bootstrap)


def test_a_new_key_takes_the_place_of_the_old_one(archive: Signed) -> None:
    keys = archive.keys
    assert archive.back_up("one", keys.folder("alice", own="alice")).outcome == "Succeeded"
    archive.write()
    both = keys.folder("alice", "bob")
    assert archive.back_up("two", keys.folder("alice", "bob", own="bob")).outcome == "Succeeded"
    assert signers(archive.objects()) == {keys.signer("bob")}
    for readers in (both, keys.folder("bob")):
        checked = archive.verify(readers)
        assert checked.returncode == 0, checked.stdout + checked.stderr
    archive.write()
    assert archive.back_up("three", keys.folder("bob", own="bob")).outcome == "Succeeded", "the old key may go"
    result = archive.bring_back("-copy", keys.folder("bob"))
    assert (result.outcome, result.records) == ("Succeeded", 180), result.message
    archive.require_restored("-copy")
    late = archive.back_up("four", keys.folder("alice", own="alice"))
    assert (late.outcome, late.error_code) == ("Failed", "ArchiveUnsigned"), "the old key adds nothing any more"


def test_the_first_signed_run_erases_too(archive: Signed, tmp_path: Path) -> None:
    spec = backup_spec(archive.kafka, tmp_path, archive.topic) | {"storage": archive.place}
    document = {"apiVersion": API_VERSION, "kind": "KafkaBackup", "metadata": {"name": "nightly"}, "spec": spec}
    file, asked = tmp_path / "backup.json", tmp_path / "ticket-1"
    environ = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}

    def run(*options: str) -> str:
        file.write_text(json.dumps(document))
        done = logkeep("backup", "-f", str(file), "-o", "json", *options, environ=environ)
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["anchor"])

    anchor = run()
    asked.mkdir()
    (asked / "keys").write_text("k7\n")
    spec["erasures"] = [{"name": "ticket-1", "topic": archive.topic, "keysSecretRef": {"name": "keys"}}]
    environ[ENV_ERASURES_DIR] = str(tmp_path)
    run("--expect-commit", anchor, "--signing-dir", archive.keys.folder("alice", own="alice"))
    assert signers(archive.objects()) == {archive.keys.signer("alice")}
    result = archive.bring_back("-copy", archive.keys.folder("alice"))
    assert (result.outcome, result.records) == ("Succeeded", 59), result.message


UNSIGNED = "is not signed, but all are from commit 0 on"  # which also readers without keys see


@pytest.mark.parametrize(
    ("keeps", "code", "expected"),
    [(True, "ArchiveUnsigned", "did not make this signature"), (False, "ArchiveDamaged", UNSIGNED)],
)
def test_an_altered_commit_is_refused_by_all_who_have_a_key(
    archive: Signed, keeps: bool, code: str, expected: str
) -> None:
    """The newest commit is another one, under a right hash, with the signature of before or with none."""
    keys, alice = archive.keys, archive.keys.folder(own="alice")
    assert archive.back_up("one", alice).outcome == "Succeeded"
    there = archive.objects()
    archive.storage.delete([path for path in there if path.endswith(".checkpoint")])  # they have the state of before
    newest = max(path for path in there if names.parse_commit(path) is not None)
    commit = json.loads(there[newest])
    data = sealed({**commit, "time": commit["time"] + 1, "signer": commit["signer"] if keeps else ""})
    signature = b',"signature":"%b"}' % commit["signature"].encode()
    archive.storage.put(newest, data[:-1] + signature if keeps else data)
    before = archive.objects()
    reader = keys.folder("alice")
    checked = archive.verify(reader)
    assert checked.returncode == 6, checked.stderr
    assert expected in checked.stdout
    runs = archive.back_up("two", alice), archive.bring_back("-copy", alice), archive.bring_back("-copy", reader)
    for refused in runs:
        assert (refused.outcome, refused.error_code) == ("Failed", code), refused.message
        assert expected in refused.message
    assert archive.objects() == before, "nothing was written"
    assert "runs/restore-copy/restore-plan.json" not in archive.state_of("-copy")
    assert f"{archive.topic}-copy" not in topic_names(archive.kafka.bootstrap)


_MORTAL = """
import json, os, signal, sys, threading
from logkeep_engine.storage.s3.storage import S3Storage
from logkeep_engine.storage.s3.writer import S3Writer
from tests.kafka.restores import bring_back

left, lock, done = int(sys.argv[1]), threading.Lock(), 0

def mortal(owner, name):
    genuine = getattr(owner, name)

    def write(*arguments, **more):
        global done
        if not str(arguments[1:]).endswith("alive.json"):
            with lock:
                if done == left:
                    os.kill(os.getpid(), signal.SIGKILL)
                done += 1
        return genuine(*arguments, **more)

    setattr(owner, name, write)

for owner, name in ((S3Storage, "create"), (S3Storage, "put"), (S3Storage, "delete"), (S3Writer, "commit")):
    mortal(owner, name)
bring_back(json.loads(sys.argv[2]), sys.argv[3])
print(done)
"""


@pytest.mark.deep
def test_a_restore_that_signs_may_die_before_any_of_its_writes(archive: Signed) -> None:
    """It has a key of its own, which the writer of the archive does not have."""
    keys = archive.keys
    assert archive.back_up("one", keys.folder(own="alice")).outcome == "Succeeded"
    own = keys.folder("alice", own="bob")

    def begun(suffix: str, dies: int) -> "subprocess.CompletedProcess[str]":
        with environment(own):
            return script(_MORTAL, str(dies), json.dumps(archive.spec(suffix)), f"restore{suffix}")

    whole = begun("-whole", -1)
    assert whole.returncode == 0, whole.stderr
    archive.require_restored("-whole")
    stored = len(archive.state_of("-whole"))
    assert int(whole.stdout) > 6
    for dies in positions(int(whole.stdout), 5, edges=1):
        suffix = f"-{dies}"
        killed = begun(suffix, dies)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert signers(archive.state_of(suffix)) <= {keys.signer("bob")}
        result = archive.bring_back(suffix, own)
        assert (result.outcome, result.records) == ("Succeeded", 60), result.message
        archive.require_restored(suffix)
        there = archive.state_of(suffix)
        assert signers(there) == {keys.signer("bob")}
        assert len(there) == stored
