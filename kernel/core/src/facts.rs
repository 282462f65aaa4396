//! The facts and the indexes of a segment, gathered as its batches come by.
//!
//! Source of facts: apache/kafka `LogSegment.java` (append, recover, onBecomeInactiveSegment).

use crate::header::{Header, LOG_OVERHEAD};
use crate::headers::{APPEND_TIME, CODEC, CONTROL, DELETE_HORIZON, LAST_CODEC, Placed};

const NO_TIMESTAMP: i64 = -1;

/// Why a segment does not take a stretch of batches. It has taken none of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The batch of this number begins below `expected`, where its predecessor ended.
    Falls {
        /// The batch's number in the stretch.
        number: usize,
        /// The offset that it must have at least.
        expected: i128,
    },
    /// A batch has a codec that does not exist.
    Codec,
    /// An offset or a position lies farther from the segment's beginning than 31 bits can say.
    TooFar,
}

/// Makes offset and time index. Decides batch by batch, as a broker since 4.1 does, and as every broker does when it
/// recovers a log.
///
/// Before 4.1 a broker decided append by append: its indexes may be sparser where an append had several batches. Either
/// serves.
#[derive(Clone, Debug)]
pub struct IndexBuilder {
    base_offset: i64,
    interval: i64,
    index: Vec<u8>,
    timeindex: Vec<u8>,
    position: i64,
    since_last_entry: i64,
    max_timestamp: i64,
    offset_of_max: i128,
    indexed_timestamp: i64,
}

impl IndexBuilder {
    /// The indexes of a segment that begins at `base_offset`, with an entry after more than `interval` bytes.
    pub fn new(base_offset: i64, interval: i64) -> Self {
        Self {
            base_offset,
            interval,
            index: Vec::new(),
            timeindex: Vec::new(),
            position: 0,
            since_last_entry: 0,
            max_timestamp: NO_TIMESTAMP,
            offset_of_max: i128::from(base_offset),
            indexed_timestamp: NO_TIMESTAMP,
        }
    }

    /// Add batches. An entry that 31 bits cannot hold refuses them; entries of batches before it may be there then.
    pub fn extend(&mut self, headers: &[Placed]) -> Result<(), Refused> {
        headers.iter().try_for_each(|(_, header)| self.add(header))
    }

    #[inline]
    fn add(&mut self, header: &Header) -> Result<(), Refused> {
        if header.max_timestamp > self.max_timestamp {
            self.max_timestamp = header.max_timestamp;
            self.offset_of_max = header.next_offset() - 1;
        }
        if self.since_last_entry > self.interval {
            let position = i32::try_from(self.position).map_err(|_| Refused::TooFar)?;
            let offset = self.relative(header.next_offset() - 1)?;
            self.index.extend_from_slice(&offset.to_be_bytes());
            self.index.extend_from_slice(&position.to_be_bytes());
            self.note_time()?;
            self.since_last_entry = 0;
        }
        let size = header.size() as i64;
        self.position += size;
        self.since_last_entry += size;
        Ok(())
    }

    /// The contents of `.index` and `.timeindex`.
    pub fn finish(&mut self) -> Result<(&[u8], &[u8]), Refused> {
        self.note_time()?;
        Ok((&self.index, &self.timeindex))
    }

    fn note_time(&mut self) -> Result<(), Refused> {
        if self.max_timestamp > self.indexed_timestamp {
            let offset = self.relative(self.offset_of_max)?;
            self.timeindex.extend_from_slice(&self.max_timestamp.to_be_bytes());
            self.timeindex.extend_from_slice(&offset.to_be_bytes());
            self.indexed_timestamp = self.max_timestamp;
        }
        Ok(())
    }

    fn relative(&self, offset: i128) -> Result<i32, Refused> {
        i32::try_from(offset - i128::from(self.base_offset)).map_err(|_| Refused::TooFar)
    }
}

/// What the catalog keeps of a segment, as far as the headers of its batches say it. Timestamps are ms, -1 where no
/// batch has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The lowest base offset that the next batch may have.
    pub next_offset: i128,
    /// Records of all batches but the control batches.
    pub records: u64,
    /// Batches.
    pub batches: u64,
    /// Bytes.
    pub size: u64,
    /// The lowest time of a batch's first record: its base timestamp, or its max timestamp where the base timestamp
    /// says something else (log-append time, delete horizon). None: no batch has a record.
    pub min_base_timestamp: Option<i64>,
    /// The highest timestamp.
    pub max_timestamp: i64,
    /// Bytes of the longest batch, behind its length.
    pub longest: i32,
    /// Batches by the number of their codec.
    pub codecs: [u64; CODEC as usize + 1],
    /// The attributes of all batches, or-ed.
    pub attributes: i16,
    /// Whether no offset is missing between the batches, or before the first.
    pub dense: bool,
    /// Whether every offset of every batch has a record.
    pub filled: bool,
    /// Whether messages of magic 0 or 1 are among them.
    pub legacy: bool,
}

impl Facts {
    fn new(base_offset: i64) -> Self {
        Self {
            next_offset: i128::from(base_offset),
            records: 0,
            batches: 0,
            size: 0,
            min_base_timestamp: None,
            max_timestamp: NO_TIMESTAMP,
            longest: 0,
            codecs: [0; CODEC as usize + 1],
            attributes: 0,
            dense: true,
            filled: true,
            legacy: false,
        }
    }

    #[inline]
    fn add(&mut self, header: &Header) {
        self.dense &= i128::from(header.base_offset) == self.next_offset;
        self.next_offset = header.next_offset();
        self.filled &= header.record_count > header.last_offset_delta;
        self.codecs[(header.attributes & CODEC) as usize] += 1;
        self.attributes |= header.attributes;
        if header.attributes & CONTROL == 0 {
            self.records += u64::from(header.record_count.unsigned_abs());
        }
        self.longest = self.longest.max(header.batch_length);
        self.max_timestamp = self.max_timestamp.max(header.max_timestamp);
        if header.record_count > 0 {
            let replaced = header.attributes & (APPEND_TIME | DELETE_HORIZON) != 0;
            let first = if replaced { header.max_timestamp } else { header.base_timestamp };
            self.max_timestamp = self.max_timestamp.max(first); // the header hides times, and the records are damaged
            self.min_base_timestamp = Some(self.min_base_timestamp.map_or(first, |least| least.min(first)));
        }
        self.legacy |= header.magic < 2;
        self.batches += 1;
        self.size += header.size() as u64;
    }
}

/// A segment in the making: its facts and its indexes.
#[derive(Clone, Debug)]
pub struct Segment {
    base_offset: i64,
    facts: Facts,
    indexes: IndexBuilder,
}

impl Segment {
    /// An empty segment. See `IndexBuilder` for `interval`.
    pub fn new(base_offset: i64, interval: i64) -> Self {
        Self { base_offset, facts: Facts::new(base_offset), indexes: IndexBuilder::new(base_offset, interval) }
    }

    /// The facts so far.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Add the batches of a stretch, all or none of them.
    pub fn add(&mut self, headers: &[Placed]) -> Result<(), Refused> {
        let mut facts = self.facts.clone();
        for (number, (_, header)) in headers.iter().enumerate() {
            if i128::from(header.base_offset) < facts.next_offset {
                return Err(Refused::Falls { number, expected: facts.next_offset });
            }
            facts.add(header);
        }
        let farthest = facts.next_offset - 1 - i128::from(self.base_offset);
        if farthest > i128::from(i32::MAX) || facts.size > i32::MAX as u64 {
            return Err(Refused::TooFar);
        }
        if facts.codecs[LAST_CODEC as usize + 1..].iter().any(|count| *count > 0) {
            return Err(Refused::Codec);
        }
        self.indexes.extend(headers)?;
        self.facts = facts;
        Ok(())
    }

    /// Note a batch of so many bytes that lies in the object and is no part of the log. Only its bytes count.
    pub fn frame(&mut self, size: u32) {
        self.facts.size += u64::from(size);
        self.facts.longest = self.facts.longest.max(i32::try_from(size).unwrap_or(i32::MAX) - LOG_OVERHEAD as i32);
        self.indexes.position += i64::from(size);
        self.indexes.since_last_entry += i64::from(size);
    }

    /// The contents of `.index` and `.timeindex`.
    pub fn finish(&mut self) -> Result<(&[u8], &[u8]), Refused> {
        self.indexes.finish()
    }

    /// Bytes of the largest batch.
    pub fn max_batch_bytes(&self) -> u64 {
        if self.facts.batches == 0 { 0 } else { LOG_OVERHEAD as u64 + self.facts.longest.unsigned_abs() as u64 }
    }
}
