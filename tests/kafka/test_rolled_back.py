"""An archive that somebody has altered or set back, and one that somebody else writes, with a real cluster."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from crc32c import crc32c
from logkeep_kernel import Blake3

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.backup.run.backup_run import run_backup
from logkeep_engine.contract.anchor import Anchor
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import ENV_SIGNING_DIR, ExitCode
from logkeep_engine.contract.restore_spec import parse_restore
from logkeep_engine.contract.run import RunRequest, RunResult
from logkeep_engine.contract.spec import parse_backup
from logkeep_engine.report import Reporter
from logkeep_engine.restore.run.entry import run_of
from logkeep_engine.storage import open_uri
from tests.cluster.kafka import KafkaBroker
from tests.command import logkeep
from tests.data.topics import create_topic, delete_topics, topic_names
from tests.kafka.backing_up import POD, Topics, numbers
from tests.kafka.restores import ThreadRunner, backup_spec, restore_spec
from tests.unit.archive.forge import Document, relinked


def back_up(spec: dict[str, Any], run_id: str, *, name: str = "nightly", **request: Any) -> RunResult:
    asked = RunRequest(
        kind="KafkaBackup",
        name=name,
        namespace="team",
        run_id=run_id,
        spec=spec,
        **{"uid": f"uid-of-{name}", **request},
    )
    return run_backup(asked, parse_backup(spec), ThreadRunner, Reporter(run_id), dict(os.environ) | POD)


def bring_back(spec: dict[str, Any], **request: Any) -> RunResult:
    asked = RunRequest(kind="KafkaRestore", name="again", namespace="team", run_id="restore-1", spec=spec, **request)
    return run_of(asked, parse_restore(spec), ThreadRunner, Reporter("restore-1"), dict(os.environ) | POD).perform()


def alter(root: Path) -> None:
    """Pay mallory instead of alice, and give a stranger every right: in the records, the ACLs, all digests and all
    commits."""
    log = next(root.rglob("*.log"))
    data, at = bytearray(log.read_bytes().replace(b"alice", b"mallo")), 0
    while at < len(data):
        size = struct.unpack_from(">i", data, at + 8)[0] + 12
        struct.pack_into(">I", data, at + 17, crc32c(bytes(data[at + 21 : at + size])))
        at += size
    log.write_bytes(data)
    digest = Blake3()
    digest.update(bytes(data))
    state = next(root.rglob("cluster-state.json"))
    reported = json.loads(state.read_bytes())
    reported.setdefault("acls", {"columns": [], "rows": []})["rows"].append(
        ["TOPIC", "*", "LITERAL", "User:mallory", "*", "ALL", "ALLOW"]
    )
    state.write_bytes(json.dumps(reported, separators=(",", ":")).encode())

    def change(commit: Document) -> None:
        commit["signer"] = ""
        for row in commit.get("segments", {}).get("rows", ()):
            row[commit["segments"]["columns"].index("blake3")] = digest.hexdigest()
        if "clusterState" in commit:
            sha256 = hashlib.sha256(state.read_bytes()).hexdigest()
            commit["clusterState"] |= {"sha256": sha256, "acls": len(reported["acls"]["rows"])}

    relinked(open_uri(root.as_uri()), range(len(list((root / "catalog").glob("*.json")))), change)


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_altered_records_and_rights_under_new_digests_are_seen_with_the_anchor(
    kafka: KafkaBroker, tmp_path: Path, topics: Topics, unique: str
) -> None:
    topics.create(unique)
    topics.produce(unique, [b"pay %d EUR to alice" % number for number in range(5)])
    root = tmp_path / "archive"
    spec = {**backup_spec(kafka, root, unique), "segment": {"packBelow": "0"}}
    first = back_up(spec, "one")
    assert first.outcome == "Succeeded", first.message
    assert first.anchor is not None
    assert Anchor.parse(first.anchor).commit == first.commit
    alter(root)
    assert verify(Archive.open(open_uri(root.as_uri()))).whole, "nobody sees it who knows the bucket alone"
    checked = logkeep("verify", root.as_uri(), "--expect-commit", first.anchor)
    assert checked.returncode == 6
    assert f"up to commit {first.commit} is not the one that was known" in checked.stdout
    before = files(root)
    again = back_up(spec, "two", anchor=first.anchor)
    assert (again.exit_code, again.error_code) == (int(ExitCode.REFUSED), "ArchiveRolledBack")
    assert files(root) == before, "nothing was written"
    delete_topics(kafka.bootstrap, [unique])
    wanted = {name: value for name, value in restore_spec(kafka, root).items() if name != "topics"} | {
        "everything": True
    }
    state = {"uri": (tmp_path / "state").as_uri()}
    for asked in ({**wanted, "dryRun": True}, {**wanted, "state": state}):
        refused = bring_back(asked, anchor=first.anchor)
        reported = refused.dry_run.refusals[0].reason if refused.dry_run is not None else refused.error_code
        assert reported == "ArchiveRolledBack", refused
    assert files(root) == before
    assert unique not in topic_names(kafka.bootstrap)


def test_who_has_the_key_sees_without_an_anchor_what_somebody_else_has_written(
    kafka: KafkaBroker, tmp_path: Path, topics: Topics, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics.create(unique)
    topics.produce(unique, [b"pay %d EUR to alice" % number for number in range(5)])
    root, keys = tmp_path / "archive", tmp_path / "keys"
    keys.mkdir()
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", keys / "ed25519"], check=True)
    subprocess.run(["openssl", "pkey", "-in", keys / "ed25519", "-pubout", "-out", keys / "publicKeys"], check=True)
    signing = {"signing": {"secretRef": {"name": "archive-keys"}}}
    spec = {**backup_spec(kafka, root, unique), "segment": {"packBelow": "0"}}
    wanted = restore_spec(kafka, root)
    spec["storage"] |= signing
    wanted["source"]["storage"] |= signing
    missing = back_up(spec, "none")
    assert (missing.error_code, root.exists()) == ("CredentialsMissing", False), missing
    monkeypatch.setenv(ENV_SIGNING_DIR, str(keys))
    assert back_up(spec, "one").outcome == "Succeeded"
    assert logkeep("verify", root.as_uri(), environ={ENV_SIGNING_DIR: str(keys)}).returncode == 0
    alter(root)
    before = files(root)
    assert back_up(spec, "two").error_code == "ArchiveUnsigned"
    assert bring_back({**wanted, "state": {"uri": (tmp_path / "state").as_uri()}}).error_code == "ArchiveUnsigned"
    checked = logkeep("verify", root.as_uri(), environ={ENV_SIGNING_DIR: str(keys)})
    assert checked.returncode == 6
    assert "no trusted key has signed commit" in checked.stdout
    assert files(root) == before, "nothing was written"
    secret = (keys / "ed25519").read_text().splitlines()[1]
    assert not any(secret.encode() in content for content in before.values())


def test_a_bucket_that_was_set_back_is_refused_until_somebody_names_what_he_has_seen(
    kafka: KafkaBroker, tmp_path: Path, topics: Topics, unique: str
) -> None:
    topics.create(unique)
    topics.produce(unique, numbers(5))
    root = tmp_path / "archive"
    spec = {**backup_spec(kafka, root, unique), "segment": {"packBelow": "0"}}
    early = back_up(spec, "one")
    shutil.copytree(root, tmp_path / "old")
    topics.produce(unique, numbers(5, first=5))
    known = back_up(spec, "two", anchor=early.anchor)
    assert known.outcome == "Succeeded", known.message
    shutil.rmtree(root)
    shutil.copytree(tmp_path / "old", root)
    assert early.anchor is not None

    refused = back_up(spec, "three", anchor=known.anchor)
    assert refused.error_code == "ArchiveRolledBack"
    assert f"now: {early.anchor}" in refused.message
    dry = back_up({**spec, "dryRun": True}, "dry", anchor=known.anchor)
    assert dry.dry_run is not None
    assert [item.reason for item in dry.dry_run.refusals] == ["ArchiveRolledBack"]
    wanted = restore_spec(kafka, root, topics={"rename": [{"from": "(.*)", "to": "back.\\1"}]})
    assert bring_back(wanted, anchor=known.anchor).error_code == "ArchiveRolledBack"
    consented = {**wanted, "source": {**wanted["source"], "expectCommit": early.anchor}}
    restored = bring_back(consented, anchor=known.anchor)
    assert (restored.outcome, restored.records) == ("Succeeded", 5), restored.message

    taken = back_up(spec, "three", anchor=known.anchor, take_over=early.anchor)
    assert (taken.outcome, taken.taken_over, taken.records) == ("Succeeded", early.anchor, 5), taken.message
    assert back_up(spec, "four", anchor=taken.anchor).outcome == "Succeeded"
    late = back_up(spec, "five", anchor=known.anchor)
    assert late.error_code == "ArchiveRolledBack", "what was lost stays lost"


def test_another_backup_of_the_same_archive_takes_nothing_out_of_it(
    kafka: KafkaBroker, tmp_path: Path, topics: Topics, unique: str
) -> None:
    """A copied storage.uri with `topics: [planes]` and a retention took all of `flights` out of the archive."""
    flights, planes = f"{unique}.flights", f"{unique}.planes"
    for name in (flights, planes):
        create_topic(kafka.bootstrap, name)
        topics.produce(name, numbers(5))
    root = tmp_path / "archive"
    nightly = back_up(backup_spec(kafka, root, f"{unique}.*"), "one")
    assert nightly.outcome == "Succeeded", nightly.message
    before = files(root)
    copied = {**backup_spec(kafka, root, planes), "retention": {"maxAge": "30d", "grace": "0s"}}
    other = back_up(copied, "two", name="other")
    assert (other.exit_code, other.error_code) == (int(ExitCode.REFUSED), "ArchiveOwned")
    assert "belongs to KafkaBackup team/nightly (uid uid-of-nightly), not KafkaBackup team/other" in other.message
    dry = back_up({**copied, "dryRun": True}, "dry", name="other")
    assert dry.dry_run is not None
    assert [item.reason for item in dry.dry_run.refusals] == ["ArchiveOwned"]
    file = tmp_path / "other.yaml"
    head = {"apiVersion": "logkeep.dev/v1alpha1", "kind": "KafkaBackup", "metadata": {"name": "other"}}
    file.write_text(yaml.safe_dump({**head, "spec": copied}))
    for command in (["retention"], ["retention", "--dry-run"], ["backup"]):
        done = logkeep(*command, "-f", file)
        assert done.returncode == 2, done.stderr
        assert "belongs to KafkaBackup team/nightly" in done.stderr
    for arguments in (
        ["erase", root.as_uri(), "--topic", flights, "--key", "1"],
        ["hold", root.as_uri(), "--topic", flights],
        ["erase", root.as_uri(), "--topic", flights, "--key", "1", "--owner", "team/other"],
    ):
        done = logkeep(*arguments)
        assert done.returncode == 2, done.stderr
        assert "--owner" in done.stderr
    assert files(root) == before, "nothing was written"
    held = logkeep("hold", root.as_uri(), "--topic", flights, "--owner", "team/nightly")
    assert held.returncode == 0, held.stderr
    consent = json.loads(logkeep("inspect", root.as_uri(), "-o", "json").stdout)["anchor"]
    taken = logkeep("backup", "-f", str(file), "--take-over", consent)
    assert taken.returncode == 0, taken.stderr
    assert Archive.open(open_uri(root.as_uri())).info.owner is not None
    late = back_up(backup_spec(kafka, root, f"{unique}.*"), "three")
    assert late.error_code == "ArchiveOwned"
    assert "belongs to 'other' of the command line" in late.message


def test_the_command_line_takes_an_anchor_and_refuses_what_is_none(
    kafka: KafkaBroker, tmp_path: Path, topics: Topics, unique: str
) -> None:
    topics.create(unique)
    topics.produce(unique, numbers(5))
    file = tmp_path / "backup.yaml"
    head = {"apiVersion": "logkeep.dev/v1alpha1", "kind": "KafkaBackup", "metadata": {"name": "nightly"}}
    file.write_text(yaml.safe_dump({**head, "spec": backup_spec(kafka, tmp_path / "archive", unique)}))
    first = json.loads(logkeep("backup", "-f", str(file), "-o", "json").stdout)
    wrong = replace(Anchor.parse(first["anchor"]), commit=99)
    refused = logkeep("backup", "-f", str(file), "--expect-commit", str(wrong))
    assert refused.returncode == 2, refused.stderr
    assert f"it had commit 99: it was rolled back, or replaced (known: {wrong}" in refused.stderr
    for option in ("--expect-commit", "--take-over"):
        bad = logkeep("backup", "-f", str(file), option, "yes")
        assert (bad.returncode, "Traceback" in bad.stderr) == (2, False), bad.stderr
        assert "'yes'" in bad.stderr
