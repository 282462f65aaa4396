"""The batches that a restore makes of archived records are those of the Python before the kernel, to the byte."""

from hypothesis import given, settings
from hypothesis import strategies as st

from logkeep_engine.errors import TargetUnsuitable
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.consumed import PlainRecord
from logkeep_engine.restore.streams.filter import Outgoing
from logkeep_engine.restore.streams.records import Batching, RecordStream
from tests.examples import scaled
from tests.unit.formats.test_kernel_formats import rising
from tests.unit.restore.records_oracle import OldRecordStream


@given(
    rising(),
    st.integers(1, 8),
    st.integers(1, 30),
    st.integers(100, 3000),
    st.integers(300, 4000),
    st.integers(0, 20),
    st.sampled_from(Codec),
)
@settings(max_examples=scaled(300), deadline=None)
def test_records_become_the_same_batches(
    records: list[PlainRecord],
    size: int,
    most: int,
    most_bytes: int,
    limit: int,
    done: int,
    codec: Codec,
) -> None:
    batching = Batching(most, most_bytes, codec)

    def stream(kind: type[OldRecordStream] | type[RecordStream]) -> list[Outgoing] | str:
        made = kind(batching, source="a", target="b", producer_id=7, limit=limit, done=done)
        found: list[Outgoing] = []
        try:
            for at in range(0, len(records), size):
                found += made.add(records[at : at + size])
            found += made.finish()
        except TargetUnsuitable as problem:
            return problem.message
        return found

    assert stream(RecordStream) == stream(OldRecordStream)
