"""The erasures that a KafkaBackup asks for, after its run has ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import RunEntry, RunOutcome
from logkeep_engine.archive.catalog.writer import Writer
from logkeep_engine.contract.erasures import Erasure
from logkeep_engine.contract.keys import different, keys_in
from logkeep_engine.contract.names import ENV_ERASURES_DIR, ERASURE, FILE_ERASED_KEYS, PATH_ERASURES_DIR, ExitCode
from logkeep_engine.contract.values import so_many
from logkeep_engine.errors import ArchiveFenced, ErasureFailed, LogkeepError, by_place
from logkeep_engine.report import Reporter
from logkeep_engine.tasks import TaskRunner

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AskedErasures:
    """The erasures of `spec.erasures`. The variable LOGKEEP_ERASURES_DIR of `environ` names the folder with their keys,
    if that is not where the operator mounts it.

    They are done when nothing reads the archive by the state of the backup's writer any more: that names objects which
    an erasure deletes.
    """

    items: Sequence[Erasure] | None
    runner_factory: Callable[[], TaskRunner]
    environ: Mapping[str, str]

    def perform(self, archive: Archive) -> tuple[str, ...]:
        """Carry out what the archive does not know as done, when a backup has succeeded. Returns what was done.

        All are tried. Raises ErasureFailed for those that failed: the next run continues with them.
        """
        reported, failures = self._carry_out(archive)
        if not failures:
            return reported
        said = "; ".join((*reported, *(str(error) for error in failures)))
        error = ErasureFailed(f"The backup itself has succeeded, but not all erasures are done: {said}")
        codes = [failure.exit_code for failure in failures]
        first = (code for code in (ExitCode.INTERRUPTED, ExitCode.FAILED) if code in codes)
        raise error.that_ends_with(next(first, codes[0]))

    def after(self, error: BaseException, writer: Writer | None, *, tried_all: bool) -> tuple[str, ...]:
        """Carry them out after a run that has failed with `error`, which must not put them off for ever, or say that
        they wait. Returns warnings.

        They wait if the run has not `tried_all`, since its tasks may write yet, and if its end is not in the archive.
        """
        runs = writer.state.runs if writer is not None else {}
        waiting = ", ".join(item.name for item in self._undone(runs))
        if not waiting:
            return ()
        if writer is None or not tried_all or not _lets_erase(error) or runs[writer.run_id].end_time is None:
            unless = ", unless the archive records them as done" if writer is None else ""
            return (
                f"spec.erasures: {waiting}: not done, since the run failed first{unless}. The next run that "
                "finishes does it; `logkeep erase` with --run-id erasure-NAME and --owner does it at once.",
            )
        try:
            reported, failures = self._carry_out(writer.archive)
        except LogkeepError as problem:
            return (f"spec.erasures: {waiting}: not done: {problem}",)
        return (*(f"not done: {failure}" for failure in failures), *reported)

    def _undone(self, runs: Mapping[str, RunEntry]) -> Iterable[Erasure]:
        """Yield those that no run of the archive has done."""
        for item in self.items or ():
            run = runs.get(item.run_id)
            if run is None or run.kind != ERASURE or run.outcome is not RunOutcome.SUCCEEDED:
                yield item

    def _carry_out(self, archive: Archive) -> tuple[tuple[str, ...], list[ErasureFailed]]:
        """Do them; the first answer is what was done, the second what has failed."""
        lines: list[str] = []
        failures: list[ErasureFailed] = []
        for item in self._undone(archive.load().runs) if self.items else ():
            try:
                lines.append(self._erase(archive, item))
            except ErasureFailed as error:
                log.error("%s", error)
                failures.append(error)
                if error.exit_code == ExitCode.INTERRUPTED:
                    break
        return tuple(lines), failures

    def _erase(self, archive: Archive, item: Erasure) -> str:
        from logkeep_engine.erasure.run import ErasureAsked, erase  # most runs erase nothing

        where = f"spec.erasures: {item.name}"
        keys = different(self._keys(item, where, archive))
        asked = ErasureAsked(item.topic, keys, item.asked_by or "")
        result = erase(item.run_id, archive.storage, asked, self.runner_factory, Reporter(item.run_id), archive.claim)
        if result.outcome != "Succeeded":
            raise ErasureFailed(f"{where}: {result.message}").that_ends_with(result.exit_code)
        erased = f"{so_many(result.records, 'record')} out of {so_many(result.segments, 'segment')}"
        return f"erasure {item.name} took {erased} of topic {item.topic}"

    def _keys(self, item: Erasure, where: str, archive: Archive) -> list[bytes]:
        reference, uri, owner = item.keys_secret_ref, archive.storage.uri, archive.info.owner
        for_owner = f" --owner {owner.label}" if owner is not None else ""
        folder = self.environ.get(ENV_ERASURES_DIR)
        path = Path(folder or PATH_ERASURES_DIR) / item.name / FILE_ERASED_KEYS
        source = f"key {reference.key} of Secret {reference.name}"
        missing = by_place(f"there is no {source}", f"{ENV_ERASURES_DIR} is not set")
        wanted = by_place(
            "Create the Secret with the keys to erase",
            f"Write the keys to erase to {item.name}/{FILE_ERASED_KEYS} in the folder that {ENV_ERASURES_DIR} names",
        )
        try:
            return keys_in(path.read_bytes(), item.encoding, str(path) if folder else source)
        except OSError as error:
            raise ErasureFailed(
                f"{where}: {f'{path}: {error.strerror}' if folder else missing}",
                hint=f"{wanted}, one per line. Or use `logkeep erase {uri} --topic {item.topic} --run-id "
                f"{item.run_id} --keys-file FILE{for_owner}`: by this run id the archive knows that it is done.",
            ) from None
        except (ValueError, LogkeepError) as error:
            raise ErasureFailed(f"{where}: {error}", hint="Write one key per line.") from None


def _lets_erase(error: BaseException) -> bool:
    """Return whether the archive may be written after a run that has failed with `error`."""
    return isinstance(error, LogkeepError) and not isinstance(error, ArchiveFenced)
