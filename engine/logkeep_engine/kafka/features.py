"""The finalized features of a cluster, such as `metadata.version` and `share.version` (KIP-584), as brokers report
them.

Brokers may know more than their cluster uses: after an upgrade a feature keeps its level until it is raised with
`kafka-features.sh`.

Layouts are those of `clients/src/main/resources/common/message/ApiVersions*.json` in Apache Kafka 4.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from logkeep_engine.kafka.encoding import NO_TAGS, Call, Reader, pack_uvarint

METADATA_VERSION, SHARE_VERSION = "metadata.version", "share.version"

_API_VERSIONS = 18  # the key of the request
_FINALIZED = 2  # the tag of the field
_SOFTWARE = b"logkeep"


@dataclass(frozen=True, slots=True)
class Features:
    """The levels of finalized features by name, or the protocol's error code. One that is not there has level 0. None
    are known of a cluster with ZooKeeper."""

    code: int
    throttle_ms: int
    levels: Mapping[str, int]


def finalized_features() -> Call[Features]:
    """Return the finalized features of the broker's cluster. Anybody may ask."""

    def requests(read: Reader) -> None:
        for _ in range(3):
            read.int16()
        read.tags()

    def feature(read: Reader) -> tuple[str, int]:
        name, highest = read.compact_string(), read.int16()
        read.int16()
        read.tags()
        return name, highest

    def answer(read: Reader) -> Features:
        code = read.int16()
        read.compact_array(lambda: requests(read))
        throttle, levels = read.int32(), dict[str, int]()
        for _ in range(read.uvarint()):
            tag, size = read.uvarint(), read.uvarint()
            if tag == _FINALIZED:
                levels = dict(read.compact_array(lambda: feature(read)))
            else:
                read.slice(size)
        return Features(code, throttle, levels)

    # Brokers refuse the request without a name and a version of the client (KIP-511).
    software = pack_uvarint(len(_SOFTWARE) + 1) + _SOFTWARE
    version = pack_uvarint(2) + b"1"
    # The header of the request has tags, and that of its answer has none, so that any client can read it.
    return Call(_API_VERSIONS, 3, (NO_TAGS + software + version + NO_TAGS,), answer)
