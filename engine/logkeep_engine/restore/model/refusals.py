"""The errors that end a restore before it writes. A run ends with the first; a dry run gathers them and continues."""

from __future__ import annotations

from types import TracebackType

from logkeep_engine.errors import BrokerUnavailable, LogkeepError, ObjectMissing, Refused, TopicGone

_GATHERED = (Refused, BrokerUnavailable, TopicGone, ObjectMissing)


class Refusals:
    """Wraps each check that does not need the one before it, in a `with`. If they are not `gathered`, it does nothing:
    the first error is raised."""

    def __init__(self, *, gathered: bool = False) -> None:
        self.gathered = gathered
        self.found: list[LogkeepError] = []

    def add(self, error: LogkeepError) -> None:
        """Note an error once, however many checks find it. Raises it if errors are not gathered."""
        if not self.gathered:
            raise error
        if all(str(error) != str(known) for known in self.found):
            self.found.append(error)

    def __enter__(self) -> Refusals:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not self.gathered or not isinstance(error, _GATHERED):
            return False
        self.add(error)
        return True
