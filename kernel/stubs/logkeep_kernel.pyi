"""The compiled kernel (folder `kernel/`): what is done for every batch and every record."""

from collections.abc import Buffer, Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, Literal, TypeVar, overload

from logkeep_engine.log.consumed import LogRecord, PlainRecord

Fields = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
"""The fields of a header, in the order of `log.batch.BatchHeader`."""

H_co = TypeVar("H_co", covariant=True)
H = TypeVar("H")

class Blake3:
    """BLAKE3 of bytes that come one after another, with the methods of hashlib's objects. Safe for several threads."""

    def __init__(self) -> None: ...
    def update(self, data: Buffer, /) -> None:
        """Take the next bytes. The interpreter's lock is released while a large buffer is read: nobody may write into
        it meanwhile."""
    def hexdigest(self) -> str:
        """The digest of the bytes so far, in hex."""

class Headers(Sequence[tuple[int, H_co]], Generic[H_co]):
    """The headers of batches that lie back to back, with positions. A slice shares the memory. A header is made of its
    fields each time that it is asked for."""

    @staticmethod
    def of(items: Iterable[tuple[int, Fields]], make: Callable[[Fields], H]) -> Headers[H]:
        """Headers that are known already. Raises ValueError unless the batches lie back to back."""
    @overload
    def __getitem__(self, index: int) -> tuple[int, H_co]: ...
    @overload
    def __getitem__(self, index: slice) -> Headers[H_co]: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[tuple[int, H_co]]: ...
    @property
    def size(self) -> int:
        """Bytes of all batches."""
    @property
    def start(self) -> int:
        """The position of the first batch; 0 if there is none."""
    @property
    def end(self) -> int:
        """The position behind the last batch; 0 if there is none."""
    @property
    def next_offset(self) -> int:
        """One past the last offset of the last batch."""
    def relative(self) -> Headers[H_co]:
        """The same batches with positions from the first of them on."""
    def in_order(self, expected: int, end: int) -> int:
        """How many batches at the beginning lie in order in the offsets from `expected` on and below `end`."""
    def plain(self, first: int, at: int, end: int, room: int, epoch: int) -> int:
        """How many batches from number `first` on need no look: they lie in order in the offsets from `at` on and below
        `end`, they fit into `room` bytes, their leader epoch is `epoch`, their codec exists, and they are neither
        transactional nor control batches."""
    def first_gap(self, at: int) -> int:
        """The number of the first batch before which an offset is missing; the first should begin at `at`. `len` if
        there is none."""
    def first_reaching(self, offset: int) -> int:
        """The number of the first batch that ends above `offset`; `len` if there is none."""
    def first_since(self, time: int) -> int:
        """The number of the first batch whose highest timestamp is `time` or later; `len` if there is none."""
    def with_bits(self, bits: int) -> list[int]:
        """The numbers of the batches with one of these bits of attributes."""
    def with_producer(self) -> list[int]:
        """The numbers of the batches that have a producer id."""
    def epoch_starts(self, epoch: int) -> list[int]:
        """The numbers of the batches with another leader epoch than the one before; `epoch` is that before all."""

def decompress(codec: int, data: Buffer, out: Buffer, /) -> tuple[int | None, str]:
    """Write the bytes that were compressed to `out`, which nobody else may use meanwhile: the interpreter's lock is
    released. Returns how many they are, or None and what is wrong with them: "" if there is no room. What lies behind
    them in `out` may change, too."""

def crc32c(data: Buffer, before: int = 0, /) -> int:
    """The CRC-32C of some bytes; of those that follow others, whose checksum is `before`."""

def crc32c_combined(first: int, second: int, second_length: int, /) -> int:
    """The CRC-32C of bytes followed by others, from both checksums and the number of the latter bytes."""

def walk(
    buffer: Buffer, start: int, until: int, most: int, *, checked: bool, make: Callable[[Fields], H]
) -> tuple[Headers[H], int, Literal["end", "until", "most", "odd"]]:
    """The whole batches of magic 2 from position `start` on, up to the first that begins at offset `until` or above;
    `checked`: each CRC is compared.

    A header whose highest time cannot be that of its records has the highest time that they have, if they can be read.

    Also the position behind the last of them, and why the walk ended there: no whole batch is left, the next one begins
    at `until` or above, there were `most`, or what begins here is no sound batch of magic 2.
    """

def last_whole(buffer: Buffer) -> int:
    """Where the last whole batch begins, or the first one that cannot be, by the lengths alone."""

def whole_batches(buffer: Buffer, limit: int) -> int:
    """Bytes of the batches at the start that fit into `limit`, by the lengths alone; of the first one, if it alone is
    larger. Raises ValueError if a length leads out of the buffer."""

class IndexBuilder:
    """Makes the offset index and the time index of a segment: an entry after more than `interval` bytes."""

    def __init__(self, base_offset: int, interval: int) -> None: ...
    def extend(self, headers: Headers[Any]) -> None:
        """Add batches. Raises ValueError if one is too far from the segment's beginning for an entry."""
    def finish(self) -> tuple[bytes, bytes]:
        """The contents of `.index` and `.timeindex`."""

class SegmentFacts:
    """The facts that headers say of a segment in the making, and its indexes; `interval` as for `IndexBuilder`."""

    def __init__(self, base_offset: int, interval: int) -> None: ...
    def add(self, headers: Headers[Any]) -> tuple[Literal["falls", "codec", "far"], int, int] | None:
        """Add batches, all or none. If none: why. "falls": the batch of that number begins below that offset. "codec":
        one has a codec that does not exist. "far": 31 bits cannot hold a position or an offset."""
    def frame(self, size: int) -> None:
        """Note a batch of so many bytes that lies in the object and is no part of the log: only its bytes count."""
    def finish(self) -> tuple[bytes, bytes]:
        """The contents of `.index` and `.timeindex`."""
    @property
    def next_offset(self) -> int:
        """One past the last batch's last offset."""
    @property
    def records(self) -> int:
        """Records of all batches but the control batches."""
    @property
    def batches(self) -> int:
        """The number of batches."""
    @property
    def size(self) -> int:
        """Bytes of all batches."""
    @property
    def min_base_timestamp(self) -> int | None:
        """The lowest time of a first record in ms, None if no batch has a record; see `log.segment.SegmentSummary`."""
    @property
    def max_timestamp(self) -> int:
        """The highest timestamp in ms; -1 if no batch has one."""
    @property
    def max_batch_bytes(self) -> int:
        """Bytes of the largest batch; 0 without a batch."""
    @property
    def codecs(self) -> list[int]:
        """Batches by the number of their codec."""
    @property
    def attributes(self) -> int:
        """The bits that any batch has."""
    @property
    def dense(self) -> bool:
        """No offset is missing between the batches, or before the first."""
    @property
    def filled(self) -> bool:
        """Every offset of every batch has a record."""
    @property
    def legacy(self) -> bool:
        """Messages of magic 0 or 1 are among them."""

Clip = tuple[int | None, int | None, int | None, Sequence[tuple[int, int, int]]]
"""The wanted part of a partition: offsets below the first number, times from the second on and below the third (None:
no bound), and transactions that are wanted though some of their batches are older."""

Made = tuple[int, int, int, bytes | None, tuple[tuple[int, int], ...], int, int | None]
"""A batch to send: the records of the stream before it, its records, its size, its bytes (None if it is in the target
already), rows (first source offset, count), how many records had the time of the append, and, if only its header is
new, its position in the stretch: then the bytes are the header alone."""

class Merger:
    """The stream of batches of one partition that a restore sends, small ones merged.

    A batch may go with others if it has at most `small` (records, bytes) or must be built anew, and unpacks to at most
    `unpacked` bytes. Together they have at most `limit` archived bytes, and `most` bytes before compression. Of the
    first `done` records only sizes are wanted. `aborted` has (producer id, first offset, last offset) of transactions,
    those of one producer in their order. Records outside of `clip` are left out.
    """

    def __init__(
        self,
        *,
        producer_id: int,
        small: tuple[int, int],
        unpacked: int,
        limit: int,
        most: int,
        done: int,
        aborted: Sequence[tuple[int, int, int]],
        clip: Clip | None = None,
    ) -> None: ...
    @property
    def index(self) -> int:
        """The records of the stream so far."""
    def passed(self, records: int) -> None:
        """Note that the caller has made batches of so many records."""
    def is_cut(self, batch: Buffer) -> bool:
        """Whether the records of a batch must be looked at one by one, since some may lie outside of the clip."""
    def feed(self, stretch: Buffer, at: int) -> tuple[list[Made], int, Literal["end", "enough", "odd", "damaged"]]:
        """Take the batches of a stretch from position `at` on. Returns those that are ready, the position of the first
        that was not taken, and why: none is left, enough was made for now, the caller must look at it, or the records
        of a batch that had to be packed do not fit together."""
    def member(self, batch: Buffer, packed: Buffer) -> tuple[list[Made], bool]:
        """Take a batch whose records the caller has unpacked. Returns the batches that are ready; False: a batch is
        `damaged`. Raises ValueError for what is no batch of magic 2."""
    def finish(self) -> tuple[list[Made], bool]:
        """The batch that was kept back for more to come. False: a batch is `damaged`."""
    def cut(self, batch: Buffer, packed: Buffer, taken: int) -> tuple[list[Made], bool]:
        """The batches for one that is too large to be built anew as a whole: those behind the first `taken` records,
        some MiB of them. `packed` are its unpacked records; those outside of the clip do not count. False: these do not
        fit together."""
    def damaged(self) -> tuple[bytes, bytes]:
        """The header and the unpacked records of the batch that was found damaged. Raises ValueError if none was."""

class Packed:
    """Packed records of several batches, gathered into one batch of create time without gaps."""

    def __init__(self) -> None: ...
    def add(self, head: Buffer, packed: Buffer) -> bool:
        """Take over the records of the batch with this header. False if they do not fit together: then nothing here is
        of use any more."""
    @property
    def count(self) -> int:
        """How many records there are."""
    @property
    def times(self) -> tuple[int, int]:
        """The time of the first record, and the highest."""
    @property
    def rows(self) -> tuple[tuple[int, int], ...]:
        """Their offsets: rows (first source offset, count)."""
    @property
    def body(self) -> bytes:
        """The packed records."""

class Rows(Sequence[PlainRecord]):
    """Records of one partition, taken apart, in the order of their offsets: the places of keys, values and headers.

    An element is an object, made when it is asked for. The bytes below are those of the buffer that the rows were made
    of: who made them says how long they are good.
    """

    @property
    def first_offset(self) -> int:
        """The offset of the first record; -1 without one."""
    @property
    def last_offset(self) -> int:
        """The offset of the last record; -1 without one."""
    @overload
    def __getitem__(self, index: int) -> PlainRecord: ...
    @overload
    def __getitem__(self, index: slice) -> Rows: ...
    def __len__(self) -> int: ...
    def offsets(self) -> list[int]:
        """The offset of each record."""
    def facts(self, header_bytes: int) -> tuple[int, int, int | None, int, bool, int]:
        """The offsets of the first and the last record, the lowest timestamp (None: no record has one) and the highest,
        whether one is of the append, and the bytes of key, value and headers of the largest record: characters of
        headers' keys, and `header_bytes` more for each header."""
    def between(self, start: int, until: int) -> Rows:
        """Those with offsets in [start, until)."""
    def of_times(self, since: int | None, before: int | None) -> Rows:
        """Those of a time (ms) from `since` on and below `before`; None: no bound. A record without a timestamp has
        -1."""
    def positions(self, origin: int) -> list[int]:
        """The positions of each record and of the end of the last in a file in which the buffer lies at `origin`; only
        of `read_records`."""
    def fitting(self, size: int, count: int) -> tuple[int, int]:
        """How many of the first records take at most `size` bytes in a batch, at most `count`, and the bytes that they
        take: of each the most, wherever in a batch it is."""
    def listed(self, start: int, count: int, size: int) -> list[PlainRecord]:
        """The first from number `start` on as objects: at most `count`, which take at most `size` bytes in a batch, but
        at least one if there is one."""
    def first_without_key(self) -> int | None:
        """The number of the first record without a key."""
    def first_since(self, time: int) -> int | None:
        """The number of the first record of that time or later. A record without a timestamp has -1."""

class Keys:
    """Keys of records that are looked for. None of them is here: `known` has lengths of keys, and of each length the
    `key_digest`s with this secret of 32 bytes, one behind the other."""

    def __init__(self, secret: bytes, known: Sequence[tuple[int, bytes]]) -> None: ...
    def found(self, rows: Rows) -> list[int]:
        """The numbers of the records with one of the keys."""
    def leave(self, batch: Buffer, packed: Buffer) -> tuple[bytes, int, int] | None:
        """The records of a batch without those of the keys: packed as they were, their number, and their highest
        timestamp. `packed` are its records, decompressed. None if no record has one of the keys. Raises ValueError if
        the records do not fit together."""

def key_digest(secret: bytes, key: bytes) -> bytes:
    """The BLAKE3 of a key with a secret of 32 bytes."""

def records_are(record: type[PlainRecord], /) -> None:
    """Name the class of records: named tuples of offset, timestamp, timestamp type, key, value and headers."""

def rows_of(records: Iterable[LogRecord]) -> Rows:
    """Rows of records that are objects. Their bytes are copied."""

def batch_rows(records: Buffer, header: tuple[int, ...], most: int) -> Iterator[Rows] | None:
    """The records of a batch of magic 2, decompressed, in parts of at most `most`. None if they do not fit together, or
    if their offsets do not rise inside of the batch."""

def packed_rows(parts: Sequence[Rows], base: int | None = None) -> tuple[bytes, int, int, int, list[tuple[int, int]]]:
    """These records as those of one batch of create time, uncompressed: the bytes, the first timestamp, the highest,
    how many had the time of the append, and (first, count) of their offsets. They are numbered from 0 on, or keep their
    offsets in a batch that begins at `base`; ValueError if they do not rise from there, or not within 31 bits."""

class RecordsSegment:
    """One segment of the Records format and its index in the making. It begins with `position` bytes that are there
    already, and ends with the record that takes it over `limit` bytes."""

    def __init__(self, position: int, limit: int) -> None: ...
    def append(self, rows: Rows, start: int, most: int) -> tuple[int, Literal["end", "full", "falls"]]:
        """Take records from number `start` on: how many, and why no more. "full": the segment is; "falls": the offset
        of the next one does not rise; "end": none are left, or `most` bytes wait."""
    @property
    def position(self) -> int:
        """The position behind the last record."""
    @property
    def waiting(self) -> int:
        """Bytes that wait for `take`."""
    @property
    def count(self) -> int:
        """The number of records."""
    @property
    def last_offset(self) -> int:
        """The offset of the last record; -1 without one."""
    def take(self) -> tuple[bytes, bytes]:
        """The bytes that wait: of the segment, and of its index."""
    def facts(self) -> tuple[int, int, int, int, bool, int]:
        """The offsets of the first and the last record, the lowest and the highest timestamp (-1: no record has one),
        whether one is of the append, and the bytes of key, value and headers of the largest record."""

def read_records(data: Buffer, at: int, last: int, most: int) -> tuple[Rows, int | None]:
    """The records of the Records format in `data` from `at` on, at most `most`; offsets rise above `last`. And what
    follows them: the bytes that the next one has at least if it goes on behind `data`, 0 if there were `most`, None if
    it is no record that can be."""

class AvroBlocks:
    """The records of an object of the Avro format, packed block by block. `prefix` is how topic and partition are
    written, `lossless` says which of the two schemas is."""

    def __init__(self, prefix: bytes, *, lossless: bool) -> None: ...
    def append(self, rows: Rows, start: int, most: int) -> tuple[int, Literal["end", "full", "falls"]]:
        """Take records from number `start` on, up to and including the one with which the open block has more than
        `most` bytes: how many, and why no more, as `RecordsSegment.append`."""
    @property
    def waiting(self) -> int:
        """Bytes of the open block."""
    @property
    def count(self) -> int:
        """The number of records of all blocks."""
    @property
    def last_offset(self) -> int:
        """The offset of the last record; -1 without one."""
    def take(self) -> tuple[bytes, int]:
        """The bytes of the open block and the number of its records. The next block begins."""
    def facts(self) -> tuple[int, int, int, int, bool, int]:
        """The same as `RecordsSegment.facts` tells, of all blocks."""

def read_avro_block(
    data: Buffer, count: int, prefix: bytes, shape: tuple[int, int, int, bool], last: int
) -> Rows | None:
    """The `count` records of a block, whose offsets rise above `last`; None if something in it cannot be. `shape` is
    that of `formats.avro_schema.Shape`."""

def avro_losses(rows: Rows) -> list[tuple[str, int, int]]:
    """The losses that the published schema makes of these records: the name in `formats.base.LossKind`, how many
    records have it, and the offset of the first."""

class RecordDigest:
    """The digest of records that follow one another, as a consumer sees them: timestamp, key, value, headers in order;
    with `offsets`, their offsets too. Batches, compression and the division of a partition make no difference."""

    def __init__(self, *, offsets: bool, count: int = 0, value: bytes | None = None) -> None:
        """Begin without records, or go on from a digest that was written down. Raises ValueError if `value` has not 16
        bytes, or if no records have this digest."""
    def note(self, rows: Rows) -> None:
        """Note records that follow."""
    def note_batches(self, stretch: Buffer, headers: Headers[Any], most: int) -> int:
        """Note the records of these batches of a stretch, which follow; control batches are left out. Returns how many
        batches were taken. The caller must look at the next one: its magic is 0 or 1, its records do not fit together,
        or they unpack to more than `most` bytes. None of its records is noted."""
    def follow(self, next: RecordDigest) -> None:
        """Note the records that follow and of which `next` is the digest. Raises ValueError if only one of both knows
        offsets."""
    @property
    def count(self) -> int:
        """The number of records."""
    @property
    def value(self) -> bytes:
        """The value of the polynomial, 16 bytes, the highest first."""
    @property
    def offsets_value(self) -> bytes:
        """The same of the polynomial whose coefficients are the offsets of the records that were noted. Two stretches
        with one value each of both have equal records at equal offsets."""
    @property
    def times(self) -> tuple[int, list[tuple[int, int, int]]]:
        """The records that were noted, by their times: a shift, and buckets of (time >> shift, records, bytes of their
        canonical form), at most 64, in order. A record without a timestamp has the time -1. Of what was written down,
        nothing is known here."""
    @property
    def span(self) -> tuple[int, int] | None:
        """The lowest and the highest time of these records, None without one."""

def record_digests(rows: Rows, *, offsets: bool) -> bytes:
    """The digests of single records, one behind the other: 16 bytes each, the highest first."""

def murmur2(key: Buffer) -> int:
    """The hash by which Java's default partitioner chooses partitions, unsigned."""

def partitions_of_keys(rows: Rows, partitions: int) -> list[int]:
    """The partition of each record by its key, as Java's default partitioner chooses it; -1 without a key.
    Raises ValueError if `partitions` is 0."""

Share = tuple[int, int, int, bytes, int, int, int]
"""The packed records of a batch for one target: the target, the codec of the batch in which the first of them lay, how
many they are, their bytes, the time of the first, the highest time, and one past the source offset of the last."""

class Divider:
    """Divides the records of a partition among `targets` partitions, and gathers those of each into batches.

    A key goes where the `partitioner` sends it: "murmur2" is Java's default, "crc32" that of librdkafka. A record
    without a key, with crc32 also one with an empty key, goes where murmur2 of its offset in the source says. A batch
    has at most `most` bytes before compression, unless one record has more, and at most `most_records`. What comes out
    follows from the records and their order alone. ValueError without targets, or for another partitioner.
    """

    def __init__(self, partitioner: str, targets: int, most: int, most_records: int) -> None: ...
    def feed(
        self, packed: Buffer, header: tuple[int, ...], source: Sequence[tuple[int, int]]
    ) -> tuple[list[Share], bool]:
        """Take the unpacked records of a batch, whose offsets in the source are rows (first, count). Returns batches
        that are full. False: the records do not fit together, and nothing here is of use any more."""
    def finish(self) -> list[Share]:
        """The batches that were kept back for more records to come, by their targets."""

class Compaction:
    """Compacts a partition: of each key the last record survives.

    While `begin()` is true, `note` all of the dirty section (`dirty` True), and then, if there are several `parts`, all
    of the clean one. Then `begin_copy`, and `copy` the clean section and the dirty one. `secret` hashes the keys; the
    offset map takes at most `map_bytes`; the records of a batch unpack to at most `unpacked` bytes. Tombstones whose
    delete horizon is `now` or lies before it go, others without one get `horizon` (ms). `aborted` has (producer id,
    first offset, last offset) of transactions, those of one producer in their order, and so has `open`: batches of
    these stay as they are and replace nothing. Batches of other transactions lose the bit that says so.

    With `spills` it is one of several that share a secret and compact a part of a partition each, which is the dirty
    section then: `take_pairs` whenever a call of `note` ends with `enough`, and at the end. `KnownKeys` finds the dead
    records between the parts.
    """

    def __init__(
        self,
        *,
        secret: tuple[int, int],
        map_bytes: int,
        unpacked: int,
        now: int,
        horizon: int,
        aborted: Sequence[tuple[int, int, int]],
        open: Sequence[tuple[int, int, int]],
        spills: bool,
    ) -> None: ...
    def begin(self) -> bool:
        """Begin the next pass over both sections. False: no key needs one any more."""
    @property
    def parts(self) -> int:
        """The keys of the pass are one of so many equal shares: those that fit into the map."""
    def begin_copy(self) -> None:
        """Begin to copy both sections from their beginnings."""
    def note(self, dirty: bool, stretch: Buffer, at: int) -> tuple[int, Literal["end", "odd", "large", "enough"]]:
        """Note the batches of a stretch from position `at` on, whose CRCs were checked.

        Returns the position of the first that was not taken, and why: none is left, the caller must look at it, its
        records unpack to too many bytes, or pairs must be taken out.
        """
    def take_pairs(self, rest: bool) -> list[tuple[bytes, list[int]]]:
        """Take out the keys of the dirty section with the numbers of their last records, in blocks: those for which the
        map had no room any more, and with `rest` those that it holds. Pairs of a block lie in the order of their
        buckets; the list has for each bucket the number of pairs up to its end."""
    def marks(self) -> tuple[bytes, bytes]:
        """The records of the dirty section that are dead as far as it was noted, and those that are tombstones."""
    def mark(self, dead: bytes, tombstones: bytes, more: bytes) -> None:
        """Take over marks of the dirty section, and numbers of records that are dead besides."""
    def copy(
        self, dirty: bool, stretch: Buffer, at: int
    ) -> tuple[list[bytes | tuple[int, int]], int, Literal["end", "odd", "large", "enough"]]:
        """Copy what survives of the batches of a stretch from position `at` on.

        Returns whole batches in pieces: their bytes, or from where to where they lie in the stretch; the position of
        the first batch that was not taken; and why.
        """
    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Records that were copied, tombstones among them (none of `open` transactions), batches copied as they were,
        and batches built anew."""

PAIR_BYTES: int
"""The bytes of a pair: a hash, and the number of a record."""

KEY_BUCKETS: int
"""So many buckets a block of pairs is divided into, by the hashes."""

class KnownKeys:
    """The keys of a part of a partition and of the parts behind it, in at most `map_bytes`."""

    def __init__(self, map_bytes: int) -> None: ...
    @staticmethod
    def most_keys(map_bytes: int) -> int:
        """So many keys fit for sure into so many bytes."""
    def known_of(self, pairs: bytes) -> bytes:
        """Pass over pairs of one block, later blocks before earlier ones. Returns the numbers, of four bytes each, of
        those whose keys came by before. Raises MemoryError if there are too many keys."""

class KeyComparison:
    """The keys of an archived partition beside those of the live log: one of `parts` shares of all keys.

    First `note` all archived records, then the live ones, both in the order of their offsets, committed ones only.
    `secret` hashes the keys; the map takes at most `map_bytes`. The archive accounts for the ranges `accounted`, which
    rise, and holds nothing from offset `end` on.
    """

    def __init__(
        self,
        *,
        secret: tuple[int, int],
        map_bytes: int,
        part: int,
        parts: int,
        end: int,
        accounted: Sequence[tuple[int, int]],
    ) -> None: ...
    @property
    def rest(self) -> list[tuple[int, int]]:
        """The shares, with the number of each, that did not fit into the map. The comparison has gone on without
        them."""
    def begin_live(self, log_start: int) -> None:
        """Take live records from this offset on only: the first batch of a log may have others."""
    def note(self, live: bool, rows: Rows) -> None:
        """Note records. Raises ValueError for an offset that no log has."""
    def note_batches(self, live: bool, stretch: Buffer, headers: Headers[Any], most: int) -> int:
        """Note the records of batches of a stretch, but for control batches. Returns how many were taken. The caller
        must look at the next one: it is no batch of magic 2, its records do not fit together, or have more than `most`
        bytes. None of them is noted."""
    def counts(self, log_start: int) -> tuple[int, int, int, int, int, int]:
        """How many keys the archive has, and how many of all keys are stale, expired, missing and differing if the live
        log starts there; and how many archived records have no key."""
    def offsets(self, log_start: int, most: int) -> tuple[list[int], list[int]]:
        """The lowest offsets of stale keys, and those of keys that are missing or differ: at most so many of each."""

def target_of_record(partitioner: str, key: Buffer | None, offset: int, targets: int) -> int:
    """The target to which a `Divider` gives a record. ValueError as of that."""

class SegmentTableReader:
    """Reads the segments of commits into packed rows. `columns` are those of the catalog's `fields.packed_columns`; the
    names of codecs, flags and layouts stand in the order of their numbers."""

    def __init__(
        self,
        columns: list[tuple[str, list[int | None]]],
        codecs: list[str],
        flags: list[str],
        layouts: list[str],
        row_bytes: int,
    ) -> None: ...
    def read(self, document: bytes, /) -> tuple[int, int, int, list[tuple[str, int]], bytes] | None:
        """The first table of segments in a document: where its rows begin and end, the number of its columns, the
        partition of each segment, and their packed rows. None if there is none, or if anything in it is not as a
        writer writes it."""

def rows_in_order(rows: Buffer, row_bytes: int, /) -> bool:
    """Tell whether packed rows are whole and in order: each begins with a base offset (0 or above) and the next offset
    after it, and no base offset is below the one before."""
