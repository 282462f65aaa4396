"""The resources of the quick start are what Strimzi's, Kubernetes' and our own schemas know."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apiserver import strimzi
from tests.cluster import system, tools
from tests.cluster.apiserver import ApiServer
from tests.cluster.logkeep import EXAMPLES, ROOT

FOLDER = EXAMPLES / "quickstart"


@pytest.fixture(scope="module")
def api() -> Iterator[ApiServer]:
    """An API server that keeps what these tests leave: nothing there ends a namespace."""
    with ApiServer() as server:
        yield server


def test_clean_says_that_there_was_nothing(api: ApiServer) -> None:
    done = quickstart(api, "--context", "test", "clean")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "   there was nothing: the cluster has no namespace logkeep-quickstart"
    assert "uninstalled" not in done.stdout


def test_clean_names_what_was_there_and_nothing_else(api: ApiServer, tmp_path: Path) -> None:
    """Nothing ends a namespace here, so that the last step waits in vain."""
    name = "logkeep-quickstart"
    api.kubectl("create", "namespace", name)
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("{apiVersion: v2, name: logkeep, version: 0.0.1}")
    (tmp_path / "templates/some.yaml").write_text("{apiVersion: v1, kind: ConfigMap, metadata: {name: some}}")
    command = [str(tools.helm()), "--kubeconfig", str(api.kubeconfig), "--namespace", name]
    system.run([*command, "install", "logkeep", str(tmp_path)])
    done = quickstart(api, "--context", "test", "--wait", "1", "clean")
    assert 'release "logkeep" uninstalled' in done.stdout
    assert "strimzi" not in done.stdout
    assert f'namespace "{name}" deleted' in done.stdout
    api.kubectl(
        "replace",
        "--raw",
        f"/api/v1/namespaces/{name}/finalize",
        "-f",
        "-",
        stdin=json.dumps(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}, "spec": {"finalizers": []}}
        ),
    )


def test_clean_says_that_kind_had_no_cluster(api: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "kind").write_text('#!/bin/sh\necho "$@" >>"$0.calls"\necho another\n')
    (tmp_path / "kind").chmod(0o755)
    programs = f"{tmp_path}:{tools.helm().parent}:{tools.kubectl().parent}:/usr/bin:/bin"
    done = quickstart(api, "--kind", "clean", path=programs)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "   there was nothing: kind has no cluster logkeep-quickstart"
    assert (tmp_path / "kind.calls").read_text() == "get clusters\n"


def test_each_resource_has_only_fields_that_its_kind_has(api: ApiServer) -> None:
    strimzi.install(api)
    api.kubectl("apply", "--server-side", "-f", ROOT / "crds")
    api.kubectl("apply", "-f", FOLDER / "namespace.yaml")
    files = sorted(FOLDER.glob("*.yaml"))
    assert len(files) == 6
    for file in files:
        api.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", file)


def quickstart(api: ApiServer, *options: str, path: str | None = None) -> "subprocess.CompletedProcess[str]":
    programs = f"{tools.helm().parent}:{tools.kubectl().parent}:/usr/bin:/bin"
    environment = {"KUBECONFIG": str(api.kubeconfig), "PATH": path or programs, "HOME": os.environ["HOME"]}
    return subprocess.run(
        ["/bin/bash", FOLDER / "quickstart.sh", *options], capture_output=True, text=True, check=False, env=environment
    )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "into which cluster? Give --kind, or --context with one of: test"),
        (("--kind", "--context", "test"), "give either --kind or --context, not both"),
        (("--context",), "--context needs a value"),
        (("--context", "--kafka"), "--context needs a value"),
        (("--kubeconfig", "x"), "there is no option --kubeconfig; --help lists them"),
        (("--context", "test", "--topic", "x"), "--topic is for your own brokers: give --kafka, too"),
        (
            ("--context", "test", "--kafka", "b:1"),
            "which topics of b:1? Give --topic REGEX, such as --topic 'orders.*'",
        ),
        (("--context", "test", "--bucket", "x"), "--bucket is for your own object store: give --s3, too"),
        (("--context", "test", "--s3", "s3.example"), "--s3 takes a URL without a path, such as https://"),
        (("--context", "test", "--s3", "http://a", "--bucket", "a/b"), "--bucket: a/b is no name of a bucket"),
        (("--context", "test", "--values", "/none"), "--values: there is no file /none"),
        (("--context", "test", "--wait", "0"), "--wait takes a number of seconds, not 0"),
        (("--context", "test", "--s3", "http://a"), "--s3 needs its keys in the variables AWS_ACCESS_KEY_ID and AWS_"),
    ],
)
def test_options_that_cannot_work_are_refused_before_anything_is_done(
    api: ApiServer, options: tuple[str, ...], told: str
) -> None:
    done = quickstart(api, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"quickstart.sh: {told}")


def test_a_program_that_is_missing_is_named_with_a_place_to_get_it(api: ApiServer, tmp_path: Path) -> None:
    for program in ("dirname", "cat"):
        (tmp_path / program).symlink_to(f"/usr/bin/{program}")
    done = quickstart(api, "--context", "test", path=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr == (
        "\nThe program kubectl is not on PATH.\nInstall it: https://kubernetes.io/docs/tasks/tools\n"
    )


def test_a_cluster_that_does_not_answer_is_named(api: ApiServer) -> None:
    done = quickstart(api, "--context", "away")
    assert done.returncode == 1
    assert 'context "away" does not exist' in done.stderr
    assert "kubectl does not reach the cluster of the context away: see 'kubectl config get-contexts'." in done.stderr


def test_a_logkeep_that_is_there_is_left_alone(api: ApiServer) -> None:
    api.kubectl("create", "namespace", "backups")
    there = ("-n", "backups", "create", "deployment", "logkeep", "--image=none", "--replicas=0")
    api.kubectl(*there)
    api.kubectl("-n", "backups", "label", "deployment", "logkeep", "app.kubernetes.io/name=logkeep")
    try:
        done = quickstart(api, "--context", "test", "--kafka", "b:1", "--topic", "x")
        assert done.returncode == 1
        assert "Logkeep runs in the namespace backups already" in done.stderr
        assert "logkeep-quickstart" not in done.stdout
    finally:
        api.kubectl("-n", "backups", "delete", "deployment", "logkeep")


def test_what_does_not_come_up_is_reported_with_what_was_seen_last(api: ApiServer) -> None:
    """Nothing runs pods here, and nothing ends a namespace."""
    own = ("--context", "test", "--kafka", "b:1", "--topic", "x", "--wait", "5")
    done = quickstart(api, *own)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-2:] == [
        "the S3 server: not within 5 s (--wait). The last that was seen: nothing",
        "kubectl --context test -n logkeep-quickstart describe pods -l app=s3",
    ]
    key = api.kubectl("-n", "logkeep-quickstart", "get", "secret", "archive-s3", "-o", "jsonpath={.data}").stdout
    quickstart(api, *own)
    assert (
        api.kubectl("-n", "logkeep-quickstart", "get", "secret", "archive-s3", "-o", "jsonpath={.data}").stdout == key
    )

    api.kubectl("delete", "namespace", "logkeep-quickstart", "--wait=false")
    over = quickstart(api, *own)
    assert over.returncode == 1
    assert (
        "the namespace logkeep-quickstart: not within 5 s (--wait). The last that was seen: the one of an"
        in over.stderr
    )
