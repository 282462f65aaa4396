"""The steps of the demo, and what it prints about them."""

import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO

import yaml
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table

from tests.cluster import images, plugin, system, tools
from tests.cluster.kafka import SMALL_JVM, KafkaBroker
from tests.cluster.kube_api import Document
from tests.cluster.logkeep import ROOT, Installation, Resource, StatusNotReached, backup, restore
from tests.cluster.node import Node
from tests.cluster.s3 import S3Server
from tests.data import nycflights
from tests.data.compare import Comparison, compare_topics

NAMESPACE = "demo"
BUCKET = "backups"
URI = f"s3://{BUCKET}/flights"

console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 120)


def tell(stack: ExitStack, kept: Path | None) -> int:
    """The whole demo. `kept` is the folder for files of a demo that stays up; None takes everything down at the end."""
    started = time.monotonic()
    with _step("Kubernetes node: control plane, containerd, kubelet"):
        node = stack.enter_context(Node())
    with _step("Logkeep's two images from the archives of a release into the node"):
        for image in images.archives().values():
            node.load(image)
    with _step("Kafka broker and S3 server on the node's network"):
        broker = stack.enter_context(KafkaBroker(host=node.ip, netns=node.netns, jvm=SMALL_JVM))
        s3 = stack.enter_context(S3Server(host=node.ip, netns=node.netns))
        s3.create_bucket(BUCKET)
    installation = Installation(node, s3, helm=tools.helm_4())
    if kept:
        write_environment(kept, node, broker, s3)
    try:
        with _step("flights of 2013 into Kafka, and meanwhile: helm install logkeep"), ThreadPoolExecutor() as pool:
            loading = pool.submit(nycflights.load, broker.bootstrap)
            installation.install()
            loaded = loading.result()
        _describe(loaded)
        with _step("Secret with the keys of the S3 server"):
            installation.create_namespace(NAMESPACE, s3)
        topics = list(nycflights.TOPICS)
        first = backup("nightly", broker.bootstrap, s3, URI, topics)
        second = restore("nightly-again", broker.bootstrap, "nightly")
        runs = {"backup": _apply(installation, first), "restore": _apply(installation, second)}
        with _step(f"logkeep verify {URI}: every object against its checksum, every batch against its CRC"):
            _verify(s3)
        with _step("compare source and restored topics, record by record"):
            comparisons = [compare_topics(broker.bootstrap, topic, f"restored.{topic}") for topic in topics]
    except (StatusNotReached, system.CommandFailed) as problem:
        console.print(f"\n[bold red]failed[/]: {problem}", markup=False)
        code = 1
    else:
        code = _judge(runs, comparisons, loaded)
    console.print(f"\n{time.monotonic() - started:.0f} s in all")
    if kept:
        _say_goodbye(kept)
    return code


@contextmanager
def _step(what: str) -> Iterator[None]:
    console.print(f"[bold cyan]▶[/] {what}")
    started = time.monotonic()
    yield
    console.print(f"  [green]✓[/] {time.monotonic() - started:.1f} s")


def _describe(loaded: Mapping[str, int]) -> None:
    facts = {
        "flights": "6 partitions of very different size, zstd, JSON with headers",
        "planes": "compacted: changed values, tombstones, offsets with gaps",
        "weather": "3 partitions, written in transactions, some of them aborted",
    }
    for topic, records in loaded.items():
        console.print(f"    [bold]{topic}[/]: {records:,} records; {facts[topic]}")
    console.print(f"    consumer group [bold]{nycflights.GROUP}[/] has read two thirds of flights")


def _apply(installation: Installation, document: Document) -> Resource:
    """Apply a resource and show what kubectl shows until it has succeeded. Raises StatusNotReached."""
    kind = document["kind"]
    console.print(f"[bold cyan]▶[/] kubectl apply of a [bold]{kind}[/]")
    console.print(
        Syntax(yaml.safe_dump(document, sort_keys=False), "yaml", theme="ansi_dark", background_color="default")
    )
    started = time.monotonic()
    resource = installation.apply(NAMESPACE, document)
    console.print(f"  [bold]$ kubectl get {kind.lower()}s -w[/]")
    with _watch(installation.node, f"{kind.lower()}s"):
        resource.wait("Succeeded", timeout=600)
        time.sleep(0.5)  # for the watch's last line
    console.print(f"  [green]✓[/] {time.monotonic() - started:.1f} s")
    return resource


@contextmanager
def _watch(node: Node, plural: str) -> Iterator[None]:
    place = ["--kubeconfig", str(node.kubeconfig), "-n", NAMESPACE]
    command = [str(tools.kubectl()), *place, "get", plural, "-w"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        printer = threading.Thread(target=_print_lines, args=[child.stdout])
        printer.start()
        try:
            yield
        finally:
            child.terminate()
            printer.join()


def _verify(s3: S3Server) -> None:
    keys = {"AWS_ACCESS_KEY_ID": s3.access_key, "AWS_SECRET_ACCESS_KEY": s3.secret_key}
    place = ["--endpoint", s3.endpoint, "--region", s3.region]
    done = system.run([sys.executable, "-m", "logkeep_engine.cli", "verify", URI, *place], env=keys)
    for line in done.stdout.splitlines():
        console.print(f"    {line}", markup=False)


def _print_lines(stream: IO[str]) -> None:
    for line in stream:
        console.print(f"    {line.rstrip()}", markup=False)


def _judge(runs: Mapping[str, Resource], comparisons: list[Comparison], loaded: Mapping[str, int]) -> int:
    work = Table(
        "run",
        "records",
        "bytes of batches",
        "seconds",
        "MB/s",
        title="Runs, from start to end of the Spark application",
    )
    for column in work.columns[1:]:
        column.justify = "right"
    for name, resource in runs.items():
        last = resource.status["history"][0]
        seconds = (_time(last["endTime"]) - _time(last["startTime"])).total_seconds()
        speed = f"{last['bytes'] / 1e6 / max(seconds, 1):.1f}"
        work.add_row(name, f"{last['records']:,}", f"{last['bytes']:,}", f"{seconds:.0f}", speed)
    console.print(work)
    table = Table(
        "topic", "restored as", "partitions", "records", "bytes", "offsets equal", "records equal", title="Topics"
    )
    for column in table.columns[2:5]:
        column.justify = "right"
    equal = True
    for one in comparisons:
        complete = one.equal and one.records == loaded[one.source]
        equal = equal and complete
        verdict = "[green]yes[/]" if complete else "[bold red]NO[/]"
        numbers = [str(one.partitions), f"{one.records:,}", f"{one.bytes:,}"]
        table.add_row(one.source, one.target, *numbers, "yes" if one.offsets_equal else "no", verdict)
    console.print(table)
    for one in comparisons:
        if one.difference:
            console.print(str(one), style="red", markup=False)
        elif one.records != loaded[one.source]:
            console.print(
                f"{one.source}: {loaded[one.source]} records were loaded, {one.records} compared", style="red"
            )
    if equal:
        console.print(
            "The archive also holds the records of aborted transactions, as the brokers do; a restore leaves them out."
        )
        console.print("Offsets may differ where compaction and transaction markers left gaps in the source.")
    return 0 if equal else 1


def _time(moment: str) -> datetime:
    return datetime.fromisoformat(moment)


def write_environment(folder: Path, node: Node, broker: KafkaBroker, s3: S3Server) -> None:
    """Write a file for shells in which the commands of the docs work as they are written."""
    values = {
        "KUBECONFIG": str(node.kubeconfig),
        "AWS_ACCESS_KEY_ID": s3.access_key,
        "AWS_SECRET_ACCESS_KEY": s3.secret_key,
        "LOGKEEP_DEMO_S3": s3.endpoint,
        "LOGKEEP_DEMO_KAFKA": broker.bootstrap,
    }
    lines = [f"export {name}={shlex.quote(value)}" for name, value in values.items()]
    commands = folder / "bin"
    commands.mkdir()
    command = commands / "logkeep"
    command.write_text(f"#!{sys.executable}\nfrom logkeep_engine.cli import main\n\nmain()\n")
    command.chmod(0o755)
    programs = [commands, plugin.unpacked(folder / "plugin"), tools.kubectl().parent, Path(sys.executable).parent]
    lines.append(f'export PATH={shlex.quote(":".join(str(program) for program in programs))}:"$PATH"')
    roots = ("operator", "engine", "kernel/built")
    lines.append(f"export PYTHONPATH={shlex.quote(':'.join(str(ROOT / root) for root in roots))}")
    file = folder / "env"
    file.touch(mode=0o600)
    file.write_text("\n".join(lines) + "\n")


def _say_goodbye(folder: Path) -> None:
    console.print("\nThe node stays up. To look around:")
    for line in (
        f"source {folder / 'env'}",
        f"kubectl -n {NAMESPACE} get kafkabackups,kafkarestores,jobs,pods",
        f"kubectl -n {NAMESPACE} describe kafkabackup nightly",
        f"kubectl logkeep status nightly -n {NAMESPACE}",
        f"logkeep inspect {URI} --endpoint $LOGKEEP_DEMO_S3",
        f"logkeep verify {URI} --endpoint $LOGKEEP_DEMO_S3",
        "make demo-stop",
    ):
        console.print(f"    {line}", markup=False, soft_wrap=True)
