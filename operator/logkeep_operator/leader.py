"""One replica acts. `LeaderElection` gets and keeps the Lease in a thread of its own; `Fence` lets no write through
without it.

A replica that could not renew in time may not know it yet: it was stopped, or waits for an answer. So each write asks
the clock just before it is sent (`Fence.writing`), and does not ask the thread. Kopf's peering offers nothing of this:
its peers go by priority and by the clocks of their machines, and one that cannot reach the API continues.

A write that was sent in time can still arrive late. It does no harm: what is created has a fixed name, a status is
written for the version that was read, and Jobs and pods are deleted by their uid.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from logkeep_operator.cluster import KubernetesCluster
from logkeep_operator.errors import ApiError, Conflict, LeaseExpired, NotFound, NotLeading
from logkeep_operator.lease import Claim, Lease
from logkeep_operator.metrics import Metrics
from logkeep_operator.settings import LeaseSettings

log = logging.getLogger(__name__)

QUIET_SECONDS = 10.0  # at the end: this long a write that is under way is waited for


def clock() -> float:
    """Seconds, also of a machine that sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Fence:
    """Lets writes through until a moment that each renewal moves, and none after `close`. For any thread."""

    def __init__(self, clock: Callable[[], float] = clock) -> None:
        self._clock = clock
        self._until = float("-inf")
        self._closed = False
        self._writes = 0
        self._changed = threading.Condition()

    @property
    def open(self) -> bool:
        """Whether a write would be let through now."""
        return not self._closed and self._clock() < self._until

    def move(self, until: float) -> None:
        """Let writes through until then."""
        with self._changed:
            self._until = until

    def close(self, seconds: float) -> bool:
        """Let nothing through for ever. The answer says whether everything that was under way has ended in time."""
        with self._changed:
            self._closed = True
            return self._changed.wait_for(lambda: self._writes == 0, seconds)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A write is sent and answered in here. Raises NotLeading."""
        with self._changed:
            if not self.open:
                raise NotLeading("This replica no longer holds the Lease: nothing is written.")
            self._writes += 1
        try:
            yield
        finally:
            with self._changed:
                self._writes -= 1
                self._changed.notify_all()


class LeaderElection:
    """Tries to get the Lease, and then keeps it. `lost` is called, in its thread, when it could not be kept."""

    def __init__(
        self,
        cluster: KubernetesCluster,
        times: LeaseSettings,
        fence: Fence,
        metrics: Metrics,
        lost: Callable[[str], None],
        clock: Callable[[], float] = clock,
    ) -> None:
        self._cluster = cluster
        self._times = times
        self._fence = fence
        self._metrics = metrics
        self._lost = lost
        self._clock = clock
        self._claim = Claim(times.identity, times)
        self._held: Lease | None = None
        self._until = 0.0
        self._other = ""
        self._elected: Callable[[], object] = lambda: None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def start(self, elected: Callable[[], object]) -> None:
        """Begin to try. `elected` is called, in its thread, when this replica is to act."""
        self._elected = elected
        self._metrics.leading(False)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the Lease is looked after."""
        return self._thread.is_alive()

    def end(self) -> None:
        """Stop, and give the Lease back, so that the next replica need not wait. If something that was sent is not
        answered yet, the Lease is left to run out."""
        self._ending.set()
        # First no more writes, then no Lease: the next replica acts as soon as that is free.
        quiet = self._fence.close(QUIET_SECONDS)
        self._metrics.leading(False)
        if self._thread.ident is not None:
            self._thread.join(QUIET_SECONDS)
        if self._held is None or self._thread.is_alive() or not quiet:
            return
        try:
            self._write(self._claim.released(self._held, self._cluster.now()), self._held)
            log.info("the Lease %s is released", self._times.name)
        except ApiError as error:
            log.warning("the Lease %s could not be released and expires: %s", self._times.name, error)

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                self.turn()
            except LeaseExpired as lost:
                self._metrics.leading(False)
                self._lost(str(lost))
                return
            self._ending.wait(self._times.retry_period)

    def turn(self) -> None:
        """One attempt to get the Lease, or to keep it. Raises LeaseExpired. Who has lost it once does not try again:
        what it knows is from before."""
        asked_at = self._clock()
        if self._held is not None and asked_at >= self._until:
            raise LeaseExpired("it was not renewed in time")
        try:
            lease = self._renew(self._held, asked_at) if self._held is not None else self._acquire(asked_at)
        except ApiError as error:
            log.warning("the Lease %s: %s", self._times.name, error)
            return
        if lease is None:
            return
        first, self._held = self._held is None, lease
        # Counted from before the request: others may have seen the renewal long before its answer was here.
        self._until = asked_at + self._times.renew_deadline
        self._fence.move(self._until)
        if first:
            log.info("this replica acts, as %s", lease.holder)
            self._metrics.leading(True)
            self._elected()

    def _acquire(self, now: float) -> Lease | None:
        """Take the Lease; None while another holds it. Raises ApiError, also if another was faster."""
        found = self._read()
        spec = self._claim.wanted(found, now, self._cluster.now())
        if spec is not None:
            return self._write(spec, found)
        if found is not None and self._other != found.holder:
            self._other = found.holder
            log.info("%s acts, this replica waits", self._other)
        return None

    def _renew(self, held: Lease, now: float) -> Lease:
        """Raises LeaseExpired, and ApiError for what may pass."""
        try:
            return self._write(self._claim.renewed(held, self._cluster.now()), held)
        except (Conflict, NotFound):
            found = self._read()  # perhaps the last renewal arrived and its answer did not
        if found is None or found.holder != held.holder:
            raise LeaseExpired(f"{found.holder} holds it" if found is not None and found.holder else "it has no holder")
        return self._write(self._claim.renewed(found, self._cluster.now()), found)

    def _read(self) -> Lease | None:
        body = self._cluster.lease(self._times.namespace, self._times.name)
        return Lease.from_object(body) if body is not None else None

    def _write(self, spec: dict[str, Any], found: Lease | None) -> Lease:
        version = found.version if found is not None else None
        return Lease.from_object(self._cluster.write_lease(self._times.namespace, self._times.name, spec, version))
