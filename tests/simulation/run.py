"""Backup, faults and kills, backup, restore, compare: one seed, or many.

    python -m tests.simulation.run --seeds 10000 [--first 0] [--processes 1]
    python -m tests.simulation.run --seed 4711

A violation prints the seed's whole history; the seed alone brings it again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from logkeep_engine.archive.catalog import Archive
from logkeep_engine.archive.verify import verify
from logkeep_engine.backup.run import run_backup
from logkeep_engine.contract.run import RunRequest, RunResult
from logkeep_engine.contract.spec import parse_backup, parse_restore
from logkeep_engine.kafka.connection import Limits
from logkeep_engine.report import Reporter
from logkeep_engine.restore.run import run_restore
from logkeep_engine.storage import LocalStorage, Storage
from tests.simulation.cluster import SimulatedCluster, Topic, World
from tests.simulation.history import History
from tests.simulation.ledger import Ledger, Violation, check_incarnation, check_restored, untrue_losses
from tests.simulation.process import WATCH, Killed, Process, TaskThreads, product, quiet_deaths
from tests.simulation.protocol import Api
from tests.simulation.schedule import Attempt, Schedule, make_schedule
from tests.simulation.store import ProcessStorage, StoreFaults

IMPATIENT = Limits(
    connect=0.3, request=0.15, outage=0.3, unknown=0.1, truncated=0.1, control=0.5,
    pause=0.004, longest_pause=0.02, control_pause=0.01,
)  # fmt: skip
PATIENT = Limits(
    connect=10, request=20, outage=2.0, unknown=0.3, truncated=0.3, control=10,
    pause=0.004, longest_pause=0.02, control_pause=0.01,
)  # fmt: skip
LAST_TRIES = 3
HONEST = Attempt()


@dataclass
class Outcome:
    """What came of a seed. `runs` says how each attempt ended, `told` counts lies and faults that were told."""

    seed: int
    schedule: str
    runs: list[str] = field(default_factory=list)
    told: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    history: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        lines = [self.schedule, "what happened:", *(f"  {line}" for line in self.history)]
        lines += [f"VIOLATION {violation}" for violation in self.violations]
        return "\n".join(lines)


class Simulation:
    """One seed, from the empty cluster to the comparison."""

    def __init__(self, world: World, schedule: Schedule, folder: Path) -> None:
        self._world = world
        self._schedule = schedule
        self._ledger = Ledger()
        self._faults = StoreFaults()
        self._inner: Storage = LocalStorage(f"file://{folder}/archive")
        self._outcome = Outcome(schedule.seed, str(schedule))
        self._say = self._outcome.history.append

    def run(self) -> Outcome:
        began = time.monotonic()
        schedule = self._schedule
        with (
            SimulatedCluster(self._world, brokers=schedule.brokers, release=schedule.release, name="source") as source,
            SimulatedCluster(self._world, brokers=schedule.target_brokers, release=schedule.release, name="target")
            as target,
        ):  # fmt: skip
            self._back_up(source)
            if self._ledger.required:
                self._restore(source, target)
            self._outcome.told += source.lies.told + target.lies.told + self._faults.told
        self._outcome.seconds = time.monotonic() - began
        return self._outcome

    # ---- backups

    def _back_up(self, cluster: SimulatedCluster) -> None:
        history = History(cluster, self._ledger, self._outcome.history)
        cluster.do(lambda: self._create_topics(cluster))
        run = 0
        ended = True
        for number, attempt in enumerate(self._schedule.backups):
            if number and (ended or not attempt.same_run):
                run += 1
            ended = self._attempt_backup(cluster, history, f"backup-{run}", attempt, IMPATIENT)
        cluster.do(cluster.heal)
        self._faults.heal()
        self._say("healed")
        succeeded = False
        for number in range(LAST_TRIES):
            if number or ended or not self._schedule.backups[-1].same_run:
                run += 1
            succeeded = self._attempt_backup(cluster, history, f"backup-{run}", HONEST, PATIENT)
            ended = True
            if succeeded:
                break
        if not succeeded and not self._ledger.removed_by_owner:
            self._violated("a healthy cluster cannot be backed up", "backup", self._outcome.runs[-1])

    def _create_topics(self, cluster: SimulatedCluster) -> None:
        for shape in self._schedule.topics:
            configs = {"min.insync.replicas": str(shape.min_isr)}
            configs |= {"cleanup.policy": "compact"} if shape.compacted else {}
            configs |= {"remote.storage.enable": "true"} if shape.tiered else {}
            cluster.create(shape.name, shape.partitions, replicas=shape.replicas, configs=configs)

    def _attempt_backup(
        self, cluster: SimulatedCluster, history: History, run_id: str, attempt: Attempt, limits: Limits
    ) -> bool:
        spec = {
            "cluster": {"bootstrapServers": cluster.bootstrap},
            "topics": {"include": [".*"]},
            "storage": {"uri": "file:///simulated"},
            "onDataLoss": self._schedule.on_data_loss.value,
            "spark": {"executor": {"instances": 1}},
        }

        def start(driver: Process, runner: Callable[[], TaskThreads]) -> RunResult:
            request = RunRequest("KafkaBackup", "simulated", "default", run_id, spec)
            reporter = Reporter(run_id)
            return run_backup(request, parse_backup(spec), runner, reporter, {}, WATCH)

        for action in attempt.before:
            cluster.do(lambda action=action: history.happen(action))  # type: ignore[misc]
        before = cluster.do(lambda: self._ledger.seen(cluster))
        result = self._attempt(cluster, history, run_id, attempt, limits, start)
        if result is None or result.outcome != "Succeeded":
            if result is not None:
                self._ledger.told += result.loss
            return False
        after = cluster.do(lambda: self._ledger.seen(cluster))
        self._ledger.succeeded(before, after, result.loss)
        return True

    # ---- restores

    def _restore(self, source: SimulatedCluster, target: SimulatedCluster) -> None:
        archive = Archive.open(self._inner)
        report = verify(archive, workers=1)
        if not report.whole:
            self._violated("verify finds faults", "archive", "; ".join(map(str, report.faults[:3])))
        gaps = [
            (topic_id, number, gap.start, gap.end)
            for (topic_id, number), found in archive.load().gaps.items()
            for gap in found
        ]
        self._outcome.violations += source.do(lambda: untrue_losses(self._ledger, source, gaps))
        history = History(target, None, self._outcome.history)
        run = 0
        result: RunResult | None = None
        for number, attempt in enumerate(self._schedule.restores):
            run += 1 if number and not attempt.same_run else 0
            if not attempt.same_run:
                target.do(target.topics.clear)
            result = self._attempt_restore(target, history, f"restore-{run}", attempt, IMPATIENT)
            if result is not None and result.outcome == "Succeeded":
                break
        target.do(target.heal)
        self._faults.heal()
        self._say("healed")
        for _ in range(LAST_TRIES):
            if result is not None and result.outcome == "Succeeded":
                break
            result = self._attempt_restore(target, history, f"restore-{run}", HONEST, PATIENT)
            if result is not None and result.outcome != "Succeeded":
                # What the message says: delete the topics, begin again under another run id.
                run += 1
                target.do(target.topics.clear)
        if result is None or result.outcome != "Succeeded":
            self._violated("a whole archive cannot be restored", "restore", self._outcome.runs[-1])
            return
        self._ledger.told += result.loss
        self._compare(source, target)

    def _attempt_restore(
        self, cluster: SimulatedCluster, history: History, run_id: str, attempt: Attempt, limits: Limits
    ) -> RunResult | None:
        spec = {
            "source": {"storage": {"uri": "file:///simulated"}},
            "cluster": {"bootstrapServers": cluster.bootstrap},
            "spark": {"executor": {"instances": 1}},
        }

        def start(driver: Process, runner: Callable[[], TaskThreads]) -> RunResult:
            request = RunRequest("KafkaRestore", "simulated", "default", run_id, spec)
            return run_restore(request, parse_restore(spec), runner, Reporter(run_id), {})

        return self._attempt(cluster, history, run_id, attempt, limits, start)

    def _compare(self, source: SimulatedCluster, target: SimulatedCluster) -> None:
        by_name: dict[str, list[Topic]] = {}
        for topic in (*source.past, *source.topics.values()):
            by_name.setdefault(topic.name, []).append(topic)
        for name, topics in sorted(by_name.items()):
            incarnations = {topic.printed_id: topic for topic in topics}
            made = target.topics.get(name)
            partitions = made.partitions if made is not None else []
            logs = [partition.log.committed() for partition in partitions]
            names = [record.value or b"" for log in logs for record in log]
            self._outcome.violations += check_incarnation(self._ledger, name, names, list(incarnations))
            for number in range(max(len(logs), *(len(topic.partitions) for topic in topics))):
                log = logs[number] if number < len(logs) else []
                self._outcome.violations += check_restored(self._ledger, name, number, log, incarnations)

    # ---- one attempt

    def _attempt(
        self,
        cluster: SimulatedCluster,
        history: History,
        run_id: str,
        attempt: Attempt,
        limits: Limits,
        start: Callable[[Process, Callable[[], TaskThreads]], RunResult],
    ) -> RunResult | None:
        """None if the driver was killed."""
        cluster.lies.active = list(attempt.lies)
        self._faults.active = list(attempt.store_faults)
        driver = Process(run_id, attempt.death, attempt.dies_before)

        def die() -> None:
            cluster.refusing = True

        driver.on_death = die
        events = list(attempt.events)
        requests = 0

        def on_request(api: Api) -> None:
            nonlocal requests
            requests += 1
            while events and events[0].at <= requests:
                history.happen(events.pop(0).action)

        cluster.on_request = on_request
        deaths = list(attempt.task_deaths)

        def runner() -> TaskThreads:
            return TaskThreads(driver, deaths, self._schedule.threads)

        result: RunResult | None = None
        try:
            with product(driver, lambda *_: ProcessStorage(self._inner, self._faults, driver), limits):
                result = start(driver, runner)
        except Killed:
            pass
        finally:
            cluster.on_request = lambda api: None
            cluster.refusing = False
            driver.dead = True
        cluster.do(cluster.drop_connections)
        if result is None:
            ended = "killed"
        elif result.outcome == "Succeeded":
            loss = f", {result.loss_offsets} offsets lost" if result.loss_offsets else ""
            ended = f"Succeeded{loss}"
        else:
            ended = f"{result.error_code or result.exit_code}"
        self._outcome.runs.append(f"{run_id.split('-', maxsplit=1)[0]}: {ended}")
        message = result.message if result is not None else ""
        warnings = "; ".join(result.warnings) if result is not None else ""
        self._say(f"{run_id}: {ended} {message} {warnings}".strip())
        return result

    def _violated(self, kind: str, where: str, detail: str) -> None:
        self._outcome.violations.append(Violation(kind, where, detail))


@contextlib.contextmanager
def simulations() -> Iterator[Callable[[int], Outcome]]:
    """What runs a seed. Logs are quiet: a history says what has happened."""
    quiet_deaths()
    logging.disable(logging.CRITICAL)
    memory = Path("/dev/shm")
    try:
        with World() as world, tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as root:

            def one(seed: int) -> Outcome:
                folder = Path(root) / str(seed)
                try:
                    return Simulation(world, make_schedule(seed), folder).run()
                finally:
                    shutil.rmtree(folder, ignore_errors=True)

            yield one
    finally:
        logging.disable(logging.NOTSET)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.simulation.run", description="Simulated schedules.")
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="this one only, with its history")
    parser.add_argument("--counts", type=Path, help="write the counts to this file as JSON")
    asked = parser.parse_args(argv)
    seeds = range(asked.first, asked.first + asked.seeds) if asked.seed is None else [asked.seed]
    counts: dict[str, Counter[str]] = {"told": Counter(), "runs": Counter(), "violations": Counter()}
    failed: dict[str, list[int]] = {}
    began = time.monotonic()
    with simulations() as one:
        for done, seed in enumerate(seeds, start=1):
            outcome = one(seed)
            counts["told"] += outcome.told
            counts["runs"] += Counter(outcome.runs)
            kinds = {violation.kind for violation in outcome.violations}
            counts["violations"] += Counter(kinds)
            for kind in kinds:
                failed.setdefault(kind, []).append(seed)
            if outcome.violations or asked.seed is not None:
                print(outcome, flush=True)
            if done % 100 == 0:
                print(f"{done} schedules in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    report: dict[str, Any] = {name: dict(counter.most_common()) for name, counter in counts.items()}
    report |= {"schedules": len(seeds), "seconds": round(time.monotonic() - began), "seeds": failed}
    if asked.counts is not None:
        asked.counts.write_text(json.dumps(report, indent=1))
    print(json.dumps(report, indent=1))
    return 1 if failed else 0


__all__ = ["Outcome", "Simulation", "main", "simulations"]

if __name__ == "__main__":
    sys.exit(main())
