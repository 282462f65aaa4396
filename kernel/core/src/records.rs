//! The records of a batch of magic 2: taken apart, and packed.
//!
//! Source of facts: apache/kafka `DefaultRecord.java`, `DefaultRecordBatch.java`.

use crate::compression::{Codec, Decompressor};
use crate::header::{HEADER_SIZE, Header};
use crate::headers::APPEND_TIME;
use crate::rows::{Kind, Row, Rows, Span, characters, put_field, put_headers};
use crate::varints::{put_varint, take_varint, varint, varint_size};

/// The fewest bytes of a record: attributes, four numbers for times and lengths, header count.
pub const SMALLEST_RECORD: i64 = 6;

/// The records of a batch do not fit together: a length that cannot be, a record that does not fill its length, bytes
/// left over, or offsets that do not lie in their batch or, in rows, do not rise. The caller looks, and says what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Odd;

/// The most that a batch is unpacked to for the times of its records: what a task may unpack at least.
const MOST_FOR_TIMES: usize = 20 << 20;

/// The header of a whole batch as its records have it: with their highest time, where the header `hides_times`. What
/// decides by times takes headers from here.
///
/// Other headers are returned as they are without a look at records, and so are those whose records cannot be unpacked
/// within bounds, or do not fit together.
#[inline]
pub fn with_times(header: Header, batch: &[u8], decompressor: &mut Decompressor) -> Header {
    if !header.hides_times() {
        return header;
    }
    match highest_time(&header, batch, decompressor) {
        Some(time) => Header { max_timestamp: time, ..header },
        None => header,
    }
}

/// The highest time of a batch's records. None if it is unknown.
fn highest_time(header: &Header, batch: &[u8], decompressor: &mut Decompressor) -> Option<i64> {
    let codec = Codec::of(header.attributes)?;
    let packed = batch.get(HEADER_SIZE..)?;
    let mut unpacked = Vec::new();
    let data = if codec == Codec::None {
        packed
    } else {
        decompressor.append(codec, packed, &mut unpacked, MOST_FOR_TIMES).ok()?;
        &unpacked
    };
    let (mut at, mut highest) = (0, None);
    for _ in 0..header.record_count {
        let record = Record::at(data, at)?;
        highest = highest.max(Some(header.base_timestamp.wrapping_add(record.time_delta)));
        at = record.end;
    }
    if at == data.len() { highest } else { None }
}

/// A place between the records of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    at: usize,
    left: i32,
    last_delta: i64,
}

/// The records of one batch, one after another.
pub struct Packed<'a> {
    data: &'a [u8],
    at: usize,
    left: i32,
    base_offset: i64,
    base_timestamp: i64,
    last_delta: i64,
    most_delta: i64,
    append_time: Option<i64>,
}

impl<'a> Packed<'a> {
    /// `data` are the records of the batch whose header this is, decompressed.
    pub fn new(data: &'a [u8], header: &Header) -> Packed<'a> {
        Packed {
            data,
            at: 0,
            left: header.record_count,
            base_offset: header.base_offset,
            base_timestamp: header.base_timestamp,
            last_delta: -1,
            most_delta: i64::from(header.last_offset_delta),
            append_time: (header.attributes & APPEND_TIME != 0).then_some(header.max_timestamp),
        }
    }

    /// Adds the next records, until there are `most` rows or no records are left.
    pub fn take(&mut self, most: usize, into: &mut Vec<Row>) -> Result<(), Odd> {
        while self.left > 0 && into.len() < most {
            into.push(self.next_row().ok_or(Odd)?);
        }
        if self.left <= 0 && self.at != self.data.len() {
            return Err(Odd);
        }
        Ok(())
    }

    /// Where to go on; None if all records were taken.
    pub fn place(&self) -> Option<Place> {
        (self.left > 0).then_some(Place { at: self.at, left: self.left, last_delta: self.last_delta })
    }

    /// The records of a batch from a place on.
    pub fn resumed(data: &'a [u8], header: &Header, place: Place) -> Packed<'a> {
        Packed { at: place.at, left: place.left, last_delta: place.last_delta, ..Packed::new(data, header) }
    }

    /// Whether all records were taken.
    pub fn is_done(&self) -> bool {
        self.left <= 0
    }

    /// Passes over all records that are left.
    pub fn check(mut self) -> Result<(), Odd> {
        while self.left > 0 {
            self.next_row().ok_or(Odd)?;
        }
        if self.at == self.data.len() { Ok(()) } else { Err(Odd) }
    }

    #[inline]
    fn next_row(&mut self) -> Option<Row> {
        let record = Record::at(self.data, self.at)?;
        let delta = record.offset_delta;
        if delta <= self.last_delta || delta > self.most_delta {
            return None;
        }
        let timestamp = self.append_time.unwrap_or(self.base_timestamp.wrapping_add(record.time_delta));
        let kind = match (self.append_time, timestamp) {
            (Some(_), _) => Kind::Append,
            (None, -1) => Kind::CreateNull,
            (None, _) => Kind::Create,
        };
        let row = Row {
            offset: self.base_offset.checked_add(delta)?,
            timestamp,
            key: record.key.span()?,
            value: record.value.span()?,
            headers: Span::new(record.headers, record.end)?,
            header_count: u32::try_from(record.header_count).ok()?,
            kind,
        };
        self.last_delta = delta;
        self.at = record.end;
        self.left -= 1;
        Some(row)
    }
}

/// Where the record at `at` begins, behind its length, and where it ends.
#[inline]
pub(crate) fn bounds(data: &[u8], at: usize) -> Option<(usize, usize)> {
    let (length, used) = varint(data.get(at..)?)?;
    if length < SMALLEST_RECORD {
        return None;
    }
    let start = at + used;
    let end = start.checked_add(usize::try_from(length).ok()?)?;
    (end <= data.len()).then_some((start, end))
}

/// A packed record whose fields fill its length.
pub(crate) struct Record {
    pub attributes: u8,
    pub time_delta: i64,
    pub offset_delta: i64,
    /// Where key, value and headers begin.
    pub fields: usize,
    pub key: Field,
    pub value: Field,
    pub header_count: i64,
    /// Where the first header begins.
    pub headers: usize,
    pub end: usize,
}

impl Record {
    /// The record at `at`: the only place that knows how one is read.
    #[inline(always)]
    pub fn at(data: &[u8], at: usize) -> Option<Record> {
        let (start, end) = bounds(data, at)?;
        let data = &data[..end];
        let mut at = start + 1;
        let time_delta = take_varint(data, &mut at)?;
        let offset_delta = take_varint(data, &mut at)?;
        let fields = at;
        let key = take_field(data, &mut at)?;
        let value = take_field(data, &mut at)?;
        let header_count = take_varint(data, &mut at)?;
        if header_count < 0 || header_count > (end - at) as i64 {
            return None;
        }
        let headers = at;
        for _ in 0..header_count {
            if take_field(data, &mut at)?.is_null() {
                return None;
            }
            take_field(data, &mut at)?;
        }
        let attributes = data[start];
        (at == end).then_some(Record {
            attributes,
            time_delta,
            offset_delta,
            fields,
            key,
            value,
            header_count,
            headers,
            end,
        })
    }
}

/// The key of the record at `at`, and where the record ends. All of it was read before, so nothing else is looked at.
#[inline(always)]
pub(crate) fn key_again(data: &[u8], at: usize) -> Option<(Field, usize)> {
    let (start, end) = bounds(data, at)?;
    let data = &data[..end];
    let mut at = start + 1;
    take_varint(data, &mut at)?;
    take_varint(data, &mut at)?;
    Some((take_field(data, &mut at)?, end))
}

/// The place of a key, a value, or one of a header; a null has none.
#[derive(Clone, Copy)]
pub(crate) struct Field(Option<(usize, usize)>);

impl Field {
    #[inline]
    fn is_null(self) -> bool {
        self.0.is_none()
    }

    /// The bytes in the buffer in which it was found; None for a null.
    #[inline]
    pub fn of(self, data: &[u8]) -> Option<&[u8]> {
        self.0.and_then(|(start, end)| data.get(start..end))
    }

    #[inline]
    fn span(self) -> Option<Span> {
        match self.0 {
            None => Some(Span::NULL),
            Some((start, end)) => Span::new(start, end),
        }
    }
}

#[inline]
fn take_field(data: &[u8], at: &mut usize) -> Option<Field> {
    let length = take_varint(data, at)?;
    if length < 0 {
        return Some(Field(None));
    }
    let start = *at;
    let end = start.checked_add(usize::try_from(length).ok()?)?;
    *at = end;
    (end <= data.len()).then_some(Field(Some((start, end))))
}

/// The records of a batch in the making: create time.
#[derive(Default)]
pub struct Packer {
    /// The packed records.
    pub body: Vec<u8>,
    /// How many there are.
    pub count: u32,
    /// The timestamp of the first.
    pub base_timestamp: i64,
    /// The highest timestamp.
    pub max_timestamp: i64,
    /// How many had the time of the append.
    pub append_times: u32,
    /// Their offsets: (the first, how many follow each other).
    pub source: Vec<(i64, u32)>,
    /// One past the last offset, counted from that of the batch.
    pub end: i64,
}

impl Packer {
    /// Appends all of these, numbered without gaps.
    pub fn add(&mut self, rows: &Rows<'_>) {
        for row in rows.rows {
            self.add_row(rows, row, self.end);
        }
    }

    /// Appends all of these with their offsets, in a batch that begins at `base`. After an error, which is the offset
    /// that cannot follow those before it, the packer is of no use any more.
    pub fn add_from(&mut self, rows: &Rows<'_>, base: i64) -> Result<(), i64> {
        for row in rows.rows {
            let delta = row.offset.checked_sub(base).ok_or(row.offset)?;
            if !(self.end..=i64::from(i32::MAX)).contains(&delta) {
                return Err(row.offset);
            }
            self.add_row(rows, row, delta);
        }
        Ok(())
    }

    #[inline]
    fn add_row(&mut self, rows: &Rows<'_>, row: &Row, delta: i64) {
        if self.count == 0 {
            self.base_timestamp = row.timestamp;
            self.max_timestamp = row.timestamp;
        }
        self.max_timestamp = self.max_timestamp.max(row.timestamp);
        self.append_times += u32::from(row.kind == Kind::Append);
        match self.source.last_mut() {
            Some((first, count)) if *first + i64::from(*count) == row.offset => *count += 1,
            _ => self.source.push((row.offset, 1)),
        }
        let time = row.timestamp.wrapping_sub(self.base_timestamp);
        let headers = rows.headers_of(row);
        let body = &mut self.body;
        let fields = 1
            + varint_size(time)
            + varint_size(delta)
            + field_size(row.key)
            + field_size(row.value)
            + varint_size(i64::from(row.header_count));
        put_varint(body, (fields + headers_size(rows, row)) as i64);
        body.push(0); // attributes
        put_varint(body, time);
        put_varint(body, delta);
        put_field(body, row.key.of(rows.data));
        put_field(body, row.value.of(rows.data));
        put_varint(body, i64::from(row.header_count));
        if row.header_count > 0 {
            put_headers(body, headers);
        }
        self.count += 1;
        self.end = delta + 1;
    }
}

#[inline]
fn field_size(field: Span) -> usize {
    if field.is_null() { 1 } else { varint_size(field.len() as i64) + field.len() }
}

#[inline]
fn headers_size(rows: &Rows<'_>, row: &Row) -> usize {
    if row.header_count == 0 {
        return 0;
    }
    let field = |bytes: &[u8]| varint_size(bytes.len() as i64) + bytes.len();
    rows.headers_of(row).map(|(name, value)| field(name) + value.map_or(1, field)).sum()
}

const LONGEST_LENGTH: usize = 5;
const LARGEST_OVERHEAD: usize = 1 + 10 + 5 * LONGEST_LENGTH; // attributes; time; offset and three lengths, header count

/// The most bytes that a record takes in a batch before compression, wherever in the batch it is. A header's name
/// counts four for each of its characters; of bytes that are not UTF-8 each is one.
#[inline]
pub fn largest_size(rows: &Rows<'_>, row: &Row) -> usize {
    let mut size = LARGEST_OVERHEAD + row.key.len() + row.value.len();
    if row.header_count > 0 {
        for (name, value) in rows.headers_of(row) {
            size += 2 * LONGEST_LENGTH + 4 * characters(name) + value.map_or(0, <[u8]>::len);
        }
    }
    size
}

/// How many rows fit into `most` bytes, wherever in a batch each is, and the bytes that these take; at most `count` of them.
pub fn fitting(rows: &Rows<'_>, most: usize, count: usize) -> (usize, usize) {
    let mut taken = 0;
    let mut used = 0;
    for row in rows.rows.iter().take(count) {
        let more = largest_size(rows, row);
        if used + more > most {
            break;
        }
        used += more;
        taken += 1;
    }
    (taken, used)
}
