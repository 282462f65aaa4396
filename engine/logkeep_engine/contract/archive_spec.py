"""The typed spec of a `KafkaArchive`, which KafkaBackups and KafkaRestores name in place of a storage of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from logkeep_engine.contract.model import Model, rule
from logkeep_engine.contract.parsing import parse_model
from logkeep_engine.contract.storage import ArchiveSpec


class KafkaArchiveSpec(Model):
    """Where an archive is, and how pods log in there."""

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


def parse_archive(spec: Mapping[str, Any]) -> KafkaArchiveSpec:
    """Return the typed spec; raises SpecInvalid whose problems name the fields (`spec.storage.uri`)."""
    return parse_model(KafkaArchiveSpec, spec)
