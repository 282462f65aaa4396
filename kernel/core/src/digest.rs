//! Digests of records as a consumer sees them.
//!
//! The digest of a record is XXH3 (128 bit) over its timestamp, key, value and headers in their order, written in one
//! canonical form; where asked, its offset too. The digest of a stretch of records is the value of the polynomial whose
//! coefficients are those digests, at a fixed point, modulo the prime 2^127 - 1. So it knows the order and the number
//! of records, and the digests of two stretches that follow one another give that of both: how a partition was divided makes
//! no difference. Batch bounds, compression and (unless asked for) offsets make none either.

use twox_hash::XxHash3_128;

use crate::compression::{Codec, Decompressor};
use crate::header::{HEADER_SIZE, Header, MAGIC};
use crate::headers::{CONTROL, Placed};
use crate::records::{Odd, Packed};
use crate::rows::{Form, Row, Rows, put_field, put_headers};
use crate::times::Times;
use crate::varints::put_varint;

const PRIME: u128 = (1 << 127) - 1;
/// Any number below the prime does that is not small; these are the first digits of pi.
const POINT: u128 = 0x243F_6A88_85A3_08D3_1319_8A2E_0370_7344;

/// The digest of records that follow one another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest {
    /// How many there are.
    pub count: u64,
    /// The value of their polynomial.
    pub value: u128,
}

impl Digest {
    /// A digest that was written down. None for what no records have.
    pub fn of(count: u64, value: u128) -> Option<Digest> {
        (value < PRIME && (count > 0 || value == 0)).then_some(Digest { count, value })
    }

    /// Notes one more record.
    #[inline]
    pub fn note(&mut self, record: u128) {
        self.value = add(times(self.value, POINT), reduced(record));
        self.count += 1;
    }

    /// The digest of these records and `next`, which follow them.
    pub fn followed_by(&self, next: &Digest) -> Digest {
        Digest {
            count: self.count.wrapping_add(next.count),
            value: add(times(self.value, power(POINT, next.count)), next.value),
        }
    }
}

/// What is known of records that follow one another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Noted {
    /// Their digest.
    pub digest: Digest,
    /// The digest of their offsets alone.
    pub offsets: Digest,
    /// Which times they have, and how many bytes their canonical form.
    pub times: Times,
}

impl Noted {
    /// Notes the records that `next` knows, and which follow.
    pub fn follow(&mut self, next: &Noted) {
        self.digest = self.digest.followed_by(&next.digest);
        self.offsets = self.offsets.followed_by(&next.offsets);
        self.times.add(&next.times);
    }
}

/// Computes digests of records. It keeps the memory in which their canonical form lies.
#[derive(Default)]
pub struct Digester {
    form: Vec<u8>,
}

impl Digester {
    /// Notes all of these. With `offsets`, the offset of each is in its digest, too.
    pub fn note(&mut self, rows: &Rows<'_>, offsets: bool, noted: &mut Noted) {
        for row in rows.rows {
            noted.digest.note(self.record(rows, row, offsets));
            noted.offsets.note(u128::from(row.offset as u64));
            noted.times.note(row.timestamp, self.form.len() as u64);
        }
    }

    /// The digest of one record.
    #[inline]
    pub fn record(&mut self, rows: &Rows<'_>, row: &Row, offsets: bool) -> u128 {
        let form = &mut self.form;
        form.clear();
        form.extend_from_slice(&row.timestamp.to_le_bytes());
        if offsets {
            form.extend_from_slice(&row.offset.to_le_bytes());
        }
        put_field(form, row.key.of(rows.data));
        put_field(form, row.value.of(rows.data));
        put_varint(form, i64::from(row.header_count));
        if row.header_count > 0 {
            put_headers(form, rows.headers_of(row));
        }
        XxHash3_128::oneshot_with_seed(u64::from(offsets), form)
    }
}

const ROWS: usize = 1 << 12; // rows of a part of a large batch

/// Computes digests of the records of whole batches. It keeps what it needs from one batch to the next.
#[derive(Default)]
pub struct BatchDigester {
    digester: Digester,
    decompressor: Decompressor,
    unpacked: Vec<u8>,
    rows: Vec<Row>,
}

impl BatchDigester {
    /// Notes the records of batches, but not those of control batches. The first batch lies in `stretch` at
    /// position `start`. Returns how many batches were taken. The next one is for the caller to look at: it is no batch
    /// of magic 2, its records do not fit together, or they have more than `most` bytes; none of them is noted.
    pub fn note(
        &mut self,
        stretch: &[u8],
        batches: &[Placed],
        start: usize,
        most: usize,
        offsets: bool,
        noted: &mut Noted,
    ) -> usize {
        let origin = batches.first().map_or(0, |(at, _)| *at);
        for (number, (at, header)) in batches.iter().enumerate() {
            let batch = start.checked_add(at - origin).and_then(|at| stretch.get(at..)?.get(..header.size()));
            // The records of a batch of one part are all taken apart before the first one is noted.
            let before = (header.record_count as usize > ROWS).then(|| noted.clone());
            if self.note_batch(batch, header, most, offsets, noted).is_err() {
                if let Some(before) = before {
                    *noted = before;
                }
                return number;
            }
        }
        batches.len()
    }

    #[inline]
    fn note_batch(
        &mut self,
        batch: Option<&[u8]>,
        header: &Header,
        most: usize,
        offsets: bool,
        noted: &mut Noted,
    ) -> Result<(), Odd> {
        if header.magic != MAGIC {
            return Err(Odd);
        }
        if header.attributes & CONTROL != 0 {
            return Ok(());
        }
        let packed = batch.and_then(|batch| batch.get(HEADER_SIZE..)).ok_or(Odd)?;
        if header.record_count == 0 {
            return Ok(());
        }
        let codec = Codec::of(header.attributes).ok_or(Odd)?;
        if packed.len() > most {
            return Err(Odd);
        }
        let data = if codec == Codec::None {
            packed
        } else {
            self.unpacked.clear();
            self.decompressor.append(codec, packed, &mut self.unpacked, most).map_err(|_| Odd)?;
            &self.unpacked
        };
        let mut records = Packed::new(data, header);
        while !records.is_done() {
            self.rows.clear();
            records.take(ROWS, &mut self.rows)?;
            let rows = Rows { rows: &self.rows, data, headers: data, form: Form::Packed };
            self.digester.note(&rows, offsets, noted);
        }
        Ok(())
    }
}

#[inline]
fn reduced(number: u128) -> u128 {
    let folded = (number & PRIME) + (number >> 127);
    if folded >= PRIME { folded - PRIME } else { folded }
}

#[inline]
fn add(one: u128, other: u128) -> u128 {
    reduced(one + other) // both are below 2^127
}

/// The product of two numbers below the prime.
#[inline]
fn times(one: u128, other: u128) -> u128 {
    let half = |number: u128| (number & u128::from(u64::MAX), number >> 64);
    let ((low, high), (other_low, other_high)) = (half(one), half(other));
    let middle = low * other_high + high * other_low;
    let (bottom, carry) = (low * other_low).overflowing_add(middle << 64);
    let top = high * other_high + (middle >> 64) + u128::from(carry);
    // 2^128 is 2 modulo the prime, and 2^127 is 1.
    reduced(2 * top + (bottom & PRIME) + (bottom >> 127))
}

fn power(base: u128, mut exponent: u64) -> u128 {
    let mut result = 1;
    let mut square = base;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = times(result, square);
        }
        square = times(square, square);
        exponent >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_those_of_small_numbers_and_of_the_largest() {
        assert_eq!(times(3, 5), 15);
        assert_eq!(times(PRIME - 1, PRIME - 1), 1);
        assert_eq!(times(1 << 126, 2), 1);
        assert_eq!(power(2, 127), 1);
        assert_eq!(power(POINT, 0), 1);
    }

    #[test]
    fn stretches_that_follow_one_another_make_the_digest_of_both() {
        let records: Vec<u128> = (0..50u128).map(|number| number.wrapping_mul(POINT) ^ u128::MAX >> 3).collect();
        let of = |some: &[u128]| {
            let mut digest = Digest::default();
            some.iter().for_each(|record| digest.note(*record));
            digest
        };
        for cut in 0..=records.len() {
            assert_eq!(of(&records[..cut]).followed_by(&of(&records[cut..])), of(&records));
        }
        let mut swapped = records.clone();
        swapped.swap(3, 4);
        assert_ne!(of(&swapped), of(&records));
    }
}
