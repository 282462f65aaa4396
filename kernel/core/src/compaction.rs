//! Compaction of a partition: of each key the last record survives.
//!
//! The dirty section is noted, and then the clean one, which has each key once, and the dirty one are copied. If the keys
//! of the dirty section do not fit into the offset map, a pass goes on with half of them, and each share that is left
//! over needs a pass of its own. Then the clean section is noted in each pass, too.
//!
//! A batch that is copied is of no transaction any more, unless its transaction has not ended: whether that one is
//! committed at a later offset is for the log behind to say.
//!
//! Source of facts: apache/kafka `Cleaner.java`, `MemoryRecords.java` (`filterTo`), KIP-534 for the delete horizon.

use crate::compression::{Codec, Compressor, Decompressor, Problem};
use crate::header::{HEADER_SIZE, Header, LOG_OVERHEAD, checksum};
use crate::headers::{APPEND_TIME, CODEC, CONTROL, DELETE_HORIZON, TRANSACTIONAL};
use crate::merge::{Spans, holds, whole_batch};
use crate::offset_map::{Bits, Hash, KeyHasher, MOST_RECORDS, OffsetMap, Share};
use crate::records::{Odd, Record, bounds, key_again};
use crate::varints::{put_varint, varint_size};

/// A section of the partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// What was compacted before: each key once.
    Clean,
    /// The log behind it.
    Dirty,
}

/// Why a pass ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// All batches of the stretch were taken.
    End,
    /// The next batch is one that the caller must look at: of magic 0 or 1, or damaged.
    Odd,
    /// The records of the next batch unpack to more bytes than are allowed.
    Large,
    /// Enough was copied for now, or pairs must be taken out.
    Enough,
}

/// What is fixed for a compaction.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Of the hashes of keys.
    pub secret: (u64, u64),
    /// Bytes of the offset map.
    pub map_bytes: usize,
    /// Bytes to which the records of a batch may unpack.
    pub unpacked: usize,
    /// Tombstones whose horizon is this time (ms) or lies before it go.
    pub now: i64,
    /// The horizon of tombstones that have none yet.
    pub horizon: i64,
    /// The aborted transactions, whose records go.
    pub aborted: Spans,
    /// The transactions that have not ended, whose batches stay as they are and replace nothing.
    pub open: Spans,
    /// One of several that share the secret compacts a part of the partition: keys for which the map has no room are
    /// handed out as pairs.
    pub spills: bool,
}

/// What a compaction has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records that were copied.
    pub records: u64,
    /// Tombstones among them.
    pub tombstones: u64,
    /// Batches that were copied as they were.
    pub whole: u64,
    /// Batches that were built anew.
    pub rebuilt: u64,
}

/// Compacts one partition.
pub struct Compaction {
    plan: Plan,
    hasher: KeyHasher,
    share: Share,
    /// The shares of keys that need a pass yet.
    rest: Vec<Share>,
    /// An earlier pass has read all records.
    again: bool,
    map: OffsetMap,
    spilled: Vec<(Vec<u8>, Vec<u32>)>,
    dead: [Bits; 2],
    /// Numbers of dead records of the dirty section whose bits are not set yet. They lie far from each other, so many
    /// are set at a time.
    overwritten: Vec<u64>,
    tombstones: [Bits; 2],
    number: [u64; 2],
    decompressor: Decompressor,
    compressor: Compressor,
    unpacked: Vec<u8>,
    /// How many of those bytes are records.
    size: usize,
    /// Hashes of keys, and the numbers of their records.
    hashes: Vec<(Hash, u64)>,
    kept: Vec<Kept>,
    body: Vec<u8>,
    /// See the type.
    pub counts: Counts,
}

/// A record of a batch that survives.
#[derive(Clone, Copy)]
struct Kept {
    attributes: u8,
    time: i64,
    offset_delta: i64,
    fields: usize,
    end: usize,
}

const ENOUGH: usize = 1 << 20; // bytes that are copied in one go
const TOGETHER: usize = 32; // records whose places in the map are fetched at the same time
const OVERWRITTEN: usize = 1 << 10;
const TIMES: usize = 4; // by so much the memory for records grows
const SPAN: usize = 64 << 10; // so many bytes that stay as they are need not be copied

/// What survives of batches.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    /// Whole batches that were made or copied.
    Bytes(Vec<u8>),
    /// Whole batches that lie in the stretch from one position to another.
    Span(usize, usize),
}

/// Gathers what survives of a stretch.
struct Pieces<'a> {
    stretch: &'a [u8],
    out: Vec<u8>,
    /// Batches that survive as they are, back to back.
    run: (usize, usize),
    made: Vec<Piece>,
    bytes: usize,
}

impl Pieces<'_> {
    /// Takes the batch from a position to another as it is.
    #[inline]
    fn keep(&mut self, from: usize, to: usize) {
        if self.run.1 != from {
            self.end_run();
            self.run.0 = from;
        }
        self.run.1 = to;
    }

    /// Where batches may be appended.
    fn out(&mut self) -> &mut Vec<u8> {
        self.end_run();
        &mut self.out
    }

    fn end_run(&mut self) {
        let (from, to) = std::mem::take(&mut self.run);
        if to - from >= SPAN {
            self.end_bytes();
            self.made.push(Piece::Span(from, to));
        } else {
            self.out.extend_from_slice(&self.stretch[from..to]);
        }
    }

    fn end_bytes(&mut self) {
        if !self.out.is_empty() {
            self.bytes += self.out.len();
            self.made.push(Piece::Bytes(std::mem::take(&mut self.out)));
        }
    }

    fn finish(mut self) -> Vec<Piece> {
        self.end_run();
        self.end_bytes();
        self.made
    }
}

impl Compaction {
    /// A compaction that has seen nothing yet.
    pub fn new(plan: Plan) -> Compaction {
        Compaction {
            hasher: KeyHasher::new(plan.secret),
            share: Share::ALL,
            rest: vec![Share::ALL],
            again: false,
            map: OffsetMap::new(plan.map_bytes),
            spilled: Vec::new(),
            dead: Default::default(),
            overwritten: Vec::with_capacity(OVERWRITTEN),
            tombstones: Default::default(),
            number: [0; 2],
            decompressor: Decompressor::new(),
            compressor: Compressor::new(),
            unpacked: Vec::new(),
            size: 0,
            hashes: Vec::new(),
            kept: Vec::new(),
            body: Vec::new(),
            counts: Counts::default(),
            plan,
        }
    }

    /// The memory of the offset map: see `OffsetMap::memory`.
    pub fn map_memory(&self) -> (*const u8, usize) {
        self.map.memory()
    }

    /// Begins the next pass. False: no key needs one any more.
    pub fn begin(&mut self) -> bool {
        let Some(share) = self.rest.pop() else { return false };
        self.share = share;
        self.again = share != Share::ALL;
        self.map.clear();
        self.number = [0; 2];
        true
    }

    /// The keys of the pass are one of so many equal shares. If it is more than one, the pass must note the clean section,
    /// too.
    pub fn parts(&self) -> u64 {
        self.share.parts
    }

    /// Begins to copy: both sections from their beginnings.
    pub fn begin_copy(&mut self) {
        self.bury();
        self.number = [0; 2];
        self.counts = Counts::default();
    }

    /// Notes the batches of a stretch from position `at` on, whose CRCs were checked: the dirty section before the clean
    /// one. Returns the position of the first that was not taken, and why.
    pub fn note(&mut self, section: Section, stretch: &[u8], at: usize) -> (usize, Stop) {
        let mut at = at;
        while at < stretch.len() {
            let Some((header, batch)) = whole_batch(stretch, at) else {
                return (at, Stop::Odd);
            };
            if let Err(stop) = self.note_batch(section, &header, batch) {
                return (at, stop);
            }
            at += batch.len();
            if !self.spilled.is_empty() {
                return (at, Stop::Enough);
            }
        }
        (at, Stop::End)
    }

    #[inline]
    fn note_hash(&mut self, section: Section, hash: Hash, number: u64) {
        match section {
            _ if !self.share.has(hash) => {}
            Section::Dirty => self.put(hash, number),
            Section::Clean if self.map.get(hash).is_some() => self.dead[Section::Clean as usize].set(number),
            Section::Clean => {}
        }
    }

    /// Takes out the pairs of the keys that were noted, each block of them with the ends of its buckets: what the map
    /// could not hold any more, and with `rest` what it holds. See `Plan::spills`.
    pub fn take_pairs(&mut self, rest: bool) -> Vec<(Vec<u8>, Vec<u32>)> {
        if rest {
            self.spilled.push(self.map.take_pairs());
        }
        std::mem::take(&mut self.spilled)
    }

    /// Which records of the dirty section are dead as far as it was noted, and which are tombstones.
    pub fn marks(&mut self) -> (Vec<u8>, Vec<u8>) {
        self.bury();
        let section = Section::Dirty as usize;
        (self.dead[section].bytes(), self.tombstones[section].bytes())
    }

    /// Takes over the marks of the dirty section, and numbers of records that are dead besides, each of four bytes.
    pub fn mark(&mut self, (dead, tombstones): (&[u8], &[u8]), more: &[u8]) {
        let section = Section::Dirty as usize;
        self.tombstones[section] = Bits::of(tombstones);
        self.dead[section] = Bits::of(dead);
        for number in more.chunks_exact(4) {
            self.dead[section].set(u64::from(u32::from_le_bytes(std::array::from_fn(|at| number[at]))));
        }
    }

    /// Copies what survives of the batches of a stretch from position `at` on: the clean section before the dirty one.
    /// Returns the position of the first batch that was not taken, and why.
    pub fn copy(&mut self, section: Section, stretch: &[u8], at: usize) -> (Vec<Piece>, usize, Stop) {
        let mut at = at;
        let mut pieces = Pieces { stretch, out: Vec::new(), run: (0, 0), made: Vec::new(), bytes: 0 };
        let stop = loop {
            if at == stretch.len() {
                break Stop::End;
            }
            if pieces.bytes + pieces.out.len() >= ENOUGH {
                break Stop::Enough;
            }
            let Some((header, batch)) = whole_batch(stretch, at) else {
                break Stop::Odd;
            };
            if let Err(stop) = self.copy_batch(section, &header, batch, at, &mut pieces) {
                break stop;
            }
            at += batch.len();
        };
        (pieces.finish(), at, stop)
    }

    /// Puts a key into the map; if there is no room, goes on with half of the keys, or without those that were put.
    #[inline]
    fn put(&mut self, hash: Hash, number: u64) {
        while self.share.has(hash) {
            if let Ok(before) = self.map.put(hash, number) {
                if let Some(before) = before {
                    self.overwritten.push(before);
                    if self.overwritten.len() == OVERWRITTEN {
                        self.bury();
                    }
                }
                return;
            }
            if self.plan.spills {
                self.spilled.push(self.map.take_pairs());
                continue;
            }
            let (share, other) = self.share.halves();
            self.rest.push(other);
            self.share = share;
            self.map.leave(share);
        }
    }

    /// Sets the bits of the records that were overwritten.
    fn bury(&mut self) {
        let dead = &mut self.dead[Section::Dirty as usize];
        self.overwritten.drain(..).for_each(|number| dead.set(number));
    }

    /// Whether the copy asks the map for the keys of the section, since no pass has noted it.
    #[inline]
    fn looks_up(&self, section: Section) -> bool {
        section == Section::Clean && self.parts() == 1
    }

    /// Whether no record of the batch is seen by consumers of committed records.
    #[inline]
    fn is_unseen(&self, header: &Header) -> bool {
        header.attributes & CONTROL != 0
            || header.record_count == 0
            || header.attributes & TRANSACTIONAL != 0 && holds(&self.plan.aborted, header)
    }

    /// Unpacks the records of a batch: see `records_of`. The memory for them stays as large as it was needed, so that
    /// it is neither cleared nor tried out for each batch.
    fn unpack(&mut self, header: &Header, batch: &[u8]) -> Result<(), Stop> {
        let codec = Codec::of(header.attributes).ok_or(Stop::Odd)?;
        let (packed, limit) = (&batch[HEADER_SIZE..], self.plan.unpacked);
        if codec == Codec::None {
            return if packed.len() > limit { Err(Stop::Large) } else { Ok(()) };
        }
        loop {
            match self.decompressor.into_slice(codec, packed, &mut self.unpacked) {
                Ok(size) => {
                    self.size = size;
                    return Ok(());
                }
                Err(Problem::NoRoom) if self.unpacked.len() < limit => {
                    let room = TIMES * packed.len().max(self.unpacked.len()).max(SPAN);
                    self.unpacked.resize(room.min(limit), 0);
                }
                Err(Problem::NoRoom) => return Err(Stop::Large),
                Err(Problem::Damaged(_)) => return Err(Stop::Odd),
            }
        }
    }

    /// Whether the batch is of a transaction that has not ended.
    #[inline]
    fn is_open(&self, header: &Header) -> bool {
        header.attributes & TRANSACTIONAL != 0 && holds(&self.plan.open, header)
    }

    fn note_batch(&mut self, section: Section, header: &Header, batch: &[u8]) -> Result<(), Stop> {
        if self.is_unseen(header) {
            return Ok(());
        }
        if self.is_open(header) {
            self.number[section as usize] += header.record_count as u64;
            return Ok(());
        }
        self.unpack(header, batch)?;
        let before = self.number;
        let unpacked = std::mem::take(&mut self.unpacked);
        let noted = self.note_records(section, header, records_of(header, batch, &unpacked[..self.size]));
        self.unpacked = unpacked;
        if noted.is_err() {
            self.number = before;
        }
        noted.map_err(|Odd| Stop::Odd)
    }

    fn note_records(&mut self, section: Section, header: &Header, packed: &[u8]) -> Result<(), Odd> {
        let (mut at, first) = (0, self.number[section as usize]);
        assert!(
            first + header.record_count as u64 <= MOST_RECORDS,
            "a compaction takes less than {MOST_RECORDS} records"
        );
        self.hashes.clear();
        for number in first..first + header.record_count as u64 {
            let (key, end) = if self.again {
                key_again(packed, at).ok_or(Odd)?
            } else {
                let record = Record::at(packed, at).ok_or(Odd)?;
                if is_tombstone(&record, packed) {
                    self.tombstones[section as usize].set(number);
                }
                (record.key, record.end)
            };
            if let Some(hash) = key.of(packed).map(|key| self.hasher.hash(key)) {
                if self.share.has(hash) {
                    self.hashes.push((hash, number));
                }
            }
            at = end;
        }
        if at != packed.len() {
            return Err(Odd);
        }
        let hashes = std::mem::take(&mut self.hashes);
        for some in hashes.chunks(TOGETHER) {
            self.map.touch(some.iter().map(|(hash, _)| *hash));
            for (hash, number) in some {
                self.note_hash(section, *hash, *number);
            }
        }
        self.hashes = hashes;
        self.number[section as usize] = first + header.record_count as u64;
        Ok(())
    }

    fn copy_batch(
        &mut self,
        section: Section,
        header: &Header,
        batch: &[u8],
        at: usize,
        pieces: &mut Pieces<'_>,
    ) -> Result<(), Stop> {
        if self.is_unseen(header) {
            return Ok(());
        }
        let first = self.number[section as usize];
        let (behind, looks_up) = (first + header.record_count as u64, self.looks_up(section));
        if looks_up {
            self.note_batch(section, header, batch)?;
        }
        let dead = self.dead[section as usize].count(first, behind);
        let tombstones = self.tombstones[section as usize].count(first, behind);
        let settled = tombstones == 0 || header.attributes & DELETE_HORIZON != 0 && !self.is_past(header);
        if dead == 0 && settled {
            if header.attributes & TRANSACTIONAL == 0 || self.is_open(header) {
                pieces.keep(at, at + batch.len());
            } else {
                append_plain(header, batch, pieces.out());
            }
            self.counts.whole += 1;
            self.counts.records += header.record_count as u64;
            self.counts.tombstones += tombstones;
        } else if dead < header.record_count as u64 {
            if !looks_up {
                self.unpack(header, batch)?;
            }
            self.copy_some(section, header, batch, first, pieces.out()).map_err(|Odd| Stop::Odd)?;
        }
        self.number[section as usize] = behind;
        Ok(())
    }

    /// Whether the tombstones of the batch go.
    #[inline]
    fn is_past(&self, header: &Header) -> bool {
        header.attributes & DELETE_HORIZON != 0 && header.base_timestamp <= self.plan.now
    }

    /// Appends what survives of the batch that was unpacked last.
    fn copy_some(
        &mut self,
        section: Section,
        header: &Header,
        batch: &[u8],
        first: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), Odd> {
        let unpacked = std::mem::take(&mut self.unpacked);
        let packed = records_of(header, batch, &unpacked[..self.size]);
        let copied = self.choose(section, header, first, packed).and_then(|tombstones| {
            if !self.kept.is_empty() {
                self.rebuild(header, packed, tombstones > 0, out)?;
                self.counts.rebuilt += 1;
            }
            self.counts.records += self.kept.len() as u64;
            self.counts.tombstones += tombstones;
            Ok(())
        });
        self.unpacked = unpacked;
        copied
    }

    /// Gathers the records that survive. Returns how many of them are tombstones.
    fn choose(&mut self, section: Section, header: &Header, first: u64, packed: &[u8]) -> Result<u64, Odd> {
        let past = self.is_past(header);
        let append_time = (header.attributes & APPEND_TIME != 0).then_some(header.max_timestamp);
        self.kept.clear();
        let (mut at, mut tombstones) = (0, 0);
        for number in first..first + header.record_count as u64 {
            if self.dead[section as usize].has(number) {
                at = bounds(packed, at).ok_or(Odd)?.1;
                continue;
            }
            let record = Record::at(packed, at).ok_or(Odd)?;
            at = record.end;
            let tombstone = is_tombstone(&record, packed);
            if tombstone && past {
                continue;
            }
            tombstones += u64::from(tombstone);
            self.kept.push(Kept {
                attributes: record.attributes,
                time: append_time.unwrap_or(header.base_timestamp.wrapping_add(record.time_delta)),
                offset_delta: record.offset_delta,
                fields: record.fields,
                end: record.end,
            });
        }
        if at == packed.len() { Ok(tombstones) } else { Err(Odd) }
    }

    /// Appends a batch of the records that were gathered, with the offsets, the producer fields, the leader epoch and
    /// the last offset that the batch had.
    fn rebuild(&mut self, header: &Header, packed: &[u8], tombstones: bool, out: &mut Vec<u8>) -> Result<(), Odd> {
        let codec = Codec::of(header.attributes).ok_or(Odd)?;
        let had = header.attributes & DELETE_HORIZON != 0;
        let base = match (tombstones, had) {
            (false, _) => self.kept[0].time,
            (true, true) => header.base_timestamp,
            (true, false) => self.plan.horizon,
        };
        self.body.clear();
        let mut most = i64::MIN;
        for kept in &self.kept {
            most = most.max(kept.time);
            let time = kept.time.wrapping_sub(base);
            let fields = &packed[kept.fields..kept.end];
            let length = 1 + varint_size(time) + varint_size(kept.offset_delta) + fields.len();
            put_varint(&mut self.body, length as i64);
            self.body.push(kept.attributes);
            put_varint(&mut self.body, time);
            put_varint(&mut self.body, kept.offset_delta);
            self.body.extend_from_slice(fields);
        }
        let start = out.len();
        out.resize(start + HEADER_SIZE, 0);
        self.compressor.append(codec, &self.body, out);
        let bits = header.attributes & !(CODEC | DELETE_HORIZON | TRANSACTIONAL);
        let made = Header {
            batch_length: i32::try_from(out.len() - start - LOG_OVERHEAD).map_err(|_| Odd)?,
            crc: 0,
            attributes: bits | codec as i16 | if tombstones { DELETE_HORIZON } else { 0 },
            base_timestamp: base,
            max_timestamp: most,
            record_count: i32::try_from(self.kept.len()).map_err(|_| Odd)?,
            ..*header
        };
        seal(made, &mut out[start..]);
        Ok(())
    }
}

/// Appends a batch whose transaction was committed: no marker follows it, so it is one of no transaction from here on.
fn append_plain(header: &Header, batch: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(batch);
    let claimed = Header::read(batch).unwrap_or(*header); // with the times that it has
    seal(Header { attributes: header.attributes & !TRANSACTIONAL, ..claimed }, &mut out[start..]);
}

/// Writes the header of a batch, with the checksum that belongs to it.
fn seal(mut header: Header, batch: &mut [u8]) {
    batch[..HEADER_SIZE].copy_from_slice(&header.bytes());
    header.crc = checksum(batch);
    batch[..HEADER_SIZE].copy_from_slice(&header.bytes());
}

/// The packed records of a batch that was unpacked last: they lie where they were, if they were not compressed.
#[inline]
fn records_of<'a>(header: &Header, batch: &'a [u8], unpacked: &'a [u8]) -> &'a [u8] {
    if Codec::of(header.attributes) == Some(Codec::None) { &batch[HEADER_SIZE..] } else { unpacked }
}

/// Whether the record says that its key is gone.
#[inline]
fn is_tombstone(record: &Record, packed: &[u8]) -> bool {
    record.key.of(packed).is_some() && record.value.of(packed).is_none()
}
