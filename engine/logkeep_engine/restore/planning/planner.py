"""The step of a restore that plans: an earlier start's plan is loaded, or a new one is made, checked and stored."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.history.compacted import with_snapshots
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.restore_spec import IfTopicExists, RestoreOffsets, RestoreVerification
from logkeep_engine.errors import ObjectCold, SpecError, TopicGone
from logkeep_engine.kafka.effective import effective_topic_configs
from logkeep_engine.kafka.internal import CONSUMER_OFFSETS
from logkeep_engine.kafka.queries import NO_TOPIC_ID
from logkeep_engine.kafka.topics import NewTopicPlan
from logkeep_engine.log.cleanup import BROKER_RETENTION_KEYS, least_kept
from logkeep_engine.restore.claim.stored_plan import overtaken, refuse_other_plan, store_plan, stored_plan
from logkeep_engine.restore.claim.takeover import refuse_taken_over
from logkeep_engine.restore.cluster_state.step import check_everything
from logkeep_engine.restore.model import point
from logkeep_engine.restore.model.context import Planned, RestoreContext
from logkeep_engine.restore.model.plan import (
    PointPlan,
    RestorePlan,
    TopicPlan,
    batching_of,
    spec_digest,
)
from logkeep_engine.restore.model.selection import Choice, only_chosen
from logkeep_engine.restore.model.state import PLAN
from logkeep_engine.restore.model.topics import (
    BROKER_KEYS,
    ExistingTopic,
    check_append,
    extents_of,
    own_configs,
    plan_topic,
    refuse_existing,
    refuse_far_partition,
    refuse_unknown,
    replicas_of,
    too_few_in_sync,
    topic_facts,
    topic_segments,
    with_contents,
)
from logkeep_engine.restore.planning.check import ArchiveCheck, Findings, used_of
from logkeep_engine.restore.planning.cold_objects import ObjectRetrieval
from logkeep_engine.restore.planning.derived import derived
from logkeep_engine.restore.planning.producer_ids import with_producer_ids
from logkeep_engine.restore.planning.resuming import take_over
from logkeep_engine.restore.planning.rights import refuse_unreadable, refuse_without_rights
from logkeep_engine.restore.planning.warm_archive import warm_part
from logkeep_engine.restore.positions import groups
from logkeep_engine.restore.positions.moves import select_and_rename
from logkeep_engine.restore.positions.resource_configs import look_at_groups
from logkeep_engine.restore.sending.division.partitioners import refuse_other_partitioners, with_partitioners
from logkeep_engine.restore.sending.division.step import refuse_many_pairs
from logkeep_engine.restore.sending.without_records import refuse_outside, refuse_without_key
from logkeep_engine.restore.streams.same import Extent, describe_filling, filling_of, refuse_far
from logkeep_engine.restore.topics.emptiness import describe_empty, refuse_damaged, refuse_empty, refuse_unfinished
from logkeep_engine.restore.topics.hold_notes import refuse_held_by_others
from logkeep_engine.restore.topics.kafka_topics import refuse_too_many
from logkeep_engine.restore.topics.replacing import (
    as_the_topic,
    check_replaceable,
    refuse_unconfirmed,
    refuse_unconfirmed_plan,
    stand_in,
)
from logkeep_engine.restore.topics.retention import (
    RestoredTopics,
    describe_defaults,
    lacks_own,
    refuse_going,
    source_defaults,
)
from logkeep_engine.restore.topics.targets import check_created, check_same


class RestorePlanner:
    """The plan of one run."""

    def __init__(self, context: RestoreContext) -> None:
        self._context = context
        self._spec = context.spec
        self._control = context.control
        self._digest = spec_digest(context.spec)
        self._retrieval = ObjectRetrieval(context)

    def load_or_make(self) -> Planned:
        """Return the plan of an earlier start of this run, or a new one, when all that it reads can be read.

        Raises SpecError if the run was started with another spec, archive or cluster, RestoreBusy if another run has
        taken it over, and ObjectCold for what cannot be read and is not to be retrieved.
        """
        return self._retrieval.awake(self._load_or_make)

    def _load_or_make(self) -> Planned:
        with self._context.refusals:
            refuse_taken_over(self._context.state)
        known = stored_plan(self._context.state)
        if known is None and self._spec.if_topic_exists is IfTopicExists.RESUME:
            known = take_over(self._context, self._digest, self._refuse_strange)
        if known is None:
            planned = self._make()
            if not self._context.dry_run:
                store_plan(self._context, planned.plan)
            return planned
        planned = self._loaded(known)
        self._retrieval.reads(list(planned.used()))
        self._retrieval.require()
        with self._context.refusals:
            refuse_unconfirmed_plan(self._control, known, self._spec, self._context.state.name(PLAN))
        return planned

    def load(self) -> Planned | None:
        """Return the plan of an earlier start of this run, None if there is none. Raises as `load_or_make` does."""
        return None if (known := stored_plan(self._context.state)) is None else self._loaded(known)

    def load_claimed(self, *, found: bool) -> Planned:
        """Return the plan of this run, which says that it has succeeded, held to the spec. Topics that are gone, and
        erasures since then, are not a reason to refuse. `found` is as in `load_finished`. Raises SpecError, and
        StateAltered.
        """
        known = self._known()
        known = replace(known, spec_digest=self._digest) if found else known
        refuse_other_plan(self._context, known, self._digest)
        return derived(self._context, known, self._context.state.name(PLAN), done=True)[0]

    def load_finished(self, *, found: bool) -> Planned:
        """Return the plan of this run, which has succeeded. If it was `found` by what is asked for, its spec may have
        had another `ifTopicExists`. Raises SpecError if the plan is gone, and as `load_or_make` does.
        """
        known = self._known()
        return self._loaded(replace(known, spec_digest=self._digest) if found else known)

    def _known(self) -> RestorePlan:
        state = self._context.state
        if (known := stored_plan(state)) is None:
            raise SpecError(
                f"{state.name(PLAN)} is gone: it is unknown what run {state.run_id} has restored",
                hint="Restore it from a copy of the archive. Without it, `logkeep log diff` compares topics.",
            )
        return known

    def sketch(self) -> Planned:
        """Return a plan that says where records would go. Nothing is stored or refused, no object is checked, and
        partitions have no producer ids.
        """
        context, spec = self._context, self._spec
        point.refuse_future(spec.point)
        seen = point.choose(context.archive, spec.point)
        archived, selection = point.choose_topics(context.archive, seen.state, spec)
        choices = selection.choices
        pointed = point.plan_point(context.archive, archived, [choice.source for choice in choices], spec.point)
        archived, every = point.at_point(context.archive, archived, spec.point, pointed.plan)
        archived = only_chosen(archived, spec.topics.partitions)
        there = self._existing(choices)
        existing, replaced = ({}, there) if spec.if_topic_exists is IfTopicExists.REPLACE else (there, {})
        extents = extents_of(spec.offsets, archived, choices, pointed.plan)
        plan = RestorePlan(
            run_id=context.run_id,
            spec_digest=self._digest,
            archive_id=context.archive.info.archive_id,
            commit=archived.commit,
            cluster_id=context.cluster_id,
            topics=self._plan_topics(archived, every, pointed.plan, choices, existing, replaced, extents),
            batching=batching_of(context.archive.info.segments, spec.record_batches),
            point=pointed.plan,
        )
        return Planned(plan, archived, fresh=True)

    # ---- the stored plan

    def _loaded(self, known: RestorePlan) -> Planned:
        refuse_other_plan(self._context, known, self._digest)
        self._retrieval.may_read_of(known)
        name = self._context.state.name(PLAN)
        planned, erased = derived(self._context, known, name)
        check_same(self._control, known)
        if erased:  # the erased keys may be those that showed the partitioner
            raise overtaken(known)
        refuse_other_partitioners(self._context, planned, name)
        return planned

    def _refuse_strange(self, plan: RestorePlan, name: str) -> None:
        """Raises what `_loaded` does for a plan that this run could not continue, before anything is taken over."""
        refuse_other_plan(self._context, plan, self._digest)
        self._retrieval.may_read_of(plan)
        planned, erased = derived(self._context, plan, name)
        if erased:
            raise overtaken(plan)
        refuse_other_partitioners(self._context, planned, name)

    # ---- a new plan

    def _make(self) -> Planned:
        """Return the plan for the newest state of the archive. Nothing is written to the cluster. In a dry run, checks
        that fail are noted, and partitions get no producer ids."""
        context, spec, refusals = self._context, self._spec, self._context.refusals
        batching = None
        with refusals:
            batching = batching_of(context.archive.info.segments, spec.record_batches)
        with refusals:
            point.refuse_future(spec.point)
        seen = self._retrieval.seen()
        with refusals:
            refuse_unfinished(seen, context.archive.storage.uri, spec)
        self._retrieval.may_read(seen.state)
        archived, selection = point.choose_topics(context.archive, seen.state, spec)
        choices = selection.choices
        archived = only_chosen(archived, spec.topics.partitions)
        pointed = point.plan_point(context.archive, archived, [choice.source for choice in choices], spec.point)
        whole = with_snapshots(archived)
        archived, every = point.at_point(context.archive, archived, spec.point, pointed.plan)
        left_out: tuple[str, ...] = ()
        if context.drill is not None:
            warm = warm_part(context.archive.storage, archived, choices)
            context.drill.cold_segments, left_out = warm.segments, warm.notes
            archived, choices = context.drill.narrowed(warm.archived, choices)
        archived = only_chosen(archived, spec.topics.partitions)
        existing = self._existing(choices)
        replaced = self._replaced(choices, existing)
        existing = {name: topic for name, topic in existing.items() if name not in replaced}
        warnings = [*seen.warnings, *selection.warnings, *pointed.warnings, *describe_empty(archived, choices, whole)]
        warnings += left_out
        with refusals:
            warnings += check_everything(context, archived)
        reported, existing = self._check_targets(archived, choices, existing, replaced)
        reported += self._check_keeping(archived, choices, existing, pointed.plan)
        extents = extents_of(spec.offsets, archived, choices, pointed.plan)
        warnings += self._fill(archived, choices, extents)
        findings = self._check_archive(archived, choices, pointed.plan, whole)
        plan = RestorePlan(
            run_id=context.run_id,
            spec_digest=self._digest,
            archive_id=context.archive.info.archive_id,
            commit=archived.commit,
            cluster_id=context.cluster_id,
            topics=self._plan_topics(archived, every, pointed.plan, choices, existing, replaced, extents),
            surveys=findings.surveys,
            loss=findings.loss,
            warnings=(*warnings, *reported, *findings.warnings),
            batching=batching,
            point=pointed.plan,
        )
        planned = Planned(plan, archived, fresh=True)
        with refusals:
            refuse_many_pairs(plan)
        if findings.cold:  # nothing more can be read
            return planned
        for refuse in (refuse_without_key, refuse_outside, refuse_too_many):
            with refusals:
                refuse(context, planned)
        planned, reported = with_partitioners(context, planned)
        plan = replace(planned.plan, warnings=(*plan.warnings, *reported))
        if context.dry_run:
            return replace(planned, plan=plan)
        plan = self._with_producer_ids(plan)
        if spec.offsets is RestoreOffsets.SAME:
            refuse_without_rights(context.connection, plan)
        return Planned(plan, archived, fresh=True)

    def _check_targets(
        self,
        archived: ArchiveState,
        choices: Sequence[Choice],
        existing: Mapping[str, ExistingTopic],
        replaced: Mapping[str, ExistingTopic],
    ) -> tuple[list[str], dict[str, ExistingTopic]]:
        """Raises the error of a target that cannot take what is restored; returns warnings about the others, and the
        existing topics that take it."""
        refusals, suitable = self._context.refusals, dict(existing)
        if self._spec.if_topic_exists is IfTopicExists.FAIL:
            with refusals:
                refuse_existing(choices, existing, self._spec.topics.rename, everything=self._spec.everything)
            suitable = {}
        if self._spec.if_topic_exists is IfTopicExists.RESUME:
            with refusals:
                where = self._context.state.storage.uri
                refuse_unknown(choices, existing, where, everything=self._spec.everything)
            suitable = {}
        now_ms = int(time.time() * 1000)
        warnings: list[str] = []
        for choice in choices:
            if choice.target not in existing:
                with refusals:
                    refuse_far_partition(choice, choice.source.partitions)
            if choice.target in suitable:
                facts = topic_facts(topic_segments(archived, choice.source))
                with refusals:
                    warnings += check_append(choice, suitable.pop(choice.target), facts, now_ms)
                    suitable[choice.target] = existing[choice.target]
        if groups.moves_groups(self._spec):
            # Groups that may not even be looked at stop the restore now, not when all records are there.
            with refusals:
                chosen = select_and_rename(archived.groups, self._spec.consumer_groups)
                restored = {choice.source.topic_id for choice in choices}
                unseen = self._context.dry_run and self._has_no_groups()
                warnings += groups.check_groups(self._control, chosen, restored, unseen=unseen)
                warnings += look_at_groups(self._context, archived, restored)
        with refusals:
            self._check_created([choice for choice in choices if choice.target not in existing], replaced)
        if self._spec.verify is RestoreVerification.FULL or self._context.drill is not None:
            with refusals:
                targets = [choice.target for choice in choices]
                refuse_unreadable(self._context.connection, targets, drill=self._context.drill is not None)
        return warnings, suitable

    def _check_keeping(
        self,
        archived: ArchiveState,
        choices: Sequence[Choice],
        existing: Mapping[str, ExistingTopic],
        at: PointPlan | None,
    ) -> list[str]:
        """Raises TargetUnsuitable if targets would delete records by their own retention, and must not; returns
        warnings about that, and about topics whose retention is another one than in the source."""
        context, wanted = self._context, self._spec.topics
        if context.drill is not None:  # its topics are gone when a warning is read
            choices, existing = [replace(choice, target=choice.source.name) for choice in choices], {}
        created = [choice for choice in choices if choice.target not in existing]
        defaults = least_kept(self._control.configs_of_brokers(BROKER_RETENTION_KEYS)) if choices else {}
        restored = RestoredTopics(archived, choices, existing, defaults, wanted, at)
        found = restored.going(int(time.time() * 1000))
        warnings: list[str] = []
        if existing:
            with context.refusals:
                warnings += refuse_held_by_others(context, existing)
        with context.refusals:
            warnings += refuse_going(found, wanted.retention, drill=context.drill is not None)
        warnings += restored.describe_unknown_sizes()
        if any(lacks_own(choice.source, wanted.configs) for choice in created):
            source, reported = source_defaults(context.archive, archived, self._spec.point)
            warnings += [*reported, *describe_defaults(created, wanted, source, defaults)]
        return warnings

    def _has_no_groups(self) -> bool:
        """Return whether the cluster has never had a position. A broker that is asked for one creates its own topic for
        them."""
        topics = {topic.name for topic in self._control.topics()}
        return CONSUMER_OFFSETS not in topics and not self._control.undescribable([CONSUMER_OFFSETS])

    def _check_archive(
        self, archived: ArchiveState, choices: Sequence[Choice], planned: PointPlan | None, whole: ArchiveState
    ) -> Findings:
        """Return the findings of the check of everything that is restored. Raises the error of an archive that has
        nothing to restore, or that is damaged.
        """
        self._context.reporter.phase("Checking")
        refusals, findings = self._context.refusals, Findings()
        self._retrieval.reads(used_of(archived, choices))
        if not self._spec.allow_empty:
            # A dry run, which waits for nothing, hears from the check what is cold.
            with refusals, suppress(*((ObjectCold,) if self._context.dry_run else ())):
                refuse_empty(self._context.archive.storage, archived, choices, whole)
        with refusals:
            findings = self._findings(archived, choices)
        if not self._spec.allow_empty and not findings.cold:
            with refusals:
                refuse_damaged(archived, choices, findings.surveys)
        return replace(findings, loss=tuple(point.within(planned, choices, findings.loss)))

    def _findings(self, archived: ArchiveState, choices: Sequence[Choice]) -> Findings:
        """Return the findings of the check; in a dry run, which waits for nothing, what a restore would wait for."""
        try:
            return ArchiveCheck(self._context).check(archived, choices)
        except ObjectCold as error:
            if not self._context.dry_run:
                raise
            if self._retrieval.wanted is None:
                self._context.refusals.add(error)
                return Findings(cold=True)
            reported = error.message.removesuffix("; nothing was written to Kafka")
            return Findings(cold=True, warnings=(f"{reported}: it would have them retrieved, and wait",))

    def _replaced(
        self, choices: Sequence[Choice], existing: Mapping[str, ExistingTopic]
    ) -> Mapping[str, ExistingTopic]:
        """Return the topics that are deleted first. Raises the error of one that may not be, before anything is
        written."""
        if self._spec.if_topic_exists is not IfTopicExists.REPLACE:
            return {}
        with self._context.refusals:
            refuse_unconfirmed(choices, existing, self._spec.confirm)
        for topic in existing.values():
            with self._context.refusals:
                check_replaceable(self._control, topic)
        return existing

    def _check_created(self, created: Sequence[Choice], replaced: Mapping[str, ExistingTopic]) -> None:
        """Raises the error of a topic that cannot have its replicas or its configuration, before anything is
        written."""
        wanted = self._spec.topics
        factor, configs = wanted.replication_factor, wanted.configs.override
        made = [
            NewTopicPlan(
                stand_in(choice.target) if choice.target in replaced else choice.target,
                1,
                replicas_of(choice.source, factor),
                configs,
            )
            for choice in created
        ]
        brokers = self._control.broker_configs(BROKER_KEYS) if created else {}
        own = (own_configs(choice.source.configs, wanted.configs) for choice in created)
        found = (
            too_few_in_sync(choice.target, configs, topic.replication_factor, brokers)
            for choice, configs, topic in zip(created, own, made, strict=True)
        )
        unwritable = [error for error in found if error is not None]
        if unwritable and not self._control.caps_replicas_in_sync():
            for error in unwritable:
                with self._context.refusals:
                    raise error
        with as_the_topic():
            check_created(self._control, made)

    def _existing(self, choices: Sequence[Choice]) -> dict[str, ExistingTopic]:
        """Return the target topics that the cluster has already."""
        wanted = {choice.target for choice in choices}
        found = [topic for topic in self._control.topics() if topic.name in wanted]
        configs: dict[str, dict[str, str]] = {}
        own: dict[str, dict[str, str]] = {}
        if found and self._spec.if_topic_exists is IfTopicExists.APPEND:
            configs = effective_topic_configs(self._control, [topic.name for topic in found])
            own = self._control.topic_configs([topic.name for topic in found])
        return {
            topic.name: ExistingTopic(
                topic.name,
                len(topic.partitions),
                configs.get(topic.name, {}),
                "" if topic.topic_id == NO_TOPIC_ID else topic.topic_id,
                topic.deletable,
                own.get(topic.name, {}),
            )
            for topic in found
        }

    def _plan_topics(
        self,
        archived: ArchiveState,
        every: ArchiveState,
        at: PointPlan | None,
        choices: Sequence[Choice],
        existing: Mapping[str, ExistingTopic],
        replaced: Mapping[str, ExistingTopic],
        extents: Mapping[str, dict[int, Extent]],
    ) -> tuple[TopicPlan, ...]:
        appended = [
            (choice.target, partition)
            for choice in choices
            if choice.target in existing
            for partition in choice.target_partitions
        ]
        ends = self._control.latest_offsets(appended)
        missing = [where for where in appended if where not in ends]
        if missing:
            raise TopicGone(
                f"topic {missing[0][0]!r} partition {missing[0][1]} vanished while the restore was planned",
                hint="Try again.",
            )
        made = (
            plan_topic(
                choice,
                {
                    partition: archived.segments.get((choice.source.topic_id, partition), [])
                    for partition in range(choice.source.partitions)
                },
                existing=existing.get(choice.target),
                end_offsets={
                    partition: ends[choice.target, partition]
                    for partition in choice.target_partitions
                    if (choice.target, partition) in ends
                },
                replicas=self._spec.topics.replication_factor,
                extents=extents.get(choice.target),
                replaces=replaced[choice.target].topic_id if choice.target in replaced else "",
            )
            for choice in choices
        )
        return tuple(with_contents(made, only_chosen(every, self._spec.topics.partitions), at))

    def _fill(
        self, archived: ArchiveState, choices: Sequence[Choice], extents: Mapping[str, Mapping[int, Extent]]
    ) -> list[str]:
        """Raises TargetUnsuitable if too many offsets must be filled for records to keep theirs; returns a warning if
        there are many."""
        fillings = {}
        for choice in choices:
            for partition, extent in extents.get(choice.target, {}).items():
                filling = filling_of(extent, archived.segments.get((choice.source.topic_id, partition), ()))
                with self._context.refusals:
                    refuse_far(choice.target, partition, extent, filling)
                fillings[choice.target, partition] = filling
        return describe_filling(fillings)

    def _with_producer_ids(self, plan: RestorePlan) -> RestorePlan:
        return with_producer_ids(self._context.connection, plan)
