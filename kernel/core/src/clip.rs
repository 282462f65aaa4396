//! The part of a partition that a restore brings back: offsets below an end, and records of some times.
//!
//! A transaction is whole or not at all. Which ones end where the part ends, the caller has found out: their batches
//! come here as aborted ones, or are named in `Clip::whole`.

use crate::header::Header;
use crate::headers::{APPEND_TIME, TRANSACTIONAL};
use crate::merge::{Spans, holds};
use crate::records::{Odd, Record};

/// Which records are wanted: offsets below `end`, times from `since` on and below `before`.
#[derive(Clone, Debug)]
pub struct Clip {
    /// The first offset that is not wanted any more.
    pub end: i64,
    /// The lowest time that is wanted, in ms since the epoch.
    pub since: i64,
    /// The lowest time that is not wanted any more. The highest number there is: all times are wanted from `since` on.
    pub before: i64,
    /// Transactions that are wanted, though some of their batches are older than `since`.
    pub whole: Spans,
}

/// How much of a batch is wanted, by its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// All records.
    All,
    /// None.
    Nothing,
    /// The records must be looked at one by one.
    Some,
}

impl Default for Clip {
    fn default() -> Self {
        Clip { end: i64::MAX, since: i64::MIN, before: i64::MAX, whole: Spans::new() }
    }
}

impl Clip {
    /// How much of a batch is wanted. Its header has the highest time of its records, and the first, but not the
    /// lowest.
    #[inline]
    pub fn wanted(&self, header: &Header) -> Wanted {
        if header.base_offset >= self.end {
            return Wanted::Nothing;
        }
        let within = header.next_offset() <= i128::from(self.end);
        let timed = if within { Wanted::All } else { Wanted::Some };
        if self.since == i64::MIN && self.before == i64::MAX {
            return timed;
        }
        let highest = header.max_timestamp;
        if header.attributes & TRANSACTIONAL != 0 {
            // All batches of a transaction with a record of `before` or later are left out.
            let is_wanted = self.is_of_time(highest) || holds(&self.whole, header);
            return if is_wanted { timed } else { Wanted::Nothing };
        }
        if highest < header.base_timestamp && header.hides_times() {
            return Wanted::Some; // whoever looks at the records says what is wrong with them
        }
        if highest < self.since {
            return Wanted::Nothing;
        }
        if header.attributes & APPEND_TIME != 0 {
            return if self.is_of_time(highest) { timed } else { Wanted::Nothing };
        }
        if self.since == i64::MIN && highest < self.before { timed } else { Wanted::Some }
    }

    #[inline]
    fn is_of_time(&self, time: i64) -> bool {
        time >= self.since && (time < self.before || self.before == i64::MAX)
    }

    /// Leaves the wanted records in `packed` from `start` on, which are the unpacked records of a batch of which `Some`
    /// are wanted. Returns the header with their number: they keep their offsets and times.
    pub fn leave(&self, header: &Header, packed: &mut Vec<u8>, start: usize) -> Result<Header, Odd> {
        let timed = header.attributes & (TRANSACTIONAL | APPEND_TIME) == 0;
        let (mut at, mut into, mut count) = (start, start, 0);
        for _ in 0..header.record_count {
            let record = Record::at(packed, at).ok_or(Odd)?;
            let end = record.end;
            let offset = header.base_offset.wrapping_add(record.offset_delta);
            let time = header.base_timestamp.wrapping_add(record.time_delta);
            if offset < self.end && (!timed || self.is_of_time(time)) {
                packed.copy_within(at..end, into);
                into += end - at;
                count += 1;
            }
            at = end;
        }
        if at != packed.len() {
            return Err(Odd);
        }
        packed.truncate(into);
        Ok(Header { record_count: count, ..*header })
    }
}

#[cfg(test)]
#[path = "clip_tests.rs"]
mod tests;
