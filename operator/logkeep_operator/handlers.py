"""What kopf sees: watches whose every event only says "look at this resource".

No handler of kopf's change detection is used: no finalizer, no annotation, nothing of kopf's on any object. Events of
resources and of their Jobs, Pods and ConfigMaps put the resource's key into a work queue; a resync does the same for
everything that is not settled, so a lost event costs seconds, not a backup.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import kopf

from logkeep_operator.api import GROUP, KINDS, VERSION, Key
from logkeep_operator.cluster import Cluster
from logkeep_operator.controller import Controller
from logkeep_operator.errors import ApiError, OperatorError
from logkeep_operator.metrics import Metrics
from logkeep_operator.resources import ANNOTATION_RESOURCE, LABEL_KIND, LABEL_MANAGED_BY, MANAGED_BY
from logkeep_operator.settings import Settings
from logkeep_operator.workqueue import WorkQueue

log = logging.getLogger(__name__)

PROGRESS_DELAY = 0.5
CRD_WAIT_SECONDS = 60
STUCK_LOOP_SECONDS = 120.0


@dataclass
class Operator:
    """What the handlers share; kopf hands it around as `memo`."""

    settings: Settings
    cluster: Cluster
    metrics: Metrics = field(default_factory=Metrics)
    queue: WorkQueue[Key] = field(init=False)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.controller = Controller(self.cluster, self.settings.engine, self.metrics)

    def start(self) -> None:
        """Begin to work; called in kopf's event loop."""
        self.queue = WorkQueue(workers=self.settings.workers)
        self.tasks = [asyncio.create_task(self.queue.run(self.work)), asyncio.create_task(self._resync())]

    def work(self, key: Key) -> float | None:
        """Reconcile one resource, in a thread."""
        self.metrics.queue_depth.set(len(self.queue))
        try:
            return self.controller.reconcile(key)
        except Exception:
            self.metrics.reconcile_failed(key)
            raise

    async def _resync(self) -> None:
        while True:
            pause = float(self.settings.resync_seconds)
            try:
                for key in await asyncio.to_thread(self.controller.unsettled, self.settings.namespaces):
                    self.queue.add(key)
            except ApiError as error:
                log.warning("resources could not be listed, tried again later: %s", error)
                pause = min(pause, 5.0)
            await asyncio.sleep(pause)

    def check(self) -> None:
        """Raises OperatorError when the work does not go on: the pod must be restarted."""
        for task in self.tasks:
            if task.done():
                raise OperatorError(f"a task of the operator has ended: {task}")
        late = asyncio.get_running_loop().time() - self.queue.last_turn
        if late > STUCK_LOOP_SECONDS:
            raise OperatorError(f"the work queue has not turned for {late:.0f} s")


def configure(settings: kopf.OperatorSettings) -> None:
    """Kopf's settings: nothing of its own on objects, watches that end and begin again, only our children."""
    settings.posting.enabled = False  # events are posted by `cluster`, with names that make them idempotent
    settings.persistence.finalizer = f"{GROUP}/operator"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=f"operator.{GROUP}", v1=False)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(
        prefix=f"operator.{GROUP}", key="last", v1=False
    )
    settings.scanning.disabled = True
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310
    settings.watching.connect_timeout = 10
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.process.ultimate_exiting_timeout = 20
    for children in ("jobs", "pods", "configmaps"):
        settings.watching.label_selectors[children] = f"{LABEL_MANAGED_BY}={MANAGED_BY}"


@kopf.on.startup()
async def startup(settings: kopf.OperatorSettings, memo: Operator, **_: Any) -> None:
    """Wait for the CRDs (kopf would watch nothing without them), then begin."""
    configure(settings)
    for second in range(CRD_WAIT_SECONDS):
        if await asyncio.to_thread(_served, memo.cluster):
            break
        if second == 0:
            log.warning("the CRDs of %s are not installed yet: kubectl apply --server-side -f crds/", GROUP)
        await asyncio.sleep(1)
    else:
        raise kopf.PermanentError(
            f"The CRDs of {GROUP}/{VERSION} are not installed: kubectl apply --server-side -f crds/"
        )
    if memo.settings.metrics_port:
        memo.metrics.serve(memo.settings.metrics_port)
    memo.start()


def _served(cluster: Cluster) -> bool:
    try:
        return cluster.serves_kinds()
    except ApiError as error:
        log.warning("%s", error)
        return False


@kopf.on.cleanup()
async def cleanup(memo: Operator, **_: Any) -> None:
    """Stop working; what is under way in threads is finished."""
    for task in memo.tasks:
        task.cancel()
    await asyncio.gather(*memo.tasks, return_exceptions=True)


@kopf.on.probe(id="work")
async def probe(memo: Operator, **_: Any) -> str:
    """Fails, and with it the liveness probe, when the work does not go on."""
    memo.check()
    return "ok"


async def resource_event(memo: Operator, body: kopf.Body, **_: Any) -> None:
    """A KafkaBackup or KafkaRestore is there, was changed or is gone."""
    memo.queue.add(Key(str(body["kind"]), str(body.metadata.namespace), str(body.metadata.name)))


async def child_event(memo: Operator, body: kopf.Body, resource: kopf.Resource, **_: Any) -> None:
    """Something happened to a child: look at its resource. Progress comes every second and need not be shown at
    once."""
    key = owner_key(body)
    if key is not None:
        memo.queue.add(key, PROGRESS_DELAY if resource.plural == "configmaps" else 0.0)


def owner_key(body: Mapping[str, Any]) -> Key | None:
    """The resource that a child belongs to, by its label and annotation."""
    metadata = body["metadata"]
    kind = (metadata.get("labels") or {}).get(LABEL_KIND)
    name = (metadata.get("annotations") or {}).get(ANNOTATION_RESOURCE)
    return Key(kind, metadata["namespace"], name) if kind in KINDS and name else None


for _plural in KINDS.values():
    kopf.on.event(GROUP, VERSION, _plural, id="resource")(resource_event)
kopf.on.event("", "v1", "pods", id="pod", labels={LABEL_MANAGED_BY: MANAGED_BY})(child_event)
kopf.on.event("", "v1", "configmaps", id="configmap", labels={LABEL_MANAGED_BY: MANAGED_BY})(child_event)
kopf.on.event("batch", "v1", "jobs", id="job", labels={LABEL_MANAGED_BY: MANAGED_BY})(child_event)
