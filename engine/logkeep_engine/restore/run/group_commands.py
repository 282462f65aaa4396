"""Resets and rolls back positions of consumer groups after a restore: what `logkeep groups` does.

    with open_groups(spec, run_id, os.environ) as run:
        run.reset(wanted)
        run.rollback(wanted)

Both refuse groups with members by name before any position is changed, write down what was before, and read back what
they have set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from logkeep_engine.contract.restore_spec import KafkaRestoreSpec, RestoreGroups
from logkeep_engine.errors import PositionsDiffer, SpecError, StateAltered, TargetChanged
from logkeep_engine.kafka.groups import STAYS, GroupPosition
from logkeep_engine.restore.claim.stored_plan import refuse_unknown, unknown_run
from logkeep_engine.restore.claim.takeover import RunClaim, refuse_alive
from logkeep_engine.restore.model.context import Planned, RestoreContext
from logkeep_engine.restore.model.selection import shown
from logkeep_engine.restore.model.state import RESULT, counted_ids
from logkeep_engine.restore.planning.planner import RestorePlanner
from logkeep_engine.restore.planning.restored_before import lost_topics, other_topics
from logkeep_engine.restore.positions.changes import ChangeLog, KeptChange, PositionChange, PositionKey, key_of
from logkeep_engine.restore.positions.groups import archived_end, change_positions, opener, positions_of, refuse_members
from logkeep_engine.restore.positions.moves import (
    PositionOutcome,
    chosen_names,
    refuse_unmatched,
    select_and_rename,
    translate,
)
from logkeep_engine.restore.positions.preview import PreviewedPosition, predicted_maps, preview_groups
from logkeep_engine.restore.run.opening import open_run

_REFUSED = PositionOutcome.REFUSED
_NO_RUN = "preview"  # of a restore that has not begun; nothing is written under this name


@dataclass(frozen=True, slots=True)
class ChangedPosition:
    """A position that a command has changed. `now`: what the group had right before, None if nothing."""

    change: PositionChange
    now: int | None
    outcome: PositionOutcome
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the row of a document."""
        group, topic, partition = self.change.key
        return {
            "group": group,
            "topic": topic,
            "partition": partition,
            "now": self.now,
            "offset": None if self.change.after is None else self.change.after.offset,
            "outcome": self.outcome.value,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Changed:
    """All positions that a command has changed. `document`: the object that has what was before."""

    positions: tuple[ChangedPosition, ...]
    document: str

    @property
    def refused(self) -> int:
        """How many positions the cluster has refused."""
        return sum(item.outcome is _REFUSED for item in self.positions)

    @property
    def left(self) -> int:
        """How many positions were left alone, since the groups have others by now."""
        return sum(item.outcome is PositionOutcome.KEPT for item in self.positions)

    @property
    def final(self) -> bool:
        """Whether asking again would change nothing more: what was refused, if anything, stays."""
        return all(item.outcome is not _REFUSED or item.reason in STAYS for item in self.positions)

    def raise_if_different(self) -> None:
        """Raises PositionsDiffer for a position that was set, and that the cluster has otherwise."""
        different = [item for item in self.positions if item.outcome is PositionOutcome.DIFFERENT]
        if different:
            first = different[0]
            raise PositionsDiffer.of(first.change.key, first.reason, len(different) - 1, self.document)


def at_point(spec: KafkaRestoreSpec) -> str:
    """Return the end of a sentence about archived groups: a point has other positions than `logkeep inspect` lists."""
    return "" if spec.point is None else " at spec.point"


@contextmanager
def open_groups(spec: KafkaRestoreSpec, run_id: str | None, environ: Mapping[str, str]) -> Iterator[RestoredGroups]:
    """Give the groups of a run of a restore; None: of one that has not begun. Raises what storage and brokers raise."""
    with open_run(spec, run_id or _NO_RUN, environ) as context:
        yield RestoredGroups(context, begun=run_id is not None)


class RestoredGroups:
    """The groups of one run of a restore; if none has `begun`, only a preview may be asked for."""

    def __init__(self, context: RestoreContext, *, begun: bool) -> None:
        self._context = context
        self._begun = begun
        self._log = ChangeLog(context.state, context.cluster_id)

    def preview(self, wanted: RestoreGroups, *, records: bool = True) -> list[PreviewedPosition]:
        """Return where the groups would stand: by the offset maps of the run if it has ended, else counted from the
        archive. Without a run, it is that of a restore which begins now. Nothing is written anywhere.

        Raises SpecError if there is no such run, and for a pattern that chooses no group.
        """
        if not self._begun:
            planned = RestorePlanner(self._context).sketch()
            self._refuse_unmatched(planned, wanted)
            maps = predicted_maps(self._context, planned)
            return preview_groups(self._context, planned, wanted, maps, records=records)
        planned = self._planned()
        self._refuse_unmatched(planned, wanted)
        if self._has_ended():
            self._refuse_gone(planned)
        maps = (
            opener(self._context.state, planned.plan.topics)
            if self._has_ended()
            else predicted_maps(self._context, planned)
        )
        return preview_groups(self._context, planned, wanted, maps, records=records)

    def reset(self, wanted: RestoreGroups) -> Changed:
        """Set the groups to where they stood, also those that have a position in the target.

        Raises GroupsHaveMembers, PositionsDiffer, TargetChanged, and SpecError if the run has not succeeded, a pattern
        chooses no group, or none of the groups stands in a restored topic.
        """
        planned, state = self._planned(), self._context.state
        if not self._has_ended():
            raise SpecError(
                f"run {self._context.run_id} has not succeeded: its offset maps may lack something",
                hint="Let the run finish, then set the positions.",
            )
        self._refuse_unmatched(planned, wanted)
        self._refuse_gone(planned)
        entries = select_and_rename(planned.archived.groups, wanted)
        moves = translate(entries, planned.plan.topics, opener(state, planned.plan.topics), archived_end(planned))
        if not moves:
            raise SpecError(
                f"no archived group that is chosen has a position in a restored topic{at_point(self._context.spec)}",
                hint="`logkeep inspect` lists the archived groups; --include and --exclude choose among them. A point "
                "has the positions that a backup had archived before it.",
            )
        names = {move.group.group_id for move in moves}
        refuse_members(self._context.control, names)
        there = positions_of(self._context.control, (move.position for move in moves))
        changes = [PositionChange(there.get(key_of(move.position)), move.position) for move in moves]
        number = self._log.keep(changes)
        changed = self._change(changes, number, there, {})
        self._log.note_made(number, [item.change.key for item in changed.positions if item.outcome is _REFUSED])
        changed.raise_if_different()
        return changed

    def rollback(self, wanted: RestoreGroups) -> Changed:
        """Take back the newest change that was not taken back: groups get the positions that they had before, and those
        that they did not have are deleted. Of a change that died, a group that has another position than the change was
        to set keeps it: the change may have ended before it set that.

        Raises StateAltered for a change of other groups than are chosen, or of other topics than are restored: what is
        written down of a change is a claim. Raises SpecError for options that choose a part of the change only, and if
        there is nothing to take back. Raises RestoreBusy if the run, or the one that continues in its place, has not
        ended: it may set positions after this. Raises GroupsHaveMembers and PositionsDiffer.
        """
        self._check_run()
        state = self._context.state
        refuse_alive(RunClaim.after(state, state).last)
        kept = self._log.newest()
        if kept is None:
            refuse_unknown(state)
            raise SpecError(
                f"run {self._context.run_id} has changed no position of a consumer group that was not rolled back",
                hint="`logkeep groups rollback` undoes what a restore or `logkeep groups reset` has changed.",
            )
        self._refuse_others(kept, wanted)
        changes = [change.undone() for change in kept.changes]
        refuse_members(self._context.control, {item.position.group_id for item in changes})
        there = positions_of(self._context.control, (item.position for item in changes))
        others = (
            {}
            if kept.made
            else {item.key: reported for item in changes if (reported := _describe_other(item, there.get(item.key)))}
        )
        changed = self._change(changes, kept.number, there, others)
        changed.raise_if_different()
        if changed.final:
            self._log.note_rolled_back(kept.number)
        return changed

    def _refuse_gone(self, planned: Planned) -> None:
        """Raises TargetChanged for restored topics that are not there any more, or not the same: positions would lead
        into nothing, or into other records."""
        context = self._context
        there = context.control.topic_ids(topic.target for topic in planned.plan.topics)
        others = other_topics(counted_ids(context.state), there)
        gone = [*dict.fromkeys([*lost_topics(planned.plan, there), *others])]
        if gone:
            raise TargetChanged(
                f"run {context.run_id} has restored {shown(gone)}, but the cluster no longer has it: it was deleted, "
                "or created again; no position was changed",
                hint="Restore the topics again under another run id, and set the positions of that run.",
            )

    def _refuse_unmatched(self, planned: Planned, wanted: RestoreGroups) -> None:
        of_spec = wanted.include == self._context.spec.consumer_groups.include
        field = "spec.consumerGroups.include" if of_spec else "--include"
        refuse_unmatched(planned.archived.groups, wanted, field, at_point(self._context.spec))

    def _refuse_others(self, kept: KeptChange, wanted: RestoreGroups) -> None:
        planned = RestorePlanner(self._context).load_claimed(found=False)
        of_spec = self._context.spec.consumer_groups
        if wanted.include != of_spec.include:
            self._refuse_unmatched(planned, wanted)
        groups = chosen_names(planned.archived.groups, wanted)
        self._refuse_a_part(kept, chosen_names(planned.archived.groups, of_spec) - groups)
        counts = {topic.target: topic.partition_count for topic in planned.plan.topics}
        for change in kept.changes:
            group, topic, partition = change.key
            if group not in groups or not 0 <= partition < counts.get(topic, 0):
                raise StateAltered(
                    f"{self._log.name(kept.number)}: it has a position of group {group!r} in topic {topic!r} partition "
                    f"{partition}, but this restore moves no such group in such a topic; no position was changed",
                    hint="If `logkeep groups reset` was given other groups than the spec has, give this command the "
                    "same ones. Otherwise the object was altered: find out who can write to the place of the state.",
                )

    def _refuse_a_part(self, kept: KeptChange, left_out: set[str]) -> None:
        """Raises SpecError for a change of groups that the spec chooses and the options do not: it was not
        altered."""
        names = sorted({change.key[0] for change in kept.changes} & left_out)
        if names:
            raise SpecError(
                f"the last change ({self._log.name(kept.number)}) has positions of groups that --include and --exclude "
                f"do not choose: {shown([*map(repr, names)])}; no position was changed",
                hint="A rollback undoes a whole change: choose all of its groups, or leave the options out.",
            )

    def _change(
        self,
        changes: Sequence[PositionChange],
        number: int,
        now: Mapping[PositionKey, GroupPosition],
        others: Mapping[PositionKey, str],
    ) -> Changed:
        """Make changes that are written down as `number`, but for those of `others`, each with the reason. `now` are
        the positions right before."""
        refused, different = change_positions(
            [item for item in changes if item.key not in others], self._context.control
        )
        found = []
        for change in changes:
            outcome, reason = PositionOutcome.SET, ""
            if change.key in others:
                outcome, reason = PositionOutcome.KEPT, others[change.key]
            elif change.key in refused:
                outcome, reason = PositionOutcome.REFUSED, refused[change.key].error
            elif change.key in different:
                outcome, reason = PositionOutcome.DIFFERENT, different[change.key]
            before = now.get(change.key)
            found.append(ChangedPosition(change, None if before is None else before.offset, outcome, reason))
        return Changed(tuple(found), self._log.name(number))

    def _planned(self) -> Planned:
        self._check_run()
        planned = RestorePlanner(self._context).load()
        if planned is None:
            raise unknown_run(self._context.state)
        return planned

    def _check_run(self) -> None:
        try:
            self._context.state.file(RESULT)
        except ValueError as error:
            raise SpecError(str(error), hint="Name the run of a restore.") from error

    def _has_ended(self) -> bool:
        return self._context.state.success() is not None


def _describe_other(change: PositionChange, now: GroupPosition | None) -> str:
    """Tell that a group has neither the position of before the change nor that of after it; empty if it has one of
    these, or none: there is nothing to lose then."""
    known = [item.offset for item in (change.before, change.after) if item is not None]
    if now is None or now.offset in known:
        return ""
    return f"the group has offset {now.offset} now, not offset {known[0]} of the change"
