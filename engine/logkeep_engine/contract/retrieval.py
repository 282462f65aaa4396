"""How a restore has objects retrieved that lie in a cold storage class, as written in `spec.source.retrieval`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from logkeep_engine.contract.model import Model
from logkeep_engine.contract.storage import StorageSpec
from logkeep_engine.contract.values import INT32, Duration, parse_duration

DEFAULT_DAYS = 7
MAX_DAYS = 365
DEFAULT_MAX_WAIT = "3d"  # S3 takes up to two for the slowest tier of the coldest class


class RetrievalTier(StrEnum):
    """How fast the store retrieves an object, and at which price."""

    STANDARD = "Standard"
    BULK = "Bulk"
    EXPEDITED = "Expedited"


class Retrieval(Model):
    """`days`: this long the retrieved copies can be read. `maxWait`: a start of the driver waits at most this long."""

    tier: RetrievalTier = RetrievalTier.STANDARD
    """How fast, and at which price, in the words of S3: Expedited in minutes (not from DEEP_ARCHIVE), Standard in
    hours, Bulk in up to two days. On Azure Expedited is the priority High, and the others are Standard."""
    days: Annotated[int, Field(ge=1, le=MAX_DAYS), INT32] = DEFAULT_DAYS
    """How long the retrieved copies can be read: longer than the slowest object and the restore itself take. On Azure
    objects are moved to the tier Hot, and stay there."""
    max_wait: Duration = DEFAULT_MAX_WAIT
    """How long one start of the driver waits, such as 12h or 3d. After that it fails and the Job starts it again;
    runPolicy.activeDeadlineSeconds limits all of it."""

    @property
    def max_wait_seconds(self) -> int:
        """The longest wait, in seconds."""
        return parse_duration(self.max_wait)


def refuse_without_classes(wanted: Retrieval | None, storage: StorageSpec | None) -> None:
    """Raises ValueError for a storage in which no object is ever cold."""
    if wanted is not None and storage is not None and storage.uri.startswith(("file:", "gs:")):
        raise ValueError("retrieval has no effect with a file:// or gs:// uri: all objects there can be read at once")
