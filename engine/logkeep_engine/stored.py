"""Reads documents that Logkeep has stored, and says by the errors of a run what is wrong with one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from logkeep_engine.contract.nesting import WRONG
from logkeep_engine.contract.stored import DocumentRefused, DocumentUnknown, StoredDocument
from logkeep_engine.errors import ArchiveDamaged, ArchiveMismatch

OTHER_VERSION = "Another version of Logkeep wrote it: use that version."


@contextmanager
def reading(document: StoredDocument, data: str | bytes, name: str, *, hint: str) -> Iterator[dict[str, Any]]:
    """Hand out the values of the object `name`. Raises ArchiveMismatch for one of another version, and ArchiveDamaged
    with this hint for one that is none, also if it is found out as long as the context lasts."""
    try:
        yield document.loads(data)
    except DocumentUnknown as error:
        raise ArchiveMismatch(f"{name}: {error}.", hint=OTHER_VERSION) from error
    except DocumentRefused as error:
        raise ArchiveDamaged(f"{name}: {error}.", hint=hint) from error
    except WRONG as error:
        raise ArchiveDamaged(f"{name}: not a {document.what}: {error!r}.", hint=hint) from error
