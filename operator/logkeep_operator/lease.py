"""The decisions of Kubernetes' own leader election: when a replica may take the Lease, and what it writes there.

The clocks of two machines are never compared. A replica that waits counts, on its own clock, how long the Lease has not
changed. After `leaseDurationSeconds` without a change it may take it. The holder counts from the moment at which it
asked for its last renewal, and stops earlier: after the renew deadline. So between the last act of the old holder and
the first of the next lies the difference of the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from logkeep_operator.settings import LeaseSettings


@dataclass(frozen=True, slots=True)
class Lease:
    """A Lease of coordination.k8s.io. `holder` is empty if it has no holder, `duration` 0 if it does not say."""

    holder: str
    duration: float
    acquired: str
    transitions: int
    version: str

    @classmethod
    def from_object(cls, body: Mapping[str, Any]) -> Lease:
        """Read a Lease. Anybody may have edited it."""
        spec = body.get("spec") or {}
        return cls(
            holder=str(spec.get("holderIdentity") or ""),
            duration=float(spec.get("leaseDurationSeconds") or 0),
            acquired=str(spec.get("acquireTime") or ""),
            transitions=int(spec.get("leaseTransitions") or 0),
            version=str(body["metadata"].get("resourceVersion") or ""),
        )


class Claim:
    """The claim of one replica to the Lease: what it has seen of it, and since when on its own clock."""

    def __init__(self, identity: str, times: LeaseSettings) -> None:
        self.identity = identity
        self._times = times
        self._seen: Lease | None = None
        self._since = 0.0

    def wanted(self, found: Lease | None, now: float, moment: datetime) -> dict[str, Any] | None:
        """Return the spec with which this replica takes the Lease; None while another holds it. `now` is this replica's
        clock, `moment` the time to be noted."""
        if found is not None and found != self._seen:
            self._seen, self._since = found, now
        seen = self._seen  # a Lease that was deleted may still have its holder, who does not know it yet
        if seen is None:
            return self._spec(moment, micro_time(moment), 0)
        if seen.holder not in ("", self.identity) and now - self._since < (seen.duration or self._times.duration):
            return None
        return self._spec(moment, micro_time(moment), seen.transitions + (seen.holder != self.identity))

    def renewed(self, held: Lease, moment: datetime) -> dict[str, Any]:
        """Return the spec with which this replica keeps the Lease that it holds."""
        return self._spec(moment, held.acquired, held.transitions)

    def released(self, held: Lease, moment: datetime) -> dict[str, Any]:
        """Return the spec with which this replica gives the Lease back."""
        free = {"holderIdentity": "", "leaseDurationSeconds": 1}  # the API refuses a duration of 0
        return {**self._spec(moment, micro_time(moment), held.transitions), **free}

    def _spec(self, moment: datetime, acquired: str, transitions: int) -> dict[str, Any]:
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self._times.duration,
            "acquireTime": acquired,
            "renewTime": micro_time(moment),
            "leaseTransitions": transitions,
        }


def micro_time(moment: datetime) -> str:
    """Return a MicroTime of the API."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
