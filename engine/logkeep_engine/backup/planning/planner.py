"""Asks the cluster what there is to archive, stores the plan, and asks again for partitions that gave no answer.

A run's plan is stored before its first task and never changes. Every attempt asks again for the partitions that were
unavailable. Those that answer get their own plan, stored next to the first one (`plan-2.json` and so on) in the
same way. So the bounds of chunks stay as they were whenever a driver dies.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.cluster_state import LeftOutRow
from logkeep_engine.archive.catalog.facts import Gap, Partition, TopicEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.plans import backup_plan_files
from logkeep_engine.archive.reading.beginnings import missing_beginnings
from logkeep_engine.backup.model.plan import ALL_PARTITIONS, BackupPlan, GoneTopic, TopicPartition
from logkeep_engine.backup.model.selection import (
    added_topics,
    check_incarnations,
    check_names,
    check_topic_ids,
    deleted_topics,
    select_topics,
    unlisted_topics,
)
from logkeep_engine.backup.model.unselected_topics import Names, UnselectedTopics, left_out, missed
from logkeep_engine.backup.planning.balance import balance
from logkeep_engine.backup.planning.divergence import Standings, standings_of
from logkeep_engine.backup.planning.generations import GenerationPolicy
from logkeep_engine.backup.planning.groups import describe_changed_positions, find_groups
from logkeep_engine.backup.planning.held_plan import plan_in, refuse_strange
from logkeep_engine.backup.planning.plan_builder import BrokerAnswers, gaps_of_deleted, make_plan, unheard_of
from logkeep_engine.backup.planning.remote import cut_remote
from logkeep_engine.contract.archive_format import FormatName
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.spec import KafkaBackupSpec, OnDivergence
from logkeep_engine.contract.values import so_many
from logkeep_engine.errors import BrokerRefused, BrokerUnavailable, ObjectExists, ObjectMissing
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.kafka.control import Bounds, ControlPlane
from logkeep_engine.kafka.topics import PartitionInfo, TopicInfo
from logkeep_engine.kafka.witnesses import Fate

log = logging.getLogger(__name__)

PLANNING_TRIES = 5
LEADER_TRIES = 5

_DELETED = (Fate.GONE, Fate.RECREATED)


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """A plan up to the ends that logs have now, and the partitions whose leaders have reported them."""

    plan: BackupPlan
    answered: frozenset[Partition]


class BackupPlanner:
    """The plan of one run, with all that attempts have added to it."""

    def __init__(
        self, run_id: str, spec: KafkaBackupSpec, archive: Archive, control: ControlPlane, connection: KafkaConnection
    ) -> None:
        self._run_id = run_id
        self._spec = spec
        self._archive = archive
        self._control = control
        self._connection = connection
        self._files = backup_plan_files()
        self._next_file = next(self._files)
        self.notes: list[str] = []
        """Notes for the user about groups and positions that are not archived, or otherwise."""
        self._left_out: tuple[LeftOutRow, ...] | None = None

    def load_or_make(self, state: ArchiveState) -> BackupPlan:
        """Return the plan of an earlier attempt of this run, or a new one. Raises ArchiveDamaged for one whose
        beginning the catalog has lost."""
        plan = self._load(state)
        if plan is not None:
            log.info("continuing with the plan of an earlier attempt")
            while (more := self._load(state)) is not None:
                plan = plan.extended(more)
            return plan
        return self._store(self.make(state), state)

    def ask_again(self, plan: BackupPlan, state: ArchiveState) -> BackupPlan | None:
        """Return the plan, with the partitions that were unavailable and answer now; None if there are none.

        Raises BrokerRefused, and ArchiveMismatch for a topic that the archive's format cannot hold next to an older one
        of its name.
        """
        try:
            more = self._add(plan, state)
        except BrokerUnavailable as error:
            log.warning("what did not answer cannot be queried again: %s", error)
            return None
        except BrokerRefused as error:
            hint = "If a topic was deleted, and its ACLs with it, exclude it with spec.topics.exclude."
            raise BrokerRefused(error.message, hint=f"{error.hint} {hint}" if error.hint else hint) from error
        # A plan must never be extended with itself: it would learn nothing about what it knows as gone.
        if more is plan or (set(more.unavailable) == set(plan.unavailable) and not more.gone):
            return None
        return plan.extended(self._store(more, state))

    def catch_up(self, plan: BackupPlan, state: ArchiveState, keys: Collection[Partition]) -> CaughtUp:
        """Plan the end that the logs of these partitions have now. A partition that gives no answer, or whose log was
        cut off, is not among those in the answer."""
        names, ids = plan.topic_names, {topic.name: topic.topic_id for topic in plan.topics}
        among = {(names[topic_id], number) for topic_id, number in keys}
        found = self._control.list_topics(sorted({name for name, _ in among}))[0]
        topics = [topic for topic in found if topic.topic_id == ids.get(topic.name)]
        notes = list(self.notes)
        more = self._plan(topics, topics, state, {}, among)
        self.notes[:] = notes  # the positions of now are not archived
        parted = {(fork.topic_id, fork.partition) for fork in more.forks}
        missing = {(ids[name], number) for name, number in more.unavailable}
        there = {(topic.topic_id, part.id) for topic in topics for part in topic.partitions}
        answered = (set(keys) & there) - parted - missing
        if not (more.chunks or more.gaps or more.forks) or self._deleted_meanwhile(topics, more):
            return CaughtUp(plan, frozenset() if more.chunks or more.gaps or more.forks else frozenset(answered))
        more = replace(more, groups=(), idle=0, unavailable=plan.unavailable)
        return CaughtUp(plan.extended(self._store(more, state)), frozenset(answered))

    def left_out(self) -> tuple[LeftOutRow, ...]:
        """Return the groups that the backup does not archive. If an earlier attempt has made the plan, brokers are
        asked."""
        if self._left_out is None:
            self._left_out = find_groups(self._control, self._spec.consumer_groups, ()).left_out
        return self._left_out

    def _policy(self) -> GenerationPolicy:
        return GenerationPolicy(self._spec.generation_cycle_ms, time.time_ns() // 1_000_000)

    # ---- storing

    def _load(self, state: ArchiveState) -> BackupPlan | None:
        path = names.run_file(self._run_id, self._next_file)
        try:
            stored = self._archive.storage.read(path)
        except ObjectMissing:
            return None
        self._next_file = next(self._files)
        return self._held(stored, path, state)

    def _held(self, stored: bytes, path: str, state: ArchiveState) -> BackupPlan:
        name = f"{self._archive.storage.uri}/{path}"
        plan = plan_in(stored, name, self._run_id, state)
        refuse_strange(plan, name, self._spec, self._control)
        return plan

    def _store(self, plan: BackupPlan, state: ArchiveState) -> BackupPlan:
        storage, path = self._archive.storage, names.run_file(self._run_id, self._next_file)
        check_names(plan.topics, self._spec.format, storage)
        plan = replace(plan, begun=state.runs[self._run_id].begin_time)
        data = plan.to_json()
        try:
            storage.create(path, data)
        except ObjectExists:
            # Either the answer to this very request was lost, or another driver of this run was faster. Then the plan
            # of that one counts.
            stored = storage.read(path)
            plan = plan if stored == data else self._held(stored, path, state)
        self._next_file = next(self._files)
        return plan

    def make(self, state: ArchiveState) -> BackupPlan:
        """Return a new plan, which is not stored."""
        beginnings = missing_beginnings(self._archive, state)
        seen: dict[str, TopicInfo] = {}
        deadline = time.monotonic() + self._connection.limits.unknown
        for tries in count(1):
            topics, silent, unlisted, sight = self._select(state)
            seen |= {topic.topic_id: topic for topic in topics}
            listed = {topic.topic_id for topic in topics}
            fates = dict(self._fates([topic for topic_id, topic in seen.items() if topic_id not in listed]))
            gone = [topic_id for topic_id, fate in fates.items() if fate in _DELETED]
            hidden = {topic_id: seen[topic_id] for topic_id in fates if topic_id not in gone}
            hidden |= {topic.topic_id: topic for topic in unlisted if topic.topic_id not in hidden}
            # If there is such a topic, some broker that was asked knows an old state of the cluster.
            changed = min({topic.name for topic in hidden.values()} & {topic.name for topic in topics}, default="")
            if not changed:
                wanted = [*topics, *hidden.values()]
                plan = self._plan(wanted, topics, state, beginnings, generations=self._policy())
                changed = self._deleted_meanwhile(topics, plan)
            if not changed:
                # The partitions of a topic that is not listed are not all known.
                whole = {*silent, *(topic.name for topic in unlisted)}
                there = {topic.topic_id for topic in wanted}
                return replace(
                    plan,
                    gaps=(*plan.gaps, *self._gaps_of_deleted(state, there, whole, beginnings)),
                    unavailable=(
                        *(where for where in plan.unavailable if where[0] not in whole),
                        *((name, ALL_PARTITIONS) for name in sorted(whole)),
                    ),
                    gone=tuple(GoneTopic(seen[topic_id].name, topic_id) for topic_id in gone),
                    sight=sight,
                )
            if tries >= PLANNING_TRIES and time.monotonic() > deadline:
                break
            log.info("planning again: topic %s was deleted or created again in the meantime", changed)
            time.sleep(self._connection.limits.control_pause)
        raise BrokerUnavailable(
            f"Topic {changed!r} could not be planned: it keeps being deleted and created again, or the brokers do "
            "not agree on its topic id.",
            hint="Run again when all brokers have caught up with the controller, or exclude the topic with "
            "spec.topics.exclude.",
        )

    def _select(self, state: ArchiveState) -> tuple[list[TopicInfo], list[str], list[TopicInfo], UnselectedTopics]:
        """Return the topics of this run, the names of those that cannot be described, and those that the archive knows
        and that are not gone, although the broker that was asked for all topics does not list them; and what is in none
        of these.
        """
        spec = self._spec
        also = added_topics(spec)
        deadline = time.monotonic() + self._connection.limits.unknown
        while True:
            found, silent = self._control.list_topics()
            listed = {topic.name for topic in found}.union(silent)
            known = unlisted_topics(state, listed, spec.topics, also=also)
            unlisted, again = self._not_gone(known)
            if not (unlisted or again):
                break
            if time.monotonic() > deadline:
                for name in (*(topic.name for topic in unlisted), *again):
                    log.warning("topic %r is in the archive, and one broker does not list it, but it is not gone", name)
                break
            time.sleep(self._connection.limits.control_pause)
        nameless = {name: TopicInfo(name, "", (), 0, False) for name in (*silent, *again)}
        hidden = {topic.name for topic in unlisted}
        selected = select_topics([*found, *nameless.values(), *unlisted], spec.topics, also=also)
        topics = [topic for topic in selected if topic.name not in nameless and topic.name not in hidden]
        refused = [topic.name for topic in selected if not topic.readable]
        # Topics that the archive knows are asked for when all else is archived; the error names the ACL then.
        archived = {topic.name for topic in state.topics.values()}
        nameless |= {name: TopicInfo(name, "", (), 0, False) for name in refused if name in archived}
        left = {name for name in refused if name not in archived}
        selected = [topic for topic in selected if topic.name not in left]
        topics = [topic for topic in topics if topic.readable]
        if not selected:
            raise unreadable(refused, "any topic that spec.topics chooses")
        chosen = {topic.name for topic in selected}
        kept = {state.topics[topic_id].name for topic_id, _ in state.segments}
        sight = UnselectedTopics(
            left_out([*found, *nameless.values()], chosen | left, spec.topics),
            Names.of(topic.name for topic in known if topic.name in kept and topic.name not in chosen),
            self._unreadable(refused, [*hidden, *missed(spec.topics.include, spec.topics.exclude, chosen | left)]),
        )
        return topics, [topic.name for topic in selected if topic.name in nameless], unlisted, sight

    def _unreadable(self, refused: Sequence[str], unlisted: Sequence[str]) -> Names:
        """Return the topics that the user may not read, and those of the `unlisted` ones that it may not even
        describe."""
        return Names.of([*refused, *(self._control.undescribable(unlisted) if unlisted else ())])

    def _not_gone(self, topics: Sequence[TopicEntry]) -> tuple[list[TopicInfo], list[str]]:
        """Return the topics that may still exist, and the names of those whose names other topics have now.

        A topic is deleted if all brokers say so, or if most say so and the others are silent. The topics that may still
        exist have the partitions that the archive knows, none of which has a leader.
        """
        standings = self._control.standings({topic.name: topic.topic_id for topic in topics}) if topics else {}
        left = [
            topic for topic in topics if Fate.GONE not in (standings[topic.name].fate, standings[topic.name].likely)
        ]
        again = [topic.name for topic in left if standings[topic.name].fate is Fate.RECREATED]
        return [
            TopicInfo(
                topic.name,
                topic.topic_id,
                tuple(PartitionInfo(number, -1, ()) for number in range(topic.partitions)),
                topic.replication_factor,
                False,
            )
            for topic in left
            if topic.name not in again
        ], again

    def _gaps_of_deleted(
        self, state: ArchiveState, there: Collection[str], silent: Collection[str], beginnings: Mapping[Partition, int]
    ) -> list[Gap]:
        """Return the holes of topics of which all brokers say that they are deleted. `there` are topic ids, `silent`
        names."""
        deleted = deleted_topics(state, there, silent, self._spec.topics, also=added_topics(self._spec))
        gaps = list(gaps_of_deleted(state, deleted, beginnings))
        holed = {gap.topic_id for gap in gaps}
        fates = dict(self._fates([topic for topic in deleted if topic.topic_id in holed]))
        return [gap for gap in gaps if fates[gap.topic_id] in _DELETED]

    def _fates(self, topics: Iterable[TopicInfo | TopicEntry]) -> Iterator[tuple[str, Fate]]:
        """Yield the fates of these topic ids, as all brokers report them."""
        for topic in topics:
            yield topic.topic_id, self._control.standings({topic.name: topic.topic_id})[topic.name].fate

    def _deleted_meanwhile(self, topics: Sequence[TopicInfo], plan: BackupPlan) -> str:
        """Return the name of a topic that was deleted or created again in the meantime; empty if there is none.

        If a log of the plan parts from the archive, all brokers must agree on the topic's id: the log of another topic
        of this name would part as well.
        """
        now = self._control.topic_ids([topic.name for topic in topics])
        forked = {fork.topic_id for fork in plan.forks}
        suspects = {
            topic.name: topic.topic_id
            for topic in topics
            if now.get(topic.name) != topic.topic_id or topic.topic_id in forked
        }
        standings = self._control.standings(suspects) if suspects else {}
        return next(
            (
                name
                for name, standing in standings.items()
                if standing.fate in _DELETED
                or (suspects[name] in forked and (standing.fate is not Fate.THERE or standing.contested))
            ),
            "",
        )

    # ---- what was unavailable

    def _add(self, plan: BackupPlan, state: ArchiveState) -> BackupPlan:
        """Return a plan of the partitions that are unavailable in `plan` and answer now; `plan` itself if that is
        unknown.
        """
        before = {topic.topic_id for topic in plan.gone}
        ids = {topic.name: topic.topic_id for topic in plan.topics if topic.topic_id not in before}
        refused = self._refused({name for name, _ in plan.unavailable})
        names = sorted({name for name, _ in plan.unavailable}.difference(refused))
        found = {topic.name: topic for topic in self._control.list_topics(names)[0]}
        suspects = {name: ids[name] for name in names if name in ids and not _same(found.get(name), ids[name])}
        standings = self._control.standings(suspects) if suspects else {}
        gone = [name for name, standing in standings.items() if standing.fate in _DELETED]
        topics = [found[name] for name in names if name in found and name not in suspects]
        wanted = {
            (topic.name, number)
            for topic in topics
            for number in (*(part.id for part in topic.partitions), *unheard_of(topic, state))
            if not {(topic.name, number), (topic.name, ALL_PARTITIONS)}.isdisjoint(plan.unavailable)
        }
        if not gone and not any(
            (t.name, part.id) in wanted and part.leader >= 0 for t in topics for part in t.partitions
        ):
            if refused:
                raise unreadable(refused, "topics that the archive knows")
            return plan
        asked = wanted | {(topic.name, ALL_PARTITIONS) for topic in topics}
        left = [where for where in plan.unavailable if where not in asked and where[0] not in gone]
        left += [(name, ALL_PARTITIONS) for name in gone if standings[name].fate is Fate.RECREATED]
        beginnings = missing_beginnings(self._archive, state)
        more = self._plan(topics, topics, state, beginnings, wanted, self._policy())
        if changed := self._deleted_meanwhile(topics, more):
            log.info(
                "topic %s was deleted or created again in the meantime: the next attempt plans what was missing",
                changed,
            )
            return plan
        return replace(
            more,
            unavailable=(*left, *more.unavailable),
            gone=tuple(GoneTopic(name, ids[name]) for name in gone),
        )

    def _refused(self, names: Collection[str]) -> list[str]:
        """Return the names of the topics that the user may not describe or read. The first question about one of them,
        or its first fetch, would end the run before it has tried all the others.
        """
        unreadable = {topic.name for topic in self._control.list_topics()[0] if not topic.readable}
        return sorted(unreadable.intersection(names).union(self._control.undescribable(sorted(names))))

    # ---- asking

    def _plan(
        self,
        topics: Sequence[TopicInfo],
        known: Sequence[TopicInfo],
        state: ArchiveState,
        beginnings: Mapping[Partition, int],
        among: Collection[TopicPartition] | None = None,
        generations: GenerationPolicy | None = None,
    ) -> BackupPlan:
        """Return the plan over `topics`, of which only the `known` ones are asked for."""
        started = time.monotonic()
        spec = self._spec
        check_topic_ids(topics)
        if spec.format is not FormatName.KAFKA:
            check_incarnations(topics, state)
        found = find_groups(self._control, spec.consumer_groups, known)
        groups, self._left_out = found.entries, found.left_out
        self.notes += found.notes
        # A partition without a leader is not waited for: it is asked again when all else is done.
        partitions = [
            (topic.name, part.id)
            for topic in known
            for part in topic.partitions
            if part.leader >= 0 and (among is None or (topic.name, part.id) in among)
        ]
        configs = self._configs(known)
        sizes = self._sizes(known)
        ids = {topic.name: topic.topic_id for topic in topics}
        bounds, standings = self._ask_leaders(
            {where: (ids[where[0]], where[1]) for where in partitions if where[0] in configs}, state
        )
        ends = {where: found.end for where, found in bounds.items()}
        answers = BrokerAnswers(
            configs=configs,
            earliest={where: found.start for where, found in bounds.items()},
            ends=ends,
            sizes=sizes,
            standings=standings.found,
            silent=standings.unanswered,
        )
        plan = make_plan(
            self._run_id,
            topics,
            answers,
            state,
            among=among,
            branch=spec.on_divergence is OnDivergence.BRANCH,
            beginnings=beginnings,
            groups=groups,
            generations=generations,
        )
        self.notes += describe_changed_positions(groups, plan.groups, known, ends)
        self.notes[:] = dict.fromkeys(self.notes)
        slots = spec.spark.executor.slots
        plan = cut_remote(balance(plan, slots, self._connection), sizes, ends, slots, self._connection)
        log.info(
            "planned %d chunks of %d topics in %.1f s: %d of %d partitions have nothing new",
            len(plan.chunks), len(plan.topics), time.monotonic() - started, plan.idle, len(partitions),
        )  # fmt: skip
        return plan

    def _ask_leaders(
        self, partitions: Mapping[TopicPartition, Partition], state: ArchiveState
    ) -> tuple[dict[TopicPartition, Bounds], Standings]:
        """Return the bounds of these partitions, and how their logs stand to the archive.

        One leader must give both answers. An election between the two questions may have cut the log off below the end
        of the first answer. The run would take that end for an end of the new leader's log, and note the lost records
        as a gap in a log that has other records at these offsets.
        """
        bounds: dict[TopicPartition, Bounds] = {}
        standings = Standings()
        left: Collection[TopicPartition] = partitions
        for tries in range(LEADER_TRIES):
            if tries:
                time.sleep(self._connection.limits.control_pause)
            answers = self._control.bounds(left)
            for (name, number), why in (answers.silent | answers.unknown).items():
                log.warning("topic %r partition %d does not answer: %s", name, number, why)
            for where in left:
                bounds.pop(where, None)
            bounds |= answers.found
            # This question comes after the ends: no batch below them can be of a later leader than the one that
            # answers now.
            asked = {where: partitions[where] for where in answers.found}
            standings.update(standings_of(state, asked, self._control.epoch_ends))
            left = [
                where
                for where in asked
                if where in standings.found and standings.found[where].led != bounds[where].leader_epoch
            ]
            if not left:
                break
        for where in left:
            log.warning("topic %r partition %d does not answer: its leader keeps changing", *where)
            standings.silent[where] = "its leader keeps changing"
        return bounds, standings

    def _configs(self, topics: Sequence[TopicInfo]) -> dict[str, dict[str, str]]:
        """Return the configurations of the topics, as far as brokers report them.

        Without a configuration it is unknown what retention may remove, so such a topic is unavailable.
        """
        found = self._control.topic_configs(topic.name for topic in topics)
        for topic in topics:
            if topic.name not in found:
                log.warning("topic %r does not answer: no broker reports its configuration", topic.name)
        return found

    def _sizes(self, topics: Sequence[TopicInfo]) -> dict[TopicPartition, int]:
        """Return the bytes of the partitions. Empty if the broker does not report them: chunks are less even then."""
        try:
            return self._control.partition_bytes(topics)
        except BrokerRefused as error:
            log.warning("partition sizes are unknown, chunks are whole partitions: %s", error)
            return {}


def _same(topic: TopicInfo | None, topic_id: str) -> bool:
    return topic is not None and topic.topic_id == topic_id


def unavailable(partitions: Sequence[TopicPartition], most: int) -> BrokerUnavailable:
    """Return the error of a run in which partitions gave no answer."""
    shown = ", ".join(
        f"{topic!r}" if number == ALL_PARTITIONS else f"{topic!r} partition {number}"
        for topic, number in partitions[:most]
    )
    were = "was" if len(partitions) == 1 else "were"
    return BrokerUnavailable(
        f"{so_many(len(partitions), 'partition')} had no leader or did not answer, and {were} not archived: {shown}.",
        hint="Everything else was archived. Bring their brokers back and run again.",
    )


def unreadable(names: Sequence[str], what: str) -> BrokerRefused:
    """Return the error of a run that may not read these topics."""
    return BrokerRefused(
        f"The brokers do not let this user read {what}: {Names.of(names)}.",
        hint="Give the user the ACL READ on the topics.",
    )
