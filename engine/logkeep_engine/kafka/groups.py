"""Consumer groups of a cluster: which there are, and their committed positions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from logkeep_engine.kafka.admin import Admin, in_a_loop
from logkeep_engine.kafka.codes import UNREACHABLE, Code
from logkeep_engine.kafka.encoding import Call
from logkeep_engine.kafka.features import SHARE_VERSION
from logkeep_engine.kafka.group_list import ListedGroup, listed_groups
from logkeep_engine.kafka.positions import (
    ChangeRequest,
    FetchedPosition,
    FetchedPositions,
    change_positions,
    commit_request,
    committed_positions,
    delete_request,
    fetch_positions,
)
from logkeep_engine.kafka.share_groups import NOT_DONE, delete_starts, fetch_starts, set_starts

_HAS_MEMBERS = frozenset(
    {
        "UNKNOWN_MEMBER_ID",
        "ILLEGAL_GENERATION",
        "REBALANCE_IN_PROGRESS",
        "STALE_MEMBER_EPOCH",
        "FENCED_MEMBER_EPOCH",
        "NON_EMPTY_GROUP",
        "GROUP_SUBSCRIBED_TO_TOPIC",
    }
)
_ABSENT = frozenset({"GROUP_ID_NOT_FOUND", "INVALID_GROUP_ID", "UNKNOWN_TOPIC_OR_PARTITION"})
_TOO_OLD = "the brokers set no start offsets of share groups"
_NOT_REPORTED = "the brokers do not report where share groups begin"
SHARE_OFF = "share groups are switched off in the cluster: its feature share.version is 0"
_UNDELETABLE = (
    "the brokers have no request that deletes start offsets of a share group (DeleteShareGroupOffsets, key 92): it "
    "stays until the group is deleted"
)
_WHOLE_TOPICS = (
    "Kafka deletes start offsets of a share group only in all partitions of a topic, and another partition has one to "
    "keep: it stays until the group is deleted"
)
STAYS = frozenset({_UNDELETABLE, _WHOLE_TOPICS})
"""Reasons of start offsets that were not deleted, and would not be if it was asked again."""
_NO_SUCH_GROUP = frozenset({Code.GROUP_ID_NOT_FOUND, Code.INVALID_GROUP_ID})


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """A committed position: `offset` is the next record to read. `leader_epoch` is -1 if the group did not say. Of a
    `share` group it is the start offset."""

    group_id: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    share: bool = False


@dataclass(frozen=True, slots=True)
class GroupPositions:
    """`notes` says which groups vanished or had no positions. `negative` are commits of an offset below 0, which no
    client takes for a position. `unreported` are share groups that the cluster does not report, and `why` is the
    reason."""

    offsets: tuple[GroupPosition, ...]
    notes: tuple[str, ...] = ()
    negative: tuple[GroupPosition, ...] = ()
    unreported: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class NotSet:
    """A position that the coordinator has refused; `error` is the protocol's name of the reason, or what cannot be
    done."""

    position: GroupPosition
    error: str

    @property
    def has_members(self) -> bool:
        """The group has members: only a member may commit for it."""
        return self.error in _HAS_MEMBERS


class GroupAdmin(Admin):
    """Questions and orders about consumer groups."""

    def group_offsets(self, group_ids: Iterable[str]) -> GroupPositions:
        """Return all positions of these groups as they are committed now. Groups that vanished are noted, not an
        error."""
        groups = sorted(set(group_ids))
        found = self._positions(groups)
        notes = tuple(
            f"Consumer group {group!r} vanished or has no committed offsets."
            for group in groups
            if not found.get(group)
        )
        positions = [item for group in groups for item in found.get(group, ())]
        negative = tuple(item for item in positions if item.offset < 0)
        return GroupPositions(tuple(item for item in positions if item.offset >= 0), notes, negative)

    def share_starts(self, group_ids: Iterable[str]) -> GroupPositions:
        """Return the start offsets of these share groups. Groups whose start offsets the cluster does not report are
        `unreported`: brokers without the request, and those of a cluster that has share groups switched off."""
        groups = sorted(set(group_ids))
        if groups and not self._speaks(fetch_starts(groups[0])):
            return GroupPositions((), unreported=tuple(groups), why=_NOT_REPORTED)
        off: list[str] = []
        found = self._positions(groups, fetch_starts, share=True, off=off)
        positions = tuple(item for group in groups for item in found.get(group, ()))
        return GroupPositions(positions, unreported=tuple(off), why=SHARE_OFF if off else "")

    def share_groups_off(self) -> str:
        """Return why the cluster takes no start offsets of share groups, by its requests and features; "" if it takes
        them. Unlike `share_starts` it makes no broker create the topic of groups."""
        if not self._speaks(set_starts("", ())):
            return _TOO_OLD
        levels = self.features()
        return SHARE_OFF if levels and not levels.get(SHARE_VERSION) else ""

    def _speaks(self, call: Call[Any]) -> bool:
        return self._ask(lambda survey: survey.pool.speaks(survey.pool.any_node(), call), "ask for versions")

    def _positions(
        self,
        groups: Sequence[str],
        fetch: Callable[[str], Call[FetchedPositions]] = fetch_positions,
        *,
        share: bool = False,
        off: list[str] | None = None,
    ) -> dict[str, list[GroupPosition]]:
        """By group, sorted; without groups that vanished. Negative ones are among them. Groups of a kind that the
        cluster has switched off are added to `off`."""
        deadline = time.monotonic() + self._timeout
        found: dict[str, list[GroupPosition]] = {}
        left = list(groups)
        while left:
            answers = in_a_loop(committed_positions(self._connection, left, fetch))
            again: list[str] = []
            for group in left:
                answer = answers[group]
                if answer.code == Code.NONE:
                    found[group] = [
                        GroupPosition(
                            group, item.topic, item.partition, item.offset, item.leader_epoch, item.metadata, share
                        )
                        for item in sorted(answer.positions + answer.negative, key=_place)
                    ]
                elif answer.code in UNREACHABLE and time.monotonic() <= deadline:
                    again.append(group)
                elif off is not None and answer.code == Code.UNSUPPORTED_VERSION:
                    off.append(group)
                elif answer.code not in _NO_SUCH_GROUP:
                    kind = "share" if share else "consumer"
                    what = f"read the offsets of {kind} group {group!r} (ACL DESCRIBE on the group and its topics)"
                    raise self._error(answer.code, what)
            left = again
            if left:
                time.sleep(self._connection.limits.control_pause)
        return found

    def listed_groups(self) -> Mapping[str, ListedGroup]:
        """Return all groups that this user may describe, by name: of which kind they are, and whether they have
        members."""
        return self._ask(lambda survey: listed_groups(survey.pool), "list groups")

    def set_group_offsets(self, offsets: Iterable[GroupPosition]) -> list[NotSet]:
        """Commit positions for their groups; returns those that were refused: above all those of groups with members.

        What was committed before is replaced. Needs the ACL READ on the groups and the topics.
        """
        # A coordinator may hear of a new topic later than the others.
        again = UNREACHABLE | {Code.UNKNOWN_TOPIC_OR_PARTITION}
        wanted = list(offsets)
        shared = [item for item in wanted if item.share]
        refused = self._change(
            (item for item in wanted if not item.share),
            commit_request,
            again,
            "set the offsets of consumer group",
            "READ",
        )
        if shared and not self._speaks(set_starts("", ())):
            return refused + [NotSet(item, _TOO_OLD) for item in shared]
        return refused + self._change(shared, set_starts, again, "set the start offsets of share group", "READ")

    def delete_group_offsets(
        self, offsets: Iterable[GroupPosition], then_set: Iterable[GroupPosition] = ()
    ) -> list[NotSet]:
        """Delete positions of groups; returns those that were refused. One that is not there is no error.

        Kafka deletes start offsets of share groups by topic. Those of `then_set`, which the caller sets after this, may
        go with them; where others would, none is deleted. Needs the ACL DELETE on the groups, and READ on the topics.
        """
        wanted = list(offsets)
        refused = self._change(
            (item for item in wanted if not item.share),
            delete_request,
            UNREACHABLE,
            "delete the offsets of consumer group",
            "DELETE",
        )
        found = [item for item in refused if item.error not in _ABSENT]
        return found + self._delete_starts([item for item in wanted if item.share], then_set)

    def _delete_starts(self, wanted: Sequence[GroupPosition], then_set: Iterable[GroupPosition]) -> list[NotSet]:
        reported = self.share_starts(item.group_id for item in wanted)
        there = {(item.group_id, item.topic, item.partition) for item in reported.offsets}
        may_go = {(item.group_id, item.topic, item.partition) for item in (*wanted, *then_set)}
        stay = {(group, topic) for group, topic, _ in there - may_go}
        refused = [NotSet(item, reported.why) for item in wanted if item.group_id in reported.unreported]
        found = [item for item in wanted if (item.group_id, item.topic, item.partition) in there]
        if found and not self._speaks(delete_starts("", ())):
            return refused + [NotSet(item, _UNDELETABLE) for item in found]
        refused += [NotSet(item, _WHOLE_TOPICS) for item in found if (item.group_id, item.topic) in stay]
        go = [item for item in found if (item.group_id, item.topic) not in stay]
        failed = self._change(go, delete_starts, UNREACHABLE, "delete the start offsets of share group", "DELETE")
        return refused + [item for item in failed if item.error not in _ABSENT]

    def _change(
        self,
        offsets: Iterable[GroupPosition],
        change: ChangeRequest,
        passing: frozenset[int],
        what: str,
        right: str,
    ) -> list[NotSet]:
        """Make the change, again where the error is one of those that are `passing`. `what` is done to a group, for
        messages."""
        deadline = time.monotonic() + self._timeout
        refused: list[NotSet] = []
        left = list(offsets)
        while left:
            wanted: dict[str, list[FetchedPosition]] = {}
            for item in left:
                position = FetchedPosition(item.topic, item.partition, item.offset, item.leader_epoch, item.metadata)
                wanted.setdefault(item.group_id, []).append(position)
            codes = in_a_loop(change_positions(self._connection, wanted, change, self._permit))
            again: list[GroupPosition] = []
            for item in left:
                # What an answer leaves out was perhaps not done: this code asks for it again.
                code = codes[item.group_id].get((item.topic, item.partition), Code.COORDINATOR_NOT_AVAILABLE)
                if code == Code.NONE:
                    self.note_change()
                    continue
                if code in passing:
                    again.append(item)
                else:
                    refused.append(NotSet(item, _reason(code, share=item.share)))
            left = again
            if left and time.monotonic() > deadline:
                first = left[0]
                code = codes[first.group_id].get((first.topic, first.partition), Code.COORDINATOR_NOT_AVAILABLE)
                of = f"{what} {first.group_id!r} (ACL {right} on the group and its topics)"
                raise self._error(code, of)
            if left:
                time.sleep(self._connection.limits.control_pause)
        return refused


def _reason(code: int, *, share: bool) -> str:
    if share and code == Code.UNSUPPORTED_VERSION:
        return SHARE_OFF
    return _TOO_OLD if code == NOT_DONE else Code.name_of(code)


def _place(position: FetchedPosition) -> tuple[str, int]:
    return position.topic, position.partition
