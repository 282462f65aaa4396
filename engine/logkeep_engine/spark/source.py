"""Archives as Spark data frames: `spark.read.format("logkeep").load("s3://bucket/prefix")`.

The columns are those of Spark's Kafka source and some of Logkeep's; docs/guides/spark-reader.md has options and
examples. A read sees what a restore would see: the archive as the last successful backup left it, committed records
only. PySpark finds the source by itself (package `pyspark_logkeep`) where Logkeep is installed. `register` also lets
filters of queries reach it, which Spark does not do by default.

Spark makes these objects again in several processes, and pickles them: so they hold no connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from logkeep_engine.errors import ArchiveMismatch, SpecError
from logkeep_engine.spark.source_options import COLUMNS, SourceOptions, WantedRecords, check_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from logkeep_engine.archive.catalog.entry import SegmentEntry
    from logkeep_engine.archive.catalog.facts import TopicEntry
    from logkeep_engine.archive.catalog.state import ArchiveState
    from logkeep_engine.log.segment import AbortedTxn
    from logkeep_engine.spark.source_plan import SegmentRead
    from logkeep_engine.storage import Storage

FORMAT = "logkeep"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Make the format known to a session, and let Spark hand it the filters of queries."""
    spark.dataSource.register(LogkeepSource)
    spark.conf.set(PUSHDOWN, "true")


class LogkeepSource(DataSource):
    """The data source of one `load`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        """Return the columns as Spark expects them. Raises SpecError for an option that does not exist, or for a wrong
        value."""
        options = SourceOptions.parse(self.options)
        return ", ".join(f"{name} {COLUMNS[name]}" for name in options.columns)

    def reader(self, schema: StructType) -> LogkeepReader:
        """Return a reader for the columns of `schema`, in its order. These are the columns of `schema()`, or those that
        the user gave instead."""
        options = SourceOptions.parse(self.options)
        _check_types(schema)
        return LogkeepReader(options.with_schema(schema.fieldNames()), schema)


class SegmentReads(InputPartition):
    """The work of one Spark task: reads of segments, in the order of their rows, of the archive after `commit`."""

    def __init__(self, reads: Sequence[SegmentRead], commit: int) -> None:
        super().__init__(None)
        self.reads = tuple(reads)
        self.commit = commit


class _WhereSparkAllows:
    """A `pushFilters` to which Spark does not object where its pushdown is off.

    Pushdown is off by default, and then Spark refuses a reader that has a method of that name. This reader gives the
    same rows with and without it. So it shows Spark the method that it would inherit, and does its own.
    """

    def __init__(self, method: Callable[..., Iterable[Filter]]) -> None:
        self._method = method

    def __get__(self, reader: DataSourceReader, owner: type | None = None) -> Callable[..., Iterable[Filter]]:
        bound = partial(self._method, reader)
        bound.__func__ = DataSourceReader.pushFilters  # type: ignore[attr-defined]
        return bound


class LogkeepReader(DataSourceReader):
    """Plans a read from the archive's catalog, and reads one Spark partition of it."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._wanted = WantedRecords()

    @_WhereSparkAllows
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (PySpark's name)
        """Take filters on topic, partition and offset; those on time help to read less, and Spark applies them."""
        left = []
        for item in filters:
            self._wanted, taken = self._wanted.narrowed(item)
            if not taken:
                left.append(item)
        return left

    def partitions(self) -> list[InputPartition]:
        """Plan the read. Raises ArchiveMissing, ArchiveMismatch, ArchiveDamaged, NoTopicMatches, and what the storage
        raises."""
        from logkeep_engine.archive.catalog.archive import Archive
        from logkeep_engine.archive.history.compacted import with_snapshots
        from logkeep_engine.archive.maintenance.leases import SharedNote
        from logkeep_engine.archive.reading import view
        from logkeep_engine.archive.reading.visible import shows
        from logkeep_engine.spark.source_plan import plan

        storage = self._storage()
        archive = Archive.open(storage)
        wanted = self._options.format
        if wanted is not None and archive.info.segments is not wanted:
            raise ArchiveMismatch(
                f"Option format: the archive at {storage.uri} is of format {archive.info.segments}, not {wanted}.",
                hint="Leave the option out to read an archive of any format.",
            )
        state = with_snapshots(view.choose(archive).state, where_needed=True)
        SharedNote(storage, state.commit).beat()
        aborted, holds = partial(_aborted, storage, state), partial(_holds, storage)
        groups = plan(state, self._options, self._wanted, aborted, holds, shows(storage, state))
        # Spark makes one task of an empty list, which would be asked to read nothing it knows of.
        return [SegmentReads(group, state.commit) for group in groups or [[]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one Spark partition. Raises ArchiveDamaged at the first damage, and what the storage raises."""
        from pyspark.sql.pandas.types import to_arrow_schema

        from logkeep_engine.archive.maintenance.leases import SharedNote
        from logkeep_engine.spark.source_rows import arrow_batches, read_rows

        assert isinstance(partition, SegmentReads)
        if not partition.reads:
            return
        storage = self._storage()
        with SharedNote(storage, partition.commit):
            parts = (part for read in partition.reads for part in read_rows(storage, read))
            yield from arrow_batches(parts, to_arrow_schema(self._schema))

    def _storage(self) -> Storage:
        from logkeep_engine.storage import open_uri

        return open_uri(self._options.uri, self._options.endpoint, self._options.region, s3=self._options.s3)


def _aborted(
    storage: Storage, state: ArchiveState, topic: TopicEntry, entries: Sequence[SegmentEntry]
) -> Sequence[AbortedTxn]:
    from logkeep_engine.archive.reading.partition import open_partition

    kept = state.kept(topic.topic_id, entries[0].partition)
    return open_partition(storage, topic.name, entries, kept).transactions.aborted


def _holds(storage: Storage, topic: TopicEntry, entry: SegmentEntry, time: int) -> bool:
    from logkeep_engine.archive.reading.partition import first_since

    return first_since(storage, topic.name, entry, time) is not None


def _check_types(schema: StructType) -> None:
    """Raises SpecError for a column of the user's schema that the source does not have, or has with another type."""
    check_columns("schema", schema.fieldNames())
    for field in schema:
        found, expected = field.dataType.simpleString(), COLUMNS[field.name]
        if found != expected:
            raise SpecError(
                f"schema: column {field.name} is of type {expected}, not {found}.",
                hint="Read it as it is, and cast it.",
            )
