//! Compaction of a partition: of each key the last record survives.
//!
//! The dirty section is passed over first, then the clean one, which has each key once, and then both are copied. Where
//! the keys of the dirty section do not fit into the offset map, the first two passes are made once for each share of
//! all keys.
//!
//! Source of facts: apache/kafka `Cleaner.java`, `MemoryRecords.java` (`filterTo`), KIP-534 for the delete horizon.

use crate::compression::{Codec, Compressor, Decompressor, Problem};
use crate::header::{HEADER_SIZE, Header, LOG_OVERHEAD, checksum};
use crate::headers::{APPEND_TIME, CODEC, CONTROL, DELETE_HORIZON, TRANSACTIONAL};
use crate::merge::{Spans, holds, whole_batch};
use crate::offset_map::{Bits, Full, KeyHasher, OffsetMap, Share};
use crate::records::{Odd, Record};
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
    /// The keys do not fit: begin anew with more shares.
    Full,
    /// Enough was copied for now.
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
    /// Tombstones whose horizon lies before this time (ms) go.
    pub now: i64,
    /// The horizon of tombstones that have none yet.
    pub horizon: i64,
    /// The aborted transactions, whose records go.
    pub aborted: Spans,
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
    map: OffsetMap,
    dead: [Bits; 2],
    number: [u64; 2],
    decompressor: Decompressor,
    compressor: Compressor,
    unpacked: Vec<u8>,
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

const ENOUGH: usize = 4 << 20; // bytes that are copied in one go

impl Compaction {
    /// A compaction that has seen nothing yet.
    pub fn new(plan: Plan) -> Compaction {
        Compaction {
            hasher: KeyHasher::new(plan.secret),
            share: Share::ALL,
            map: OffsetMap::new(plan.map_bytes),
            dead: Default::default(),
            number: [0; 2],
            decompressor: Decompressor::new(),
            compressor: Compressor::new(),
            unpacked: Vec::new(),
            kept: Vec::new(),
            body: Vec::new(),
            counts: Counts::default(),
            plan,
        }
    }

    /// Begins a pass over both sections that looks at this share of the keys. The first share of another number of
    /// shares forgets all that was found.
    pub fn begin(&mut self, share: Share) {
        if share.part == 0 {
            self.dead = Default::default();
        }
        self.share = share;
        self.map.clear();
        self.number = [0; 2];
    }

    /// Begins to copy: both sections from their beginnings.
    pub fn begin_copy(&mut self) {
        self.number = [0; 2];
        self.counts = Counts::default();
    }

    /// Takes the batches of a stretch from position `at` on, whose CRCs were checked: the dirty section before the clean
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
        }
        (at, Stop::End)
    }

    /// Notes a record that the caller has taken apart itself.
    pub fn note_key(&mut self, section: Section, key: Option<&[u8]>) -> Result<(), Full> {
        let number = self.next(section);
        let Some(key) = key else { return Ok(()) };
        let hash = self.hasher.hash(key);
        if self.share.has(hash) {
            match section {
                Section::Dirty => {
                    if let Some(before) = self.map.put(hash, number)? {
                        self.dead[Section::Dirty as usize].set(before);
                    }
                }
                Section::Clean if self.map.has(hash) => self.dead[Section::Clean as usize].set(number),
                Section::Clean => {}
            }
        }
        Ok(())
    }

    /// Whether the next record of the section survives, for a caller that takes records apart itself.
    pub fn survives(&mut self, section: Section) -> bool {
        let number = self.next(section);
        !self.dead[section as usize].has(number)
    }

    /// Copies what survives of the batches of a stretch from position `at` on: the clean section before the dirty one.
    /// Returns the position of the first batch that was not taken, and why.
    pub fn copy(&mut self, section: Section, stretch: &[u8], at: usize, out: &mut Vec<u8>) -> (usize, Stop) {
        let (mut at, start) = (at, out.len());
        while at < stretch.len() {
            if out.len() - start >= ENOUGH {
                return (at, Stop::Enough);
            }
            let Some((header, batch)) = whole_batch(stretch, at) else {
                return (at, Stop::Odd);
            };
            if let Err(stop) = self.copy_batch(section, &header, batch, out) {
                return (at, stop);
            }
            at += batch.len();
        }
        (at, Stop::End)
    }

    #[inline]
    fn next(&mut self, section: Section) -> u64 {
        let number = self.number[section as usize];
        self.number[section as usize] += 1;
        number
    }

    /// Whether no record of the batch is seen by consumers of committed records.
    #[inline]
    fn is_unseen(&self, header: &Header) -> bool {
        header.attributes & CONTROL != 0
            || header.record_count == 0
            || header.attributes & TRANSACTIONAL != 0 && holds(&self.plan.aborted, header)
    }

    fn unpack(&mut self, header: &Header, batch: &[u8]) -> Result<Codec, Stop> {
        let codec = Codec::of(header.attributes).ok_or(Stop::Odd)?;
        self.unpacked.clear();
        match self.decompressor.append(codec, &batch[HEADER_SIZE..], &mut self.unpacked, self.plan.unpacked) {
            Ok(_) => Ok(codec),
            Err(Problem::NoRoom) => Err(Stop::Large),
            Err(Problem::Damaged(_)) => Err(Stop::Odd),
        }
    }

    fn note_batch(&mut self, section: Section, header: &Header, batch: &[u8]) -> Result<(), Stop> {
        if self.is_unseen(header) {
            return Ok(());
        }
        self.unpack(header, batch)?;
        let unpacked = std::mem::take(&mut self.unpacked);
        let noted = self.note_records(section, header, &unpacked);
        self.unpacked = unpacked;
        noted
    }

    fn note_records(&mut self, section: Section, header: &Header, packed: &[u8]) -> Result<(), Stop> {
        let mut at = 0;
        for _ in 0..header.record_count {
            let record = Record::at(packed, at).ok_or(Stop::Odd)?;
            self.note_key(section, record.key.of(packed)).map_err(|Full| Stop::Full)?;
            at = record.end;
        }
        if at == packed.len() { Ok(()) } else { Err(Stop::Odd) }
    }

    fn copy_batch(&mut self, section: Section, header: &Header, batch: &[u8], out: &mut Vec<u8>) -> Result<(), Stop> {
        if self.is_unseen(header) {
            return Ok(());
        }
        let codec = self.unpack(header, batch)?;
        let unpacked = std::mem::take(&mut self.unpacked);
        let before = self.number;
        let chosen = self.choose(section, header, &unpacked);
        let done = chosen.and_then(|tombstones| {
            let all = self.kept.len() == header.record_count as usize;
            let has_horizon = header.attributes & DELETE_HORIZON != 0;
            if all && (tombstones == 0 || has_horizon) {
                out.extend_from_slice(batch);
                self.counts.whole += 1;
            } else if !self.kept.is_empty() {
                self.rebuild(header, codec, &unpacked, tombstones > 0, out)?;
                self.counts.rebuilt += 1;
            }
            self.counts.records += self.kept.len() as u64;
            self.counts.tombstones += tombstones;
            Ok(())
        });
        self.unpacked = unpacked;
        if done.is_err() {
            self.number = before;
        }
        done.map_err(|Odd| Stop::Odd)
    }

    /// Gathers the records that survive. Returns how many of them are tombstones.
    fn choose(&mut self, section: Section, header: &Header, packed: &[u8]) -> Result<u64, Odd> {
        let gone = header.attributes & DELETE_HORIZON != 0 && header.base_timestamp < self.plan.now;
        let append_time = (header.attributes & APPEND_TIME != 0).then_some(header.max_timestamp);
        self.kept.clear();
        let (mut at, mut tombstones) = (0, 0);
        for _ in 0..header.record_count {
            let record = Record::at(packed, at).ok_or(Odd)?;
            at = record.end;
            let dead = !self.survives(section);
            let tombstone = record.key.of(packed).is_some() && record.value.of(packed).is_none();
            if dead || tombstone && gone {
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
    fn rebuild(
        &mut self,
        header: &Header,
        codec: Codec,
        packed: &[u8],
        tombstones: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), Odd> {
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
        let bits = header.attributes & !(CODEC | DELETE_HORIZON);
        let mut made = Header {
            batch_length: i32::try_from(out.len() - start - LOG_OVERHEAD).map_err(|_| Odd)?,
            crc: 0,
            attributes: bits | codec as i16 | if tombstones { DELETE_HORIZON } else { 0 },
            base_timestamp: base,
            max_timestamp: most,
            record_count: i32::try_from(self.kept.len()).map_err(|_| Odd)?,
            ..*header
        };
        let batch = &mut out[start..];
        batch[..HEADER_SIZE].copy_from_slice(&made.bytes());
        made.crc = checksum(batch);
        batch[..HEADER_SIZE].copy_from_slice(&made.bytes());
        Ok(())
    }
}
