//! Finds records by their keys, and leaves them out of a batch.

use std::collections::HashSet;

use crate::header::Header;
use crate::headers::APPEND_TIME;
use crate::records::{Odd, Record};
use crate::rows::Rows;

/// The bytes of a digest, and of the secret that it is made with.
pub const BYTES: usize = 32;

/// A digest of a key.
pub type KeyDigest = [u8; BYTES];

/// Keys that are looked for. None of them is here: a key is known by its length, and by a BLAKE3 made with a secret.
pub struct Keys {
    secret: KeyDigest,
    known: HashSet<(usize, KeyDigest)>,
    lengths: HashSet<usize>,
}

/// What is left of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// The packed records, as they were.
    pub packed: Vec<u8>,
    /// Their number.
    pub count: i32,
    /// Their highest timestamp in ms: the time of the append if the batch has that.
    pub max_timestamp: i64,
}

/// The digest of a key.
pub fn digest(secret: &KeyDigest, key: &[u8]) -> KeyDigest {
    *blake3::keyed_hash(secret, key).as_bytes()
}

impl Keys {
    /// `known` are the lengths and the digests of keys.
    pub fn new(secret: KeyDigest, known: impl IntoIterator<Item = (usize, KeyDigest)>) -> Keys {
        let known: HashSet<_> = known.into_iter().collect();
        let lengths = known.iter().map(|(length, _)| *length).collect();
        Keys { secret, known, lengths }
    }

    /// Whether this is one of the keys. A record without a key has none of them.
    #[inline]
    pub fn holds(&self, key: Option<&[u8]>) -> bool {
        key.is_some_and(|key| {
            self.lengths.contains(&key.len()) && self.known.contains(&(key.len(), digest(&self.secret, key)))
        })
    }

    /// The numbers of the rows with one of the keys.
    pub fn found(&self, rows: &Rows<'_>) -> Vec<usize> {
        let has = |row: &crate::rows::Row| self.holds(row.key.of(rows.data));
        rows.rows.iter().enumerate().filter(|(_, row)| has(row)).map(|(number, _)| number).collect()
    }

    /// The records of a batch without those of the keys; they keep their offsets and times. `packed` are its records,
    /// decompressed. None if no record has one of the keys.
    pub fn leave(&self, header: &Header, packed: &[u8]) -> Result<Option<Left>, Odd> {
        let (mut at, mut kept_from, mut count, mut highest) = (0, 0, 0, i64::MIN);
        let mut left = Vec::new();
        for _ in 0..header.record_count {
            let record = Record::at(packed, at).ok_or(Odd)?;
            if self.holds(record.key.of(packed)) {
                left.extend_from_slice(&packed[kept_from..at]);
                kept_from = record.end;
            } else {
                count += 1;
                highest = highest.max(header.base_timestamp.wrapping_add(record.time_delta));
            }
            at = record.end;
        }
        if at != packed.len() {
            return Err(Odd);
        }
        if count == header.record_count {
            return Ok(None);
        }
        left.extend_from_slice(&packed[kept_from..]);
        let max_timestamp = if header.attributes & APPEND_TIME != 0 { header.max_timestamp } else { highest };
        Ok(Some(Left { packed: left, count, max_timestamp }))
    }
}

#[cfg(test)]
#[path = "keys_tests.rs"]
mod tests;
