"""The calls that the operator makes to a real API server, by the server's own audit log."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass

from tests.cluster.apiserver import ApiServer


@dataclass(frozen=True)
class Call:
    """`resource` is the plural, with a subresource after a slash."""

    verb: str
    resource: str
    name: str
    status: int


class Calls:
    """Counts from where it was made, or from the last `restart`."""

    def __init__(self, api: ApiServer) -> None:
        self._log = api.audit_log
        self.restart()

    def restart(self) -> None:
        """Forget what was until now."""
        self._from = self._log.stat().st_size if self._log.exists() else 0

    def all(self) -> list[Call]:
        """Every call once, also a watch that continues."""
        with self._log.open("rb") as log:
            log.seek(self._from)
            events = [json.loads(line) for line in log if line.endswith(b"\n")]
        stages = {True: "ResponseStarted", False: "ResponseComplete"}
        return [_call(event) for event in events if event["stage"] == stages[event["verb"] == "watch"]]

    def counted(self) -> Counter[str]:
        """By verb and resource."""
        return Counter(f"{call.verb} {call.resource}" for call in self.all())


def _call(event: dict[str, dict[str, str]]) -> Call:
    about = event.get("objectRef") or {}
    sub = f"/{about['subresource']}" if about.get("subresource") else ""
    status = int((event.get("responseStatus") or {}).get("code", 0))
    return Call(str(event["verb"]), about.get("resource", "") + sub, about.get("name", ""), status)
