//! The keys of an archived partition beside those of the live log.
//!
//! First all archived records are noted, then the live ones, both in the order of their offsets. A slot has the offset of
//! a record, and what is known of its key so far (`Standing`).

use crate::compression::{Codec, Decompressor};
use crate::header::{HEADER_SIZE, Header, MAGIC};
use crate::headers::{CONTROL, Placed};
use crate::offset_map::{KeyHasher, NumberMap, Share};
use crate::records::{Odd, Packed};
use crate::rows::{Form, Row, Rows};

/// What is known of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Its last archived record has a value, and the live log had none from there on.
    Alive,
    /// The same of a tombstone.
    Dead,
    /// The live log has that record, or one of which the archive says nothing yet.
    Same,
    /// The live log has another record at the offset: one of both is a tombstone.
    Differs,
    /// The archive accounts for the offset of the last live record, and has no record of the key at all.
    New,
    /// The same where the archive has an older one.
    Newer,
}

use Standing::{Alive, Dead, Differs, New, Newer, Same};

const STANDINGS: [Standing; 6] = [Alive, Dead, Same, Differs, New, Newer];
const BITS: u32 = 3;
const OFFSET_BITS: u32 = 45; // a log that takes a million records a second is a year old then
/// Keeps 80 bits of a hash: of 10^8 keys, two have the same one in one of 10^8 comparisons.
type Map = NumberMap<{ OFFSET_BITS + BITS }>;

const ROWS: usize = 1 << 12; // rows of a part of a large batch

/// Whose records come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The archive's.
    Archived,
    /// Those of the live log.
    Live,
}

/// How many keys there are of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Keys with an archived record.
    pub keys: u64,
    /// Keys that live in the archive, and of which the live log has nothing from their last archived record on.
    pub stale: u64,
    /// The same where that record lies below the start of the live log.
    pub expired: u64,
    /// Keys whose last live record the archive lacks, though it accounts for its offset.
    pub missing: u64,
    /// Keys with a tombstone on one side, and a value at the same offset on the other.
    pub differing: u64,
    /// Archived records without a key.
    pub without_key: u64,
}

/// Compares the keys of one share. Where they do not fit, it goes on with a half of them, and `rest` has the others.
pub struct KeyComparison {
    hasher: KeyHasher,
    share: Share,
    rest: Vec<Share>,
    end: i64,
    accounted: Vec<(i64, i64)>,
    log_start: i64,
    map: Map,
    without_key: u64,
    decompressor: Decompressor,
    unpacked: Vec<u8>,
    rows: Vec<Row>,
}

impl KeyComparison {
    /// The archive ends at offset `end`, and accounts for ranges of offsets, which rise. The map takes at most so many
    /// bytes.
    pub fn new(secret: (u64, u64), bytes: usize, share: Share, end: i64, accounted: Vec<(i64, i64)>) -> KeyComparison {
        KeyComparison {
            hasher: KeyHasher::new(secret),
            share,
            rest: Vec::new(),
            end,
            accounted,
            log_start: 0,
            map: Map::new(bytes),
            without_key: 0,
            decompressor: Decompressor::new(),
            unpacked: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// The shares that did not fit.
    pub fn rest(&self) -> &[Share] {
        &self.rest
    }

    /// The live log starts at this offset: what its first batch has below is no record any more.
    pub fn begin_live(&mut self, log_start: i64) {
        self.log_start = log_start;
    }

    /// Notes records.
    pub fn note(&mut self, side: Side, rows: &Rows<'_>) -> Result<(), Odd> {
        for row in rows.rows {
            self.note_record(side, row.offset, row.key.of(rows.data), row.value.is_null())?;
        }
        Ok(())
    }

    /// Notes the records of batches, but not those of control batches. The first one lies in `stretch` at position
    /// `start`. Returns how many were taken: the caller must look at the next one, which is of an old magic, damaged, or
    /// too large.
    pub fn note_batches(&mut self, side: Side, stretch: &[u8], batches: &[Placed], start: usize, most: usize) -> usize {
        let origin = batches.first().map_or(0, |(at, _)| *at);
        for (number, (at, header)) in batches.iter().enumerate() {
            let batch = start.checked_add(at - origin).and_then(|at| stretch.get(at..)?.get(..header.size()));
            if self.note_batch(side, batch, header, most).is_err() {
                return number;
            }
        }
        batches.len()
    }

    /// What was found, if the live log starts at this offset.
    pub fn counts(&self, log_start: i64) -> Counts {
        let mut counts = Counts { without_key: self.without_key, ..Counts::default() };
        for (offset, standing) in self.slots() {
            counts.keys += u64::from(standing != New);
            match standing {
                Alive if offset < log_start => counts.expired += 1,
                Alive => counts.stale += 1,
                Differs => counts.differing += 1,
                New | Newer => counts.missing += 1,
                Dead | Same => {}
            }
        }
        counts
    }

    /// The offsets, rising, of the last archived records of stale keys, and of records of keys that are missing or
    /// differ: the lowest of each, at most so many.
    pub fn offsets(&self, log_start: i64, most: usize) -> (Vec<i64>, Vec<i64>) {
        let lowest = |wanted: &dyn Fn(i64, Standing) -> bool| {
            let mut found: Vec<i64> = self.slots().filter(|(at, kind)| wanted(*at, *kind)).map(|(at, _)| at).collect();
            found.sort_unstable();
            found.truncate(most);
            found
        };
        let stale = lowest(&|offset, standing| standing == Alive && offset >= log_start);
        (stale, lowest(&|_, standing| matches!(standing, New | Newer | Differs)))
    }

    fn slots(&self) -> impl Iterator<Item = (i64, Standing)> + '_ {
        self.map.values().map(unpacked)
    }

    fn note_batch(&mut self, side: Side, batch: Option<&[u8]>, header: &Header, most: usize) -> Result<(), Odd> {
        if header.magic != MAGIC {
            return Err(Odd);
        }
        if header.attributes & CONTROL != 0 || header.record_count == 0 {
            return Ok(());
        }
        let packed = batch.and_then(|batch| batch.get(HEADER_SIZE..)).ok_or(Odd)?;
        let codec = Codec::of(header.attributes).ok_or(Odd)?;
        if packed.len() > most {
            return Err(Odd);
        }
        let mut room = std::mem::take(&mut self.unpacked);
        let noted = self.note_packed(side, codec, packed, header, most, &mut room);
        self.unpacked = room;
        noted
    }

    fn note_packed(
        &mut self,
        side: Side,
        codec: Codec,
        packed: &[u8],
        header: &Header,
        most: usize,
        room: &mut Vec<u8>,
    ) -> Result<(), Odd> {
        let data = if codec == Codec::None {
            packed
        } else {
            room.clear();
            self.decompressor.append(codec, packed, room, most).map_err(|_| Odd)?;
            room
        };
        if header.record_count as usize > ROWS {
            Packed::new(data, header).check()?; // nothing of a damaged batch is noted
        }
        let mut records = Packed::new(data, header);
        let mut taken = std::mem::take(&mut self.rows);
        let mut noted = Ok(());
        while noted.is_ok() && !records.is_done() {
            taken.clear();
            noted = records.take(ROWS, &mut taken);
            if noted.is_ok() {
                noted = self.note(side, &Rows { rows: &taken, data, headers: data, form: Form::Packed });
            }
        }
        self.rows = taken;
        noted
    }

    #[inline]
    fn note_record(&mut self, side: Side, offset: i64, key: Option<&[u8]>, tombstone: bool) -> Result<(), Odd> {
        let Some(key) = key else {
            self.without_key += u64::from(side == Side::Archived && self.share.part == 0);
            return Ok(());
        };
        let hash = self.hasher.hash(key);
        if !self.share.has(hash) {
            return Ok(());
        }
        let before = self.map.get(hash).map(unpacked);
        let after = match side {
            Side::Archived if offset < self.end => Some((offset, if tombstone { Dead } else { Alive })),
            Side::Archived => None,
            Side::Live if offset < self.log_start => None,
            Side::Live => self.beside(before, offset, tombstone),
        };
        if let Some((offset, standing)) = after {
            let number = u64::try_from(offset).ok().filter(|offset| offset >> OFFSET_BITS == 0).ok_or(Odd)?;
            while self.share.has(hash) && self.map.put(hash, number << BITS | standing as u64).is_err() {
                self.halve();
            }
        }
        Ok(())
    }

    /// Goes on with half of the keys.
    fn halve(&mut self) {
        let (first, second) = self.share.halves();
        self.share = first;
        self.rest.push(second);
        self.map.leave(first);
    }

    /// What is known of a key behind this live record; None: no more than before.
    #[inline]
    fn beside(&self, before: Option<(i64, Standing)>, offset: i64, tombstone: bool) -> Option<(i64, Standing)> {
        let judged = self.accounts_for(offset);
        match before {
            None => (judged && !tombstone).then_some((offset, New)), // a tombstone may have gone from a snapshot
            Some((at, _)) if offset < at => None,
            Some((at, Alive | Dead)) if offset == at => {
                let same = (before == Some((at, Dead))) == tombstone;
                Some((at, if same { Same } else { Differs }))
            }
            Some((at, _)) if offset == at => None,
            Some((at, _)) if !judged => Some((at, Same)),
            Some((_, New)) if tombstone => Some((offset, Same)),
            Some((_, New)) => Some((offset, New)),
            Some(_) => Some((offset, Newer)),
        }
    }

    #[inline]
    fn accounts_for(&self, offset: i64) -> bool {
        if offset >= self.end {
            return false;
        }
        let at = self.accounted.partition_point(|(start, _)| *start <= offset);
        at > 0 && offset < self.accounted[at - 1].1
    }
}

#[inline]
fn unpacked(number: u64) -> (i64, Standing) {
    ((number >> BITS) as i64, STANDINGS[(number & ((1 << BITS) - 1)) as usize % STANDINGS.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comparison(bytes: usize) -> KeyComparison {
        KeyComparison::new((1, 2), bytes, Share::ALL, 100, vec![(0, 50), (60, 100)])
    }

    fn note(keys: &mut KeyComparison, side: Side, offset: i64, key: &str, tombstone: bool) {
        keys.note_record(side, offset, Some(key.as_bytes()), tombstone).unwrap();
    }

    #[test]
    fn each_key_is_found_as_it_is() {
        let mut keys = comparison(1 << 20);
        let archived =
            [(1, "same"), (2, "stale"), (3, "newer"), (4, "expired"), (7, "differs"), (8, "lacking"), (9, "hole")];
        archived.iter().for_each(|(at, key)| note(&mut keys, Side::Archived, *at, key, false));
        note(&mut keys, Side::Archived, 10, "gone", true);
        keys.note_record(Side::Archived, 11, None, false).unwrap();
        for (at, key, tombstone) in [
            (1, "same", false),
            (1, "stale", false), // an older record proves nothing
            (7, "differs", true),
            (20, "lacking", false),
            (21, "unknown", false),
            (22, "deleted", true),
            (55, "hole", false),
            (120, "newer", true),
        ] {
            note(&mut keys, Side::Live, at, key, tombstone);
        }
        note(&mut keys, Side::Archived, 0, "expired", false);
        keys.begin_live(1);
        note(&mut keys, Side::Live, 0, "expired", false);
        let counts = Counts { keys: 8, stale: 1, expired: 1, missing: 2, differing: 1, without_key: 1 };
        assert_eq!(keys.counts(1), counts);
        assert_eq!(keys.offsets(1, 9), (vec![2], vec![7, 20, 21]));
        assert_eq!(keys.offsets(1, 1).1, vec![7]);
    }

    #[test]
    fn a_later_live_record_takes_a_finding_back() {
        let mut keys = comparison(1 << 20);
        note(&mut keys, Side::Archived, 1, "a", false);
        for key in ["a", "b", "c"] {
            note(&mut keys, Side::Live, 30, key, false);
        }
        assert_eq!(keys.counts(0).missing, 3);
        note(&mut keys, Side::Live, 31, "c", true);
        note(&mut keys, Side::Live, 130, "a", true);
        note(&mut keys, Side::Live, 131, "b", false);
        assert_eq!(keys.counts(0).missing, 0);
    }

    #[test]
    fn offsets_of_an_old_log_are_compared_as_they_are() {
        for first in [1 << 33, 1 << 36, (1 << OFFSET_BITS) - 100] {
            let end = first + 50;
            let mut keys = KeyComparison::new((1, 2), 1 << 20, Share::ALL, end, vec![(0, end)]);
            (first..end).for_each(|at| note(&mut keys, Side::Archived, at, &at.to_string(), false));
            keys.begin_live(first + 1);
            (first + 10..end).for_each(|at| note(&mut keys, Side::Live, at, &at.to_string(), false));
            let counts = Counts { keys: 50, stale: 9, expired: 1, ..Counts::default() };
            assert_eq!(keys.counts(first + 1), counts);
            assert_eq!(keys.offsets(first + 1, 2), (vec![first + 1, first + 2], vec![]));
        }
        let mut keys = KeyComparison::new((1, 2), 1 << 20, Share::ALL, i64::MAX, vec![(0, i64::MAX)]);
        assert!(keys.note_record(Side::Archived, 1 << OFFSET_BITS, Some(b"far"), false).is_err());
        assert_eq!(keys.counts(0), Counts::default());
    }

    #[test]
    fn keys_that_do_not_fit_are_left_to_other_shares() {
        let (mut open, mut stale, mut missing, mut shares) = (vec![Share::ALL], 0, 0, 0);
        while let Some(share) = open.pop() {
            let mut keys = KeyComparison::new((1, 2), 64 * 24 * 8, share, 2000, vec![(0, 2000)]);
            (0..1000).for_each(|at: i64| note(&mut keys, Side::Archived, at, &at.to_string(), false));
            (1000..1500).for_each(|at: i64| note(&mut keys, Side::Live, at, &at.to_string(), false));
            let counts = keys.counts(0);
            (stale, missing, shares) = (stale + counts.stale, missing + counts.missing, shares + 1);
            open.extend(keys.rest());
        }
        assert_eq!((stale, missing), (1000, 500));
        assert!((4..64).contains(&shares), "{shares}");
    }
}
