"""The finalized features of a cluster, as brokers tell them."""

from logkeep_engine.kafka.buffers import AnswerFrame
from logkeep_engine.kafka.codes import Code
from logkeep_engine.kafka.encoding import Reader, pack_uvarint
from logkeep_engine.kafka.features import Features, finalized_features

TAGS = b"\x00"


def text(value: str) -> bytes:
    return pack_uvarint(len(value) + 1) + value.encode()


def array(*items: bytes) -> bytes:
    return pack_uvarint(len(items) + 1) + b"".join(items)


def number(value: int, size: int = 2) -> bytes:
    return value.to_bytes(size, "big", signed=True)


def tagged(*fields: tuple[int, bytes]) -> bytes:
    parts = (pack_uvarint(tag) + pack_uvarint(len(body)) + body for tag, body in fields)
    return pack_uvarint(len(fields)) + b"".join(parts)


def answered(*fields: tuple[int, bytes], code: int = 0) -> Features:
    """The bytes after the correlation id: this answer alone has no tags in its header."""
    request = number(18) + number(0) + number(4) + TAGS
    body = number(code) + array(request, request) + number(0, 4) + tagged(*fields)
    return finalized_features().decode(Reader(AnswerFrame.of(body)))


def test_finalized_levels_are_read_and_supported_ones_are_not() -> None:
    supported = array(text("share.version") + number(0) + number(1) + TAGS)
    finalized = array(
        text("metadata.version") + number(33) + number(7) + TAGS, text("group.version") + number(1) * 2 + TAGS
    )
    found = answered((0, supported), (1, number(12, 8)), (2, finalized), (3, b"\x01"))
    assert found == Features(Code.NONE, 0, {"metadata.version": 33, "group.version": 1})


def test_a_cluster_with_zookeeper_tells_none() -> None:
    assert answered((1, number(-1, 8))).levels == {}
    assert answered().levels == {}


def test_the_request_names_the_software_as_brokers_want_it() -> None:
    call = finalized_features()
    assert (call.api_key, call.version, call.flexible) == (18, 3, False)
    assert b"".join(map(bytes, call.body)) == TAGS + text("logkeep") + text("1") + TAGS
