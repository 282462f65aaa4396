"""The S3 server of the quick start takes an archive, as its resources start it."""

import urllib.request
from pathlib import Path

import pytest
import yaml

from logkeep_engine.errors import ObjectExists
from logkeep_engine.storage import open_uri
from tests.cluster import system, tools
from tests.cluster.logkeep import EXAMPLES
from tests.cluster.process import Process
from tests.cluster.state import State


def test_the_server_of_the_quick_start_has_its_bucket_and_says_that_it_is_ready(tmp_path: Path) -> None:
    deployment = next(iter(yaml.safe_load_all((EXAMPLES / "quickstart" / "s3.yaml").read_text())))
    pod = deployment["spec"]["template"]["spec"]
    (first,), (server,) = pod["initContainers"], pod["containers"]
    health = server["readinessProbe"]["httpGet"]["path"]
    here = {"/data": str(tmp_path), "/data/backups": str(tmp_path / "backups"), ":7070": ""}
    (port,) = system.free_ports(1)
    here[":7070"] = f"127.0.0.1:{port}"
    system.run([here.get(word, word) for word in first["command"]])
    command: list[str | Path] = [tools.versitygw(), *(here.get(word, word) for word in server["args"])]
    names = [entry["name"] for entry in server["env"]]
    keys = dict(zip(names, ("quickstart", "a-key-of-32-letters-and-digits-12"), strict=True))
    state = State.create("s3")
    try:
        process = Process(state, "s3", command, env=keys)
        process.start()
        process.wait_ready(lambda: system.accepts("127.0.0.1", port))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{health}") as answer:
            assert answer.status == 200
        access, secret = keys.values()
        login = {"AWS_ACCESS_KEY_ID": access, "AWS_SECRET_ACCESS_KEY": secret}
        storage = open_uri("s3://backups/quickstart", f"http://127.0.0.1:{port}", "us-east-1", login)
        storage.create("one", b"first")
        with pytest.raises(ObjectExists):
            storage.create("one", b"second")
        assert storage.read("one") == b"first"
    finally:
        process.kill()
        state.destroy(grace=0)
