//! Questions about batches that lie back to back.

use crate::header::{Header, LOG_OVERHEAD};

/// The position of a batch in a buffer, and its header.
pub type Placed = (usize, Header);

/// Bits of a batch's attributes.
pub const CODEC: i16 = 0x07;
/// See `CODEC`.
pub const APPEND_TIME: i16 = 0x08;
/// See `CODEC`.
pub const TRANSACTIONAL: i16 = 0x10;
/// See `CODEC`.
pub const CONTROL: i16 = 0x20;
/// See `CODEC`.
pub const DELETE_HORIZON: i16 = 0x40;

/// The codec of the highest number, zstd.
pub const LAST_CODEC: i16 = 4;

/// The number of the first header at which these are no batches back to back: its batch does not begin where the one
/// before it ends, or its fields count below zero. None: all is well.
pub fn first_loose(headers: &[Placed]) -> Option<usize> {
    let mut following = headers.first().map_or(0, |(at, _)| *at);
    for (number, (at, header)) in headers.iter().enumerate() {
        let end = usize::try_from(header.batch_length).ok().and_then(|length| at.checked_add(LOG_OVERHEAD + length));
        let counts = header.last_offset_delta >= 0 && header.record_count >= 0;
        match end {
            Some(end) if *at == following && counts => following = end,
            _ => return Some(number),
        }
    }
    None
}

/// The position behind the last batch; 0 if there is none.
pub fn end(headers: &[Placed]) -> usize {
    headers.last().map_or(0, |(at, header)| at + header.size())
}

/// Bytes of all batches.
pub fn size(headers: &[Placed]) -> usize {
    end(headers) - headers.first().map_or(0, |(at, _)| *at)
}

/// How many batches at the beginning lie in order in the offsets from `expected` on and below `end`.
pub fn in_order(headers: &[Placed], mut expected: i128, end: i128) -> usize {
    let fits = |(_, header): &Placed| {
        let following = header.next_offset();
        let fits = i128::from(header.base_offset) >= expected && following <= end;
        expected = following;
        fits
    };
    headers.iter().map(fits).position(|fits| !fits).unwrap_or(headers.len())
}

/// The number of the first batch before which an offset is missing; `at` is where the first of them should begin. Their
/// number if there is none.
pub fn first_gap(headers: &[Placed], mut at: i128) -> usize {
    let gap = |(_, header): &Placed| {
        let gap = i128::from(header.base_offset) > at;
        at = header.next_offset();
        gap
    };
    headers.iter().position(gap).unwrap_or(headers.len())
}

/// The number of the first batch that holds an offset of `offset` or above. Their number if there is none.
pub fn first_reaching(headers: &[Placed], offset: i128) -> usize {
    headers.iter().position(|(_, header)| header.next_offset() > offset).unwrap_or(headers.len())
}

/// The number of the first batch whose highest timestamp is `time` or later. Their number if there is none.
pub fn first_since(headers: &[Placed], time: i64) -> usize {
    headers.iter().position(|(_, header)| header.max_timestamp >= time).unwrap_or(headers.len())
}

/// The numbers of the batches that have one of these bits of attributes.
pub fn with_bits(headers: &[Placed], bits: i16) -> Vec<usize> {
    let marked = |(number, (_, header)): (usize, &Placed)| (header.attributes & bits != 0).then_some(number);
    headers.iter().enumerate().filter_map(marked).collect()
}

/// The numbers of the batches that have a producer id.
pub fn with_producer(headers: &[Placed]) -> Vec<usize> {
    let written = |(number, (_, header)): (usize, &Placed)| (header.producer_id >= 0).then_some(number);
    headers.iter().enumerate().filter_map(written).collect()
}

/// The numbers of the batches whose leader epoch is not that of the batch before; `epoch` is that before the first.
pub fn epoch_starts(headers: &[Placed], mut epoch: i32) -> Vec<usize> {
    let mut found = Vec::new();
    for (number, (_, header)) in headers.iter().enumerate() {
        if header.leader_epoch != epoch {
            epoch = header.leader_epoch;
            found.push(number);
        }
    }
    found
}

/// What a writer of a log takes without looking at batches one by one.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Bytes that it has room for.
    pub bytes: i64,
    /// The offset below which the batches must end.
    pub end: i128,
    /// The lowest offset with which the next batch may begin.
    pub at: i128,
    /// The leader epoch of the batch before.
    pub epoch: i32,
}

/// How many batches at the beginning are plain: they lie in order, they fit, they have the leader epoch of the batch
/// before and a codec that exists, and they are neither transactional nor control batches.
pub fn plain(headers: &[Placed], room: Room) -> usize {
    let Room { mut bytes, end, mut at, epoch } = room;
    for (number, (_, header)) in headers.iter().enumerate() {
        let following = header.next_offset();
        bytes -= header.size() as i64;
        let fits = bytes >= 0 && following <= end && i128::from(header.base_offset) >= at;
        let known = header.leader_epoch == epoch && header.attributes & CODEC <= LAST_CODEC;
        if !fits || !known || header.attributes & (TRANSACTIONAL | CONTROL) != 0 {
            return number;
        }
        at = following;
    }
    headers.len()
}
