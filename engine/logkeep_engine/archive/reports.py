"""Reports of what was found: proofs, which are created and never overwritten. The first one of a run has the plain
name, `verification.json`; later ones are numbered from 2 on, `verification-2.json`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from logkeep_engine.archive.names import run_file
from logkeep_engine.errors import ObjectExists
from logkeep_engine.storage import Storage

_DIGITS = 9


def reports_of(storage: Storage, run_id: str, name: str) -> list[str]:
    """Return the names of all reports of a run that are numbered as `name`, the oldest one first."""
    return [found for _, found in sorted(_numbered(storage, run_id, name, ending=True))]


def create_report(storage: Storage, run_id: str, name: str, content: bytes) -> str:
    """Create a report under the first name that neither it nor another kind of the same report has, and return that
    name."""
    used = [number for number, _ in _numbered(storage, run_id, name, ending=False)]
    number = max(used, default=0)
    while True:
        number += 1
        free = _name(name, number)
        try:
            storage.create(run_file(run_id, free), content)
        except ObjectExists:  # of another writer, or of this call, whose answer was lost: the next name is as good
            continue
        return free


def _numbered(storage: Storage, run_id: str, name: str, *, ending: bool) -> Iterator[tuple[int, str]]:
    stem, dot, suffix = name.rpartition(".")
    kinds = re.escape(suffix) if ending else "[a-z]+"
    pattern = re.compile(rf"{re.escape(stem)}(?:-([1-9][0-9]{{0,{_DIGITS - 1}}}))?{re.escape(dot)}{kinds}")
    for info in storage.list(run_file(run_id, stem)):
        found = info.path.rpartition("/")[2]
        if info.path == run_file(run_id, found) and (match := pattern.fullmatch(found)):
            yield int(match[1] or 1), found


def _name(name: str, number: int) -> str:
    stem, dot, suffix = name.rpartition(".")
    return name if number == 1 else f"{stem}-{number}{dot}{suffix}"
