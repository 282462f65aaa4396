"""A backup whose storage moves to a KafkaArchive continues the archive that it has, and a restore finds it there."""

import pytest
import yaml

from tests.cluster.logkeep import EXAMPLES, backup, restore
from tests.cluster.process import wait_until
from tests.data.topics import NO_RETENTION, create_topic, produce
from tests.e2e.home import Home
from tests.e2e.test_backup_restore import records_of_all_kinds

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

PRICES = EXAMPLES / "prices/aws-us-east-1.yaml"


def test_a_backup_moves_its_storage_to_an_archive_and_the_next_run_adds_only_what_is_new(home: Home) -> None:
    topic, bootstrap = "moved", home.broker.bootstrap
    create_topic(bootstrap, topic, 2, NO_RETENTION)
    produce(bootstrap, topic, records_of_all_kinds(400))
    saved = home.backup(topic, spark={})
    first = saved.wait("Succeeded")
    old = home.objects()

    inline = backup("saved", bootstrap, home.s3, home.uri, [topic], spark={})
    storage = inline["spec"].pop("storage")
    lake = home.apply(
        {"apiVersion": inline["apiVersion"], "kind": "KafkaArchive", "metadata": {"name": "lake"},
         "spec": {"storage": storage, "prices": yaml.safe_load(PRICES.read_text())}}
    )  # fmt: skip
    inline["spec"]["archiveRef"] = {"name": "lake"}
    home.apply(inline)
    moved = saved.wait("Succeeded")
    assert (moved["run"]["id"], moved["archive"]) == (first["run"]["id"], first["archive"])
    assert len(saved.jobs()) == 1

    produce(bootstrap, topic, records_of_all_kinds(60, start=400))
    saved.run_again("by-reference")
    second = saved.wait("Succeeded", run_not=first["run"]["id"])
    assert [run["records"] for run in second["history"]] == [60, 400]
    assert second["archive"]["id"] == first["archive"]["id"]
    of_runs = ("archive/catalog/", "archive/runs/")
    data = {name: size for name, size in old.items() if not name.startswith(of_runs)}
    assert len(data) > 1, old
    assert data.items() <= home.objects().items(), "objects of the first run must stay as they were"
    home.verify()

    wait_until(lambda: lake.status.get("archive") == second["archive"], 60, "the archive to say what the run left")
    assert (lake.status["writer"], lake.status["archive"]["records"]) == ("saved", 460)
    cost = home.cost(PRICES)
    stored = sum(cost["stored"][kind]["bytes"] for kind in ("logs", "indexes", "snapshots", "removed"))
    assert lake.status["archive"]["objectBytes"] == stored > second["archive"]["storedBytes"]
    beside = sum(cost["stored"][kind]["bytes"] for kind in ("catalog", "runs", "digests"))
    assert lake.status["cost"]["month"] == pytest.approx(cost["month"] * stored / (stored + beside))
    assert lake.status["cost"]["currency"] == cost["currency"]
    document = restore("again", bootstrap, "saved", spark={}, verify="Full")
    document["spec"]["source"] = {"archiveRef": {"name": "lake"}}
    restored = home.apply(document).wait("Succeeded")
    home.check_restored(topic, 460)
    wait_until(lambda: "verification" in lake.status, 60, "the archive to name the verified restore")
    found = lake.status["verification"]
    assert (found["restore"], found["outcome"], found["endTime"]) == ("again", "Verified", restored["run"]["endTime"])
