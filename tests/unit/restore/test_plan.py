"""A restore decides everything before it touches anything."""

import json
from collections.abc import Sequence

import pytest
from pydantic.alias_generators import to_camel

from logkeep_engine.archive.catalog.entry import KafkaFiles, SegmentEntry, SegmentTimes
from logkeep_engine.archive.catalog.facts import Coverage, TopicEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.reading.salvage import DamageSurvey, UnreadableRange
from logkeep_engine.contract.archive_format import FormatName
from logkeep_engine.contract.facts.outcome import LossFact
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.restore_spec import KafkaRestoreSpec, RecordBatches, parse_restore
from logkeep_engine.contract.restored_topics import ConfigPolicy, RestoreTopics, TopicConfigs, TopicRetention
from logkeep_engine.digest import Digest
from logkeep_engine.errors import (
    ArchiveDamaged,
    ArchiveMismatch,
    NoTopicMatches,
    SpecError,
    TargetUnsuitable,
    TopicExists,
)
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.restore.model.plan import (
    MAX_PARTITIONS_PER_TASK,
    NEEDS_PRODUCER_ID,
    NO_TASK,
    PartitionPlan,
    PartitionSurvey,
    PointPlan,
    RestorePlan,
    TopicPlan,
    batching_of,
    pack,
    spec_digest,
)
from logkeep_engine.restore.model.selection import Choice, legal_topic_name, select_topics
from logkeep_engine.restore.model.topics import (
    BROKER_DEFAULT,
    ExistingTopic,
    TopicFacts,
    check_append,
    ending_configs,
    final_configs,
    own_configs,
    plan_topic,
    refuse_existing,
    refuse_far_partition,
    refuse_unknown,
    too_few_in_sync,
    topic_facts,
    working_configs,
)
from logkeep_engine.restore.streams.clip import Clip
from logkeep_engine.restore.streams.records import Batching
from tests.unit.archive.build import changed

NOW = 1_700_000_000_000
DAY = 86_400_000


def topic(name: str, number: int = 1, partitions: int = 2) -> TopicEntry:
    return TopicEntry(name, f"{number:022d}", partitions, 3, {"retention.ms": "1000"})


def state_of(*topics: TopicEntry) -> ArchiveState:
    state = ArchiveState()
    state.add_facts(topics, (), (), ())
    return state


def wanted(
    include: Sequence[str] = (".*",), exclude: Sequence[str] = (), rename: Sequence[tuple[str, str]] = ()
) -> RestoreTopics:
    return RestoreTopics.model_validate(
        {
            "include": list(include),
            "exclude": list(exclude),
            "rename": [{"from": source, "to": target} for source, target in rename],
        }
    )


def entry(**changes: object) -> SegmentEntry:
    plain = SegmentEntry(
        topic_id=f"{1:022d}",
        partition=0,
        epoch=1,
        attempt=0,
        base_offset=0,
        next_offset=10,
        records=10,
        batches=1,
        bytes=500,
        digest=Digest.of(b""),
        codecs={"none": 1},
        max_batch_bytes=500,
        times=SegmentTimes(NOW - 100, NOW),
        files=KafkaFiles(timeindex_bytes=12),
    )
    return changed(plain, **changes)


FACTS = TopicFacts(records=10, bytes=500, max_batch_bytes=500, min_timestamp=NOW - 100, max_timestamp=NOW)


class TestSelection:
    def test_patterns_match_the_whole_name(self) -> None:
        state = state_of(topic("orders", 1), topic("orders-eu", 2), topic("payments", 3))
        selection = select_topics(state, wanted(["orders", "pay.*"], ["payments"]))
        assert [choice.source.name for choice in selection.choices] == ["orders"]

    def test_a_pattern_that_chooses_nothing_is_reported(self) -> None:
        state = state_of(topic("orders", 1), topic("users", 2))
        selection = select_topics(state, wanted(["orders", "usres", "users"], ["users"]))
        assert selection.warnings == (
            "spec.topics.include[1] 'usres' chooses no topic of the archive",
            "spec.topics.include[2] 'users' chooses no topic of the archive",
        )

    def test_first_rename_rule_that_matches_is_used_with_its_groups(self) -> None:
        state = state_of(topic("prod.orders", 1), topic("prod.payments", 2), topic("other", 3))
        rules = [(r"prod\.(?P<what>orders)", r"test.\g<what>"), (r"prod\.(.*)", r"\1.copy"), ("orders", "never")]
        selection = select_topics(state, wanted(rename=rules))
        assert {choice.source.name: choice.target for choice in selection.choices} == {
            "prod.orders": "test.orders",
            "prod.payments": "payments.copy",
            "other": "other",
        }
        assert selection.warnings == ("spec.topics.rename[2] 'orders' renames no topic that is restored",)

    def test_nothing_matches_lists_what_there_is(self) -> None:
        state = state_of(*(topic(f"t{number:02d}", number) for number in range(12)))
        with pytest.raises(NoTopicMatches) as caught:
            select_topics(state, wanted(["nope"], ["x"]))
        assert "['nope'] without exclude ['x']" in caught.value.message
        assert "t00, t01" in caught.value.hint
        assert "t09 and 2 more" in caught.value.hint
        assert "t10" not in caught.value.hint

    def test_an_empty_archive_says_so(self) -> None:
        with pytest.raises(NoTopicMatches, match="holds no topic"):
            select_topics(ArchiveState(), wanted())

    def test_newest_incarnation_is_taken_and_the_others_named(self) -> None:
        state = state_of(topic("a", 7), topic("b", 1), topic("a", 3))
        selection = select_topics(state, wanted())
        assert [choice.source.topic_id for choice in selection.choices] == [f"{3:022d}", f"{1:022d}"]
        assert len(selection.warnings) == 1
        assert f"incarnation {3:022d} (no records) is restored, not {7:022d}" in selection.warnings[0]

    def test_an_incarnation_without_records_is_not_taken_if_an_older_one_has_some(self) -> None:
        state = state_of(topic("a", 7), topic("a", 3), topic("a", 5))
        times = {"min_base_timestamp": NOW, "max_timestamp": NOW + 60_000}
        old, new = (entry(topic_id=f"{number:022d}", **times) for number in (7, 3))
        state.add_facts((), (Coverage(old.topic_id, 0, 0, 10), Coverage(new.topic_id, 0, 0, 10)), (old, new), ())
        selection = select_topics(state, wanted())
        assert [choice.source.topic_id for choice in selection.choices] == [f"{3:022d}"]
        (warning,) = selection.warnings
        assert f"incarnation {3:022d} (10 records from 2023-11-14T22:13:20.000Z to 2023-11-14T22:14:20.000Z)" in warning
        assert f"not {7:022d} (10 records from" in warning
        assert f"{5:022d} (no records); spec.source.topicIds chooses another" in warning

    def test_another_incarnation_can_be_chosen_by_its_id(self) -> None:
        state = state_of(topic("a", 7), topic("a", 3), topic("b", 1))
        selection = select_topics(state, wanted(), {"a": f"{7:022d}", "b": f"{1:022d}"})
        assert [choice.source.topic_id for choice in selection.choices] == [f"{7:022d}", f"{1:022d}"]
        (warning,) = selection.warnings
        assert f"incarnation {7:022d} (no records) is restored, not {3:022d} (no records)" in warning

    @pytest.mark.parametrize(
        ("topic_ids", "what", "hint"),
        [
            ({"c": f"{1:022d}"}, "has no topic 'c'", "The archive holds: a, b"),
            (
                {"a": f"{1:022d}"},
                f"topicIds.a: the archive has no incarnation of the topic with the id {1:022d}",
                f"It has {7:022d} (no records), {3:022d}",
            ),
            ({"b": f"{1:022d}"}, "topic 'b' is not restored: spec.topics does not choose it", "Leave it out"),
        ],
    )
    def test_an_id_that_chooses_nothing_is_refused(self, topic_ids: dict[str, str], what: str, hint: str) -> None:
        with pytest.raises(SpecError) as caught:
            select_topics(state_of(topic("a", 7), topic("a", 3), topic("b", 1)), wanted(["a"]), topic_ids)
        assert what in caught.value.message
        assert hint in caught.value.hint

    def test_no_warning_for_incarnations_of_a_topic_that_is_not_restored(self) -> None:
        selection = select_topics(state_of(topic("a", 1), topic("a", 2), topic("b", 3)), wanted(["b"]))
        assert selection.warnings == ()

    @pytest.mark.parametrize("target", [".", "..", "a b", "a/b", "x" * 250, "ä"])
    def test_an_illegal_name_names_rule_and_topic(self, target: str) -> None:
        with pytest.raises(SpecError, match=r"spec\.topics\.rename\[1\]: turns topic 'orders'"):
            select_topics(state_of(topic("orders")), wanted(rename=[("no", "x"), ("orders", target)]))
        assert not legal_topic_name(target)

    def test_a_rename_to_nothing_is_refused(self) -> None:
        with pytest.raises(SpecError, match="into ''"):
            select_topics(state_of(topic("orders")), wanted(rename=[("orders(.*)", r"\1")]))

    def test_two_topics_onto_one_name_both_of_them(self) -> None:
        state = state_of(topic("a-1", 1), topic("a-2", 2))
        with pytest.raises(SpecError, match="'a-1' and 'a-2' would both become 'a'"):
            select_topics(state, wanted(rename=[("(a)-.", r"\1")]))

    def test_a_rename_onto_an_unrenamed_topic_is_refused(self) -> None:
        with pytest.raises(SpecError, match="'a' and 'b' would both become 'b'"):
            select_topics(state_of(topic("a", 1), topic("b", 2)), wanted(rename=[("a", "b")]))

    def test_kafkas_own_topics_are_left_out_unless_renamed(self) -> None:
        state = state_of(topic("__consumer_offsets", 1), topic("orders", 2))
        selection = select_topics(state, wanted())
        assert [choice.target for choice in selection.choices] == ["orders"]
        assert "Kafka writes __consumer_offsets itself" in selection.warnings[0]
        renamed = select_topics(state, wanted(["__.*"], rename=[("__(.*)", r"old-\1")]))
        assert [choice.target for choice in renamed.choices] == ["old-consumer_offsets"]

    def test_kafkas_own_topics_are_not_renamed_with_all_others(self) -> None:
        state = state_of(topic("__consumer_offsets", 1), topic("_schemas", 2), topic("orders", 3))
        selection = select_topics(state, wanted(rename=[("(.*)", r"restored.\1")]))
        assert [choice.target for choice in selection.choices] == ["restored._schemas", "restored.orders"]
        assert "include it by a pattern that begins with an underscore" in selection.warnings[0]


class TestExistingTopics:
    CHOICE = Choice(topic("orders"), "copy")

    def existing(self, partitions: int = 2, **configs: str) -> ExistingTopic:
        return ExistingTopic("copy", partitions, {key.replace("_", "."): value for key, value in configs.items()})

    def test_all_existing_targets_are_named(self) -> None:
        choices = [Choice(topic(name, number), name) for number, name in enumerate("cab")]
        with pytest.raises(TopicExists, match="topics a, b already exist on") as caught:
            refuse_existing(choices, ["a", "b", "other"], everything=False)
        assert "nothing was written" in caught.value.message
        assert "spec.topics.rename" in caught.value.hint
        refuse_existing(choices, ["other"], everything=False)

    def test_hints_of_a_restore_of_everything_name_no_field_that_it_refuses(self) -> None:
        choices = [Choice(topic("orders"), "orders")]
        with pytest.raises(TopicExists) as fail:
            refuse_existing(choices, ["orders"], everything=True)
        assert "continue it with spec.ifTopicExists: Resume" in fail.value.hint
        with pytest.raises(TopicExists) as resume:
            refuse_unknown(choices, ["orders"], "s3://a", everything=True)
        for hint in (fail.value.hint, resume.value.hint):
            assert "Delete the topic" in hint
            for word in ("spec.topics", "Append", "Replace"):
                assert word not in hint
        with pytest.raises(TopicExists, match="Or choose Append or Replace"):
            refuse_unknown(choices, ["orders"], "s3://a", everything=False)

    def test_append_needs_as_many_partitions(self) -> None:
        with pytest.raises(TargetUnsuitable, match="topic copy has 1 partition, the archived topic orders has 2"):
            check_append(self.CHOICE, self.existing(1), FACTS, NOW)
        assert check_append(self.CHOICE, self.existing(3), FACTS, NOW) == []

    @pytest.mark.parametrize("archived", [2, 3])
    def test_append_needs_exactly_the_partitions_that_are_wanted(self, archived: int) -> None:
        choice = Choice(topic("orders", partitions=archived), "copy", wanted=3)
        assert check_append(replace(choice, wanted=1), self.existing(1), FACTS, NOW) == []
        for there, reported in ((1, "1 partition"), (4, "4 partitions")):
            with pytest.raises(
                TargetUnsuitable, match=f"partitionCount: topic copy has {reported} already, but 3 are requested"
            ):
                check_append(choice, self.existing(there), FACTS, NOW)
        assert check_append(choice, self.existing(3), FACTS, NOW) == []

    def test_append_refuses_a_topic_that_stamps_append_time(self) -> None:
        with pytest.raises(TargetUnsuitable, match=r"message\.timestamp\.type=LogAppendTime"):
            check_append(self.CHOICE, self.existing(message_timestamp_type="LogAppendTime"), FACTS, NOW)

    def test_append_refuses_a_topic_whose_batches_must_be_smaller(self) -> None:
        assert check_append(self.CHOICE, self.existing(max_message_bytes="500"), FACTS, NOW) == []
        with pytest.raises(TargetUnsuitable, match=r"max\.message\.bytes=499, the largest .* has 500 bytes"):
            check_append(self.CHOICE, self.existing(max_message_bytes="499"), FACTS, NOW)

    def test_append_refuses_limits_on_timestamps(self) -> None:
        with pytest.raises(TargetUnsuitable, match=r"older than message\.timestamp\.before\.max\.ms=99"):
            check_append(self.CHOICE, self.existing(message_timestamp_before_max_ms="99"), FACTS, NOW)
        late = replace(FACTS, max_timestamp=NOW + 7200_000)
        with pytest.raises(TargetUnsuitable, match=r"newer than message\.timestamp\.after\.max\.ms=3600000"):
            check_append(self.CHOICE, self.existing(message_timestamp_after_max_ms="3600000"), late, NOW)


class TestConfigs:
    def test_working_configuration_takes_the_largest_batch_and_deletes_nothing(self) -> None:
        large = working_configs(replace(FACTS, max_batch_bytes=8_000_000))
        assert int(large["max.message.bytes"]) > 8_000_000
        assert working_configs(FACTS)["max.message.bytes"] == "1048588"
        assert working_configs(replace(FACTS, max_batch_bytes=2**31 - 5))["max.message.bytes"] == str(2**31 - 1)
        assert (large["retention.ms"], large["retention.bytes"], large["cleanup.policy"]) == ("-1", "-1", "delete")
        assert large["message.timestamp.type"] == "CreateTime"

    def test_final_configuration_is_the_sources_and_nothing_else(self) -> None:
        working = working_configs(FACTS)
        source = {"cleanup.policy": "compact", "segment.bytes": "9", "leader.replication.throttled.replicas": "0:1"}
        own, gone = final_configs(own_configs(source, TopicConfigs()), working)
        assert own == {"cleanup.policy": "compact", "segment.bytes": "9"}
        assert gone == sorted(set(working) - {"cleanup.policy"})

    def test_each_key_is_restored_overridden_or_ignored(self) -> None:
        source = {"cleanup.policy": "compact", "segment.bytes": "9", "retention.ms": "5"}
        wanted = TopicConfigs(override={"retention.ms": "7", "flush.ms": "1"}, ignore=("segment.bytes",))
        assert own_configs(source, wanted) == {"cleanup.policy": "compact", "retention.ms": "7", "flush.ms": "1"}
        wanted = TopicConfigs(policy=ConfigPolicy.IGNORE, override={"flush.ms": "1"})
        assert own_configs(source, wanted) == {"flush.ms": "1"}

    def test_a_topic_that_is_held_ends_without_limits(self) -> None:
        source = {"retention.ms": "5", "flush.ms": "1"}
        held = RestoreTopics.model_validate({"retention": "Hold", "configs": {"override": {"retention.bytes": "7"}}})
        assert ending_configs(source, held) == {"flush.ms": "1", "retention.ms": "-1", "retention.bytes": "-1"}
        applied = held.model_copy(update={"retention": TopicRetention.APPLY})
        assert ending_configs(source, applied) == {"flush.ms": "1", "retention.ms": "5", "retention.bytes": "7"}

    def test_more_replicas_in_sync_than_there_are_are_reported(self) -> None:
        two = {"min.insync.replicas": "2"}
        assert too_few_in_sync("orders", two, 2) is None
        assert too_few_in_sync("orders", two, BROKER_DEFAULT) is None
        assert too_few_in_sync("orders", {}, 1) is None
        error = too_few_in_sync("orders", two, 1)
        assert error is not None
        assert "topic orders would have min.insync.replicas=2, and 1 replica cannot meet that" in error.message
        assert "spec.topics.replicationFactor to 2 or more" in error.hint


class TestPlan:
    def test_only_partitions_with_segments_get_a_task(self) -> None:
        choice = Choice(topic("orders", partitions=3), "copy")
        plan = plan_topic(choice, {0: [entry()], 1: [], 2: [entry(partition=2)]}, existing=None, end_offsets={})
        assert (plan.created, plan.replication_factor, plan.partition_count) == (True, 3, 3)
        whole = RestorePlan("r", "d", "a", 1, "c", (plan,)).with_producer_ids([71, 72])
        assert whole.topics[0].partitions == (
            PartitionPlan(0, 71, 0),
            PartitionPlan(1, -1, 0),
            PartitionPlan(2, 72, 0),
        )

    def test_an_existing_topic_is_written_after_its_end(self) -> None:
        existing = ExistingTopic("copy", 4, {"max.message.bytes": "2000"}, "id-of-copy")
        choice = Choice(topic("orders"), "copy")
        plan = plan_topic(choice, {0: [entry()]}, existing=existing, end_offsets={0: 17, 1: 4})
        assert (plan.created, plan.max_batch_bytes, plan.target_id) == (False, 2000, "id-of-copy")
        tight = replace(existing, configs={**existing.configs, "segment.bytes": "1500"})
        plan = plan_topic(choice, {0: [entry()]}, existing=tight, end_offsets={0: 17, 1: 4})
        assert plan.max_batch_bytes == 1500
        assert [part.start for part in plan.partitions] == [17, 4]

    PLAN = RestorePlan(
        run_id="r1",
        spec_digest="d",
        archive_id="a",
        commit=41,
        cluster_id="c",
        topics=(
            TopicPlan(
                "orders", f"{1:022d}", "copy", True, 2, 1, 1000, (PartitionPlan(0, 71, 0), PartitionPlan(1, -1, 0))
            ),
        ),
        surveys=(
            PartitionSurvey(
                f"{1:022d}", 0, DamageSurvey((0, 10), (UnreadableRange(3, 5, "cut"),), (AbortedTxn(7, 1, 2, 3),))
            ),
            PartitionSurvey(f"{1:022d}", 1, DamageSurvey((), ())),
        ),
        loss=(LossFact(topic="orders", partition=0, start=3, end=5, reason="cut"),),
        warnings=("w",),
    )

    def test_it_survives_json(self) -> None:
        assert RestorePlan.from_json(self.PLAN.to_json(), "plan") == self.PLAN

    def test_it_survives_json_with_the_id_of_an_existing_topic(self) -> None:
        plan = replace(self.PLAN, topics=(replace(self.PLAN.topics[0], created=False, target_id="id-of-copy"),))
        assert RestorePlan.from_json(plan.to_json(), "plan") == plan

    def test_it_survives_json_with_how_records_become_batches(self) -> None:
        plan = replace(self.PLAN, batching=Batching(500, 900_000, Codec.ZSTD))
        assert RestorePlan.from_json(plan.to_json(), "plan") == plan

    def test_it_survives_json_with_a_point(self) -> None:
        point = PointPlan(43, {(f"{1:022d}", 0): 7, ("b", 3): 0}, 5, 9)
        plan = replace(self.PLAN, point=point)
        assert RestorePlan.from_json(plan.to_json(), "plan") == plan
        assert (point.clip(("b", 3)), point.clip(("b", 4))) == (Clip(0, 5, 9), Clip(None, 5, 9))
        assert PointPlan(43).clip(("b", 3)) is None

    def test_it_survives_json_with_topics_that_it_replaces(self) -> None:
        plan = replace(self.PLAN, topics=(replace(self.PLAN.topics[0], replaces="0" * 22),))
        assert RestorePlan.from_json(plan.to_json(), "p") == plan
        with_point = replace(plan, point=PointPlan(seen=3, before=5))
        assert RestorePlan.from_json(with_point.to_json(), "p") == with_point

    def test_it_survives_json_with_a_mapping_of_partitions(self) -> None:
        choice = Choice(topic("orders", 1, 3), "copy", {2: 0, 0: 1})
        segments = {2: [entry()], 0: [entry()]}
        made = plan_topic(choice, segments, existing=None, end_offsets={})
        assert [(part.partition, part.target, part.producer_id) for part in made.partitions] == [
            (2, 0, NEEDS_PRODUCER_ID),
            (0, 1, NEEDS_PRODUCER_ID),
            (-1, 2, NO_TASK),
        ]
        plan = replace(self.PLAN, topics=(*self.PLAN.topics, made))
        assert RestorePlan.from_json(plan.to_json(), "p") == plan
        there = ExistingTopic("copy", 2, {})
        behind = plan_topic(choice, segments, existing=there, end_offsets={0: 40, 1: 50})
        assert [(part.partition, part.target, part.start) for part in behind.partitions] == [(2, 0, 40), (0, 1, 50)]
        refuse_far_partition(choice, 2)
        with pytest.raises(
            TargetUnsuitable, match="partition 0 of topic orders is to go to partition 1, and topic copy"
        ):
            refuse_far_partition(choice, 1)

    def test_it_survives_json_with_another_number_of_partitions(self) -> None:
        choice = Choice(topic("orders", 1, 3), "copy", wanted=2)
        segments = {0: [entry()], 2: [entry(partition=2)]}
        made = plan_topic(choice, segments, existing=None, end_offsets={})
        assert (made.partition_count, made.divided) == (2, True)
        plan = RestorePlan("r", "d", "a", 1, "c", (made,)).with_producer_ids([70, 71, 72, 73])
        assert RestorePlan.from_json(plan.to_json(), "plan") == plan
        (whole,) = plan.topics
        assert whole.archived_partitions == {
            0: (PartitionPlan(0, 70, 0, to=0), PartitionPlan(0, 71, 0, to=1)),
            2: (PartitionPlan(2, 72, 0, to=0), PartitionPlan(2, 73, 0, to=1)),
        }
        there = ExistingTopic("copy", 2, {})
        behind = plan_topic(choice, segments, existing=there, end_offsets={0: 40, 1: 50})
        assert [part.start for part in behind.partitions] == [40, 50, 40, 50]

    def test_a_topic_that_has_the_wanted_number_is_not_divided(self) -> None:
        choice = Choice(topic("orders", 1, 2), "copy", wanted=2)
        made = plan_topic(choice, {0: [entry()]}, existing=None, end_offsets={})
        assert (made.partition_count, made.divided) == (2, False)
        assert made == plan_topic(Choice(topic("orders", 1, 2), "copy"), {0: [entry()]}, existing=None, end_offsets={})

    def test_replicas_that_are_not_known_are_the_clusters_default(self) -> None:
        choice = Choice(replace(topic("orders"), replication_factor=-1), "copy")
        assert plan_topic(choice, {}, existing=None, end_offsets={}).replication_factor == -1

    def test_fewer_replicas_only_where_the_spec_says_so(self) -> None:
        choice = Choice(topic("orders"), "copy")
        assert plan_topic(choice, {}, existing=None, end_offsets={}).replication_factor == 3
        assert plan_topic(choice, {}, existing=None, end_offsets={}, replicas=1).replication_factor == 1

    def test_another_format_and_unknown_keys_are_refused_by_name(self) -> None:
        body = json.loads(self.PLAN.to_json())
        topic = {**body["topics"][0], "later": 1}
        for altered, reported in (
            ({**body, "format": 2}, r"plan: restore plan of format 2; this version reads 1"),
            ({**body, "later": 1}, r"plan: restore plan: unknown keys \['later'\]"),
            ({**body, "topics": [topic]}, r"unknown keys \['later'\] of topics\[0\]"),
        ):
            with pytest.raises(ArchiveMismatch, match=reported):
                RestorePlan.from_json(json.dumps(altered).encode(), "plan")

    def test_damage_is_refused_by_name(self) -> None:
        body = json.loads(self.PLAN.to_json())
        for key in body.keys() - {"format"}:
            without = {name: value for name, value in body.items() if name != key}
            with pytest.raises(ArchiveDamaged, match=rf"plan: not a restore plan: key '{key}' is missing"):
                RestorePlan.from_json(json.dumps(without).encode(), "plan")
        wrong: tuple[object, ...] = (
            {**body, "commit": "41"},
            {**body, "loss": True},
            {**body, "recordBatches": {}},
        )
        for altered in (*wrong, [], None):
            with pytest.raises(ArchiveDamaged, match="plan: not a restore plan"):
                RestorePlan.from_json(json.dumps(altered).encode(), "plan")
        with pytest.raises(ArchiveDamaged, match="plan: not a restore plan"):
            RestorePlan.from_json(b"{", "plan")
        codec = {"maxRecords": 1, "maxBytes": 1, "compression": "own"}
        with pytest.raises(ArchiveDamaged, match="plan: not a restore plan: KeyError"):
            RestorePlan.from_json(json.dumps({**body, "recordBatches": codec}).encode(), "plan")

    def test_facts_of_a_topic_without_records(self) -> None:
        assert topic_facts([]) == TopicFacts(0, 0, 0, -1, -1)


class TestBatching:
    def test_records_become_compressed_batches_that_every_topic_takes(self) -> None:
        batching = batching_of(FormatName.RECORDS, RecordBatches())
        assert batching == batching_of(FormatName.AVRO, RecordBatches()) == Batching(10_000, 900_000, Codec.LZ4)

    def test_the_spec_decides(self) -> None:
        wanted = RecordBatches.model_validate({"maxRecords": 7, "compression": "None"})
        assert batching_of(FormatName.AVRO, wanted) == Batching(7, 900_000, Codec.NONE)

    def test_kafkas_own_batches_stay_as_they_are(self) -> None:
        assert batching_of(FormatName.KAFKA, RecordBatches()) is None
        for wanted in ({"maxRecords": 7}, {"compression": "Zstd"}):
            with pytest.raises(SpecError, match=r"^spec\.recordBatches: the archive has Kafka's own batches"):
                batching_of(FormatName.KAFKA, RecordBatches.model_validate(wanted))


class TestDigest:
    def digest(self, **more: object) -> str:
        spec = {"cluster": {"bootstrapServers": ["b:9092"]}, "source": {"storage": {"uri": "file:///archive"}}}
        return spec_digest(parse_restore({**spec, **more}))

    def test_of_defaults_is_the_same_whether_they_are_written_or_not(self) -> None:
        expected = self.digest()
        assert self.digest(consumerGroups={}, recordBatches={}, limits={"bytesPerSecond": "5Mi"}) == expected
        assert self.digest(consumerGroups={"restore": "None", "include": [".*"]}) == expected
        assert self.digest(offsets="Any") == expected
        assert self.digest(topics={"configs": {"policy": "Restore", "override": {}}}) == expected
        assert self.digest(offsets="Same") != expected
        held = self.digest(topics={"retention": "Hold"})
        assert held == self.digest(topics={"retention": "Hold", "holdFor": "7d"}) != expected

    def test_a_run_continues_however_it_runs_and_wherever_its_state_lies(self) -> None:
        changed: dict[str, object] = {
            "spark": {"driver": {"memory": "4Gi"}, "executor": {"instances": 9, "cores": 3}, "conf": {"spark.a": "b"}},
            "runPolicy": {"backoffLimit": 0, "activeDeadlineSeconds": 5},
            "limits": {"bytesPerSecond": "1Mi"},
            "suspend": True,
            "allowEmpty": True,
            "verify": "Full",
            "state": {"uri": "s3://other"},
            "emit": "KafkaTopics",
            "emitOptions": {"strimziCluster": "prod"},
        }
        permits = {"confirm", "dryRun"}
        # Think about a field that is in none of the two: may it change between two attempts of one run?
        decides = {"source", "point", "topics", "ifTopicExists", "offsets", "onDamagedArchive", "consumerGroups"}
        decides |= {"recordBatches", "drill", "everything", "schemaTopic", "acls"}
        asked_of_the_cluster_itself = {"cluster"}
        fields = {to_camel(name) for name in KafkaRestoreSpec.model_fields}
        assert fields == set(changed) | permits | decides | asked_of_the_cluster_itself
        assert self.digest(**changed) == self.digest()

    def test_changes_with_what_decides(self) -> None:
        assert self.digest(everything=True) != self.digest()
        assert self.digest(everything=True, schemaTopic="_schemas") == self.digest(everything=True)
        assert self.digest(everything=True, schemaTopic="registry") != self.digest(everything=True)
        assert self.digest(everything=True, acls={"cluster": True}) != self.digest(everything=True)
        digests = {
            self.digest(),
            self.digest(recordBatches={"maxRecords": 7}),
            self.digest(point={"run": "a"}),
            self.digest(point={"asOf": "2026-11-17T14:05:00Z"}),
            self.digest(point={"timestamp": "2026-11-17T14:05:00Z"}),
            self.digest(recordBatches={"maxRecords": 8}),
            self.digest(recordBatches={"compression": "Zstd"}),
            self.digest(consumerGroups={"restore": "Translate"}),
            self.digest(consumerGroups={"restore": "Translate", "exclude": ["a"]}),
        }
        source = {"storage": {"uri": "file:///archive"}}
        digests.add(self.digest(topics={"replicationFactor": 1}))
        digests.add(self.digest(topics={"configs": {"policy": "Ignore"}}))
        digests |= {self.digest(source={**source, "topicIds": {"a": topic_id}}) for topic_id in ("1", "2")}
        assert len(digests) == 13
        assert self.digest(source={**source, "topicIds": {}}) == self.digest()


class TestPack:
    def test_big_partitions_go_alone_and_small_ones_together(self) -> None:
        small, big = 1 << 20, 1 << 30
        sizes = [small] * 10 + [big] + [small] * 10 + [big]
        groups = pack(sizes, 1)
        assert sorted(at for group in groups for at in group) == list(range(22))
        assert [group for group in groups if 10 in group or 21 in group] == [(10,), (21,)]
        assert groups[:2] == [(10,), (21,)]
        assert len(groups) < 10

    def test_thousands_of_small_partitions_are_few_tasks(self) -> None:
        groups = pack([1000] * 10_000, 2)
        assert all(len(group) <= MAX_PARTITIONS_PER_TASK for group in groups)
        assert len(groups) == 40
        assert len(pack([1000] * 100, 2)) == 2

    def test_few_partitions_get_a_task_each(self) -> None:
        assert sorted(pack([5, 9, 7], 8)) == [(0,), (1,), (2,)]
        assert pack([], 2) == []
