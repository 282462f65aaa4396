"""Waits for the end of a run that an object of the API shows, and ends with its exit code."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import typer

from logkeep_engine.cli.kubectl.errors import BackupInvalid
from logkeep_engine.cli.kubectl.lines import clean, condition, part
from logkeep_engine.cli.options import Output
from logkeep_engine.cli.output import print_json, say
from logkeep_engine.contract.names import ExitCode
from logkeep_engine.errors import LogkeepError

POLL_SECONDS = 1.0
# It may be created later. A user who waits at a terminal has more likely mistyped its name.
_MISTYPED = "BackupNotFound"
_DRY_RUN_DONE, _DRY_RUN_REFUSED = "DryRunDone", "DryRunRefused"
# What the operator says of a resource before a run: until it is changed there will be none.
_NEVER_STARTED = frozenset({"InvalidSpec", "NotAllowed", "BackupInvalid"})


class StillRunning(LogkeepError):
    """The run had not ended within the time that the user has given."""

    code = "StillGoesOn"


@dataclass(frozen=True)
class RunEnd:
    """How a run has ended: its exit code, and what is said of it."""

    code: ExitCode
    message: str


def ended(body: Mapping[str, Any]) -> RunEnd | None:
    """Return how the run of a resource has ended, None while it is running."""
    ready, stalled = condition(body, "Ready"), condition(body, "Stalled")
    if ready.get("status") == "True" or ready.get("reason") == _DRY_RUN_DONE:
        return RunEnd(ExitCode.OK, str(ready.get("message") or ""))
    if stalled.get("status") == "True":
        reason = str(stalled.get("reason") or "RunFailed")
        code = None if reason in _NEVER_STARTED else _code_of_run(body)
        return RunEnd(code or exit_code(reason), f"{reason}: {stalled.get('message')}")
    if ready.get("reason") == _MISTYPED:
        return RunEnd(ExitCode.REFUSED, f"{_MISTYPED}: {ready.get('message')}")
    return None


def refuse_invalid(backup: Mapping[str, Any]) -> None:
    """Raises BackupInvalid for a KafkaBackup that the operator has found wrong as it is now: none of its runs would
    ever begin."""
    metadata, status = backup.get("metadata") or {}, backup.get("status") or {}
    stalled = condition(backup, "Stalled")
    reason = str(stalled.get("reason"))
    looked = status.get("observedGeneration") == metadata.get("generation")
    if stalled.get("status") == "True" and reason in _NEVER_STARTED and looked:
        raise BackupInvalid(
            f"KafkaBackup {metadata.get('name')!r} cannot run: {reason}: {stalled.get('message')}",
            hint="Nothing was created. Correct the KafkaBackup, and try again.",
        )


def _code_of_run(body: Mapping[str, Any]) -> ExitCode | None:
    """Return the exit code that the driver of the last run has reported, if that run has failed."""
    run = part(body, "status", "run")
    if not isinstance(run, Mapping) or run.get("outcome") != "Failed":
        return None
    code = run.get("exitCode")
    return next((known for known in ExitCode if known == code and known != ExitCode.OK), None)


def exit_code(reason: str) -> ExitCode:
    """Return the exit code of a run that has failed for a reason, as its driver has ended with."""
    if reason == _DRY_RUN_REFUSED or reason in _NEVER_STARTED:
        return ExitCode.REFUSED
    return next((kind.exit_code for kind in _errors(LogkeepError) if kind.code == reason), ExitCode.FAILED)


def _errors(kind: type[LogkeepError]) -> list[type[LogkeepError]]:
    return [kind, *(found for below in kind.__subclasses__() for found in _errors(below))]


def follow(
    look: Callable[[], dict[str, Any]],
    line: Callable[[Mapping[str, Any]], str],
    timeout: float | None,
    output: Output,
    hint: str,
) -> None:
    """Look until the run has ended, say each new line about it, and end with its exit code. Raises StillGoesOn after
    `timeout` seconds, and what `look` raises. `hint` says how to follow the run when the command no longer waits."""
    body, end = _wait(look, line, timeout, hint)
    if output is Output.JSON:
        print_json(clean(body))
    say(f"error: {end.message}" if end.code else end.message)
    if end.code:
        raise typer.Exit(int(end.code))


def _wait(
    look: Callable[[], dict[str, Any]],
    line: Callable[[Mapping[str, Any]], str],
    timeout: float | None,
    hint: str,
) -> tuple[dict[str, Any], RunEnd]:
    until = None if timeout is None else time.monotonic() + timeout
    last = ""
    try:
        while True:
            body = look()
            end = ended(body)
            if end is not None:
                return body, end
            reported = line(body)
            if reported != last:
                say(reported)
                last = reported
            if until is not None and time.monotonic() > until:
                raise StillRunning(f"The run has not ended within {timeout:g} s. It is not stopped.", hint=hint)
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        say(f"hint: the run continues. {hint}")
        raise
