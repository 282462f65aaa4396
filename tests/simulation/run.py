"""Backup, faults and kills, backup, restore, compare: one seed, or many.

    python -m tests.simulation.run --seeds 10000 [--first 0] [--processes 1]
    python -m tests.simulation.run --seed 4711

A violation prints the seed's whole history; the seed alone brings it again.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import logging
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.claim import ArchiveClaim
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.backup.run.backup_run import run_backup
from logkeep_engine.contract.anchor import Anchor
from logkeep_engine.contract.restore_spec import parse_restore
from logkeep_engine.contract.run import RunRequest, RunResult
from logkeep_engine.contract.spec import OnDataLoss, OnDivergence, parse_backup
from logkeep_engine.kafka.connection import Limits
from logkeep_engine.report import Reporter
from logkeep_engine.restore.run.entry import run_of
from logkeep_engine.restore.sending import count
from logkeep_engine.restore.sending.written import TargetPartition
from logkeep_engine.storage import LocalStorage, Storage
from tests.simulation.cluster import SimulatedCluster, Topic, World
from tests.simulation.history import History
from tests.simulation.ledger import Ledger, Seen, Violation, check_topic, untrue_losses
from tests.simulation.process import WATCH, Killed, Process, TaskThreads, product, quiet_deaths
from tests.simulation.protocol import Api
from tests.simulation.s3_front import S3Front
from tests.simulation.schedule import Attempt, Schedule, make_schedule
from tests.simulation.store import ProcessStorage, StoreFaults

IMPATIENT = Limits(
    connect=0.3, request=0.15, outage=0.3, unknown=0.1, truncated=0.1, control=0.5,
    pause=0.004, longest_pause=0.02, control_pause=0.01, settling=0.01,
)  # fmt: skip
PATIENT = Limits(
    connect=10, request=20, outage=2.0, unknown=0.3, truncated=0.3, control=10,
    pause=0.004, longest_pause=0.02, control_pause=0.01, settling=0.01,
)  # fmt: skip
LAST_TRIES = 3
SEED_SECONDS = 120
WITHOUT_TOPIC_IDS = frozenset({"2.4"})  # such brokers are refused, and told so
HONEST = Attempt()
FALSE_ALARMS = frozenset({"ArchiveRolledBack", "ArchiveOwned", "StateAltered"})
"""Nobody but the runs of one owner touches the archive and the state, so none of these may come."""


@dataclass
class Outcome:
    """The outcome of a seed. `runs` says how each attempt ended, `used` counts lies and faults that came up."""

    seed: int
    schedule: str
    runs: list[str] = field(default_factory=list)
    used: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    history: list[str] = field(default_factory=list)
    seconds: float = 0.0
    restored: bool = False
    loss_reported: bool = False
    bundles: int = 0

    @property
    def verdict(self) -> str:
        """The verdict in a word or two."""
        if self.violations:
            return "promise broken"
        if not self.restored:
            return "nothing to restore"
        return "restored, loss reported" if self.loss_reported else "restored"

    def __str__(self) -> str:
        lines = [self.schedule, "what happened:", *(f"  {line}" for line in self.history)]
        lines += [f"VIOLATION {violation}" for violation in self.violations]
        return "\n".join(lines)


class Simulation:
    """One seed, from the empty cluster to the comparison."""

    def __init__(self, world: World, schedule: Schedule, folder: Path, front: S3Front) -> None:
        self._world = world
        self._schedule = schedule
        self._ledger = Ledger()
        self._others = Ledger()  # of those who write to the target besides
        self._before: dict[str, Seen] = {}
        self._faults = StoreFaults()
        self._front = front
        self._inner: Storage = front.storage() if schedule.s3 else LocalStorage(f"file://{folder}/archive")
        self._outcome = Outcome(schedule.seed, str(schedule))
        self._say = self._outcome.history.append
        self._anchors: list[Anchor] = []  # those that runs have told of, the newest last

    def run(self) -> Outcome:
        began = time.monotonic()
        schedule = self._schedule
        world = self._world
        from_, to = (schedule.brokers, schedule.release), (schedule.target_brokers, schedule.target_release)
        with (
            patch.object(names, "BUNDLED", 3),
            SimulatedCluster(world, *from_, name="source") as source,
            SimulatedCluster(world, *to, name="target") as target,
        ):
            source.batches_an_answer = target.batches_an_answer = schedule.batches_an_answer
            self._back_up(source)
            if self._ledger.required:
                self._restore(source, target)
            self._outcome.used += source.lies.used + target.lies.used + self._faults.used + self._front.used
            self._front.used.clear()
            self._outcome.bundles = sum(names.parse_bundle(info.path) is not None for info in self._inner.list())
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
        self._front.heal()
        self._say("healed")
        succeeded = False
        for number in range(LAST_TRIES):
            if number or ended or not self._schedule.backups[-1].same_run:
                run += 1
            # Do what the messages say: if something is lost for good, or the log was cut off, let a run record it.
            accepts = number == LAST_TRIES - 1
            succeeded = self._attempt_backup(cluster, history, f"backup-{run}", HONEST, PATIENT, accepts=accepts)
            ended = True
            if succeeded:
                break
        if not succeeded and self._schedule.release not in WITHOUT_TOPIC_IDS:
            self._violated("a healthy cluster cannot be backed up", "backup", self._outcome.runs[-1])

    def _create_topics(self, cluster: SimulatedCluster) -> None:
        for shape in self._schedule.topics:
            configs = {"min.insync.replicas": str(shape.min_isr)}
            configs |= {"cleanup.policy": "compact"} if shape.compacted else {}
            configs |= {"remote.storage.enable": "true"} if shape.tiered else {}
            cluster.create(shape.name, shape.partitions, replicas=shape.replicas, configs=configs)

    def _attempt_backup(
        self,
        cluster: SimulatedCluster,
        history: History,
        run_id: str,
        attempt: Attempt,
        limits: Limits,
        *,
        accepts: bool = False,
    ) -> bool:
        spec = {
            "cluster": {"bootstrapServers": cluster.bootstrap},
            "topics": {"include": [".*"]},
            "storage": {"uri": "file:///simulated"},
            "onDataLoss": (OnDataLoss.RECORD if accepts else self._schedule.on_data_loss).value,
            "onDivergence": (OnDivergence.BRANCH if accepts else self._schedule.on_divergence).value,
            "spark": {"executor": {"instances": 1}},
        }

        def start(driver: Process, runner: Callable[[], TaskThreads]) -> RunResult:
            request = RunRequest(
                kind="KafkaBackup",
                name="simulated",
                namespace="default",
                run_id=run_id,
                spec=spec,
                uid="simulated",
                anchor=self._newest_anchor(),
            )
            reporter = Reporter(run_id)
            return run_backup(request, parse_backup(spec), runner, reporter, {}, WATCH)

        for action in attempt.before:
            cluster.do(lambda action=action: history.happen(action))  # type: ignore[misc]
        if run_id not in self._before:
            cluster.old_ends.clear()
        # A run that is started again continues with the plan of its first attempt.
        before = self._before.setdefault(run_id, cluster.do(lambda: self._ledger.seen(cluster)))
        result = self._attempt(cluster, history, run_id, attempt, limits, start)
        if result is None or result.outcome != "Succeeded":
            if result is not None:
                self._ledger.reported += result.loss
            return False
        after = cluster.do(lambda: self._ledger.seen(cluster))
        self._ledger.succeeded(before, after, result.loss, cluster.old_ends)
        return True

    # ---- restores

    def _newest_anchor(self) -> str | None:
        """The newest one that a run has told of, as a status has it; None if none has."""
        return str(self._anchors[-1]) if self._anchors else None

    def _restore(self, source: SimulatedCluster, target: SimulatedCluster) -> None:
        archive = Archive.open(self._inner)
        for anchor in self._anchors:
            Archive.open(self._inner, ArchiveClaim(anchor)).load()
        found = verify(archive, workers=1, anchor=self._anchors[0] if self._anchors else None).faults
        faults = [fault for fault in found if not _of_the_past(str(fault), source)]
        if faults:
            self._violated("verify finds faults", "archive", "; ".join(map(str, faults[:3])))
        gaps = [
            (topic_id, number, gap.start, gap.end)
            for (topic_id, number), found in archive.load().gaps.items()
            for gap in found
        ]
        self._outcome.violations += source.do(lambda: untrue_losses(self._ledger, source, gaps))
        self._ledger.archived = {key: ranges[-1][1] for key, ranges in archive.load().coverage.items()}
        history = History(target, self._others, self._outcome.history, b"other ")
        if self._schedule.append:
            target.do(lambda: self._create_for_append(source, target))
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
        self._front.heal()
        self._say("healed")
        for _ in range(LAST_TRIES):
            if result is not None and result.outcome == "Succeeded":
                break
            result = self._attempt_restore(target, history, f"restore-{run}", HONEST, PATIENT)
            if result is not None and result.outcome != "Succeeded":
                # Do what the message says: delete the topics, begin again under another run id.
                run += 1
                target.do(target.topics.clear)
        if result is None or result.outcome != "Succeeded":
            self._violated("a whole archive cannot be restored", "restore", self._outcome.runs[-1])
            return
        self._ledger.reported += result.loss
        target.do(history.finish)
        self._outcome.restored, self._outcome.loss_reported = True, bool(self._ledger.reported)
        self._compare(source, target)

    def _fewer_replicas(self) -> dict[str, Any]:
        """The settings that a user writes whose cluster has fewer brokers than the source had."""
        has = self._schedule.target_brokers
        settings: dict[str, Any] = {}
        if has < max(shape.replicas for shape in self._schedule.topics):
            settings["replicationFactor"] = has
        if has < max(shape.min_isr for shape in self._schedule.topics):
            settings["configs"] = {"override": {"min.insync.replicas": str(has)}}
        return settings

    def _create_for_append(self, source: SimulatedCluster, target: SimulatedCluster) -> None:
        counts: Counter[str] = Counter()
        for topic in (*source.past, *source.topics.values()):
            counts[topic.name] = max(counts[topic.name], len(topic.partitions))
        for name, partitions in counts.items():
            target.create(name, partitions, replicas=self._schedule.target_brokers)

    def _attempt_restore(
        self, cluster: SimulatedCluster, history: History, run_id: str, attempt: Attempt, limits: Limits
    ) -> RunResult | None:
        spec = {
            "source": {"storage": {"uri": "file:///simulated"}},
            "cluster": {"bootstrapServers": cluster.bootstrap},
            "topics": self._fewer_replicas(),
            "allowEmpty": True,  # all may be lost, and told; the ledger knows what must be there
            "ifTopicExists": "Append" if self._schedule.append else "Fail",
            "spark": {"executor": {"instances": 1}},
        }

        def start(driver: Process, runner: Callable[[], TaskThreads]) -> RunResult:
            anchor = self._newest_anchor()
            request = RunRequest(
                kind="KafkaRestore", name="simulated", namespace="default", run_id=run_id, spec=spec, anchor=anchor
            )
            with patch.object(count, "lost", _noting(cluster, count.lost)):
                return run_of(request, parse_restore(spec), runner, Reporter(run_id), {}).perform()

        for action in attempt.before:
            cluster.do(lambda action=action: history.happen(action))  # type: ignore[misc]
        return self._attempt(cluster, history, run_id, attempt, limits, start)

    def _compare(self, source: SimulatedCluster, target: SimulatedCluster) -> None:
        by_name: dict[str, list[Topic]] = {}
        for topic in (*source.past, *source.topics.values()):
            by_name.setdefault(topic.name, []).append(topic)
        for name, topics in sorted(by_name.items()):
            incarnations = {topic.printed_id: topic for topic in topics}
            made = target.topics.get(name)
            partitions = made.partitions if made is not None else []
            others = self._others.written
            logs = [
                [record for record in partition.log.committed() if record.value not in others]
                for partition in partitions
            ]
            found = check_topic(self._ledger, name, logs, incarnations, source.topics.get(name))
            gone = {number for number, partition in enumerate(partitions) if partition.lost_when_counted}
            self._outcome.violations += [item for item in found if not _is_of_later(item, gone)]

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
        """The result of one attempt; None if the driver was killed."""
        cluster.lies.active = list(attempt.lies)
        self._faults.active = list(attempt.store_faults)
        self._front.faults = list(attempt.http_faults)
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

        runners: list[TaskThreads] = []

        def runner() -> TaskThreads:
            runners.append(TaskThreads(driver, deaths, self._schedule.threads))
            return runners[-1]

        result: RunResult | None = None
        try:
            with product(driver, lambda *_: ProcessStorage(self._inner, self._faults, driver), limits):
                result = start(driver, runner)
        except BaseException as error:
            if not isinstance(error, Killed) and not driver.dead:
                raise
        finally:
            cluster.on_request = lambda api: None
            cluster.refusing = False
            for one in runners:
                one.join()
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
        if result is not None and result.error_code == "UnexpectedError":
            self._violated("unexpected error", run_id, result.message)
        if result is not None and result.error_code in FALSE_ALARMS:
            self._violated("a false alarm", run_id, result.message)
        if result is not None and result.anchor is not None:
            self._anchors.append(Anchor.parse(result.anchor))
            self._anchors.sort(key=lambda anchor: anchor.commit)
        message = result.message if result is not None else ""
        warnings = "; ".join(result.warnings) if result is not None else ""
        self._say(f"{run_id}: {ended} {message} {warnings}".strip())
        return result

    def _violated(self, kind: str, where: str, detail: str) -> None:
        self._outcome.violations.append(Violation(kind, where, detail))


def _noting(
    target: SimulatedCluster, lost: Callable[..., list[TargetPartition]]
) -> Callable[..., list[TargetPartition]]:
    """The count of a restore, which notes that all was there."""

    def note() -> None:
        for topic in target.topics.values():
            for partition in topic.partitions:
                partition.counted = True

    def counted(*args: Any) -> list[TargetPartition]:
        found = lost(*args)
        if not found:
            target.do(note)
        return found

    return counted


def _is_of_later(item: Violation, gone: Collection[int]) -> bool:
    """The restore has counted these records, and then an election of the target took them."""
    if item.kind == "no incarnation":
        return bool(gone)
    return item.kind == "missing" and any(item.where.endswith(f" partition {number}") for number in gone)


def _of_the_past(fault: str, cluster: SimulatedCluster) -> bool:
    """A run that was killed has left something undone, and the topic is gone: nobody can do it any more."""
    return "a run did not finish" in fault and any(topic.printed_id in fault for topic in cluster.past)


@contextlib.contextmanager
def simulations() -> Iterator[Callable[[int], Outcome]]:
    """The function that runs a seed. Logs are quiet: a history says what has happened."""
    quiet_deaths()
    logging.disable(logging.CRITICAL)
    memory = Path("/dev/shm")
    try:
        with (
            World() as world,
            S3Front(world) as front,
            tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as root,
        ):

            def one(seed: int) -> Outcome:
                folder = Path(root) / str(seed)
                try:
                    return Simulation(world, make_schedule(seed), folder, front).run()
                finally:
                    shutil.rmtree(folder, ignore_errors=True)

            yield one
    finally:
        logging.disable(logging.NOTSET)


@dataclass
class Tally:
    """The tally of many seeds: how often each lie was told, how attempts ended, and what came of the schedules in which
    a lie was told."""

    schedules: int = 0
    used: Counter[str] = field(default_factory=Counter)
    runs: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    by_kind: dict[str, Counter[str]] = field(default_factory=dict)
    seeds: dict[str, list[int]] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        self.schedules += 1
        self.used += outcome.used
        self.runs.update(outcome.runs)
        self.verdicts[outcome.verdict] += 1
        for kind in outcome.used:
            self.by_kind.setdefault(kind, Counter())[outcome.verdict] += 1
        for kind in {violation.kind for violation in outcome.violations}:
            self.seeds.setdefault(kind, []).append(outcome.seed)

    def to_json(self, seconds: float) -> str:
        return json.dumps(vars(self) | {"seconds": round(seconds)}, indent=1)


def run_seeds(seeds: Sequence[int], processes: int = 1) -> Iterator[Outcome]:
    """Their outcomes, as they come. A seed that takes longer than SEED_SECONDS ends its process with a traceback."""
    if processes == 1:
        with simulations() as one:
            yield from map(one, seeds)
        return
    with ProcessPoolExecutor(processes, get_context("spawn"), initializer=_begin_worker) as pool:
        try:
            for done in as_completed([pool.submit(_in_worker, seed) for seed in seeds]):
                yield done.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


_worker = contextlib.ExitStack()
_simulate: list[Callable[[int], Outcome]] = []


def _begin_worker() -> None:
    _simulate.append(_worker.enter_context(simulations()))


def _in_worker(seed: int) -> Outcome:
    faulthandler.dump_traceback_later(SEED_SECONDS, exit=True)
    try:
        return _simulate[-1](seed)
    except Exception:  # one seed's error is that seed's outcome: the others continue
        outcome = Outcome(seed, str(make_schedule(seed)))
        outcome.violations.append(Violation("error of the simulation", f"seed {seed}", traceback.format_exc()))
        return outcome
    finally:
        faulthandler.cancel_dump_traceback_later()


def main(argv: list[str] | None = None) -> int:
    """The command line; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="tests.simulation.run", description="Simulated schedules.")
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="this one only, with its history")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--times", action="store_true", help="say how long each took")
    parser.add_argument("--counts", type=Path, help="write the counts to this file as JSON, also on the way")
    asked = parser.parse_args(argv)
    seeds = range(asked.first, asked.first + asked.seeds) if asked.seed is None else [asked.seed]
    tally = Tally()
    began = time.monotonic()
    for outcome in run_seeds(seeds, asked.processes):
        tally.add(outcome)
        if asked.times:
            print(f"{outcome.seconds:.2f} s: seed {outcome.seed}: {outcome.runs}")
        if outcome.violations or asked.seed is not None:
            print(outcome, flush=True)
        if tally.schedules % 100 == 0:
            print(f"{tally.schedules} schedules in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
            if asked.counts is not None:
                asked.counts.write_text(tally.to_json(time.monotonic() - began))
    report = tally.to_json(time.monotonic() - began)
    if asked.counts is not None:
        asked.counts.write_text(report)
    print(report)
    return 1 if tally.seeds else 0


__all__ = ["Outcome", "Simulation", "Tally", "main", "run_seeds", "simulations"]

if __name__ == "__main__":
    sys.exit(main())
