"""The Events that the operator posts about its resources."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any

from logkeep_engine.contract.facts.values import timestamp
from logkeep_engine.contract.spec import API_VERSION
from logkeep_operator.api import Key


def event_body(
    key: Key, uid: str, kind: str, reason: str, message: str, run_id: str, now: datetime, component: str
) -> dict[str, Any]:
    """Return a core/v1 Event about a resource. Its name is made from its content, so an event that is reported twice
    has the same one."""
    content = "\0".join((uid, run_id, reason, message))
    # At most 247 of the 253 characters that a name may have, and no dash or dot in front of a dot.
    name = f"{key.name[:230].rstrip('-.')}.{hashlib.sha256(content.encode()).hexdigest()[:16]}"
    moment = timestamp(now)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": key.namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": key.kind,
            "namespace": key.namespace,
            "name": key.name,
            "uid": uid,
        },
        "type": kind,
        "reason": reason,
        "message": message,
        "source": {"component": component},
        "reportingComponent": component,
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }
