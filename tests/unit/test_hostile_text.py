"""Whatever an archive or a resource holds, no command lets it do anything: no escape sequence, no forged line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import typer
import typer.main
import yaml
from typer.testing import CliRunner, Result

from logkeep_engine.cli import app
from logkeep_engine.cli.kubectl import app as plugin
from tests.unit.hostile import FORGED, HOSTILE, NAME, NAMES, doing, hostile_archive, renamed

Lines = Sequence[Sequence[str]]
"""Command lines of one command, without its name."""


def commands(program: typer.Typer) -> list[str]:
    """All commands that the program has."""

    def walk(command: Any, name: str) -> Iterator[str]:
        if not hasattr(command, "commands"):
            yield name
            return
        for part, inner in command.commands.items():
            yield from walk(inner, f"{name} {part}".strip())

    return list(walk(typer.main.get_command(program), ""))


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> str:
    return hostile_archive(tmp_path_factory.mktemp("hostile") / "archive")


@pytest.fixture
def spec(tmp_path: Path) -> Callable[..., str]:
    """Write a resource into a file."""

    def write(kind: str, **spec: Any) -> str:
        path = tmp_path / f"{kind}-{len(list(tmp_path.iterdir()))}.yaml"
        path.write_text(
            yaml.safe_dump(
                {"apiVersion": "logkeep.dev/v1alpha1", "kind": kind, "metadata": {"name": "r"}, "spec": spec}
            )
        )
        return str(path)

    return write


CLUSTER = {"bootstrapServers": ["127.0.0.1:1"]}
BACKUP, RESTORE = "KafkaBackup", "KafkaRestore"


def of_logkeep(uri: str, spec: Callable[..., str], folder: Path) -> Mapping[str, Lines]:
    """Command lines for each command of `logkeep`, which come as far as they can without a broker."""
    storage = {"uri": uri}
    backup = spec(BACKUP, cluster=CLUSTER, storage=storage)
    restore = spec(RESTORE, cluster=CLUSTER, source={"storage": storage})
    unknown = {kind: spec(kind, cluster=CLUSTER, **{f"x{NAME}": NAME}) for kind in (BACKUP, RESTORE)}
    invalid = {kind: spec(kind, cluster={"bootstrapServers": [NAME]}) for kind in (BACKUP, RESTORE)}
    bad = {kind: [["-f", unknown[kind]], ["-f", invalid[kind]]] for kind in (BACKUP, RESTORE)}
    elsewhere = (folder / f"to{NAME}").as_uri()
    return {
        "backup": [*bad[BACKUP], ["-f", str(folder / NAME)]],
        "restore": [*bad[RESTORE], ["-f", restore, "--emit-topics", "-", "--strimzi-cluster", "c"]],
        "release": [[*line, "--run-id", "r"] for line in bad[RESTORE]],
        "diff": [[*line, "--run-id", "r"] for line in bad[RESTORE]],
        "drill": bad[RESTORE],
        "inspect": [[uri, "--cluster-state", "--partitions"], [uri, "--cost"], [uri, "--at", NAME], [f"{uri}/{NAME}"]],
        "verify": [[uri]],
        "reconcile": bad[BACKUP],
        "retention": [*bad[BACKUP], ["-f", backup, "--dry-run"]],
        "hold": [[uri, "--topic", NAME], [uri, "--run", NAME], [uri]],
        "convert": [[uri, elsewhere, "--format", "Avro", "--dry-run"],
                    [uri, elsewhere, "--format", "Kafka", "--topic", NAME]],
        "import": [[f"{uri}/{NAME}", elsewhere], [f"{uri}/topics", "--dry-run"]],
        "erase": [[uri, "--topic", NAME, "--key", NAME]],
        "explain": [[NAME]],
        "storage check": [[f"{uri}/{NAME}"]],
        "coverage": [["--bootstrap-server", "127.0.0.1:1", "-f", unknown[BACKUP]]],
        "groups plan": bad[RESTORE],
        "groups reset": [[*line, "--run-id", "r"] for line in bad[RESTORE]],
        "groups rollback": [[*line, "--run-id", "r"] for line in bad[RESTORE]],
        "log dump": [[uri, "--deep", "--print-data"], [uri, "--print-data", "--value-decoder", "json"],
                     [f"{uri}/{NAME}"]],
        "log extract": [[uri, str(folder / NAME)], [f"{uri}/{NAME}", str(folder)]],
        "log recover": [[uri], [f"{uri}/{NAME}"]],
        "log offsets": [[uri, "--history"], [f"{uri}/{NAME}"]],
        "log timestamps": [[uri, "--segments"], [uri, "--at", NAME]],
        "log diff": [[uri, uri, "--rename", f"{NAME}={NAME}"], [uri, f"{uri}/{NAME}"]],
        "log index check": [[uri], [f"{uri}/{NAME}"]],
        "log index rebuild": [[uri], [f"{uri}/{NAME}"]],
    }  # fmt: skip


def test_command_lines_are_tried_for_every_command(archive: str, spec: Callable[..., str], tmp_path: Path) -> None:
    assert sorted(of_logkeep(archive, spec, tmp_path)) == sorted(commands(app))
    assert sorted(OF_PLUGIN) == sorted(commands(plugin))


@pytest.mark.parametrize("command", commands(app))
def test_logkeep_shows_hostile_text_and_lets_it_do_nothing(
    command: str, archive: str, spec: Callable[..., str], tmp_path: Path
) -> None:
    hold_lines(app, command, of_logkeep(archive, spec, tmp_path)[command])


def hold_lines(program: typer.Typer, command: str, lines: Lines, *more: str) -> None:
    """Run the command lines as text and, where the command has it, as JSON."""
    seen = ""
    for line in lines:
        done = run(program, [*command.split(), *line, *more])
        assert doing(done.stdout) == [], line
        assert doing(done.stderr) == [], line
        seen += done.output
        done = run(program, [*command.split(), *line, *more, "-o", "json"])
        if "No such option: -o" not in done.stderr:
            assert doing(done.stdout) + doing(done.stderr) == [], line
            for document in documents(done.stdout):
                json.loads(document)
    assert "pwned" in seen, "no hostile text was printed: the command lines do not reach it"


def documents(text: str) -> list[str]:
    """The JSON documents of an output: none, one, or one a line."""
    if not text:
        return []
    return [text] if not text.startswith("{") or text.startswith("{\n") else text.splitlines()


def run(program: typer.Typer, line: Sequence[str]) -> Result:
    done = CliRunner().invoke(program, list(line))
    assert done.exception is None or isinstance(done.exception, SystemExit), (line, done.exception)
    assert "unexpected" not in done.stderr, (line, done.stderr)
    return done


# ---- the plugin


RESOURCE = {
    "apiVersion": "logkeep.dev/v1alpha1",
    "metadata": {"name": "bait", "namespace": f"team{NAME}", "uid": "u", "creationTimestamp": HOSTILE},
    "spec": {"cluster": CLUSTER, "storage": {"uri": f"file:///x{NAME}"}, "schedule": HOSTILE,
             "topics": {"include": [HOSTILE]}},
    "status": {
        "phase": HOSTILE,
        "warnings": [f"group {HOSTILE}"],
        "loss": [{"topic": f"t{HOSTILE}", "partition": HOSTILE, "start": 1, "end": 2, "reason": HOSTILE}],
        "lossTotal": 1,
        "conditions": [{"type": kind, "status": "False", "reason": f"X{HOSTILE}", "message": HOSTILE}
                       for kind in ("Ready", "Stalled", "Coverage", "DataLoss", "RetentionRisk", HOSTILE)],
        "run": {"id": "r1", "outcome": "Failed", "message": HOSTILE, "startTime": HOSTILE},
        "runs": [{"runId": HOSTILE, "outcome": HOSTILE, "message": HOSTILE}],
        "history": [{"runId": HOSTILE, "outcome": HOSTILE, "message": HOSTILE, "executors": HOSTILE}],
        "dryRun": {"refused": 1, "refusals": [{"reason": HOSTILE, "message": HOSTILE}],
                   "notChecked": [HOSTILE], "counts": HOSTILE,
                   "topicList": [{"topic": HOSTILE, "source": HOSTILE, "state": HOSTILE, "config": HOSTILE}]},
        "archive": {"uri": HOSTILE, "id": HOSTILE, "size": HOSTILE},
        "recovery": {"behind": [{"topic": HOSTILE, "lastTime": HOSTILE}], "topicsBehind": 1},
        "coverage": {"topicsLeftOut": [HOSTILE], "patternsUnmatched": [HOSTILE]},
        "retention": {"topics": [{"topic": HOSTILE, "deadline": HOSTILE}]},
    },
}  # fmt: skip

OF_PLUGIN: Mapping[str, Lines] = {
    "status": [[], ["kbak/bait"], ["krst/bait"], ["karc/bait"], ["-A"]],
    "run": [["bait"], ["bait", "--wait", "--timeout", "1"]],
    "restore": [["bait", "--cluster-of", "bait", "--dry-run"], ["bait", "--bootstrap-server", "b:9092"],
                ["bait", "--bootstrap-server", NAME]],
    "topics": [[], ["bait"]],
    "logs": [["kbak/bait"]],
    "inspect": [["kbak/bait"], ["karc/bait"]],
    "storage check": [["kbak/bait"], ["karc/bait"], [NAME]],
    "explain": [[NAME]],
}  # fmt: skip


class Api(BaseHTTPRequestHandler):
    """An API whose every answer is full of hostile text. `refuse`: it refuses everything, in hostile words."""

    refuse = False

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        kind = "KafkaRestore" if "kafkarestores" in path else "KafkaBackup"
        if path.endswith("/log"):
            self.answer(200, f"a line{HOSTILE.replace(FORGED, '')}\n".encode("utf-8", "surrogatepass"))
        elif path.endswith("/pods"):
            self.answer(
                200, {"items": [{"metadata": {"name": f"pod{NAME}", "creationTimestamp": "x"}}], "metadata": {}}
            )
        elif re.search(r"/(kafkabackups|kafkarestores)$", path):
            self.answer(200, {"items": [{**RESOURCE, "kind": kind}], "metadata": {}})
        else:
            self.answer(200, {**RESOURCE, "kind": kind})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.answer(201, {**RESOURCE, "kind": f"Kafka{NAME}"})

    def answer(self, status: int, body: Any) -> None:
        if self.refuse:
            status, body = (
                403,
                {"kind": "Status", "message": f'User "{HOSTILE}" cannot {HOSTILE}', "details": {"name": "x"}},
            )
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Refusing(Api):
    refuse = True


@pytest.fixture(params=[Api, Refusing])
def kubeconfig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), request.param)
    Thread(target=server.serve_forever, daemon=True).start()
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "t",
        "clusters": [{"name": "t", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "a", "user": {"token": "x"}}],
        "contexts": [{"name": "t", "context": {"cluster": "t", "user": "a", "namespace": "team-a"}}],
    }  # fmt: skip
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))
    yield str(path)
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("command", commands(plugin))
def test_kubectl_logkeep_shows_hostile_text_and_lets_it_do_nothing(command: str, kubeconfig: str) -> None:
    more = () if command == "explain" else ("--kubeconfig", kubeconfig)  # it asks no cluster
    hold_lines(plugin, command, OF_PLUGIN[command], *more)


# ---- names in a catalog


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:20])
def test_a_name_that_kafka_would_refuse_is_an_error_that_names_the_commit(
    name: object, archive: str, tmp_path: Path
) -> None:
    hostile_archive(tmp_path / "archive")
    renamed(tmp_path / "archive", name)
    uri, target = (tmp_path / "archive").as_uri(), tmp_path / "outside" / "new"
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    for line in (
        ["inspect", uri],
        ["verify", uri],
        ["convert", uri, target.as_uri(), "--format", "Records"],
        ["log", "dump", uri],
    ):
        done = run(app, line)
        assert done.exit_code in (2, 6), done.output
        assert doing(done.stdout) + doing(done.stderr) == [], line
        assert ("is not a topic name" if isinstance(name, str) else "which is not a valid text") in done.output, line
        assert "/catalog/0000000000000000000" in done.output, line
        assert len(done.output) < 2000, line
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before
    assert not Path("/tmp/evil").exists()
