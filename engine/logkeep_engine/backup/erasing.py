"""The erasures that a KafkaBackup asks for, after its run has ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import RunOutcome
from logkeep_engine.contract.erasures import Erasure
from logkeep_engine.contract.keys import different, keys_in
from logkeep_engine.contract.names import FILE_ERASED_KEYS, PATH_ERASURES_DIR
from logkeep_engine.contract.values import so_many
from logkeep_engine.erasure.run import ErasureAsked, erase
from logkeep_engine.errors import ErasureFailed, LogkeepError
from logkeep_engine.report import Reporter
from logkeep_engine.tasks import TaskRunner

log = logging.getLogger(__name__)


def erase_asked(
    archive: Archive,
    erasures: Sequence[Erasure] | None,
    runner_factory: Callable[[], TaskRunner],
    message: str = "",
    folder: str = PATH_ERASURES_DIR,
) -> str:
    """Carry out the erasures that the archive does not know as done, one after the other. Returns the run's message,
    and behind it what they have done. `folder` has their keys. The run of the backup has ended.

    All are tried. Raises ErasureFailed for the first that failed: the next run goes on with it.
    """
    if not erasures:
        return message
    runs = archive.load().runs
    told = [message] if message else []
    failures: list[ErasureFailed] = []
    for item in erasures:
        earlier = runs.get(item.run_id)
        if earlier is not None and earlier.outcome is RunOutcome.SUCCEEDED:
            continue
        try:
            told.append(_carry_out(archive, item, runner_factory, folder))
        except ErasureFailed as error:
            log.error("%s", error)
            failures.append(error)
    if failures:
        raise failures[0]
    return "; ".join(told)


def _carry_out(archive: Archive, item: Erasure, runner_factory: Callable[[], TaskRunner], folder: str) -> str:
    where = f"spec.erasures: {item.name}"
    asked = ErasureAsked(item.topic, different(_keys(item, where, folder)), item.asked_by or "")
    result = erase(item.run_id, archive.storage, asked, runner_factory, Reporter(item.run_id))
    if result.outcome != "Succeeded":
        error = ErasureFailed(f"{where}: {result.message}", hint="The backup itself has succeeded.")
        raise error.that_ends_with(result.exit_code)
    return (
        f"erasure {item.name} took {so_many(result.records, 'record')} out of {so_many(result.segments, 'segment')} of "
        f"topic {item.topic}"
    )


def _keys(item: Erasure, where: str, folder: str) -> list[bytes]:
    reference = item.keys_secret_ref
    try:
        content = (Path(folder) / item.name / FILE_ERASED_KEYS).read_bytes()
        return keys_in(content, item.encoding, f"key {reference.key} of Secret {reference.name}")
    except OSError:
        raise ErasureFailed(
            f"{where}: there is no key {reference.key} of a Secret {reference.name}",
            hint="Create the Secret with the keys to erase. On the command line, erase with `logkeep erase`.",
        ) from None
    except (ValueError, LogkeepError) as error:
        raise ErasureFailed(f"{where}: {error}", hint="Write one key on each line.") from None
