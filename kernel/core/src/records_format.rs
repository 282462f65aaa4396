//! The Records format: rows as the records of a segment, and back.
//!
//! A record: offset int64, timestamp type int32, timestamp int64 only for the types 0 and 1, key length int32 (-1:
//! null), key, value length int32 (-1: null), value, header count int32, headers: key length int32, key, value length
//! int32 (-1: null), value. All big-endian.

use crate::rows::{Kind, Row, Rows, Span, characters};

/// Bytes of the smallest record, without a timestamp, key, value and headers.
const SMALLEST: usize = 24;

/// Why an encoder took no more rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All rows are taken.
    End,
    /// The last one took the segment over its limit.
    Full,
    /// The offset of the next one does not rise.
    Falls,
}

/// What is known of the records that went into a segment.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The offset of the first record, -1 without one.
    pub first: i64,
    /// The offset of the last record, -1 without one.
    pub last: i64,
    /// How many there are.
    pub count: u64,
    /// The lowest timestamp, if a record has one.
    pub min_timestamp: Option<i64>,
    /// The highest timestamp, -1 if no record has one or all are before 1970.
    pub max_timestamp: i64,
    /// Whether a record has log append time.
    pub append_time: bool,
    /// The bytes of key, value and headers of the largest record.
    pub largest: u64,
}

impl Facts {
    /// The facts of no records.
    pub fn new() -> Facts {
        Facts { first: -1, last: -1, count: 0, min_timestamp: None, max_timestamp: -1, append_time: false, largest: 0 }
    }

    /// The facts of these rows. For each header the characters of its key count, the bytes of its value, and
    /// `header_bytes`.
    pub fn of(rows: &Rows<'_>, header_bytes: usize) -> Facts {
        let mut facts = Facts::new();
        for row in rows.rows {
            let mut content = row.key.len() + row.value.len();
            if row.header_count > 0 {
                for (name, value) in rows.headers_of(row) {
                    content += header_bytes + characters(name) + value.map_or(0, <[u8]>::len);
                }
            }
            facts.note(row, row.timestamp, content);
        }
        facts
    }

    /// Notes one more record; `timestamp` is -1 if it has none.
    #[inline]
    pub fn note(&mut self, row: &Row, timestamp: i64, content: usize) {
        if self.count == 0 {
            self.first = row.offset;
        }
        self.last = row.offset;
        self.count += 1;
        if timestamp != -1 {
            self.min_timestamp = Some(self.min_timestamp.map_or(timestamp, |lowest| lowest.min(timestamp)));
            self.max_timestamp = self.max_timestamp.max(timestamp);
        }
        self.append_time |= row.kind == Kind::Append;
        self.largest = self.largest.max(content as u64);
    }
}

impl Default for Facts {
    fn default() -> Facts {
        Facts::new()
    }
}

/// One segment and its index in the making.
pub struct SegmentPacker {
    /// The bytes of records that were not handed on yet.
    pub data: Vec<u8>,
    /// The index entries that belong to them.
    pub index: Vec<u8>,
    /// Facts about all records so far.
    pub facts: Facts,
    /// The position behind the last record.
    pub position: u64,
    limit: u64,
}

impl SegmentPacker {
    /// A segment that begins with `position` bytes of something else, and ends with the record that takes it over
    /// `limit` bytes.
    pub fn new(position: u64, limit: u64) -> SegmentPacker {
        SegmentPacker { data: Vec::new(), index: Vec::new(), facts: Facts::new(), position, limit }
    }

    /// Takes rows until the segment is full, an offset does not rise, or `most` bytes wait to be handed on. Returns how
    /// many.
    pub fn append(&mut self, rows: &Rows<'_>, most: usize) -> (usize, Ended) {
        for (at, row) in rows.rows.iter().enumerate() {
            if self.data.len() >= most {
                return (at, Ended::End);
            }
            if row.offset <= self.facts.last {
                return (at, Ended::Falls);
            }
            let timed = matches!(row.kind, Kind::Create | Kind::Append);
            let content = put_record(&mut self.data, rows, row, timed);
            let size = content.1 as u64;
            self.index.extend_from_slice(&row.offset.to_be_bytes());
            self.index.extend_from_slice(&self.position.to_be_bytes());
            self.index.extend_from_slice(&size.to_be_bytes());
            self.position += size;
            self.facts.note(row, if timed { row.timestamp } else { -1 }, content.0);
            if self.position > self.limit {
                return (at + 1, Ended::Full);
            }
        }
        (rows.rows.len(), Ended::End)
    }
}

/// Appends one record; returns the bytes of its key, value and headers, and those of all of it.
#[inline]
fn put_record(out: &mut Vec<u8>, rows: &Rows<'_>, row: &Row, timed: bool) -> (usize, usize) {
    let start = out.len();
    let mut head = [0; 24];
    head[..8].copy_from_slice(&row.offset.to_be_bytes());
    head[8..12].copy_from_slice(&(row.kind as i8 as i32).to_be_bytes());
    let key_length = length_of(row.key).to_be_bytes();
    if timed {
        head[12..20].copy_from_slice(&row.timestamp.to_be_bytes());
        head[20..].copy_from_slice(&key_length);
        out.extend_from_slice(&head);
    } else {
        head[12..16].copy_from_slice(&key_length);
        out.extend_from_slice(&head[..16]);
    }
    out.extend_from_slice(row.key.of(rows.data).unwrap_or_default());
    out.extend_from_slice(&length_of(row.value).to_be_bytes());
    out.extend_from_slice(row.value.of(rows.data).unwrap_or_default());
    out.extend_from_slice(&(row.header_count as i32).to_be_bytes());
    let mut content = row.key.len() + row.value.len();
    if row.header_count > 0 {
        for (name, value) in rows.headers_of(row) {
            content += name.len() + value.map_or(0, <[u8]>::len);
            out.extend_from_slice(&(name.len() as i32).to_be_bytes());
            out.extend_from_slice(name);
            out.extend_from_slice(&value.map_or(-1, |bytes| bytes.len() as i32).to_be_bytes());
            out.extend_from_slice(value.unwrap_or_default());
        }
    }
    (content, out.len() - start)
}

#[inline]
fn length_of(field: Span) -> i32 {
    if field.is_null() { -1 } else { field.len() as i32 }
}

/// Why a pass over the bytes of a segment ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The next record goes on behind the bytes: it has so many at least.
    Short(usize),
    /// What follows is no record that can be. The caller looks, and says what it is.
    Odd,
    /// So many rows were asked for.
    Most,
}

/// The records from `at` on: their rows, the position behind each, and why the pass ended. Offsets rise above `last`.
pub fn read(data: &[u8], mut at: usize, mut last: i64, most: usize) -> (Vec<Row>, Vec<u32>, Stopped) {
    let mut rows = Vec::new();
    let mut ends = Vec::new();
    let stopped = loop {
        if rows.len() == most {
            break Stopped::Most;
        }
        match read_one(data, at, last) {
            Ok((row, end)) => {
                last = row.offset;
                at = end;
                rows.push(row);
                ends.push(end as u32);
            }
            Err(stopped) => break stopped,
        }
    };
    (rows, ends, stopped)
}

#[inline]
fn read_one(data: &[u8], at: usize, last: i64) -> Result<(Row, usize), Stopped> {
    let short = |end: usize| Stopped::Short(end - at);
    if at + SMALLEST > data.len() {
        return Err(Stopped::Short(SMALLEST));
    }
    let offset = int64(data, at)?;
    if offset <= last {
        return Err(Stopped::Odd);
    }
    let kind = int32(data, at + 8)?;
    let (timestamp, begin) = match kind {
        0 | 1 => (int64(data, at + 12)?, at + 24),
        -1 | -2 => (-1, at + 16),
        _ => return Err(Stopped::Odd),
    };
    let kind = match (kind, timestamp) {
        (1, _) => Kind::Append,
        (-1, _) => Kind::None,
        (0, time) if time != -1 => Kind::Create,
        _ => Kind::CreateNull,
    };
    let key_length = length(int32(data, begin - 4)?)?;
    let end = begin + key_length.unwrap_or(0);
    if end + 8 > data.len() {
        return Err(short(end + 8));
    }
    let value_length = length(int32(data, end)?)?;
    let start = end + 4;
    let stop = start + value_length.unwrap_or(0);
    if stop + 4 > data.len() {
        return Err(short(stop + 4));
    }
    let (count, after) = match int32(data, stop)? {
        0 => (0, stop + 4),
        count => (count, behind_headers(data, stop + 4, count, short)?),
    };
    let span = |start: usize, length: Option<usize>| match length {
        None => Ok(Span::NULL),
        Some(length) => Span::new(start, start + length).ok_or(Stopped::Odd),
    };
    let row = Row {
        offset,
        timestamp,
        key: span(begin, key_length)?,
        value: span(start, value_length)?,
        headers: span(stop + 4, Some(after - stop - 4))?,
        header_count: count as u32,
        kind,
    };
    Ok((row, after))
}

/// The position behind `count` headers that begin at `at`. `short` tells how far the bytes would have to reach.
fn behind_headers(data: &[u8], mut at: usize, count: i32, short: impl Fn(usize) -> Stopped) -> Result<usize, Stopped> {
    let count = usize::try_from(count).map_err(|_| Stopped::Odd)?;
    if at + 8 * count > data.len() {
        return Err(short(at + 8 * count));
    }
    for left in (0..count).rev() {
        let name = length(int32(data, at)?)?.ok_or(Stopped::Odd)?;
        let end = at + 4 + name;
        if end + 4 + 8 * left > data.len() {
            return Err(short(end + 4 + 8 * left));
        }
        at = end + 4 + length(int32(data, end)?)?.unwrap_or(0);
        if at + 8 * left > data.len() {
            return Err(short(at + 8 * left));
        }
    }
    Ok(at)
}

#[inline]
fn length(number: i32) -> Result<Option<usize>, Stopped> {
    match number {
        -1 => Ok(None),
        number => usize::try_from(number).map(Some).map_err(|_| Stopped::Odd),
    }
}

#[inline]
fn int32(data: &[u8], at: usize) -> Result<i32, Stopped> {
    let bytes = data.get(at..).and_then(|rest| rest.first_chunk()).ok_or(Stopped::Odd)?;
    Ok(i32::from_be_bytes(*bytes))
}

#[inline]
fn int64(data: &[u8], at: usize) -> Result<i64, Stopped> {
    let bytes = data.get(at..).and_then(|rest| rest.first_chunk()).ok_or(Stopped::Odd)?;
    Ok(i64::from_be_bytes(*bytes))
}
