"""Folders of other tools become archives and come back to a real broker, as a user does it."""

import json
import shutil
import time
from pathlib import Path

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.contract import names
from logkeep_engine.spark.nursery import Nursery
from logkeep_engine.storage import open_uri
from tests.cluster.s3 import S3Server
from tests.command import logkeep
from tests.data.compare import read_committed
from tests.kafka.backing_up import Backups, Topics, folder_spec
from tests.kafka.restores import bring_back, restore_spec, seen
from tests.kafka.test_cli import assert_refused
from tests.kafka.test_convert import filled
from tests.unit.convert.converting import contents, folder
from tests.unit.convert.test_import import grow, longer_archive
from tests.unit.formats.osodevops_archive import OsoArchive, Written


def foreign(topics: Topics, nursery: Nursery, name: str, root: Path, format_name: str, at_root: bool) -> Path:
    """The folders of a topic as another tool would have left them: without anything of Logkeep's. Avro's tool keeps a
    copy of `__consumer_offsets`.
    """
    made = root.with_name("made")
    backups = Backups(topics.broker, folder_spec(made), nursery=nursery)
    topic_spec = {"include": [name], "internal": format_name == "Avro"}
    assert backups.run(name, format=format_name, topics=topic_spec).outcome == "Succeeded"
    shutil.copytree(made / "topics", root if at_root else root / "topics")
    return root


@pytest.mark.parametrize(
    ("format_name", "at_root"),
    [("Records", True), ("Records", False), ("Avro", False)],
    ids=["at-root", "records", "avro"],
)
def test_a_folder_is_adopted_and_restored(
    topics: Topics, nursery: Nursery, tmp_path: Path, unique: str, format_name: str, at_root: bool
) -> None:
    name = filled(topics, unique)
    root = foreign(topics, nursery, name, tmp_path / "foreign", format_name, at_root)
    done = logkeep("import", root.as_uri(), "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kind"] == "Import"
    assert logkeep("verify", root.as_uri()).returncode == 0
    assert name in logkeep("inspect", root.as_uri()).stdout
    spec = restore_spec(topics.broker, root)
    spec["topics"]["include"] = [name]
    result = bring_back(spec)
    assert result.outcome == "Succeeded", result.message
    # A partition in which no record was committed is not seen in the folder.
    copied = [seen(message)[1:] for message in read_committed(topics.broker.bootstrap, f"{name}-copy", 0)]
    assert copied == [seen(message)[1:] for message in read_committed(topics.broker.bootstrap, name, 0)]


@pytest.mark.parametrize("format_name", ["Records", "Avro"])
def test_positions_of_groups_are_found(
    topics: Topics, nursery: Nursery, tmp_path: Path, unique: str, format_name: str
) -> None:
    """The Records format keeps them in files of its own, the Avro format in its copy of `__consumer_offsets`."""
    name = filled(topics, unique)
    root = foreign(topics, nursery, name, tmp_path / "foreign", format_name, False)
    done = logkeep("import", root.as_uri())
    assert done.returncode == 0, done.stderr
    groups = Archive.open(folder(root)).load().groups
    assert ("readers", name, 0, 17) in {(item.group_id, item.topic, item.partition, item.offset) for item in groups}


def test_a_folder_in_a_bucket_is_adopted_where_it_is(
    topics: Topics, nursery: Nursery, s3: S3Server, bucket: str, tmp_path: Path, unique: str
) -> None:
    name = filled(topics, unique)
    root = foreign(topics, nursery, name, tmp_path / "foreign", "Records", True)
    storage = open_uri(f"s3://{bucket}/theirs", s3.endpoint, s3.region)
    local = folder(root)
    for info in local.list():
        storage.put(info.path, local.read(info.path))
    environ = {names.ENV_S3_ACCESS_KEY: s3.access_key, names.ENV_S3_SECRET_KEY: s3.secret_key}
    where = [f"s3://{bucket}/theirs", "--endpoint", s3.endpoint, "--region", s3.region]
    done = logkeep("import", *where, environ=environ)
    assert done.returncode == 0, done.stderr
    assert verify(Archive.open(storage)).whole
    target = (tmp_path / "target").as_uri()
    done = logkeep("convert", where[0], target, *where[1:], "--format", "Kafka", environ=environ)
    assert done.returncode == 0, done.stderr
    assert contents(folder(tmp_path / "target")) == contents(storage)


def test_a_backup_of_another_tool_comes_back_to_a_broker(topics: Topics, tmp_path: Path, unique: str) -> None:
    lately = int(time.time() * 1000) - 3_600_000  # the archive knows of no retention, so the broker's comes into force
    records = [Written(n, lately + n, b"k%d" % n, b"v" * (n % 50), ((b"h", b"1"),), True) for n in range(500)]
    made = OsoArchive(tmp_path / "theirs", counts={unique: 2})
    made.add(unique, 0, records[:300])
    made.add(unique, 0, records[300:])
    root = made.finish({"readers": {unique: {0: 123}}})
    target = tmp_path / "target"
    assert_refused(logkeep("import", root.as_uri(), target.as_uri()), "--format: required")
    assert_refused(logkeep("import", root.as_uri()), "is of osodevops/kafka-backup")
    done = logkeep("import", root.as_uri(), target.as_uri(), "--format", "Kafka")
    assert done.returncode == 0, done.stderr
    assert "warning: The tool that wrote it keeps no types of timestamps" in done.stderr
    result = bring_back(restore_spec(topics.broker, target))
    assert result.outcome == "Succeeded", result.message
    found = [seen(message) for message in read_committed(topics.broker.bootstrap, f"{unique}-copy", 0)]
    assert [(record[0], record[1], record[2], record[3]) for record in found] == [
        (item.offset, item.key, item.value, (("h", b"1"),)) for item in records
    ]


class TestCommand:
    def test_importing_again_adds_what_is_new_and_refuses_what_came_late(self, tmp_path: Path) -> None:
        source, target = folder(tmp_path / "source"), folder(tmp_path / "target")
        command = ["import", source.uri, target.uri, "--format", "Kafka"]
        for end in (100, 200):
            grow(tmp_path, source, end)
            done = logkeep(*command, "-o", "json")
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout)["records"] == 100
        assert contents(target) == contents(longer_archive(tmp_path, 200))
        shutil.rmtree(tmp_path / "source")
        grow(tmp_path, source, 150)
        assert_refused(logkeep(*command), "offset_0000000000_records holds offsets 0 to 149 of topic 'orders'")

    def test_faults_are_listed_and_nothing_is_written(
        self, topics: Topics, nursery: Nursery, tmp_path: Path, unique: str
    ) -> None:
        root = foreign(topics, nursery, filled(topics, unique), tmp_path / "foreign", "Records", True)
        segment = next((root / unique).glob("*_records"))
        whole = segment.read_bytes()
        segment.write_bytes(whole + b"\0\0\0")
        before = sorted(root.rglob("*"))
        done = logkeep("import", root.as_uri())
        assert_refused(done, f"{segment.name}: a torn tail of 3 bytes")
        assert "--repair" in done.stderr
        assert sorted(root.rglob("*")) == before
        done = logkeep("import", root.as_uri(), "--repair", "--run-id", "i1")
        assert done.returncode == 0, done.stderr
        assert segment.read_bytes() == whole
        assert (root / "runs/i1/original" / unique / segment.name).read_bytes() == whole + b"\0\0\0"

    @pytest.mark.parametrize(
        "options",
        [["--format", "Kafka"], ["--topic", "a"], ["--segment-bytes", "128Mi"], ["--codec", "none"], ["--allow-loss"]],
    )
    def test_a_folder_is_adopted_as_it_is(self, tmp_path: Path, options: list[str]) -> None:
        done = logkeep("import", tmp_path.as_uri(), *options)
        assert_refused(done, f"{options[0]} has no effect: an import in place changes nothing")
        assert list(tmp_path.iterdir()) == []
