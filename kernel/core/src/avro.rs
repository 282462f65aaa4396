//! The Avro format: rows as the records of a block, and back. Containers, codecs and schemas are Python's.
//!
//! Source of facts: the Avro specification 1.12, "Binary Encoding".

use std::collections::HashMap;

use crate::records_format::{Ended, Facts};
use crate::rows::{Form, Headers, Kind, Row, Rows, Span, put_field};
use crate::varints::{put_varint, unfolded, unsigned_varint};

/// The branches of a union of two.
const FIRST: u8 = 0;
const SECOND: u8 = 2;

/// So many headers are compared each with each; of more, a table is made.
const FEW: usize = 16;

/// The number of a timestamp's kind in the schema's enum.
fn symbol(kind: Kind) -> u8 {
    match kind {
        Kind::Create => 0,
        Kind::Append => 1,
        Kind::None => 2,
        Kind::CreateNull => 3,
    }
}

/// The records of one block after another, packed.
pub struct BlockPacker {
    /// The packed records of the block.
    pub data: Vec<u8>,
    /// How many there are.
    pub count: u64,
    /// Facts about all records of the object so far.
    pub facts: Facts,
    prefix: Vec<u8>,
    lossless: bool,
}

impl BlockPacker {
    /// `prefix` is how topic and partition are written; `lossless` says which of the two schemas is.
    pub fn new(prefix: Vec<u8>, lossless: bool) -> BlockPacker {
        BlockPacker { data: Vec::new(), count: 0, facts: Facts::new(), prefix, lossless }
    }

    /// Takes rows up to and including the one with which the block has more than `most` bytes. Returns how many.
    pub fn append(&mut self, rows: &Rows<'_>, most: usize) -> (usize, Ended) {
        for (at, row) in rows.rows.iter().enumerate() {
            if row.offset <= self.facts.last {
                return (at, Ended::Falls);
            }
            self.put(rows, row);
            self.facts.note(row, row.timestamp, rows.content(row));
            self.count += 1;
            if self.data.len() > most {
                return (at + 1, Ended::Full);
            }
        }
        (rows.rows.len(), Ended::End)
    }

    #[inline]
    fn put(&mut self, rows: &Rows<'_>, row: &Row) {
        let lossless = self.lossless;
        let out = &mut self.data;
        out.extend_from_slice(&self.prefix);
        put_varint(out, row.offset);
        put_varint(out, row.timestamp);
        match row.key.of(rows.data) {
            None => out.push(SECOND),
            Some(key) => {
                out.push(FIRST);
                put_field(out, Some(key));
            }
        }
        match (row.value.of(rows.data), lossless) {
            (None, true) => out.push(SECOND),
            (None, false) => out.push(0), // no bytes
            (Some(value), true) => {
                out.push(FIRST);
                put_field(out, Some(value));
            }
            (Some(value), false) => put_field(out, Some(value)),
        }
        if row.header_count > 0 {
            put_map(out, rows.headers_of(row));
            if lossless {
                put_list(out, rows.headers_of(row), row.header_count);
            }
        } else {
            out.push(SECOND);
            if lossless {
                out.push(FIRST);
            }
        }
        if lossless {
            out.push(symbol(row.kind) << 1);
        }
    }
}

/// The field `headers`: the last value of each name, at the place of its first. Bytes that are not UTF-8 become U+FFFD.
fn put_map(out: &mut Vec<u8>, headers: Headers<'_>) {
    let mut found: Vec<(std::borrow::Cow<'_, str>, Option<&[u8]>)> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for (name, value) in headers {
        let name = String::from_utf8_lossy(name);
        let place = if found.len() < FEW {
            found.iter().position(|(other, _)| *other == name)
        } else {
            if places.is_empty() {
                places = found.iter().enumerate().map(|(at, (other, _))| (other.to_string(), at)).collect();
            }
            places.get(name.as_ref()).copied()
        };
        match place {
            Some(at) => found[at].1 = value,
            None => {
                if !places.is_empty() {
                    places.insert(name.to_string(), found.len());
                }
                found.push((name, value));
            }
        }
    }
    out.push(FIRST);
    put_varint(out, found.len() as i64);
    for (name, value) in found {
        put_field(out, Some(name.as_bytes()));
        put_field(out, Some(value.unwrap_or_default()));
    }
    out.push(0);
}

/// The field `headerList`: null if the map says all of it.
fn put_list(out: &mut Vec<u8>, headers: Headers<'_>, count: u32) {
    if count == 1 && headers.into_iter().all(|(name, value)| value.is_some() && std::str::from_utf8(name).is_ok()) {
        out.push(FIRST);
        return;
    }
    out.push(SECOND);
    put_varint(out, i64::from(count));
    for (name, value) in headers {
        put_field(out, Some(name));
        match value {
            None => out.push(SECOND),
            Some(bytes) => {
                out.push(FIRST);
                put_field(out, Some(bytes));
            }
        }
    }
    out.push(0);
}

/// What the published schema loses of records, in the order in which it is told of one record.
pub const LOSSES: [&str; 7] =
    ["TOMBSTONE", "TIMESTAMP_NULL", "TIMESTAMP_TYPE", "HEADER_DUPLICATE", "HEADER_ORDER", "HEADER_KEY", "HEADER_NULL"];

/// For each of `LOSSES`: how many of the records have it, and the offset of the first.
pub fn losses(rows: &Rows<'_>) -> [(u64, i64); 7] {
    let mut found = [(0u64, -1i64); 7];
    for row in rows.rows {
        if row.kind == Kind::Create && row.header_count == 0 && !row.value.is_null() {
            continue;
        }
        let mut lost = [false; 7];
        lost[0] = row.value.is_null();
        lost[1] = row.kind == Kind::CreateNull;
        lost[2] = matches!(row.kind, Kind::Append | Kind::None);
        if row.header_count > 0 {
            let names: Vec<&[u8]> = rows.headers_of(row).map(|(name, _)| name).collect();
            let mut sorted = names.clone();
            sorted.sort_unstable();
            sorted.dedup();
            lost[3] = sorted.len() < names.len();
            lost[4] = sorted.len() > 1;
            lost[5] = names.iter().any(|name| std::str::from_utf8(name).is_err());
            lost[6] = rows.headers_of(row).any(|(_, value)| value.is_none());
        }
        for (count, lost) in found.iter_mut().zip(lost) {
            if lost {
                if count.0 == 0 {
                    count.1 = row.offset;
                }
                count.0 += 1;
            }
        }
    }
    found
}

/// How the records of an object are written: the branch that holds the thing itself in a union with null, below zero
/// if the field is no union.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the names are those of the schema's fields
pub struct Shape {
    pub key: i64,
    pub value: i64,
    pub headers: i64,
    pub lossless: bool,
}

/// Rows of a block, and the bytes of their headers, which lie there as in a batch.
pub struct Block {
    /// The rows. Their headers lie in `headers`.
    pub rows: Vec<Row>,
    /// The bytes of all headers.
    pub headers: Vec<u8>,
}

impl Block {
    /// The form of the headers.
    pub const FORM: Form = Form::Packed;
}

/// The `count` records of a block, whose offsets rise above `last`. None if something in it cannot be: the caller
/// looks, and says what it is.
pub fn read(data: &[u8], count: usize, prefix: &[u8], shape: &Shape, mut last: i64) -> Option<Block> {
    let mut block = Block { rows: Vec::new(), headers: Vec::new() };
    let mut reader = Reader { data, at: 0 };
    for _ in 0..count {
        let row = reader.record(prefix, shape, &mut block.headers)?;
        if row.offset <= last {
            return None;
        }
        last = row.offset;
        block.rows.push(row);
    }
    (reader.at == data.len()).then_some(block)
}

struct Reader<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    #[inline]
    fn record(&mut self, prefix: &[u8], shape: &Shape, kept: &mut Vec<u8>) -> Option<Row> {
        if !self.data.get(self.at..)?.starts_with(prefix) {
            return None;
        }
        self.at += prefix.len();
        let offset = self.number()?;
        let timestamp = self.number()?;
        let key = self.maybe(shape.key)?;
        let value = self.maybe(shape.value)?;
        let start = kept.len();
        let mut count = self.map(shape.headers, kept)?;
        let mut kind = Kind::Create;
        if shape.lossless {
            if self.branch_number()? == SECOND {
                kept.truncate(start);
                count = self.list(kept)?;
            }
            kind = match self.unsigned()? {
                0 => Kind::Create,
                2 => Kind::Append,
                4 => Kind::None,
                6 => Kind::CreateNull,
                _ => return None,
            };
        }
        let (timestamp, kind) = match kind {
            Kind::Create if timestamp == -1 => (-1, Kind::CreateNull),
            Kind::CreateNull if timestamp != -1 => (timestamp, Kind::Create),
            kind => (timestamp, kind),
        };
        let headers = Span::new(start, kept.len())?;
        Some(Row { offset, timestamp, key, value, headers, header_count: count, kind })
    }

    #[inline]
    fn unsigned(&mut self) -> Option<u64> {
        let rest = self.data.get(self.at..)?;
        let first = *rest.first()?;
        if first < 0x80 {
            self.at += 1;
            return Some(u64::from(first));
        }
        let (number, used) = unsigned_varint(rest)?;
        if used == 10 && rest[9] > 1 {
            return None; // more than 64 bits
        }
        self.at += used;
        Some(number)
    }

    #[inline]
    fn number(&mut self) -> Option<i64> {
        self.unsigned().map(unfolded)
    }

    /// One of the two branches of a union that is no field of every record: it may be written in more than a byte.
    fn branch_number(&mut self) -> Option<u8> {
        let found = self.unsigned()?;
        (found == u64::from(FIRST) || found == u64::from(SECOND)).then_some(found as u8)
    }

    /// One of the two branches of a union.
    #[inline]
    fn branch(&mut self) -> Option<u8> {
        let found = *self.data.get(self.at)?;
        self.at += 1;
        (found == FIRST || found == SECOND).then_some(found)
    }

    #[inline]
    fn bytes(&mut self) -> Option<Span> {
        let length = self.number()?;
        let end = self.at.checked_add(usize::try_from(length).ok()?)?;
        if end > self.data.len() {
            return None;
        }
        let found = Span::new(self.at, end)?;
        self.at = end;
        Some(found)
    }

    /// Bytes, or a null if `branch` says that there may be one.
    #[inline]
    fn maybe(&mut self, branch: i64) -> Option<Span> {
        if branch >= 0 && i64::from(self.branch()?) != 2 * branch { Some(Span::NULL) } else { self.bytes() }
    }

    /// How many items follow of a map or an array.
    fn count(&mut self) -> Option<u64> {
        let count = self.number()?;
        if count < 0 {
            self.number()?; // their bytes
        }
        let count = count.unsigned_abs();
        (count <= (self.data.len() - self.at) as u64).then_some(count)
    }

    fn map(&mut self, branch: i64, kept: &mut Vec<u8>) -> Option<u32> {
        if branch >= 0 && i64::from(self.branch_number()?) != 2 * branch {
            return Some(0);
        }
        let mut all = 0u32;
        loop {
            let count = self.count()?;
            if count == 0 {
                return Some(all);
            }
            for _ in 0..count {
                let name = self.bytes()?.of(self.data)?;
                std::str::from_utf8(name).ok()?;
                put_field(kept, Some(name));
                put_field(kept, Some(self.bytes()?.of(self.data)?));
                all = all.checked_add(1)?;
            }
        }
    }

    fn list(&mut self, kept: &mut Vec<u8>) -> Option<u32> {
        let mut all = 0u32;
        loop {
            let count = self.count()?;
            if count == 0 {
                return Some(all);
            }
            for _ in 0..count {
                put_field(kept, Some(self.bytes()?.of(self.data)?));
                let value = if self.branch()? == FIRST { Some(self.bytes()?.of(self.data)?) } else { None };
                put_field(kept, value);
                all = all.checked_add(1)?;
            }
        }
    }
}
