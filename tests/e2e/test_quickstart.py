"""The script of the quick start, on a cluster where nothing is yet, with brokers and an object store that are there."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster import chart, images, release, system, tools
from tests.cluster.kafka import STEADY, KafkaBroker
from tests.cluster.node import Node
from tests.cluster.s3 import S3Server
from tests.data.compare import compare_topics
from tests.data.topics import NO_RETENTION, create_topic, produce, random_records

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def empty_node(_root: None) -> Iterator[Node]:
    with Node() as node:
        for image in images.archives().values():
            node.load(image)
        yield node


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The script as a release has it."""
    archive = tmp_path / release.EXAMPLES
    archive.write_bytes(release.examples())
    system.run(["tar", "-xzf", archive, "-C", tmp_path])
    return tmp_path / "examples/quickstart/quickstart.sh"


def quickstart(
    script: Path, node: Node, *options: str | Path, s3: S3Server | None = None
) -> "subprocess.CompletedProcess[str]":
    programs = [tools.helm().parent, tools.kubectl().parent]
    environment = {
        **os.environ,
        "KUBECONFIG": str(node.kubeconfig),
        "PATH": ":".join([*map(str, programs), os.environ["PATH"]]),
        **({"AWS_ACCESS_KEY_ID": s3.access_key, "AWS_SECRET_ACCESS_KEY": s3.secret_key} if s3 else {}),
    }
    command = [str(script), "--context", "test", *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_the_quick_start_backs_up_and_restores_and_takes_away_what_it_made(
    script: Path, empty_node: Node, tmp_path: Path
) -> None:
    node = empty_node
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"replicas": 1}))
    with (
        KafkaBroker(host=node.ip, netns=node.netns, overrides=STEADY) as broker,
        S3Server(host=node.ip, netns=node.netns) as s3,
    ):
        s3.create_bucket("mine")
        for topic in ("orders.de", "orders.fr", "other"):
            create_topic(broker.bootstrap, topic, 2, NO_RETENTION)
            produce(broker.bootstrap, topic, random_records(2, 1))
        own = ("--kafka", broker.bootstrap, "--topic", r"orders\..*", "--s3", s3.endpoint, "--bucket", "mine")
        ours = ("--chart", chart.packaged(), "--values", values)

        lost = quickstart(script, node, *own, *ours, "--wait", "600")  # without keys
        assert (lost.returncode, lost.stdout) == (2, "")
        assert "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in lost.stderr

        done = quickstart(script, node, *own, *ours, s3=s3)
        assert done.returncode == 0, done.stdout + done.stderr
        for topic in ("orders.de", "orders.fr"):
            assert compare_topics(broker.bootstrap, topic, f"restored.{topic}").equal
        assert "orders.fr" in done.stdout.partition("A look into the archive")[2]
        assert "records were compared with the archive, one by one: all are equal" in done.stdout
        assert s3.secret_key not in done.stdout + done.stderr
        assert "restored.other" not in done.stdout

        again = quickstart(script, node, *own, *ours, s3=s3)
        assert again.returncode == 0, again.stdout + again.stderr

        gone = quickstart(script, node, "clean")
        assert gone.returncode == 0, gone.stdout + gone.stderr
        assert node.kubectl("get", "namespace", "logkeep-quickstart", check=False).returncode == 1
        left = node.kubectl("get", "clusterroles,clusterrolebindings,validatingadmissionpolicies", "-o", "name").stdout
        assert "logkeep" not in left
        assert 'release "logkeep" uninstalled' in gone.stdout
        assert "strimzi" not in gone.stdout.partition("Left on purpose")[0]
        nothing = quickstart(script, node, "clean")
        assert (nothing.returncode, "there was nothing" in nothing.stdout) == (0, True), nothing.stdout
