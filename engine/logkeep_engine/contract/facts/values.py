"""The values that facts have: numbers, times and texts within bounds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, model_serializer

from logkeep_engine.contract.model import Model, schema
from logkeep_engine.contract.names import BACKUP, RESTORE

T = TypeVar("T")

MAX_LISTED = 20  # items of a list that a status shows
MAX_INTEGER = 2**63 - 1


def timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC, to the second, as Kubernetes writes it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Facts(Model):
    """In JSON, None and empty lists are left out."""

    @model_serializer(mode="wrap")
    def _without_what_is_not_there(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in handler(self).items() if value is not None and value not in ([], ())}

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return self.model_dump(mode="json", by_alias=True)


Count = Annotated[int, Field(strict=True, ge=0, le=MAX_INTEGER)]
Count32 = Annotated[Count, schema(format="int32")]
Whole = Annotated[int, Field(strict=True, ge=-MAX_INTEGER, le=MAX_INTEGER)]
Timestamp = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


def _first(items: tuple[T, ...]) -> tuple[T, ...]:
    return items[:MAX_LISTED]


Listed = Annotated[tuple[T, ...], AfterValidator(_first), schema(maxItems=MAX_LISTED)]


class Only:
    """Marks a field that only one kind of resource has."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


OnlyBackup, OnlyRestore = Only(BACKUP), Only(RESTORE)
