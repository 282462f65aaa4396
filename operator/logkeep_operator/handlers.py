"""The operator's life in kopf: it starts, is probed and ends; meanwhile every event only says "look at this resource".

A replica that does not hold the Lease (`leader`) watches nothing and writes nothing, and its probes are well. One that
gets it begins as after a start. One that loses it ends its process.

Nothing of kopf's change detection is used: no finalizer, no annotation, nothing of kopf's on any object. Events of
resources and of their Jobs, Pods and ConfigMaps put the resource's key into a work queue (`watches`; kopf's own end the
process when one of them fails). A resync of each namespace reads everything in it at once (`snapshot`) and does the
same for those with something to do, so a lost event costs seconds, not a backup.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import kopf

from logkeep_engine.contract.names import APPLY_CRDS, BACKUP_RUN, KAFKA_ARCHIVE
from logkeep_engine.contract.objects import is_name
from logkeep_operator.api import GROUP, KINDS, VERSION, Key, Resource
from logkeep_operator.api.archive import KafkaArchive
from logkeep_operator.api.backup_run import RequestedRun
from logkeep_operator.cluster import KubernetesCluster
from logkeep_operator.controller import Controller
from logkeep_operator.driver_slots import DriverSlots
from logkeep_operator.errors import ApiError, OperatorError
from logkeep_operator.event_filter import News
from logkeep_operator.leader import LeaderElection
from logkeep_operator.metrics import Metrics
from logkeep_operator.resources import ANNOTATION_RESOURCE, LABEL_KIND
from logkeep_operator.served_namespaces import RETRY_MAX_SECONDS, ServedNamespaces, retry_pause
from logkeep_operator.serving import probe_handler, serve
from logkeep_operator.settings import Settings
from logkeep_operator.watches import watch
from logkeep_operator.workqueue import WorkQueue

log = logging.getLogger(__name__)

PROGRESS_DELAY = 0.5
MISSED_DELAY = 1.0  # watches of several kinds begin at about the same time: all of them need one resync
CRD_WAIT_SECONDS = 60
STUCK_LOOP_SECONDS = 120.0
LISTERS = 32  # namespaces that are listed at once: slow ones wait in a thread each


@dataclass
class Operator:
    """The state that all handlers share; kopf hands it around as `memo`. Without an `election` it always acts. `stop`
    ends the process, and `failure` says why it had to."""

    settings: Settings
    cluster: KubernetesCluster
    election: LeaderElection | None = None
    metrics: Metrics = field(default_factory=Metrics)
    queue: WorkQueue[Key] = field(init=False)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    failure: str = ""
    resyncs: dict[str | None, asyncio.Event] = field(default_factory=dict)
    _loop: asyncio.AbstractEventLoop | None = None
    listers: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(LISTERS, "resync"))

    def __post_init__(self) -> None:
        slots = DriverSlots(self.settings.concurrency, self.settings.namespaces or (None,))
        self.controller = Controller(self.cluster, self.settings.engine, self.metrics, slots, self.wake)
        self.reach = ServedNamespaces(self.metrics)

    async def begin(self) -> None:
        """Wait until this replica is to act, and until the CRDs are there (no watch would find them later); then
        start."""
        if self.election is not None:
            elected, loop = asyncio.Event(), asyncio.get_running_loop()
            self.election.start(lambda: loop.call_soon_threadsafe(elected.set))
            await elected.wait()
        said = ""
        for _ in range(CRD_WAIT_SECONDS):
            problem = await asyncio.to_thread(_missing, self.cluster)
            if not problem:
                self.start()
                return
            if problem != said:
                log.warning("%s", problem)
                said = problem
            await asyncio.sleep(1)
        self.failure = said
        self.stop.set()

    async def end(self) -> None:
        """Stop working; what is under way in threads is finished. Then the next replica may act."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.listers.shutdown(wait=False)
        if self.election is not None:
            await asyncio.to_thread(self.election.end)
        self.stop.set()  # who still waits for it holds kopf's end up for five seconds

    def start(self) -> None:
        """Begin to work; called in kopf's event loop."""
        self._loop = asyncio.get_running_loop()
        self.queue = WorkQueue(workers=self.settings.workers, group=lambda key: key.namespace)
        self.metrics.queue_depth.set_function(lambda: self.queue.ready)
        namespaces = self.settings.namespaces
        self.resyncs = {namespace: asyncio.Event() for namespace in namespaces or (None,)}
        self.tasks = [
            asyncio.create_task(self.queue.run(self.work)),
            asyncio.create_task(watch(self.cluster, self.reach, namespaces, self.event, self.missed)),
            *(asyncio.create_task(self._resync(namespace)) for namespace in self.resyncs),
        ]

    def work(self, key: Key) -> float | None:
        """Reconcile one resource, in a thread."""
        try:
            return self.controller.reconcile(key)
        except Exception:
            self.metrics.reconcile_failed(key)
            raise

    def wake(self, key: Key) -> None:
        """Look at the resource soon, from any thread: it is its turn."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.queue.add, key)  # the queue belongs to the loop

    def missed(self, namespace: str | None) -> None:
        """Look at all of a namespace soon: a watch begins there, and does not know what was before."""
        self.resyncs[namespace].set()

    def event(self, kind: str, body: Mapping[str, Any], how: str) -> None:
        """Take an event about a resource or a child. `how` is the watch's word: ADDED, MODIFIED or DELETED."""
        if kind in KINDS:
            self._resource_event(Resource.from_object(kind, body), how)
        elif kind == KAFKA_ARCHIVE:
            for key in self.controller.archives.event(KafkaArchive.from_object(body), how):
                self.queue.add(key, again=True)
        elif kind == BACKUP_RUN:
            self._requested_event(RequestedRun.from_object(body), how)
        else:
            self._child_event(kind, body, how)

    def _requested_event(self, requested: RequestedRun, how: str) -> None:
        """Take an event about a KafkaBackupRun. Its spec never changes: later events are echoes of its status."""
        if how == "ADDED":
            self.controller.requested.note(requested)
            self.queue.add(requested.key, again=True)

    def _resource_event(self, resource: Resource, how: str) -> None:
        news = News.RESOURCE if how == "DELETED" else self.controller.seen.news(resource)
        if news is not News.NOTHING:
            self.queue.add(resource.key, again=news is News.RESOURCE)

    def _child_event(self, kind: str, body: Mapping[str, Any], how: str) -> None:
        """Take an event about a child. Progress comes every second and need not be shown at once. A Job or a ConfigMap
        that was just made says nothing new, since the operator made it."""
        key = owner_key(kind, body)
        if key is not None and (how != "ADDED" or kind == "Pod"):
            self.queue.add(key, PROGRESS_DELAY if kind == "ConfigMap" else 0.0)

    async def _resync(self, namespace: str | None) -> None:
        failures = 0
        while True:
            pause = float(self.settings.resync_seconds)
            self.resyncs[namespace].clear()
            try:
                loop = asyncio.get_running_loop()
                for key, delay in await loop.run_in_executor(self.listers, self.controller.unsettled, namespace):
                    self.queue.add(key, delay)
                self.reach.found(namespace, "list of resources")
                failures = 0
            except Exception as error:  # whatever an answer looks like, the next resync comes
                failures += 1
                self.controller.slots.not_counted(namespace)
                self.controller.wake_due()
                self.reach.lost(namespace, "list of resources", str(error)[:500])
                log.debug("resync", exc_info=True)
                pause = min(pause, retry_pause(failures))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self.resyncs[namespace].wait()
            await asyncio.sleep(MISSED_DELAY)

    def look(self) -> str:
        """Say whether this replica acts. Raises OperatorError, and with this fails the liveness probe, when the work
        does not continue."""
        self.check()
        return "acts" if self.tasks else "waits"

    def check(self) -> None:
        """Raises OperatorError when the work does not continue: the pod must be restarted. A replica that waits for the
        Lease is well as long as it looks after it."""
        if self.election is not None and not self.election.alive:
            raise OperatorError("the Lease is no longer maintained")
        for task in self.tasks:
            if task.done():
                raise OperatorError(f"a task of the operator has ended: {task}")
        if not self.tasks:
            return
        late = asyncio.get_running_loop().time() - self.queue.last_turn
        if late > STUCK_LOOP_SECONDS:
            raise OperatorError(f"the work queue has not turned for {late:.0f} s")


def configure(settings: kopf.OperatorSettings) -> None:
    """Kopf's settings: no events and no watches of its own. It has no handlers of objects, so it writes on none."""
    settings.posting.enabled = False  # events are posted by `cluster`, with names that make them idempotent
    settings.scanning.disabled = True
    settings.networking.error_backoffs = itertools.repeat(RETRY_MAX_SECONDS)  # nothing of ours waits for these calls
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.process.ultimate_exiting_timeout = 20


@kopf.on.startup(errors=kopf.ErrorsMode.PERMANENT)
async def startup(settings: kopf.OperatorSettings, memo: Operator, **_: Any) -> None:
    """Begin, or wait to begin. The probes answer from here on, and kopf asks the API nothing before this has ended."""
    configure(settings)
    if memo.settings.metrics_port:
        memo.metrics.serve(memo.settings.metrics_port)
    if memo.settings.probe_port:
        serve(memo.settings.probe_port, probe_handler(memo.look, asyncio.get_running_loop()))
    try:
        await memo.begin()
    except BaseException:  # then kopf calls no cleanup
        await memo.end()
        raise


@kopf.on.cleanup()
async def cleanup(memo: Operator, **_: Any) -> None:
    """End what was begun."""
    await memo.end()


def _missing(cluster: KubernetesCluster) -> str:
    """Say what is missing before work can begin, empty if nothing is."""
    try:
        served = cluster.serves_kinds()
    except ApiError as error:
        return f"It is unknown whether the CRDs of {GROUP}/{VERSION} are installed: {error}"
    return "" if served else f"The CRDs of {GROUP}/{VERSION} are not installed: {APPLY_CRDS}"


def owner_key(child: str, body: Mapping[str, Any]) -> Key | None:
    """Return the resource that a child of some kind says it belongs to. All that it says is a claim: the resource is
    looked at, and that look compares the uids of owners. The owner of a pod is a Job or a pod."""
    metadata = body["metadata"]
    kind = (metadata.get("labels") or {}).get(LABEL_KIND)
    name = (metadata.get("annotations") or {}).get(ANNOTATION_RESOURCE)
    if kind not in KINDS or not is_name(name):
        return None
    owners = metadata.get("ownerReferences") or ()
    owned = any(owner.get("kind") == kind and owner.get("name") == name for owner in owners)
    return Key(kind, metadata["namespace"], name) if owned or child == "Pod" else None
