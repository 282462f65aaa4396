//! The walk over batches that lie back to back.

use crate::compression::Decompressor;
use crate::header::{Header, LOG_OVERHEAD, MAGIC, PREFIX, SMALLEST_LENGTH, checksum};
use crate::headers::Placed;
use crate::records::with_times;

/// Why a walk ended where it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// What is left is no whole batch, by the length it claims.
    End,
    /// The next batch begins at the offset where the walk was to end, or above it.
    Until,
    /// So many batches were asked for.
    Most,
    /// What begins here is not a sound batch of magic 2: another magic, fields that cannot be, or a wrong CRC. The
    /// caller looks, and says what it is.
    Odd,
}

/// Batches that lie back to back.
#[derive(Clone, Debug)]
pub struct Walked {
    /// The position of each batch in the buffer, and its header `with_times`.
    pub batches: Vec<Placed>,
    /// The position behind the last of them.
    pub end: usize,
    /// Why the walk ended there.
    pub stop: Stop,
}

/// The whole batches of `buffer` from position `start` on, up to the first that begins at offset `until` or above, and
/// at most `most` of them. With `checked`, each CRC is compared.
pub fn walk(buffer: &[u8], start: usize, until: i128, most: usize, checked: bool) -> Walked {
    let mut batches = Vec::new();
    let mut decompressor = Decompressor::new();
    let mut at = start;
    let stop = loop {
        if batches.len() == most {
            break Stop::Most;
        }
        let rest = buffer.get(at..).unwrap_or_default();
        let Some(header) = Header::read(rest) else {
            break if rest.is_empty() || is_cut(rest) { Stop::End } else { Stop::Odd };
        };
        if !header.is_possible() {
            break Stop::Odd;
        }
        let Some(batch) = rest.get(..header.size()) else {
            break Stop::End;
        };
        if i128::from(header.base_offset) >= until {
            break Stop::Until;
        }
        if checked && checksum(batch) != header.crc {
            break Stop::Odd;
        }
        if batches.is_empty() {
            batches.reserve((rest.len() / batch.len()).clamp(1, most));
        }
        batches.push((at, with_times(header, batch, &mut decompressor)));
        at += batch.len();
    };
    Walked { batches, end: at, stop }
}

/// Whether bytes that are too few for a header can be the beginning of a batch of magic 2. A message of an older magic
/// may be whole in so few.
fn is_cut(rest: &[u8]) -> bool {
    rest.len() < PREFIX || (rest[PREFIX - 1] == MAGIC && length(rest) >= SMALLEST_LENGTH)
}

/// What the length field says; the bytes must hold it.
#[inline]
fn length(bytes: &[u8]) -> i32 {
    i32::from_be_bytes([bytes[8], bytes[9], bytes[10], bytes[11]])
}

/// The least that the length field says in any version of the format: an empty message of magic 0.
const LEAST_LENGTH: i32 = 14;

/// Where the last whole batch of `buffer` begins, or the first one that cannot be, by the lengths alone. 0 if there is
/// none.
pub fn last_whole(buffer: &[u8]) -> usize {
    let (mut at, mut last) = (0, 0);
    loop {
        let rest = &buffer[at..];
        if rest.len() < LOG_OVERHEAD {
            return last;
        }
        let length = length(rest);
        if length < LEAST_LENGTH {
            return at;
        }
        let size = LOG_OVERHEAD + length as usize;
        if size > rest.len() {
            return last;
        }
        last = at;
        at += size;
    }
}

/// Bytes of the batches at the start of `buffer` that fit into `limit`; of the first one, if it alone is larger. None
/// if a length field leads nowhere.
///
/// Goes by the lengths alone: the batches must have been checked, and all of them must be whole.
pub fn whole_batches(buffer: &[u8], limit: usize) -> Option<usize> {
    let end = limit.min(buffer.len());
    let mut at = 0;
    loop {
        let rest = buffer.get(at..).filter(|rest| rest.len() >= LOG_OVERHEAD)?;
        let following = at + LOG_OVERHEAD + usize::try_from(length(rest)).ok()?;
        if following >= end {
            return Some(if following == end || at == 0 { following } else { at });
        }
        at = following;
    }
}
