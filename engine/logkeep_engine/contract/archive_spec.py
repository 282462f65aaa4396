"""The typed spec of a `KafkaArchive`, which KafkaBackups and KafkaRestores name in place of a storage of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from logkeep_engine.contract.model import Model, rule
from logkeep_engine.contract.parsing import parse_model
from logkeep_engine.contract.prices import Prices
from logkeep_engine.contract.storage import ArchiveSpec


class KafkaArchiveSpec(Model):
    """Where an archive is, how pods log in there, and what storing it costs."""

    storage: Annotated[
        ArchiveSpec,
        rule(
            "self.uri == oldSelf.uri",
            "storage.uri cannot be changed: backups and restores rely on it; create another KafkaArchive",
        ),
    ]
    """The place of the archive, with what pods need to reach it. The Secrets that it names are in the namespace of the
    KafkaArchive. A change of other fields than uri counts as the same change in each KafkaBackup that names it: its
    next run begins."""
    prices: Prices | None = None
    """Prices of the object store, as `logkeep inspect --cost --prices` takes them in a file: docs/cli.md shows one.
    They give status.cost, and the price of what `kubectl logkeep inspect --cost` shows. No run begins when they
    change."""


def parse_archive(spec: Mapping[str, Any]) -> KafkaArchiveSpec:
    """Return the typed spec; raises SpecInvalid whose problems name the fields (`spec.storage.uri`)."""
    return parse_model(KafkaArchiveSpec, spec)
