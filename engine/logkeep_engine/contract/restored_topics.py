"""The target topics of a restore, as written in `spec.topics`: which topics come back, under which names, and how the
topics that the restore creates are made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from logkeep_engine.contract.model import SET, Model, map_of, meant, rule, rules, schema, usual
from logkeep_engine.contract.pattern_lists import Patterns, PatternText, SomePatterns, not_a_pattern, refuse
from logkeep_engine.contract.patterns import MAX_PATTERN_LENGTH, MAX_PATTERNS, PatternInvalid, RenameRule, check_size
from logkeep_engine.contract.values import INT32, Duration, parse_duration

MAX_REPLICAS = 2**15 - 1  # an int16 in Kafka's protocol
MAX_PARTITION = 2**31 - 2  # so that the number of partitions is an int32
MAX_PARTITION_COUNT = 10_000
MAX_HOLD = "3650d"

TopicName = Annotated[str, Field(min_length=1, max_length=249)]
ConfigKey = Annotated[
    str,
    Field(
        min_length=1,
        max_length=128,
        pattern=meant(r"^[a-z0-9._-]+$", "a topic's configuration: lower-case letters, digits, '.', '_' and '-'"),
    ),
]


class Rename(Model):
    """`from` must match the whole name of a topic or a consumer group; `to` may use its groups as \\1 or \\g<name>. The
    first rule that matches is used.
    """

    from_: Annotated[PatternText, Field(alias="from")]
    """Regular expression that must match the whole name of the topic, or of the group."""
    to: Annotated[str, Field(min_length=1, max_length=MAX_PATTERN_LENGTH)]
    """The new name, which may use groups of from as \\1 or \\g<name>."""

    def rule(self) -> RenameRule:
        """Return the rule, ready for names. Raises ValueError."""
        return RenameRule(self.from_, self.to)


def _renames(rules: tuple[Rename, ...]) -> tuple[Rename, ...]:
    steps = 0
    for at, rename in enumerate(rules):
        try:
            steps += rename.rule().steps
            check_size(steps)
        except PatternInvalid as error:
            refuse(not_a_pattern(rename.from_, error), rename.from_, at, "from")
        except ValueError as error:
            refuse(f"{rename.to!r} does not fit the groups of {rename.from_!r}: {error}", rename.to, at, "to")
    return rules


Renames = Annotated[tuple[Rename, ...], Field(max_length=MAX_PATTERNS), AfterValidator(_renames)]


def describe_unused(field: str, renames: Sequence[Rename], names: Collection[str], what: str) -> list[str]:
    """Return a sentence for each rule of a field that renames none of these names: what it is for keeps its name.
    `what`: of what these are the names."""
    rules = [rename.rule() for rename in renames]
    used = {next((at for at, rule in enumerate(rules) if rule.new_name(name) is not None), -1) for name in names}
    return [f"{field}[{at}] {rename.from_!r} renames no {what}" for at, rename in enumerate(renames) if at not in used]


class ConfigPolicy(StrEnum):
    """`Restore`: created topics get the archived configuration. `Ignore`: they have the defaults of the cluster."""

    RESTORE = "Restore"
    IGNORE = "Ignore"


class TopicConfigs(Model):
    """The configuration of created topics. `override` goes before what was archived, and `ignore` names keys that stay
    at the cluster's default whatever was archived.
    """

    model_config = rules(
        (
            "!has(self.policy) || self.policy != 'Ignore' || !has(self.ignore) || size(self.ignore) == 0",
            "ignore has no effect with policy Ignore, which restores no key; leave it out",
        ),
        (
            "!has(self.ignore) || !has(self.override) || !self.ignore.exists(key, key in self.override)",
            "a key may be in override or in ignore, not in both",
        ),
    )

    policy: ConfigPolicy = ConfigPolicy.RESTORE
    """Restore gives topics the archived configuration. Ignore leaves them with the defaults of the cluster."""
    override: Annotated[dict[ConfigKey, Annotated[str, schema(maxLength=4096)]], schema(maxProperties=100)] = Field(
        default={}
    )
    """Keys and values that topics get whatever was archived. A key or a value that the cluster does not take is refused
    before anything is written."""
    ignore: Annotated[tuple[ConfigKey, ...], SET, schema(maxItems=100)] = ()
    """Keys that stay at the default of the cluster, whatever was archived."""

    @model_validator(mode="after")
    def _each_key_once(self) -> TopicConfigs:
        if self.policy is ConfigPolicy.IGNORE and self.ignore:
            raise ValueError("ignore has no effect with policy Ignore, which restores no key; leave it out")
        if set(self.ignore) & set(self.override):
            raise ValueError("a key may be in override or in ignore, not in both")
        if len(set(self.ignore)) < len(self.ignore):
            raise ValueError("ignore names a key twice")
        return self


class TopicRetention(StrEnum):
    """`Refuse`: nothing is restored if a target would delete records by its own retention. `Hold`: the targets delete
    none until the topics are released. `Apply`: they delete what their retention says.
    """

    REFUSE = "Refuse"
    HOLD = "Hold"
    APPLY = "Apply"


class Partitioner(StrEnum):
    """The hash of a key that producers choose the partition by. `murmur2`: Java's default. `crc32`: that of
    librdkafka."""

    MURMUR2 = "murmur2"
    CRC32 = "crc32"


class ChosenPartition(Model):
    """A partition that is restored, by the archived name of its topic, and the partition of the target that it goes
    to; None: the one of the same number.
    """

    topic: TopicName
    """The archived name of the topic."""
    partition: Annotated[int, Field(ge=0, le=MAX_PARTITION), INT32]
    """The archived partition."""
    target: Annotated[int, Field(ge=0, le=MAX_PARTITION), INT32] | None = None
    """The partition of the target. By default it has the same number. Two partitions cannot go to one."""

    @property
    def target_partition(self) -> int:
        """The partition of the target."""
        return self.partition if self.target is None else self.target


class RestoreTopics(Model):
    """`replicationFactor` is that of created topics; None: as many replicas as the archived topic had. Of topics that
    `partitions` names, only the partitions that it names are restored. `partitionCount` is the number of partitions of
    all targets; None: that of the archived topic. `partitioner` is the one by which records are divided then; None: the
    one by which each archived topic lies. `retention`: what becomes of records that a target would delete,
    because they are older, or more, than it keeps. `holdFor`: this long after the success of the restore the operator
    releases topics that are held; None: `logkeep release` alone does.
    """

    model_config = rules(
        (
            "!has(self.partitionCount) || !has(self.partitions) || size(self.partitions) == 0",
            "partitionCount divides the records of all partitions by their keys: partitions may not be given with it",
        ),
        (
            "!has(self.partitioner) || has(self.partitionCount)",
            "partitioner has no effect without partitionCount: records stay in their partitions",
        ),
        (
            "!has(self.holdFor) || self.retention == 'Hold'",
            "holdFor has no effect without retention Hold: nothing is held",
        ),
    )

    include: SomePatterns = (".*",)
    """Topics to restore, by regular expressions that must match the whole name."""
    exclude: Patterns = ()
    """Topics to leave out although they match include."""
    rename: Renames = ()
    """New names: the first rule that matches is used."""
    replication_factor: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | None = None
    """Replicas of the topics that are created. By default they have as many as the archived topic had. The restore is
    refused if the cluster has fewer brokers, or if the configuration of a topic asks for more replicas in sync
    (min.insync.replicas)."""
    configs: TopicConfigs = usual(TopicConfigs)
    """The configuration of the topics that are created. They get it when all records are there."""
    partitions: Annotated[tuple[ChosenPartition, ...], map_of("topic", "partition"), schema(maxItems=10_000)] = ()
    """Partitions to restore. Of a topic that is named here, nothing but these partitions is restored; other topics are
    restored as a whole."""
    partition_count: Annotated[int, Field(ge=1, le=MAX_PARTITION_COUNT), INT32] | None = None
    """Partitions of all targets. By default a topic has as many as the archived one. Where that is another number, each
    record goes to the partition that producers choose by its key, see partitioner, and one without a key to any.
    Records of a key keep their order. Offsets, positions of consumer groups and verify Full have no meaning then, and
    are refused."""
    partitioner: Partitioner | None = None
    """How the producers of the topics choose a partition by the key. murmur2 is the default of Java's producers, crc32
    that of librdkafka (confluent-kafka for Python, .NET and Go). By default each topic has the one that placed its
    archived records, as a sample of their keys shows. If they lie by the other one, or by neither and nothing is said
    here, the restore is refused."""
    retention: TopicRetention = TopicRetention.REFUSE
    """The treatment of restored records that a topic of the target would delete, because they are older than its
    retention.ms, or more than its retention.bytes. Refuse restores nothing then, and names the topics. Hold leaves all
    topics of the restore without these limits (retention.ms=-1, retention.bytes=-1) until logkeep release or holdFor
    gives them their own; status.heldTopics names them. Apply lets them delete the records, with a warning."""
    hold_for: Annotated[
        Duration | None,
        rule(
            "int(self.substring(0, self.size() - 1)) * {'s': 1, 'm': 60, 'h': 3600, 'd': 86400, 'w': "
            "604800}[self.substring(self.size() - 1)] <= 315360000",
            "holdFor must be at most 3650d; without it topics are held until logkeep release",
        ),
    ] = None
    """How long after the success of the restore the operator releases the topics that retention Hold holds, as logkeep
    release does, such as 12h or 7d. By default it never does. As long as they are held, the field may be changed;
    status.heldTopics says when they are released, and then that they were."""

    @property
    def hold_seconds(self) -> int | None:
        """The seconds of `holdFor`, None if it is not set."""
        return None if self.hold_for is None else parse_duration(self.hold_for)

    @model_validator(mode="after")
    def _each_partition_once(self) -> RestoreTopics:
        sources = Counter((item.topic, item.partition) for item in self.partitions)
        for (topic, partition), count in sources.items():
            if count > 1:
                raise ValueError(f"partitions: topic {topic} partition {partition} appears twice")
        targets = Counter((item.topic, item.target_partition) for item in self.partitions)
        for (topic, partition), count in targets.items():
            if count > 1:
                raise ValueError(f"partitions: {count} partitions of topic {topic} would go to partition {partition}")
        return self

    @model_validator(mode="after")
    def _no_places_with_another_count(self) -> RestoreTopics:
        if self.partition_count is not None and self.partitions:
            raise ValueError(
                "partitionCount divides the records of all partitions by their keys: partitions may not be given with "
                "it"
            )
        return self

    @model_validator(mode="after")
    def _partitioner_of_a_count(self) -> RestoreTopics:
        if self.partitioner is not None and self.partition_count is None:
            raise ValueError("partitioner has no effect without partitionCount: records stay in their partitions")
        return self

    @model_validator(mode="after")
    def _held_for_a_time(self) -> RestoreTopics:
        if self.hold_for is not None and self.retention is not TopicRetention.HOLD:
            raise ValueError("holdFor has no effect without retention Hold: nothing is held")
        if self.hold_seconds is not None and self.hold_seconds > parse_duration(MAX_HOLD):
            raise ValueError(f"holdFor must be at most {MAX_HOLD}; without it topics are held until logkeep release")
        return self

    def refuse_with_count(self, *, same: bool, groups: bool, full: bool, drill: bool) -> None:
        """Raises ValueError for what has no meaning with `partitionCount`: the same offsets, positions of groups, full
        verification, a drill."""
        if self.partition_count is None:
            return
        if same:
            raise ValueError("topics.partitionCount gives records other offsets: offsets may not be Same with it")
        if groups:
            raise ValueError(
                "topics.partitionCount leaves no offset that corresponds to a position: consumerGroups.restore may "
                "only be None with it"
            )
        if full:
            raise ValueError("topics.partitionCount mixes records of several partitions: verify may only be Counts")
        if drill:
            raise ValueError("topics.partitionCount may not be given with drill, which verifies fully")
