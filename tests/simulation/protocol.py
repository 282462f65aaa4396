"""Kafka's protocol from the broker's side: requests are read into dicts, answers are made of dicts.

    asked = decode_request(frame)                   # asked.api is Api.FETCH, asked.body["max_bytes"] an int
    frame = encode_answer(asked, {"responses": [...]})

What a dict leaves out has the protocol's default. `LAYOUTS` is what `clients/src/main/resources/common/message/*.json`
of Apache Kafka 3.9 (and 4.1 for request 60) say, in short: `name:type`, `name{...}` an array of structs, `name(...)` a
struct, `@2-5` the versions that have it, `#0` a tagged field, `=-1` a default other than zero. A struct without a tag
may be null.
"""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any

Body = dict[str, Any]

LAYOUTS = """
0 Produce 9
  > transactional_id:string@3+ acks:int16 timeout_ms:int32 topic_data{name:string partition_data{index:int32
    records:records}}
  < responses{name:string partition_responses{index:int32 error_code:int16 base_offset:int64
    log_append_time_ms:int64@2+=-1 log_start_offset:int64@5+=-1 record_errors{batch_index:int32@8+
    batch_index_error_message:string@8+}@8+ error_message:string@8+ current_leader(leader_id:int32@10+=-1
    leader_epoch:int32@10+=-1)@10+#0}} throttle_time_ms:int32@1+ node_endpoints{node_id:int32@10+
    host:string@10+ port:int32@10+ rack:string@10+}@10+#0
1 Fetch 12
  > cluster_id:string@12+#0 replica_id:int32@0-14=-1 replica_state(replica_id:int32@15+=-1
    replica_epoch:int64@15+=-1)@15+#1 max_wait_ms:int32 min_bytes:int32 max_bytes:int32@3+=2147483647
    isolation_level:int8@4+ session_id:int32@7+ session_epoch:int32@7+=-1 topics{topic:string@0-12
    topic_id:uuid@13+ partitions{partition:int32 current_leader_epoch:int32@9+=-1 fetch_offset:int64
    last_fetched_epoch:int32@12+=-1 log_start_offset:int64@5+=-1 partition_max_bytes:int32
    replica_directory_id:uuid@17+#0}} forgotten_topics_data{topic:string@7-12 topic_id:uuid@13+
    partitions:[]int32@7+}@7+ rack_id:string@11+
  < throttle_time_ms:int32@1+ error_code:int16@7+ session_id:int32@7+ responses{topic:string@0-12
    topic_id:uuid@13+ partitions{partition_index:int32 error_code:int16 high_watermark:int64
    last_stable_offset:int64@4+=-1 log_start_offset:int64@5+=-1 diverging_epoch(epoch:int32@12+=-1
    end_offset:int64@12+=-1)@12+#0 current_leader(leader_id:int32@12+=-1 leader_epoch:int32@12+=-1)@12+#1
    snapshot_id(end_offset:int64=-1 epoch:int32=-1)@12+#2 aborted_transactions{producer_id:int64@4+
    first_offset:int64@4+}@4+ preferred_read_replica:int32@11+=-1 records:records}}
    node_endpoints{node_id:int32@16+ host:string@16+ port:int32@16+ rack:string@16+}@16+#0
2 ListOffsets 6
  > replica_id:int32 isolation_level:int8@2+ topics{name:string partitions{partition_index:int32
    current_leader_epoch:int32@4+=-1 timestamp:int64 max_num_offsets:int32@0-0=1}}
  < throttle_time_ms:int32@2+ topics{name:string partitions{partition_index:int32 error_code:int16
    old_style_offsets:[]int64@0-0 timestamp:int64@1+=-1 offset:int64@1+=-1 leader_epoch:int32@4+=-1}}
3 Metadata 9
  > topics{topic_id:uuid@10+ name:string} allow_auto_topic_creation:bool@4+
    include_cluster_authorized_operations:bool@8-10 include_topic_authorized_operations:bool@8+
  < throttle_time_ms:int32@3+ brokers{node_id:int32 host:string port:int32 rack:string@1+} cluster_id:string@2+
    controller_id:int32@1+=-1 topics{error_code:int16 name:string topic_id:uuid@10+ is_internal:bool@1+
    partitions{error_code:int16 partition_index:int32 leader_id:int32 leader_epoch:int32@7+=-1
    replica_nodes:[]int32 isr_nodes:[]int32 offline_replicas:[]int32@5+}
    topic_authorized_operations:int32@8+=-2147483648} cluster_authorized_operations:int32@8-10=-2147483648
8 OffsetCommit 8
  > group_id:string generation_id_or_member_epoch:int32@1+=-1 member_id:string@1+ group_instance_id:string@7+
    retention_time_ms:int64@2-4=-1 topics{name:string partitions{partition_index:int32 committed_offset:int64
    committed_leader_epoch:int32@6+=-1 commit_timestamp:int64@1-1=-1 committed_metadata:string}}
  < throttle_time_ms:int32@3+ topics{name:string partitions{partition_index:int32 error_code:int16}}
9 OffsetFetch 6
  > group_id:string@0-7 topics{name:string@0-7 partition_indexes:[]int32@0-7}@0-7 groups{group_id:string@8+
    member_id:string@9+ member_epoch:int32@9+=-1 topics{name:string@8+ partition_indexes:[]int32@8+}@8+}@8+
    require_stable:bool@7+
  < throttle_time_ms:int32@3+ topics{name:string@0-7 partitions{partition_index:int32@0-7
    committed_offset:int64@0-7 committed_leader_epoch:int32@5-7=-1 metadata:string@0-7
    error_code:int16@0-7}@0-7}@0-7 error_code:int16@2-7 groups{group_id:string@8+ topics{name:string@8+
    partitions{partition_index:int32@8+ committed_offset:int64@8+ committed_leader_epoch:int32@8+=-1
    metadata:string@8+ error_code:int16@8+}@8+}@8+ error_code:int16@8+}@8+
10 FindCoordinator 3
  > key:string@0-3 key_type:int8@1+ coordinator_keys:[]string@4+
  < throttle_time_ms:int32@1+ error_code:int16@0-3 error_message:string@1-3 node_id:int32@0-3 host:string@0-3
    port:int32@0-3 coordinators{key:string@4+ node_id:int32@4+ host:string@4+ port:int32@4+ error_code:int16@4+
    error_message:string@4+}@4+
16 ListGroups 3
  > states_filter:[]string@4+ types_filter:[]string@5+
  < throttle_time_ms:int32@1+ error_code:int16 groups{group_id:string protocol_type:string group_state:string@4+
    group_type:string@5+}
18 ApiVersions 3
  > client_software_name:string@3+ client_software_version:string@3+
  < error_code:int16 api_keys{api_key:int16 min_version:int16 max_version:int16} throttle_time_ms:int32@1+
    supported_features{name:string@3+ min_version:int16@3+ max_version:int16@3+}@3+#0
    finalized_features_epoch:int64@3+#1=-1 finalized_features{name:string@3+ max_version_level:int16@3+
    min_version_level:int16@3+}@3+#2 zk_migration_ready:bool@3+#3
19 CreateTopics 5
  > topics{name:string num_partitions:int32 replication_factor:int16 assignments{partition_index:int32
    broker_ids:[]int32} configs{name:string value:string}} timeout_ms:int32=60000 validate_only:bool@1+
  < throttle_time_ms:int32@2+ topics{name:string topic_id:uuid@7+ error_code:int16 error_message:string@1+
    topic_config_error_code:int16@5+#0 num_partitions:int32@5+=-1 replication_factor:int16@5+=-1
    configs{name:string@5+ value:string@5+ read_only:bool@5+ config_source:int8@5+=-1 is_sensitive:bool@5+}@5+}
20 DeleteTopics 4
  > topics{name:string@6+ topic_id:uuid@6+}@6+ topic_names:[]string@0-5 timeout_ms:int32
  < throttle_time_ms:int32@1+ responses{name:string topic_id:uuid@6+ error_code:int16 error_message:string@5+}
22 InitProducerId 2
  > transactional_id:string transaction_timeout_ms:int32 producer_id:int64@3+=-1 producer_epoch:int16@3+=-1
  < throttle_time_ms:int32 error_code:int16 producer_id:int64=-1 producer_epoch:int16
23 OffsetForLeaderEpoch 4
  > replica_id:int32@3+=-2 topics{topic:string partitions{partition:int32 current_leader_epoch:int32@2+=-1
    leader_epoch:int32}}
  < throttle_time_ms:int32@2+ topics{topic:string partitions{error_code:int16 partition:int32
    leader_epoch:int32@1+=-1 end_offset:int64=-1}}
32 DescribeConfigs 4
  > resources{resource_type:int8 resource_name:string configuration_keys:[]string} include_synonyms:bool@1+
    include_documentation:bool@3+
  < throttle_time_ms:int32 results{error_code:int16 error_message:string resource_type:int8 resource_name:string
    configs{name:string value:string read_only:bool is_default:bool@0-0 config_source:int8@1+=-1
    is_sensitive:bool synonyms{name:string@1+ value:string@1+ source:int8@1+}@1+ config_type:int8@3+
    documentation:string@3+}}
35 DescribeLogDirs 2
  > topics{topic:string partitions:[]int32}
  < throttle_time_ms:int32 error_code:int16@3+ results{error_code:int16 log_dir:string topics{name:string
    partitions{partition_index:int32 partition_size:int64 offset_lag:int64 is_future_key:bool}}
    total_bytes:int64@4+=-1 usable_bytes:int64@4+=-1}
44 IncrementalAlterConfigs 1
  > resources{resource_type:int8 resource_name:string configs{name:string config_operation:int8 value:string}}
    validate_only:bool
  < throttle_time_ms:int32 responses{error_code:int16 error_message:string resource_type:int8
    resource_name:string}
60 DescribeCluster 0
  > include_cluster_authorized_operations:bool endpoint_type:int8@1+=1 include_fenced_brokers:bool@2+
  < throttle_time_ms:int32 error_code:int16 error_message:string endpoint_type:int8@1+=1 cluster_id:string
    controller_id:int32=-1 brokers{broker_id:int32 host:string port:int32 rack:string is_fenced:bool@2+}
    cluster_authorized_operations:int32=-2147483648
61 DescribeProducers 0
  > topics{name:string partition_indexes:[]int32}
  < throttle_time_ms:int32 topics{name:string partitions{partition_index:int32 error_code:int16
    error_message:string active_producers{producer_id:int64 producer_epoch:int32 last_sequence:int32=-1
    last_timestamp:int64=-1 coordinator_epoch:int32 current_txn_start_offset:int64=-1}}}
75 DescribeTopicPartitions 0
  > topics{name:string} response_partition_limit:int32=2000 cursor(topic_name:string partition_index:int32)
  < throttle_time_ms:int32 topics{error_code:int16 name:string topic_id:uuid is_internal:bool
    partitions{error_code:int16 partition_index:int32 leader_id:int32 leader_epoch:int32=-1
    replica_nodes:[]int32 isr_nodes:[]int32 eligible_leader_replicas:[]int32 last_known_elr:[]int32
    offline_replicas:[]int32} topic_authorized_operations:int32=-2147483648} next_cursor(topic_name:string
    partition_index:int32)
"""

_NUMBERS = {"int8": "b", "int16": "h", "int32": "i", "int64": "q", "bool": "?"}
_NO_ID = uuid.UUID(int=0)


class Api(IntEnum):
    """The requests that can be read and answered."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    LIST_GROUPS = 16
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_CONFIGS = 32
    DESCRIBE_LOG_DIRS = 35
    INCREMENTAL_ALTER_CONFIGS = 44
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TOPIC_PARTITIONS = 75


@dataclass(frozen=True, slots=True)
class Encoded:
    """A struct that was encoded before, for answers that repeat it."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Asked:
    """A request."""

    api: Api
    version: int
    correlation_id: int
    client_id: str | None
    body: Body


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    kind: str  # a type, or "struct"
    array: bool
    since: int
    until: int
    tag: int | None
    default: int
    fields: tuple[_Field, ...] = ()


@dataclass(frozen=True, slots=True)
class _Layout:
    flexible_since: int
    request: tuple[_Field, ...]
    answer: tuple[_Field, ...]


def decode_request(frame: bytes | memoryview) -> Asked:
    """A request, from after its length. Raises ValueError for one that is not in `LAYOUTS`."""
    reader = _Reader(frame)
    key, version, correlation_id = reader.number("h"), reader.number("h"), reader.number("i")
    client_id = reader.string(False)
    layout = _layouts().get(key)
    if layout is None:
        raise ValueError(f"request {key} has no layout here")
    flexible = version >= layout.flexible_since
    if flexible:
        reader.tags()
    if key == Api.API_VERSIONS and version > 4:  # answered with an error, whatever is in it
        return Asked(Api(key), version, correlation_id, client_id, {})
    body = _codec(key, version, False).decode(reader)
    return Asked(Api(key), version, correlation_id, client_id, body)


def encode_answer(asked: Asked, body: Mapping[str, Any]) -> bytes:
    """The answer to a request, without its length."""
    version = asked.version
    if asked.api == Api.API_VERSIONS and body.get("error_code"):
        version = 0  # so that any client can read it
    flexible = version >= _layouts()[asked.api].flexible_since and asked.api != Api.API_VERSIONS
    head = struct.pack(">i", asked.correlation_id) + (b"\x00" if flexible else b"")
    return head + _codec(asked.api, version, True).encode(body)


def encode_element(asked: Asked, path: str, body: Mapping[str, Any]) -> Encoded:
    """One element of an array of the answer to `asked`; `path` has dots, such as `results.configs`."""
    codec = _codec(asked.api, asked.version, True)
    for name in path.split("."):
        codec = codec.element(name)
    return Encoded(codec.encode(body))


class _Reader:
    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        self._at = 0

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        values = layout.unpack_from(self._data, self._at)
        self._at += layout.size
        return values

    def number(self, letter: str) -> int:
        (value,) = struct.unpack_from(">" + letter, self._data, self._at)
        self._at += struct.calcsize(">" + letter)
        return int(value)

    def take(self, count: int) -> bytes:
        self._at += count
        return bytes(self._data[self._at - count : self._at])

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def length(self, flexible: bool, letter: str) -> int:
        """The length of what follows; -1 for null."""
        return self.uvarint() - 1 if flexible else self.number(letter)

    def string(self, flexible: bool) -> str | None:
        length = self.length(flexible, "h")
        return None if length < 0 else self.take(length).decode()

    def tags(self) -> dict[int, bytes]:
        return {self.uvarint(): self.take(self.uvarint()) for _ in range(self.uvarint())}


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class _Codec:
    """Reads and writes the fields of one struct of one version. Numbers that follow each other go in one go."""

    def __init__(self, fields: Sequence[_Field], version: int, flexible: bool) -> None:
        here = [field for field in fields if field.since <= version <= field.until]
        self._flexible = flexible
        self._plain: list[_Numbers | _One] = []
        self._tagged: dict[int, _One] = {}
        self._elements: dict[str, _Codec] = {}
        numbers: list[_Field] = []
        for field in [*here, None]:
            if field is not None and field.tag is None and not field.array and field.kind in _NUMBERS:
                numbers.append(field)
                continue
            if numbers:
                self._plain.append(_Numbers(numbers))
                numbers = []
            if field is None:
                continue
            inner = _Codec(field.fields, version, flexible) if field.fields else None
            if inner is not None:
                self._elements[field.name] = inner
            one = _One(field, inner, flexible)
            if field.tag is None:
                self._plain.append(one)
            else:
                self._tagged[field.tag] = one

    def element(self, name: str) -> _Codec:
        return self._elements[name]

    def decode(self, reader: _Reader) -> Body:
        body: Body = {}
        for part in self._plain:
            part.decode(reader, body)
        if self._flexible:
            tags = reader.tags()
            for tag, one in self._tagged.items():
                if tag in tags:
                    one.decode(_Reader(tags[tag]), body)
        return body

    def encode(self, body: Mapping[str, Any] | Encoded) -> bytes:
        if isinstance(body, Encoded):
            return body.data
        parts = [part.encode(body) for part in self._plain]
        if self._flexible:
            tags = {tag: one.encode(body) for tag, one in self._tagged.items() if one.name in body}
            parts.append(_uvarint(len(tags)))
            parts += [_uvarint(tag) + _uvarint(len(data)) + data for tag, data in sorted(tags.items())]
        return b"".join(parts)


class _Numbers:
    def __init__(self, fields: Sequence[_Field]) -> None:
        self._layout = struct.Struct(">" + "".join(_NUMBERS[field.kind] for field in fields))
        self._names = [field.name for field in fields]
        self._defaults = [(field.name, field.default) for field in fields]

    def decode(self, reader: _Reader, body: Body) -> None:
        body.update(zip(self._names, reader.unpack(self._layout), strict=True))

    def encode(self, body: Mapping[str, Any]) -> bytes:
        return self._layout.pack(*[body.get(name, default) for name, default in self._defaults])


class _One:
    """A field that is not a number beside others."""

    def __init__(self, field: _Field, inner: _Codec | None, flexible: bool) -> None:
        self.name = field.name
        self._field = field
        self._inner = inner
        self._flexible = flexible
        self._read, self._write = self._single()

    def decode(self, reader: _Reader, body: Body) -> None:
        if not self._field.array:
            body[self.name] = self._read(reader)
            return
        count = reader.length(self._flexible, "i")
        body[self.name] = None if count < 0 else [self._read(reader) for _ in range(count)]

    def encode(self, body: Mapping[str, Any]) -> bytes:
        if not self._field.array:
            return self._write(body.get(self.name, self._default()))
        items = body.get(self.name, ())
        count = -1 if items is None else len(items)
        head = _uvarint(count + 1) if self._flexible else struct.pack(">i", count)
        return head + b"".join([self._write(item) for item in items or ()])

    def _default(self) -> Any:
        return {"uuid": _NO_ID, "string": "", "struct": None, "records": b""}.get(self._field.kind, self._field.default)

    def _single(self) -> tuple[Callable[[_Reader], Any], Callable[[Any], bytes]]:
        kind, flexible = self._field.kind, self._flexible
        if kind in _NUMBERS:
            layout = struct.Struct(">" + _NUMBERS[kind])
            return lambda reader: reader.unpack(layout)[0], layout.pack
        match kind:
            case "uuid":
                return lambda reader: uuid.UUID(bytes=reader.take(16)), lambda value: bytes(value.bytes)
            case "string":
                return lambda reader: reader.string(flexible), self._write_string
            case "records":
                return self._read_bytes, self._write_bytes
        inner = self._inner
        assert inner is not None
        if self._field.array or self._field.tag is not None:
            return inner.decode, inner.encode
        return (
            lambda reader: inner.decode(reader) if reader.number("b") >= 0 else None,
            lambda value: b"\xff" if value is None else b"\x01" + inner.encode(value),
        )

    def _write_string(self, text: str | None) -> bytes:
        raw = b"" if text is None else text.encode()
        if self._flexible:
            return _uvarint(0 if text is None else len(raw) + 1) + raw
        return struct.pack(">h", -1 if text is None else len(raw)) + raw

    def _read_bytes(self, reader: _Reader) -> bytes | None:
        length = reader.length(self._flexible, "i")
        return None if length < 0 else reader.take(length)

    def _write_bytes(self, data: bytes | None) -> bytes:
        count = -1 if data is None else len(data)
        return (_uvarint(count + 1) if self._flexible else struct.pack(">i", count)) + (data or b"")


@cache
def _codec(key: int, version: int, answer: bool) -> _Codec:
    layout = _layouts()[key]
    fields = layout.answer if answer else layout.request
    return _Codec(fields, version, version >= layout.flexible_since)


@cache
def _layouts() -> dict[int, _Layout]:
    found: dict[int, _Layout] = {}
    for block in re.split(r"\n(?=\d)", LAYOUTS.strip()):
        head, _, rest = block.partition(">")
        request, _, answer = rest.partition("<")
        key, _, flexible_since = head.split()
        found[int(key)] = _Layout(int(flexible_since), _parse(request), _parse(answer))
    return found


_TOKEN = re.compile(r"(?P<name>\w+)(?P<open>[({])|(?P<field>\w+):(?P<array>\[\])?(?P<kind>\w+)|(?P<close>[)}])")
_ATTRIBUTES = re.compile(r"(?:@(?P<since>\d+)(?:\+|-(?P<until>\d+)))?(?:#(?P<tag>\d+))?(?:=(?P<default>-?\d+))?")


def _parse(text: str) -> tuple[_Field, ...]:
    return tuple(_fields(text.strip(), [0]))


def _fields(text: str, at: list[int]) -> Iterator[_Field]:
    """Up to the bracket that closes them; `at` is where the next one begins."""
    while at[0] < len(text):
        if text[at[0]].isspace():
            at[0] += 1
            continue
        token = _TOKEN.match(text, at[0])
        assert token is not None, text[at[0] :]
        at[0] = token.end()
        if token["close"]:
            return
        inner = tuple(_fields(text, at)) if token["open"] else ()
        attributes = _ATTRIBUTES.match(text, at[0])
        assert attributes is not None
        at[0] = attributes.end()
        yield _Field(
            token["name"] or token["field"],
            "struct" if inner else token["kind"],
            token["open"] == "{" or bool(token["array"]),
            int(attributes["since"] or 0),
            int(attributes["until"] or 999),
            int(attributes["tag"]) if attributes["tag"] else None,
            int(attributes["default"] or 0),
            inner,
        )
