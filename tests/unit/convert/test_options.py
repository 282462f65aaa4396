"""Options of the commands `convert` and `import`: what they become, and what is refused by name."""

import inspect
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import typer

from logkeep_engine.cli import convert as cli_convert
from logkeep_engine.cli import import_ as cli_import
from logkeep_engine.cli.converting import Job, NewArchive, topic_chooser
from logkeep_engine.contract.archive_format import AvroCodec, Compatibility, Compression, DigestAlgorithm, FormatName
from logkeep_engine.contract.restore_spec import BatchCompression
from logkeep_engine.convert.run import ConvertOptions, ConvertResult
from logkeep_engine.convert.source import archive_source
from logkeep_engine.errors import SpecError
from logkeep_engine.log.compression import Codec
from logkeep_engine.report import Reporter
from tests.runners import HereRunner
from tests.unit.convert.converting import converted, folder, tricky

KAFKA: dict[str, Any] = {"format_name": FormatName.KAFKA}
RECORDS: dict[str, Any] = {"format_name": FormatName.RECORDS}
AVRO: dict[str, Any] = {"format_name": FormatName.AVRO}


def convert_options(format_name: FormatName, **given: Any) -> ConvertOptions:
    return NewArchive(**given).options(format_name)


@pytest.mark.parametrize("format_name", FormatName)
def test_without_options_the_run_does_what_the_reference_says(format_name: FormatName) -> None:
    options = convert_options(format_name)
    assert options == ConvertOptions(format_name)
    assert (options.segment_bytes, options.compression, options.codec) == (128 << 20, "Passthrough", Codec.ZSTD)


def test_options_become_what_the_run_does() -> None:
    options = convert_options(**KAFKA, batch_compression=BatchCompression.LZ4, segment_bytes="2Mi")
    assert (options.codec, options.segment_bytes) == (Codec.LZ4, 2 << 20)
    options = convert_options(**KAFKA, batch_compression=BatchCompression.NONE, compression=Compression.ZSTD)
    assert (options.codec, options.compression) == (Codec.NONE, Compression.ZSTD)
    assert [convert_options(**KAFKA, digest=digest).digest for digest in DigestAlgorithm] == list(DigestAlgorithm)
    options = convert_options(**AVRO, compatibility=Compatibility.STRICT, codec=AvroCodec.SNAPPY, allow_loss=True)
    assert options.format_options.allow_loss
    assert options.text()["compatibility"] == "strict"
    assert options.text()["avroCodec"] == "snappy"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({**KAFKA, "codec": AvroCodec.NONE}, "--codec is an option of format Avro, not of Kafka"),
        (
            {**RECORDS, "compatibility": Compatibility.STRICT},
            "--compatibility is an option of format Avro, not of Records",
        ),
        ({**AVRO, "compression": Compression.ZSTD}, "--compression is an option of format Kafka, not of Avro"),
        (
            {**RECORDS, "compression": Compression.PASSTHROUGH},
            "--compression is an option of format Kafka, not of Records",
        ),
        (
            {**AVRO, "batch_compression": BatchCompression.LZ4},
            "--batch-compression is an option of format Kafka, not of Avro",
        ),
        (
            {**RECORDS, "batch_compression": BatchCompression.ZSTD},
            "--batch-compression is an option of format Kafka, not of Records",
        ),
        ({**KAFKA, "allow_loss": True}, "--allow-loss has no effect"),
        ({**RECORDS, "allow_loss": True}, "--allow-loss has no effect"),
        ({**AVRO, "allow_loss": True}, "--allow-loss has no effect"),
        ({**AVRO, "compatibility": Compatibility.LOSSLESS, "allow_loss": True}, "--allow-loss has no effect"),
        ({**KAFKA, "segment_bytes": "12q"}, "--segment-bytes: '12q' is not a whole quantity"),
        ({**KAFKA, "segment_bytes": ""}, "--segment-bytes: '' is not a whole quantity"),
        ({**KAFKA, "segment_bytes": "1"}, "--segment-bytes: '1' must be between 1Mi and 2147483647 bytes"),
        ({**KAFKA, "segment_bytes": "2Gi"}, "--segment-bytes: '2Gi' must be between 1Mi and 2147483647 bytes"),
    ],
)
def test_options_that_do_not_fit_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        convert_options(**given)


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> list[ConvertResult]:
    """The results that commands give: their errors are raised, and their tasks run here."""
    found: list[ConvertResult] = []

    def perform(run_id: str, kind: str, master: str, storages: Any, job: Job, output: Any) -> None:
        found.append(job(HereRunner, Reporter(run_id)))

    for command in (cli_convert, cli_import):
        monkeypatch.setattr(command, "perform", perform)
        monkeypatch.setattr(command, "errors", lambda debug: nullcontext())
    return found


IN_PLACE = {
    "source",
    "target",
    "repair",
    "dry_run",
    "run_id",
    "master",
    "endpoint",
    "region",
    "s3",
    "output",
    "as_json",
    "debug",
    "digest",
    "signing_dir",
}
WITH_TARGET: dict[str, Any] = {
    **KAFKA,
    "topic": ["a"],
    "exclude": ["a"],
    "segment_bytes": "128Mi",
    "compression": Compression.PASSTHROUGH,
    "batch_compression": BatchCompression.NONE,
    "compatibility": Compatibility.LOSSLESS,
    "codec": AvroCodec.NONE,
    "allow_loss": True,
    "target_endpoint": "http://127.0.0.1:1",
    "target_region": "eu-north-1",
}


class TestImportInPlace:
    @pytest.mark.parametrize("name", WITH_TARGET)
    def test_an_option_for_a_new_archive_is_named(
        self, tmp_path: Path, results: list[ConvertResult], name: str
    ) -> None:
        option = {"format_name": "--format"}.get(name, f"--{name.replace('_', '-')}")
        with pytest.raises(SpecError, match=f"{option} has no effect: an import in place") as refused:
            cli_import.import_(tmp_path.as_uri(), **{name: WITH_TARGET[name]})
        assert refused.value.hint == "Name DST to make another archive."
        assert results == []

    def test_every_other_option_has_an_effect(self) -> None:
        assert set(inspect.signature(cli_import.import_).parameters) == IN_PLACE | set(WITH_TARGET)


class TestConvert:
    @pytest.mark.parametrize(
        ("given", "option"),
        [
            ({"segment_bytes": "128Mi"}, "--segment-bytes"),
            ({"batch_compression": BatchCompression.ZSTD}, "--batch-compression"),
        ],
    )
    def test_how_batches_are_made_is_refused_where_they_are_copied(
        self, tmp_path: Path, results: list[ConvertResult], given: dict[str, Any], option: str
    ) -> None:
        source, records, target = folder(tmp_path / "source"), folder(tmp_path / "records"), tmp_path / "target"
        tricky(source)
        cli_convert.convert(source.uri, target.as_uri(), FormatName.KAFKA, **given)
        (done,) = results
        assert (done.result.error_code, done.result.exit_code) == ("InvalidSpec", 2)
        assert done.result.message.startswith(f"{option} has no effect: from Kafka to Kafka segments are copied")
        assert not target.exists()
        converted(source, records, "Records")
        cli_convert.convert(records.uri, target.as_uri(), FormatName.KAFKA, **given)
        assert results[1].result.outcome == "Succeeded", results[1].result.message

    def test_where_a_bucket_is_means_nothing_for_a_folder(self, tmp_path: Path, results: list[ConvertResult]) -> None:
        source, target = (tmp_path / "source").as_uri(), (tmp_path / "target").as_uri()
        for name in ("target_endpoint", "target_region"):
            given = {name: WITH_TARGET[name]}
            with pytest.raises(typer.BadParameter, match="it has no effect on a folder") as refused:
                cli_convert.convert(source, target, FormatName.KAFKA, **given)
            assert refused.value.param_hint == f"'--{name.replace('_', '-')}'"
            with pytest.raises(typer.BadParameter, match="it has no effect on a folder"):
                cli_import.import_(source, target, FormatName.KAFKA, **given)
        assert results == []


@pytest.mark.parametrize(
    ("include", "exclude", "chosen"),
    [
        ([], [], {"orders", "notes"}),
        (["no.*"], [], {"notes"}),
        (["orders", "notes"], ["order."], {"notes"}),
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
    with pytest.raises(SpecError, match=r"--topic '\(' is not a valid regular expression"):
        topic_chooser(["("], [])
    with pytest.raises(SpecError, match="--topic 'order' chooses no topic of the source"):
        topic_chooser(["order", "notes"], [])(archive_source(folder(tmp_path)))
    with pytest.raises(SpecError, match="--topic and --exclude leave none of the 2 topics"):
        topic_chooser([], [".*"])(archive_source(folder(tmp_path)))
