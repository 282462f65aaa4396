"""Which topics and groups of a cluster a run archives, and which of them it must refuse."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from logkeep_engine.archive.catalog.facts import TopicEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.maintenance.retaining import RetentionRules
from logkeep_engine.archive.names import DATA, TOPICS, avro_stem
from logkeep_engine.archive.reading.incarnations import incarnations
from logkeep_engine.contract.archive_format import FormatName
from logkeep_engine.contract.patterns import NamePatterns
from logkeep_engine.contract.spec import ConsumerGroups, KafkaBackupSpec, Topics
from logkeep_engine.errors import ArchiveMismatch, BrokerRefused, NoTopicMatches
from logkeep_engine.formats.avro_names import SEQUENCE_WIDTH
from logkeep_engine.kafka.internal import CONSUMER_OFFSETS, INTERNAL_TOPICS
from logkeep_engine.kafka.queries import NO_TOPIC_ID
from logkeep_engine.kafka.topics import TopicInfo
from logkeep_engine.storage import Storage

MAX_NAMES_IN_MESSAGE = 10

AVRO_INTERNAL_TOPICS = frozenset({CONSUMER_OFFSETS, "_schemas"})
"""The topics that an Avro archive holds besides the chosen ones if `topics.internal` asks for them. One holds the
positions of groups, the other the schemas to which records refer. Both hold data of all tenants of the cluster, so
they come only on request."""


def added_topics(spec: KafkaBackupSpec) -> frozenset[str]:
    """Return the topics that a backup archives besides those that its patterns choose."""
    return AVRO_INTERNAL_TOPICS if spec.format is FormatName.AVRO and spec.topics.internal else frozenset()


class Chooser:
    """Tells whether a run archives a topic: `spec.topics` chooses it, or it is one of `also` and not excluded.

    `internal`: brokers call the topic Kafka's own.
    """

    def __init__(self, wanted: Topics, also: frozenset[str] = frozenset()) -> None:
        self._patterns = NamePatterns(wanted.include, wanted.exclude)
        self._internal = wanted.internal
        self._also = also

    def may_choose(self, name: str, *, internal: bool = False) -> bool:
        """Return whether patterns may choose the topic. Kafka's own need `spec.topics.internal`."""
        return self._internal or not is_internal(name, internal=internal)

    def chooses(self, name: str, *, internal: bool = False) -> bool:
        return self.may_choose(name, internal=internal) and self._patterns.chooses(name)

    def adds(self, name: str) -> bool:
        return name in self._also and not self._patterns.excludes(name)


def retention_rules(spec: KafkaBackupSpec) -> RetentionRules:
    """Return the rules of `spec.retention`, for the topics that the backup archives if they exist: one that has left
    the cluster is chosen by its name."""
    chooser = Chooser(spec.topics, added_topics(spec))
    return RetentionRules.of(spec.retention, lambda name: chooser.chooses(name) or chooser.adds(name))


def is_internal(name: str, *, internal: bool = False) -> bool:
    """Return whether the topic is one of Kafka's own: brokers say so, or its name does."""
    return internal or name in INTERNAL_TOPICS


def select_topics(
    existing: Sequence[TopicInfo], wanted: Topics, *, also: frozenset[str] = frozenset()
) -> list[TopicInfo]:
    """Return the topics that a run archives, by name. Those of `also` that exist are added, unless they are excluded.
    Raises NoTopicMatches, which names the patterns and the topics that exist.
    """
    chooser = Chooser(wanted, also)
    selected = [topic for topic in existing if chooser.chooses(topic.name, internal=topic.internal)]
    if not selected:
        candidates = (topic for topic in existing if chooser.may_choose(topic.name, internal=topic.internal))
        names = sorted(topic.name for topic in candidates)
        shown = ", ".join(names[:MAX_NAMES_IN_MESSAGE]) + (", ..." if len(names) > MAX_NAMES_IN_MESSAGE else "")
        but = f" without {', '.join(map(repr, wanted.exclude))}" if wanted.exclude else ""
        raise NoTopicMatches(
            f"spec.topics matches no topic: include {', '.join(map(repr, wanted.include))}{but}. "
            + (
                f"The cluster has {len(names)}: {shown}."
                if names
                else "The cluster has no topics that may be archived."
            ),
            hint="A pattern must match the whole name.",
        )
    chosen = {topic.name for topic in selected}
    selected += [topic for topic in existing if topic.name not in chosen and chooser.adds(topic.name)]
    return sorted(selected, key=lambda topic: topic.name)


def unlisted_topics(
    state: ArchiveState, listed: Collection[str], wanted: Topics, *, also: frozenset[str] = frozenset()
) -> list[TopicEntry]:
    """Return the topics that a run archives if they exist, that the archive knows, and that a broker has not `listed`.
    Each name has its newest incarnation.
    """
    chooser = Chooser(wanted, also)
    return [
        found[-1]
        for name, found in incarnations(state.topics.values()).items()
        if name not in listed and (chooser.chooses(name) or chooser.adds(name))
    ]


def deleted_topics(
    state: ArchiveState, there: Collection[str], silent: Collection[str], wanted: Topics, *, also: frozenset[str]
) -> list[TopicEntry]:
    """Return the topics that a run would archive, and that the archive knows, but not `there` any more, by their ids.
    Of `silent` names it is unknown which ids there are."""
    chooser = Chooser(wanted, also)
    return [
        topic
        for topic in state.topics.values()
        if topic.topic_id not in there
        and topic.name not in silent
        and (chooser.chooses(topic.name) or chooser.adds(topic.name))
    ]


def check_topic_ids(topics: Sequence[TopicInfo]) -> None:
    """Raises BrokerRefused for a topic without a topic id: another one of the same name could not be distinguished
    from it."""
    for topic in topics:
        if topic.topic_id == NO_TOPIC_ID:
            raise BrokerRefused(
                f"Topic {topic.name!r} has no topic id: if it were deleted and created again, no run would notice.",
                hint="Backups need Kafka 2.8 or newer. Brokers with ZooKeeper give topics their ids once "
                "inter.broker.protocol.version is 2.8 or newer.",
            )


def check_incarnations(topics: Sequence[TopicInfo], state: ArchiveState) -> None:
    """Raises ArchiveMismatch for a topic if the archive holds, or has held, an earlier incarnation of it. In the
    formats of records both would have one folder, and objects of the same names.
    """
    ids = {state.topics[topic_id].name: topic_id for topic_id, _ in (*state.removed, *state.segments)}
    for topic in topics:
        archived = ids.get(topic.name)
        if archived is not None and archived != topic.topic_id:
            raise ArchiveMismatch(
                f"Topic {topic.name!r} was deleted and created again: its id is {topic.topic_id}, but the archive "
                f"holds records of id {archived}. In this format both would share one folder, so nothing was written.",
                hint="Use another storage.uri from now on, or exclude the topic with spec.topics.exclude. "
                "An archive of format Kafka holds both.",
            )


def check_names(topics: Iterable[TopicEntry], format_name: FormatName, storage: Storage) -> None:
    """Raises StorageRefused for a topic with objects whose names the storage cannot hold."""
    for topic in topics:
        storage.check_path(f"{TOPICS}{topic.name}")
        if format_name is FormatName.AVRO:
            storage.check_path(avro_stem(topic.name, topic.partitions - 1, 0, width=SEQUENCE_WIDTH) + DATA)


def select_groups(group_ids: Iterable[str], wanted: ConsumerGroups) -> list[str]:
    """Return the consumer groups whose positions a run archives, by id; there may be none."""
    patterns = NamePatterns(wanted.include, wanted.exclude)
    return sorted(group for group in group_ids if patterns.chooses(group))
