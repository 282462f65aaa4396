"""Options of the commands `convert` and `import`: what they become, and what is refused by name."""

from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.cli_convert import convert_options, topic_chooser
from logkeep_engine.contract.spec import AvroCodec, BatchCompression, Compatibility, Compression, FormatName
from logkeep_engine.convert.source import archive_source
from logkeep_engine.errors import SpecError
from logkeep_engine.log.compression import Codec
from tests.unit.convert.converting import folder, tricky

DEFAULTS: dict[str, Any] = {
    "format_name": FormatName.KAFKA,
    "segment_bytes": "128Mi",
    "compression": Compression.PASSTHROUGH,
    "batch_compression": BatchCompression.ZSTD,
    "compatibility": None,
    "codec": None,
    "allow_loss": False,
}
AVRO = {"format_name": FormatName.AVRO}


def test_options_become_what_the_run_does() -> None:
    options = convert_options(**{**DEFAULTS, "batch_compression": BatchCompression.LZ4, "segment_bytes": "2Mi"})
    assert (options.codec, options.segment_bytes) == (Codec.LZ4, 2 << 20)
    avro = {**AVRO, "compatibility": Compatibility.STRICT, "codec": AvroCodec.SNAPPY, "allow_loss": True}
    options = convert_options(**{**DEFAULTS, **avro})
    assert options.format_options.allow_loss
    assert options.text()["compatibility"] == "strict"
    assert options.text()["avroCodec"] == "snappy"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"codec": AvroCodec.SNAPPY}, "--codec is an option of format Avro, not of Kafka"),
        (
            {"format_name": FormatName.RECORDS, "compatibility": Compatibility.STRICT},
            "--compatibility is an option of format Avro, not of Records",
        ),
        ({**AVRO, "compression": Compression.ZSTD}, "--compression Zstd: segments of format Avro are not compressed"),
        ({"segment_bytes": "12q"}, "--segment-bytes '12q': "),
        ({"segment_bytes": "1"}, "--segment-bytes 1: must be 1Mi to 1Gi"),
        ({"segment_bytes": "2Gi"}, "--segment-bytes 2Gi: must be 1Mi to 1Gi"),
    ],
)
def test_options_that_do_not_fit_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        convert_options(**{**DEFAULTS, **given})


@pytest.mark.parametrize(
    ("include", "exclude", "chosen"),
    [
        ([], [], {"orders", "notes"}),
        (["no.*"], [], {"notes"}),
        (["order", "notes"], [], {"notes"}),
        ([], ["o.*"], {"notes"}),
        ([".*"], ["notes"], {"orders"}),
    ],
)
def test_topics_are_chosen_by_their_whole_names(
    tmp_path: Path, include: list[str], exclude: list[str], chosen: set[str]
) -> None:
    tricky(folder(tmp_path))
    source = topic_chooser(include, exclude)(archive_source(folder(tmp_path)))
    assert {topic.name for topic in source.topics} == chosen
    ids = {topic.topic_id for topic in source.topics}
    assert {key[0] for key in source.segments} == {key[0] for key in source.coverage} == ids
    assert {gap.topic_id for gap in source.gaps} <= ids
    assert {group.topic_id for group in source.groups} == ids


def test_patterns_that_are_none_or_match_nothing_are_named(tmp_path: Path) -> None:
    tricky(folder(tmp_path))
    with pytest.raises(SpecError, match=r"--topic '\(' is no regular expression"):
        topic_chooser(["("], [])
    with pytest.raises(SpecError, match="--topic and --exclude leave none of the 2 topics"):
        topic_chooser([], [".*"])(archive_source(folder(tmp_path)))
