//! Records of whole batches gathered into one, without taking keys and values apart.

use crate::header::Header;
use crate::headers::APPEND_TIME;
use crate::records::{Odd, Record, bounds};
use crate::varints::{put_varint, varint_size};

/// The time, the offset and the length of a record may grow from one byte each to 10, 5 and 5.
const GROWTH: usize = 16;

/// The most that so many packed records take when they are packed again.
#[inline]
pub fn repacked_size(packed_bytes: usize, count: usize) -> usize {
    packed_bytes + GROWTH * count
}

/// Gathers the records of batches of magic 2 into one batch of create time, without gaps, in the order of `add`.
///
/// Only the length, time and offset of a record are written anew. Every record keeps the time that a consumer sees,
/// which is the batch's max timestamp in a log-append-time batch.
#[derive(Debug, Default)]
pub struct Packer {
    /// The packed records.
    pub body: Vec<u8>,
    /// The time of the first record.
    pub base_timestamp: i64,
    /// The highest time.
    pub max_timestamp: i64,
    /// How many records there are.
    pub count: i64,
    /// How many of them had the time of the append.
    pub append_times: i64,
    /// Their offsets: rows of (first source offset, how many follow one another from there).
    pub rows: Vec<(i64, i64)>,
}

impl Packer {
    /// Forgets what was gathered, and keeps the memory.
    pub fn clear(&mut self) {
        self.body.clear();
        self.rows.clear();
        (self.base_timestamp, self.max_timestamp, self.count, self.append_times) = (0, 0, 0, 0);
    }

    /// Takes the decompressed records of a batch over. After an error the packer is of no use any more.
    ///
    /// Lengths, counts and fields must fit together, and offsets must lie in their batch.
    pub fn add(&mut self, data: &[u8], header: &Header) -> Result<(), Odd> {
        let append_time = (header.attributes & APPEND_TIME != 0).then_some(header.max_timestamp);
        let last_delta = i64::from(header.last_offset_delta);
        self.body.reserve(repacked_size(data.len(), header.record_count.clamp(0, 1 << 16) as usize));
        let mut at = 0;
        for _ in 0..header.record_count {
            let record = Record::at(data, at).ok_or(Odd)?;
            if !(0..=last_delta).contains(&record.offset_delta) {
                return Err(Odd);
            }
            let time = append_time.unwrap_or_else(|| header.base_timestamp.wrapping_add(record.time_delta));
            self.put(record.attributes, time, &data[record.fields..record.end]);
            self.note(header.base_offset.wrapping_add(record.offset_delta));
            at = record.end;
        }
        if append_time.is_some() {
            self.append_times += i64::from(header.record_count);
        }
        if at == data.len() { Ok(()) } else { Err(Odd) }
    }

    /// Adds one record: its attributes, its time, and its key, value and headers as they lie in their batch.
    #[inline]
    pub(crate) fn put(&mut self, attributes: u8, time: i64, fields: &[u8]) {
        if self.count == 0 {
            (self.base_timestamp, self.max_timestamp) = (time, time);
        } else if time > self.max_timestamp {
            self.max_timestamp = time;
        }
        let time = time.wrapping_sub(self.base_timestamp);
        let length = 1 + varint_size(time) + varint_size(self.count) + fields.len();
        put_varint(&mut self.body, length as i64);
        self.body.push(attributes);
        put_varint(&mut self.body, time);
        put_varint(&mut self.body, self.count);
        self.body.extend_from_slice(fields);
        self.count += 1;
    }

    #[inline]
    fn note(&mut self, offset: i64) {
        match self.rows.last_mut() {
            Some((first, count)) if first.wrapping_add(*count) == offset => *count += 1,
            _ => self.rows.push((offset, 1)),
        }
    }
}

/// Where the packed records of a batch are cut into batches of at most `most` bytes each, unless one record has more.
///
/// `take` gets (start, end, records) of each, in order, and says whether to go on. `repacked_size` is what counts, so it
/// follows from the bytes alone.
pub fn cut(
    data: &[u8],
    record_count: i32,
    most: usize,
    mut take: impl FnMut(usize, usize, i32) -> Result<bool, Odd>,
) -> Result<(), Odd> {
    let (mut start, mut at, mut count, mut size) = (0, 0, 0, 0);
    for _ in 0..record_count {
        let (_, end) = bounds(data, at).ok_or(Odd)?;
        let taken = repacked_size(end - at, 1);
        if count > 0 && size + taken > most {
            if !take(start, at, count)? {
                return Ok(());
            }
            (start, count, size) = (at, 0, 0);
        }
        count += 1;
        size += taken;
        at = end;
    }
    if at != data.len() {
        return Err(Odd);
    }
    take(start, at, count).map(|_| ())
}
