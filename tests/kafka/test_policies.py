"""The S3 policies of docs/security.md, on a server that holds users to them: each is enough for its runs, every action
is needed for one of them, and what a policy leaves out is refused."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.errors import LogkeepError, StorageRefused
from logkeep_engine.storage import Storage, open_uri
from logkeep_engine.storage.base import PART_BYTES
from tests.cluster.kafka import KafkaBroker
from tests.cluster.s3 import S3Server
from tests.command import logkeep
from tests.data.topics import Record, create_topic, produce
from tests.kafka.restores import back_up, backup_spec, bring_back, restore_spec, try_backup

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
POLICIES: Mapping[str, list[dict[str, Any]]] = {
    name: json.loads(policy)["Statement"]
    for name, policy in re.findall(r"^<!-- policy: (\w+) -->\n+```json\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
}
ARCHIVE, STATE = "kafka-prod", "restores"
"""The prefixes of the archive, and of the state of restores, in the policies of the page."""


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """An S3 server with versions of objects, which an erasure looks for."""
    with S3Server(versions=True) as started:
        yield started


class Place:
    """An archive in a bucket of its own, and a bucket for the state of restores."""

    def __init__(self, server: S3Server, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = server
        self.bucket, self.state_bucket = server.create_versioned_bucket(name), server.create_bucket(f"{name}-state")
        self._monkeypatch = monkeypatch
        self.become_owner()

    @property
    def storage(self) -> dict[str, Any]:
        return self._at(self.bucket, ARCHIVE)

    @property
    def state(self) -> dict[str, Any]:
        return {**self._at(self.state_bucket, STATE), "credentials": {"secretRef": {"name": "state"}}}

    def _at(self, bucket: str, prefix: str) -> dict[str, Any]:
        return {"uri": f"s3://{bucket}/{prefix}", "endpoint": self.server.endpoint, "region": self.server.region}

    def become_owner(self) -> None:
        self._log_in("AWS", (self.server.access_key, self.server.secret_key))

    def become(self, policy: str, *, without: str = "") -> None:
        """Have the rights of this policy of the page, but for one action."""
        where = self.state_bucket if policy == "state" else self.bucket
        user = self.server.create_user_with(where, statements(policy, where, without=without))
        self._log_in("LOGKEEP_STATE" if policy == "state" else "AWS", user)

    def _log_in(self, prefix: str, user: tuple[str, str]) -> None:
        self._monkeypatch.setenv(f"{prefix}_ACCESS_KEY_ID", user[0])
        self._monkeypatch.setenv(f"{prefix}_SECRET_ACCESS_KEY", user[1])

    @property
    def environ(self) -> dict[str, str]:
        """The environment of a command."""
        return {key: value for key, value in os.environ.items() if key.startswith(("AWS_", "LOGKEEP_STATE_"))}

    @property
    def opened(self) -> Storage:
        """The archive's objects, with the rights of now."""
        return open_at(self.server, self.bucket, ARCHIVE, self.environ)

    @property
    def opened_state(self) -> Storage:
        """The state of restores, likewise."""
        keys = {key.replace("LOGKEEP_STATE", "AWS"): value for key, value in self.environ.items() if "STATE" in key}
        return open_at(self.server, self.state_bucket, STATE, keys)


def open_at(server: S3Server, bucket: str, prefix: str, environ: Mapping[str, str]) -> Storage:
    return open_uri(f"s3://{bucket}/{prefix}", server.endpoint, server.region, environ)


def statements(policy: str, bucket: str, *, without: str = "") -> list[dict[str, Any]]:
    """The statements of the page, about this bucket."""
    page = "restores" if policy == "state" else "backups"
    found = []
    for statement in POLICIES[policy]:
        resource = re.sub(rf"^arn:aws:s3:::{page}(?=/|$)", f"arn:aws:s3:::{bucket}", statement["Resource"])
        assert resource != statement["Resource"]
        actions = [action for action in statement["Action"] if action != without]
        if actions:
            found.append({**statement, "Action": actions, "Resource": resource})
    return found


def actions_of(policy: str) -> list[str]:
    return [action for statement in POLICIES[policy] for action in statement["Action"]]


Run = Callable[["Bed"], None]
"""One run. Raises AssertionError or a LogkeepError if the rights do not suffice."""


class Bed:
    """A topic with records, its archive, and who works on it."""

    def __init__(self, kafka: KafkaBroker, place: Place, topic: str, folder: Path) -> None:
        self.kafka, self.place, self.topic, self._folder = kafka, place, topic, folder
        create_topic(kafka.bootstrap, topic, 1)

    def produce(self, hours: int = 1) -> None:
        """Ten more records of so many hours ago."""
        time_of_last = int(time.time() * 1000) - hours * 3_600_000
        records = (Record(b"k%d" % n, b"v", time_of_last - 10 + n, [], 0) for n in range(10))
        produce(self.kafka.bootstrap, self.topic, records)

    def spec(self, **more: Any) -> dict[str, Any]:
        return {**backup_spec(self.kafka, self._folder, self.topic), "storage": self.place.storage, **more}

    def command(self, *arguments: str) -> str:
        """Run `logkeep` on the archive with the rights of now."""
        options = ("--endpoint", self.place.server.endpoint, "--region", self.place.server.region)
        done = logkeep(arguments[0], self.place.storage["uri"], *arguments[1:], *options, environ=self.place.environ)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def to_restore(self) -> dict[str, Any]:
        """The part of a KafkaRestore that names the archive and the place of its state."""
        return {"source": {"storage": self.place.storage}, "state": self.place.state}

    def leave_upload(self) -> None:
        """Begin to write an object of the topic, as the owner, and stop."""
        place = self.place
        owner = {"AWS_ACCESS_KEY_ID": place.server.access_key, "AWS_SECRET_ACCESS_KEY": place.server.secret_key}
        paths = open_at(place.server, place.bucket, ARCHIVE, owner).list("packs/")
        place.server.begin_upload(place.bucket, f"{ARCHIVE}/{paths[0].path}.left", b"k3")


def backup(bed: Bed) -> None:
    """A run that continues with what another has begun, and a writer that takes back what it has sent."""
    bed.produce()
    back_up(bed.spec(), f"backup-{time.monotonic_ns()}")
    give_up(bed.place.opened)
    assert bed.place.server.uploads(bed.place.bucket) == []


def give_up(storage: Storage) -> None:
    """Send parts of an object, as a task that fails has done."""
    writer = storage.writer("given-up")
    writer.write(bytes(3 * PART_BYTES))
    writer.abort()


def inspection(bed: Bed) -> None:
    bed.command("inspect", "--partitions")
    assert "without fault" in bed.command("verify")


def incremental_verification(bed: Bed) -> None:
    bed.command("verify", "--incremental")


OWNER = "test"  # the name in `back_up`
RETENTION = {"maxAge": "1d", "grace": "0s"}


def retention(bed: Bed) -> None:
    """The older of two segments goes, its objects included."""
    storage = bed.place.opened
    oldest = storage.list("packs/")[0].path
    result = try_backup(bed.spec(retention=RETENTION), f"retention-{time.monotonic_ns()}")
    assert result.outcome == "Succeeded", result
    assert oldest not in [info.path for info in storage.list("packs/")]


def erasure(bed: Bed) -> None:
    """It deletes what a killed writer has left, too."""
    bed.leave_upload()
    bed.command("erase", "--topic", bed.topic, "--key", "k3", "--owner", OWNER)


def restore_beside(bed: Bed) -> None:
    """Its state lies beside the archive."""
    restored(bed, source=bed.to_restore["source"])


def restored(bed: Bed, **where: Any) -> None:
    spec = restore_spec(bed.kafka, Path("/"), suffix=f"-{time.monotonic_ns()}")
    result = bring_back({**spec, **where})
    assert result.outcome == "Succeeded", result


def restore(bed: Bed) -> None:
    restored(bed, **bed.to_restore)
    give_up(bed.place.opened_state)
    assert bed.place.server.uploads(bed.place.state_bucket) == []


def drill(bed: Bed) -> None:
    """It notes its topics in the state, and takes the note away when it has deleted them."""
    prefix = f"{bed.topic}-drill."
    spec = {"cluster": {"bootstrapServers": bed.kafka.addresses}, "drill": {"prefix": prefix}, **bed.to_restore}
    assert bring_back(spec, "drill").outcome == "Succeeded"


RUNS: Mapping[str, tuple[Run, ...]] = {
    "reader": (inspection,),
    "writer": (backup,),
    "verifier": (incremental_verification,),
    "pruner": (backup, retention, restore_beside),
    "eraser": (erasure,),
    "state": (restore, drill),
}


@pytest.fixture
def bed(
    server: S3Server,
    kafka: KafkaBroker,
    unique: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Bed:
    """A topic of two segments in an archive that its owner has made."""
    place = Place(server, unique, monkeypatch)
    bed = Bed(kafka, place, unique, tmp_path)
    for hours in (72, 1):
        bed.produce(hours)
        back_up(bed.spec(), f"hours-{hours}")
    return bed


def test_the_page_has_a_policy_for_each_kind_of_run() -> None:
    assert sorted(POLICIES) == sorted(RUNS)


@pytest.mark.parametrize("policy", RUNS)
def test_a_policy_is_enough_for_its_runs(policy: str, bed: Bed) -> None:
    perform(policy, bed)


def perform(policy: str, bed: Bed, *, without: str = "") -> None:
    """Do the runs of the policy, whose rights are all that there are."""
    if policy == "state":
        bed.place.become("reader")
    bed.place.become(policy, without=without)
    for run in RUNS[policy]:
        run(bed)


@pytest.mark.parametrize(("policy", "action"), [(policy, action) for policy in RUNS for action in actions_of(policy)])
def test_a_policy_has_no_action_that_its_runs_do_not_need(policy: str, action: str, bed: Bed) -> None:
    with pytest.raises((LogkeepError, AssertionError)):
        perform(policy, bed, without=action)


REQUESTS: Mapping[str, Callable[[Storage], object]] = {
    "s3:ListBucket": lambda storage: storage.list(),
    "s3:GetObject": lambda storage: storage.read("archive.json"),
    "s3:PutObject": lambda storage: storage.put("something", b"new"),
    "s3:DeleteObject": lambda storage: storage.delete(["something"]),
    "s3:ListBucketVersions": lambda storage: storage.unseen("topics/"),
}


@pytest.mark.parametrize("policy", sorted(RUNS.keys() - {"state"}))
def test_what_a_policy_leaves_out_is_refused(policy: str, bed: Bed) -> None:
    bed.place.opened.put("something", b"old")
    bed.place.become(policy)
    done = set()
    for action, request in REQUESTS.items():
        try:
            request(bed.place.opened)
        except StorageRefused:
            continue
        done.add(action)
    assert done == REQUESTS.keys() & set(actions_of(policy))
    with pytest.raises(StorageRefused):
        open_at(bed.place.server, bed.place.bucket, "another", bed.place.environ).put("something", b"new")


def test_a_writer_that_may_not_delete_removes_nothing_by_retention(bed: Bed) -> None:
    bed.place.become("writer")
    before = [info.path for info in bed.place.opened.list("packs/")]
    result = try_backup(bed.spec(retention=RETENTION), "retention")
    assert "was not deleted: AccessDenied" in " ".join((result.message, *result.warnings)), result
    assert {info.path for info in bed.place.opened.list("packs/")} >= set(before)
