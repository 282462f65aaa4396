//! Records that were taken apart: the place of each in a buffer, not a copy of it.

use crate::varints::{put_varint, varint};

/// A range of bytes in a buffer, or a null.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    at: u32,
    length: u32,
}

impl Span {
    /// No bytes: a null key or a null value.
    pub const NULL: Span = Span { at: 0, length: u32::MAX };

    /// The bytes from `start` to `end`. None where that is too far for a span: buffers have less than 4 GiB.
    #[inline]
    pub fn new(start: usize, end: usize) -> Option<Span> {
        let length = end.checked_sub(start)?;
        if end >= u32::MAX as usize {
            return None;
        }
        Some(Span { at: start as u32, length: length as u32 })
    }

    /// Whether it is a null.
    #[inline]
    pub fn is_null(&self) -> bool {
        self.length == u32::MAX
    }

    /// The number of bytes; a null has none.
    #[inline]
    pub fn len(&self) -> usize {
        if self.is_null() { 0 } else { self.length as usize }
    }

    /// Whether there are no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes in the buffer for which the span was made; None for a null.
    #[inline]
    pub fn of<'a>(&self, data: &'a [u8]) -> Option<&'a [u8]> {
        if self.is_null() { None } else { data.get(self.at as usize..)?.get(..self.length as usize) }
    }
}

/// The kind of a timestamp, numbered as in the Records format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i8)]
pub enum Kind {
    /// Create time that is missing.
    CreateNull = -2,
    /// Records of magic 0 have no timestamp.
    None = -1,
    /// Create time.
    Create = 0,
    /// Log append time.
    Append = 1,
}

/// The place of one record.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The record's offset in its partition.
    pub offset: i64,
    /// Milliseconds since the epoch; -1 if there is none.
    pub timestamp: i64,
    /// The key's bytes.
    pub key: Span,
    /// The value's bytes.
    pub value: Span,
    /// The bytes of the headers, without their count.
    pub headers: Span,
    /// The number of headers.
    pub header_count: u32,
    /// The kind of the timestamp.
    pub kind: Kind,
}

/// How headers lie in their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As in a batch: lengths are zigzag numbers, below zero for a null.
    Packed,
    /// As in the Records format: lengths are int32, big-endian.
    Fixed,
}

/// Rows and the bytes in which their keys and values lie, and those in which their headers lie.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    /// The rows, their offsets rising.
    pub rows: &'a [Row],
    /// Keys and values.
    pub data: &'a [u8],
    /// Headers; mostly the same buffer.
    pub headers: &'a [u8],
    /// How the headers are written.
    pub form: Form,
}

impl<'a> Rows<'a> {
    /// The headers of a row of these.
    #[inline]
    pub fn headers_of(&self, row: &Row) -> Headers<'a> {
        Headers { bytes: row.headers.of(self.headers).unwrap_or_default(), left: row.header_count, form: self.form }
    }

    /// The bytes of key, value and headers of a row, without their lengths.
    #[inline]
    pub fn content(&self, row: &Row) -> usize {
        let mut size = row.key.len() + row.value.len();
        if row.header_count > 0 {
            for (name, value) in self.headers_of(row) {
                size += name.len() + value.map_or(0, <[u8]>::len);
            }
        }
        size
    }
}

/// The headers of one record, in their order. They were found to be whole when the row was made.
#[derive(Clone, Copy)]
pub struct Headers<'a> {
    bytes: &'a [u8],
    left: u32,
    form: Form,
}

impl<'a> Headers<'a> {
    /// Their bytes without the count, if they lie as in a batch.
    #[inline]
    pub fn packed(&self) -> Option<&'a [u8]> {
        (self.form == Form::Packed).then_some(self.bytes)
    }

    /// Their bytes without the count, if they lie as in the Records format.
    #[inline]
    pub fn fixed(&self) -> Option<&'a [u8]> {
        (self.form == Form::Fixed).then_some(self.bytes)
    }

    #[inline]
    fn length(&mut self) -> Option<i64> {
        match self.form {
            Form::Packed => {
                let (number, used) = varint(self.bytes)?;
                self.bytes = self.bytes.get(used..)?;
                Some(number)
            }
            Form::Fixed => {
                let number = i32::from_be_bytes(*self.bytes.first_chunk()?);
                self.bytes = self.bytes.get(4..)?;
                Some(i64::from(number))
            }
        }
    }

    #[inline]
    fn field(&mut self) -> Option<Option<&'a [u8]>> {
        let length = self.length()?;
        if length < 0 {
            return Some(None);
        }
        let (found, rest) = self.bytes.split_at_checked(usize::try_from(length).ok()?)?;
        self.bytes = rest;
        Some(Some(found))
    }
}

impl<'a> Iterator for Headers<'a> {
    type Item = (&'a [u8], Option<&'a [u8]>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        let name = self.field()?.unwrap_or_default();
        Some((name, self.field()?))
    }
}

/// Appends the headers of a record as they lie in a batch, without their count.
#[inline]
pub fn put_headers(out: &mut Vec<u8>, headers: Headers<'_>) {
    for (name, value) in headers {
        put_varint(out, name.len() as i64);
        out.extend_from_slice(name);
        put_field(out, value);
    }
}

/// Appends a key or a value, as it lies in a batch.
#[inline]
pub fn put_field(out: &mut Vec<u8>, field: Option<&[u8]>) {
    match field {
        None => out.push(1), // -1
        Some(bytes) => {
            put_varint(out, bytes.len() as i64);
            out.extend_from_slice(bytes);
        }
    }
}

/// The characters of a header's key; of bytes that are not UTF-8 each is one.
pub fn characters(name: &[u8]) -> usize {
    name.utf8_chunks().map(|chunk| chunk.valid().chars().count() + chunk.invalid().len()).sum()
}
