"""How an archive holds what was in the topics: its format, and its segments."""

from __future__ import annotations

from enum import StrEnum

from logkeep_engine.contract.model import Model
from logkeep_engine.contract.values import (
    MergeCount,
    PackBytes,
    Percent,
    SegmentBytes,
    parse_quantity,
)


class FormatName(StrEnum):
    """In which format an archive holds what was in the topics.

    `Kafka`: record batches as the broker has them, nothing is lost. `Records`: the files of `kafka-backup`. `Avro`:
    Avro container files.
    """

    KAFKA = "Kafka"
    RECORDS = "Records"
    AVRO = "Avro"


class Compatibility(StrEnum):
    """`lossless`: the published Avro schema with added fields. `strict`: the published schema as it is."""

    LOSSLESS = "lossless"
    STRICT = "strict"


class AvroCodec(StrEnum):
    """The compression of the blocks of an Avro object."""

    NONE = "none"
    DEFLATE = "deflate"
    SNAPPY = "snappy"
    ZSTANDARD = "zstandard"


class FormatOptions(Model):
    """`allowLoss`: continue where strict Avro cannot hold something that records carry. All are of format Avro."""

    allow_loss: bool = False
    """Whether the run continues if the strict schema cannot hold something that the records carry. By default the run
    then ends with the reason FormatLoss, before anything is written. Only with compatibility strict."""
    compatibility: Compatibility | None = None
    """Schema of the Avro objects. Lossless, the default, adds fields that any Avro reader skips. Strict is the
    published schema, which has no place for tombstones, for timestamp types, and for headers that are ordered or
    repeated."""
    codec: AvroCodec | None = None
    """Compression of the blocks of Avro objects. The default is none."""


class Compression(StrEnum):
    """`Passthrough`: batches lie in the archive as Kafka has them. `Zstd`: segments are compressed as a whole besides,
    which pays where producers do not compress, or poorly.
    """

    PASSTHROUGH = "Passthrough"
    ZSTD = "Zstd"


class DigestAlgorithm(StrEnum):
    """The algorithm of the digest by which every byte of an archived object is known again."""

    SHA256 = "Sha256"
    BLAKE3 = "Blake3"


DEFAULT_DIGEST = DigestAlgorithm.BLAKE3
DEFAULT_PACK_BELOW = "8Mi"
DEFAULT_MERGE_COUNT = 16
DEFAULT_LIVE_PERCENT = 25


class SegmentSpec(Model):
    """`maxBytes` bounds the log before it is compressed: positions in a Kafka index are those of the plain log.
    `packBelow` is about the bytes that are stored; 0: each segment has its own objects. Segments in packs are merged
    with their neighbours once these have `mergeCount` times the bytes of the largest; 0: never. A pack of which less
    than `livePercent` are still in use is cleared."""

    max_bytes: SegmentBytes = "512Mi"
    """Size at which a new segment begins, before compression: 1Mi to 2147483647 bytes."""
    compression: Compression = Compression.PASSTHROUGH
    """Whether segments are compressed as a whole. Passthrough keeps the producers' compression and adds none. Zstd
    takes processor time, and saves storage if producers compress poorly or not at all."""
    digest: DigestAlgorithm = DEFAULT_DIGEST
    """Algorithm of the digest that the catalog keeps of each segment, and that verify compares. Blake3 takes less than
    a third of the processor time of Sha256. Choose Sha256 if a rule asks for it, or if versions of Logkeep before this
    field must read the archive. What is archived keeps its digest."""
    record_digests: bool = False
    """If true, a run that succeeded reads what it has archived once more, and keeps digests of the records in the
    archive. A restore with verify Full needs them, and makes those that lack. This takes processor time, since batches
    are unpacked for it."""
    pack_below: PackBytes = DEFAULT_PACK_BELOW
    """Segments that are smaller than this when they are stored share objects, so that many small partitions take few
    requests. With 0 each segment has objects of its own. At most 8Mi."""
    merge_count: MergeCount = DEFAULT_MERGE_COUNT
    """A run that succeeded merges neighbouring segments in packs once they have this many times the bytes of the
    largest of them, so that segments stay few and objects large. With 0 nothing is merged."""
    live_percent: Percent = DEFAULT_LIVE_PERCENT
    """The rest of an object that small segments share is copied into another once it is less than this share of the
    bytes, so that the object can go. With 0 it stays until nothing is left."""

    @property
    def pack_below_int(self) -> int:
        return parse_quantity(self.pack_below)

    @property
    def max_bytes_int(self) -> int:
        return parse_quantity(self.max_bytes)
