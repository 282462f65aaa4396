//! The table of segments in a commit's document, read straight into packed rows.
//!
//! Only what a commit's writer writes is understood: JSON without a space, whole numbers, strings without an escape,
//! segments that can be. For anything else there is no answer, and whoever asked reads the document by other means,
//! which tell what is wrong with it.

use std::ops::Range;

const OPENING: &[u8] = b",\"segments\":{\"columns\":[";
const ROWS: &[u8] = b"],\"rows\":";
// Of the places of a packed row, these are known here: a segment is looked at before it is taken.
const BASE: usize = 0;
const NEXT: usize = 8;
const BATCHES: usize = 32;
const BYTES: usize = 40;

/// A table has no more columns than these.
pub const MOST_COLUMNS: usize = 32;

/// What a column holds. `places` say, by the number of the layout, where a segment has it in a packed row; None: it has
/// it not, and the value is passed over.
#[derive(Clone, Debug)]
pub enum Column {
    /// A number of 64 bits with a sign.
    Long(Vec<Option<usize>>),
    /// A number of 32 bits without a sign.
    Int(Vec<Option<usize>>),
    /// A digest in hex, which may be empty, and the number of its algorithm. A segment has one digest.
    Digest(usize, u8),
    /// The SHA-256 of an index in hex; empty: there is no index.
    IndexHash(usize),
    /// How many batches have which codec: each codec has a place of 32 bits, in their order.
    Codecs(usize),
    /// The names of the flags that are set.
    Flags,
    /// The name of the layout.
    Layout,
}

/// The columns of a table behind topic id and partition, and the names that occur in them, in the order of their
/// numbers. The last three bytes of a packed row are the flags, the number of the layout, and that of the digest's
/// algorithm.
#[derive(Clone, Debug)]
pub struct Table {
    /// All columns, which every table has.
    pub columns: Vec<Column>,
    /// The names of codecs.
    pub codecs: Vec<String>,
    /// The names of flags.
    pub flags: Vec<String>,
    /// The names of layouts.
    pub layouts: Vec<String>,
    /// The bytes of a packed row.
    pub row_bytes: usize,
}

/// The segments of a document.
#[derive(Debug, PartialEq, Eq)]
pub struct Segments<'a> {
    /// Where the rows lie in the document.
    pub place: Range<usize>,
    /// The number of columns of each row, with topic id and partition.
    pub width: usize,
    /// Topic id and partition of each segment.
    pub partitions: Vec<(&'a str, u32)>,
    /// The packed rows.
    pub rows: Vec<u8>,
}

impl Table {
    /// The segments of the first table of segments in a document. None if there is none, or if it is not as a writer
    /// writes it.
    pub fn read<'a>(&self, document: &'a [u8]) -> Option<Segments<'a>> {
        // A quote inside of a string has a backslash before it, so what begins with a comma and a quote is no string.
        let columns = find(document, OPENING)? + OPENING.len();
        let start = columns + find(&document[columns..], ROWS)? + ROWS.len();
        let width = document[columns..start].iter().filter(|byte| **byte == b',').count();
        if width != self.columns.len() + 2 {
            return None;
        }
        let mut text = Text { bytes: document, at: start };
        let (mut partitions, mut rows) = (Vec::new(), Vec::new());
        text.all(b'[', b']', |text| {
            text.take(b'[')?;
            let topic = text.string()?;
            text.take(b',')?;
            partitions.push((topic, u32::try_from(text.number()?).ok()?));
            self.pack(text, &mut rows)?;
            text.take(b']')
        })?;
        Some(Segments { place: start..text.at, width, partitions, rows })
    }

    /// Add the packed row of one segment.
    fn pack(&self, text: &mut Text<'_>, rows: &mut Vec<u8>) -> Option<()> {
        let begin = rows.len();
        rows.resize(begin + self.row_bytes, 0);
        let row = &mut rows[begin..];
        // The layout decides where numbers lie, and stands behind most of them.
        let mut numbers = [0i64; MOST_COLUMNS];
        let (mut layout, mut flags, mut digest) = (0, 0, None);
        for (column, number) in self.columns.iter().zip(&mut numbers) {
            text.take(b',')?;
            match column {
                Column::Long(_) | Column::Int(_) => *number = text.number()?,
                Column::Digest(at, algorithm) => {
                    if text.hash(row, *at)? && digest.replace(*algorithm).is_some() {
                        return None;
                    }
                }
                Column::IndexHash(at) => flags |= u8::from(text.hash(row, *at)?) << self.flags.len(),
                Column::Codecs(at) => text.codecs(row, *at, &self.codecs)?,
                Column::Flags => text.all(b'[', b']', |text| {
                    flags |= 1 << place(&self.flags, text.string()?)?;
                    Some(())
                })?,
                Column::Layout => layout = place(&self.layouts, text.string()?)?,
            }
        }
        for (column, number) in self.columns.iter().zip(numbers) {
            match column {
                Column::Long(places) => put(row, *places.get(layout)?, &number.to_le_bytes())?,
                Column::Int(places) => put(row, *places.get(layout)?, &u32::try_from(number).ok()?.to_le_bytes())?,
                _ => {}
            }
        }
        let whole = |at: usize| Some(i64::from_le_bytes(row.get(at..at + 8)?.try_into().ok()?));
        let sound = 0 <= whole(BASE)? && whole(BASE)? < whole(NEXT)? && whole(BATCHES)? >= 1 && whole(BYTES)? >= 1;
        let numbers = row.len().checked_sub(3)?;
        row[numbers..].copy_from_slice(&[flags, u8::try_from(layout).ok()?, digest?]);
        sound.then_some(())
    }
}

fn place(names: &[String], wanted: &str) -> Option<usize> {
    names.iter().position(|name| name == wanted)
}

fn put(row: &mut [u8], at: Option<usize>, bytes: &[u8]) -> Option<()> {
    if let Some(at) = at {
        row.get_mut(at..at + bytes.len())?.copy_from_slice(bytes);
    }
    Some(())
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|some| some == wanted)
}

/// JSON without a space, from a position on.
struct Text<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Text<'a> {
    fn next(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn take(&mut self, wanted: u8) -> Option<()> {
        (self.next()? == wanted).then(|| self.at += 1)
    }

    /// Reads items between two brackets, with commas between them.
    fn all(&mut self, open: u8, close: u8, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.take(open)?;
        if self.take(close).is_some() {
            return Some(());
        }
        loop {
            item(self)?;
            if self.take(close).is_some() {
                return Some(());
            }
            self.take(b',')?;
        }
    }

    fn number(&mut self) -> Option<i64> {
        let minus = self.take(b'-').is_some();
        let start = self.at;
        let mut value = 0i64; // with a minus: one number more has it
        while let Some(digit @ b'0'..=b'9') = self.next() {
            value = value.checked_mul(10)?.checked_sub(i64::from(digit - b'0'))?;
            self.at += 1;
        }
        let length = self.at - start;
        let odd = length == 0 || (length > 1 && self.bytes[start] == b'0');
        if odd || minus { (!odd).then_some(value) } else { value.checked_neg() }
    }

    fn string(&mut self) -> Option<&'a str> {
        self.take(b'"')?;
        let start = self.at;
        loop {
            match self.next()? {
                b'"' => break,
                b'\\' | 0..b' ' => return None,
                _ => self.at += 1,
            }
        }
        self.at += 1;
        std::str::from_utf8(&self.bytes[start..self.at - 1]).ok()
    }

    /// Puts 256 bits in hex into a row. Returns whether there are any.
    fn hash(&mut self, row: &mut [u8], at: usize) -> Option<bool> {
        let text = self.string()?.as_bytes();
        if text.is_empty() {
            return Some(false);
        }
        let place = row.get_mut(at..at + 32)?;
        if text.len() != 64 {
            return None;
        }
        for (byte, pair) in place.iter_mut().zip(text.chunks_exact(2)) {
            *byte = (digit(pair[0])? << 4) | digit(pair[1])?;
        }
        Some(true)
    }

    fn codecs(&mut self, row: &mut [u8], at: usize, names: &[String]) -> Option<()> {
        self.all(b'{', b'}', |text| {
            let number = place(names, text.string()?)?;
            text.take(b':')?;
            put(row, Some(at + 4 * number), &u32::try_from(text.number()?).ok()?.to_le_bytes())
        })
    }
}

fn digit(hex: u8) -> Option<u8> {
    match hex {
        b'0'..=b'9' => Some(hex - b'0'),
        b'a'..=b'f' => Some(hex - b'a' + 10),
        _ => None,
    }
}

/// Tell whether packed rows of `row_bytes` each lie in order: the offsets of each begin at 0 or above, end after that,
/// and none begins below the one before it. Bytes that are no whole number of rows, or rows too short for offsets, do
/// not.
#[must_use]
pub fn in_order(rows: &[u8], row_bytes: usize) -> bool {
    if row_bytes < NEXT + 8 || rows.len() % row_bytes != 0 {
        return false;
    }
    let mut before = 0;
    rows.chunks_exact(row_bytes).all(|row| {
        let (base, next) = (offset(row, BASE), offset(row, NEXT));
        let fits = before <= base && base < next;
        before = base;
        fits
    })
}

fn offset(row: &[u8], at: usize) -> i64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&row[at..at + 8]);
    i64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::{Column, Segments, Table, in_order};
    use proptest::prelude::*;

    const DOCUMENT: &str = r#"{"format":1,"segments":{"columns":["topicId","partition","base","next","batches","bytes","end","sha256","codecs","flags","layout"],"rows":[["t",7,10,20,3,400,99,"00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff",{"lz4":5},["b"],"other"],["t",8,0,1,1,1,0,"ffeeddccbbaa99887766554433221100ffeeddccbbaa99887766554433221100",{},[],"plain"]]},"gaps":0}"#;

    fn table() -> Table {
        let everywhere = |at: usize| vec![Some(at), Some(at)];
        let columns = vec![
            Column::Long(everywhere(0)),
            Column::Long(everywhere(8)),
            Column::Long(everywhere(32)),
            Column::Long(everywhere(40)),
            Column::Int(vec![None, Some(48)]),
            Column::Digest(56, 0),
            Column::Codecs(88),
            Column::Flags,
            Column::Layout,
        ];
        let names = |some: &[&str]| some.iter().map(ToString::to_string).collect();
        let (codecs, flags, layouts) = (names(&["none", "lz4"]), names(&["a", "b"]), names(&["plain", "other"]));
        Table { columns, codecs, flags, layouts, row_bytes: 99 }
    }

    fn read(document: &[u8]) -> Option<Segments<'_>> {
        table().read(document)
    }

    #[test]
    fn rows_are_packed_as_their_layout_says() {
        let found = read(DOCUMENT.as_bytes()).expect("segments");
        assert_eq!(found.partitions, [("t", 7), ("t", 8)]);
        assert_eq!(found.width, 11);
        assert!(DOCUMENT[found.place].starts_with("[[\"t\",7,"));
        let (first, second) = found.rows.split_at(99);
        assert_eq!((first[0], first[8], first[32], first[48]), (10, 20, 3, 99));
        assert_eq!((first[56], first[57], first[92], &first[96..]), (0, 0x11, 5, &[0b10, 1, 0][..]));
        assert_eq!((second[8], second[48], second[56], &second[96..]), (1, 0, 0xff, &[0, 0, 0][..]));
    }

    fn rows_of(offsets: &[(i64, i64)]) -> Vec<u8> {
        offsets.iter().flat_map(|(base, next)| [base.to_le_bytes(), next.to_le_bytes(), [7; 8]].concat()).collect()
    }

    #[test]
    fn rows_are_in_order_if_none_begins_below_the_one_before_it() {
        for right in [&[][..], &[(0, 1)], &[(0, 5), (5, 6), (9, 10)], &[(3, 9), (3, 4)]] {
            assert!(in_order(&rows_of(right), 24), "{right:?}");
        }
        for wrong in [&[(-1, 1)][..], &[(1, 1)], &[(2, 1)], &[(5, 6), (4, 6)], &[(0, 1), (i64::MIN, 0)]] {
            assert!(!in_order(&rows_of(wrong), 24), "{wrong:?}");
        }
        assert!(!in_order(&rows_of(&[(0, 1)])[..23], 24));
        assert!(!in_order(&[], 0));
    }

    proptest! {
        #[test]
        fn bytes_that_were_altered_do_no_harm(at in 0..DOCUMENT.len(), gone in 0usize..4, put in prop::collection::vec(any::<u8>(), 0..4)) {
            let whole = DOCUMENT.as_bytes();
            let rest = whole.get(at + gone..).unwrap_or_default();
            let altered = [&whole[..at], &put, rest].concat();
            if let Some(found) = read(&altered) {
                prop_assert_eq!(found.rows.len(), 99 * found.partitions.len());
            }
        }
    }
}
