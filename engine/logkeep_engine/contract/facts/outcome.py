"""The facts of how a run ended: what it has lost, protected, verified and brought back."""

from __future__ import annotations

from logkeep_engine.contract.facts.values import (
    Count,
    Facts,
    FactTime,
    Id,
    Listed,
    Said,
    Seconds,
    ShownName,
    TopicName,
    Uri,
    Word,
)


class LossFact(Facts):
    """A range of offsets of a partition, from start up to end, the end not included."""

    topic: TopicName
    """Topic."""
    partition: Count
    """Partition."""
    start: Count
    """First missing offset."""
    end: Count
    """First offset that is not missing."""
    reason: Said
    """Why they are missing."""


class TopicCoverage(Facts):
    """How many topics are protected and how many are not, and the first names of each list."""

    protected: Count = 0
    """Topics that the run has archived as far as it came."""
    unmatched: Count = 0
    """Patterns in topics.include that choose no topic."""
    left_out: Count = 0
    """Topics of the cluster that no pattern chooses."""
    vanished: Count = 0
    """Topics that the archive holds and that are gone from the cluster."""
    unreadable: Count = 0
    """Topics that the user may not read."""
    patterns_unmatched: Listed[ShownName] = ()
    """The first patterns that choose no topic, at most 20."""
    topics_left_out: Listed[ShownName] = ()
    """The first of the topics that no pattern chooses, at most 20."""
    topics_vanished: Listed[ShownName] = ()
    """The first of the topics that are gone, at most 20."""
    topics_unreadable: Listed[ShownName] = ()
    """The first of the topics that the user may not read, at most 20."""


class VerificationFacts(Facts):
    """The findings of a verification. `outcome` is Verified, NotVerified or Different. `run_id` is the run whose
    records were verified."""

    run_id: Id = ""
    """The run whose records were verified."""
    outcome: Word
    """Verified if every record of the archive is in the target, in order, and nothing else; Different if something
    differs; NotVerified if nothing was found to differ, but not all could be compared, or the target does not stay what
    it is."""
    message: Said = ""
    """The first difference, or the first reason."""
    partitions: Count = 0
    """Number of partitions."""
    verified: Count = 0
    """Number of partitions that are verified."""
    not_verified: Count = 0
    """Number of partitions that are not verified."""
    different: Count = 0
    """Number of partitions that differ."""
    records: Count = 0
    """Records of the target that were read back."""
    end_time: FactTime | None = None
    """When the verification had ended."""
    report: Uri = ""
    """URI of the page with all details. The same for programs lies next to it."""


class ReconcileFacts(Facts):
    """The findings of the last run that looked for stale keys. `outcome` is Same, StaleKeys, NotCompared or
    KeysMissing."""

    run_id: Id = ""
    """The run."""
    outcome: Word
    """Same, StaleKeys, NotCompared (of a partition nothing is known) or KeysMissing (the archive lacks the last record
    of a key)."""
    message: Said = ""
    """The finding in one sentence."""
    partitions: Count = 0
    """Partitions of compacted topics."""
    not_compared: Count = 0
    """Partitions that could not be compared."""
    keys: Count = 0
    """Keys that the archive has of them."""
    stale: Count = 0
    """Keys that are alive in the archive and gone from the cluster."""
    missing: Count = 0
    """Keys whose last record the archive lacks, though it accounts for its offset."""
    end_time: FactTime | None = None
    """When all was compared."""
    report: Uri = ""
    """URI of the document with all details, without keys."""


class ClusterStateFacts(Facts):
    """The outcome of bringing back the ACLs, quotas and users that `source_run` has archived."""

    source_run: Id = ""
    """The run of the backup that has archived them."""
    acls: Count | None = None
    """Number of archived ACLs; absent if not archived."""
    acls_added: Count | None = None
    """Number of ACLs that were missing and were added."""
    acls_refused: Count | None = None
    """Number of ACLs that the cluster did not take."""
    acls_held_back: Count | None = None
    """Number of ACLs that were not added, since spec.acls does not name them."""
    held_back_list: Listed[Said] = ()
    """ACLs that were held back, at most 20."""
    quotas: Count | None = None
    """Number of archived values of client quotas; absent if not archived."""
    quotas_added: Count | None = None
    """Number of values that were missing and were set."""
    quotas_refused: Count | None = None
    """Number of values that the cluster did not take."""
    quotas_kept: Count | None = None
    """Number of values that are others in the cluster, and stay as they are."""
    users_to_create: Listed[Said] = ()
    """SCRAM users to be created with new passwords, which no archive has, at most 20."""
    users_total: Count | None = None
    """Number of SCRAM users that the cluster did not have."""
    report: Uri = ""
    """URI of the document that names each of them."""


class EmittedFacts(Facts):
    """The KafkaTopics that a restore has written, and where."""

    config_map: Id = ""
    """Name of the ConfigMap. It is deleted with the resource, and when another run begins."""
    key: Id = ""
    """Key of the ConfigMap. One that ends with .gz is in binaryData and is compressed."""
    topics: Count = 0
    """Number of KafkaTopics."""


class HeldTopics(Facts):
    """The topics that a restore has left without limits of retention, until they are released: how many, and the first
    names. After the release, how many have their own retention since, and the others, each with its outcome."""

    topics: Count = 0
    """Number of topics."""
    topic_list: Listed[TopicName] = ()
    """The first 20 of them."""
    released_time: FactTime | None = None
    """When the operator had released them."""
    released: Count | None = None
    """Number of topics that had their own retention then."""
    not_released_list: Listed[Said] = ()
    """The others, at most 20, each with what logkeep release says of it. NotHeld: it had been given another
    retention, or another restore holds it, and it was left as it is. Gone: it had been deleted."""


class DrillFacts(Facts):
    """The findings of a drill: the seconds from its start until the last record was acknowledged, and until all was
    verified. `partitions` were restored, without this many `cold_segments`. `report` is the URI of the document
    with all details.

    Only sampled drills have the numbers of the `cycle`: of `total` partitions, `drilled` were, and all are within this
    many `runs`."""

    recovery_seconds: Seconds
    verified_seconds: Seconds
    partitions: Count
    records: Count
    bytes: Count
    report: Uri
    total: Count = 0
    cycle: Count = 0
    drilled: Count = 0
    runs: Count = 0
    cold_segments: Count = 0
