//! Walks over any bytes, and segments of any headers.

use logkeep_kernel_core::compression::{Codec, Compressor};
use logkeep_kernel_core::facts::{Refused, Segment};
use logkeep_kernel_core::header::{HEADER_SIZE, Header, LOG_OVERHEAD, checksum, crc32c};
use logkeep_kernel_core::headers::{self, Placed};
use logkeep_kernel_core::merge::whole_batch;
use logkeep_kernel_core::varints::put_varint;
use logkeep_kernel_core::walk::{Stop, last_whole, walk, whole_batches};
use proptest::collection::vec;
use proptest::prelude::*;

const NO_END: i128 = 1 << 63;

prop_compose! {
    fn header()(
        base_offset in prop_oneof![0..100_i64, any::<i64>()],
        length in prop_oneof![49..90_i32, any::<i32>()],
        rest in any::<(i32, u32, i16, i32, i64, i64)>(),
        producer in any::<(i64, i16, i32)>(),
        count in prop_oneof![0..5_i32, any::<i32>()],
        magic in prop_oneof![9 => Just(2_u8), 1 => any::<u8>()],
    ) -> Header {
        Header {
            base_offset,
            batch_length: length,
            leader_epoch: rest.0,
            magic,
            crc: rest.1,
            attributes: rest.2,
            last_offset_delta: rest.3,
            base_timestamp: rest.4,
            max_timestamp: rest.5,
            producer_id: producer.0,
            producer_epoch: producer.1,
            base_sequence: producer.2,
            record_count: count,
        }
    }
}

/// A batch with these records and the CRC that belongs to them.
fn batch(mut header: Header, records: &[u8]) -> Vec<u8> {
    header.magic = 2;
    header.batch_length = (HEADER_SIZE - LOG_OVERHEAD + records.len()) as i32;
    header.last_offset_delta &= i32::MAX;
    header.record_count &= i32::MAX;
    let mut whole = [&header.bytes(), records].concat();
    let crc = checksum(&whole);
    whole[17..21].copy_from_slice(&crc.to_be_bytes());
    whole
}

fn log() -> impl Strategy<Value = Vec<Vec<u8>>> {
    vec((header(), vec(any::<u8>(), 0..40)).prop_map(|(header, records)| batch(header, &records)), 0..8)
}

/// Headers that lie back to back, whatever they say of offsets.
fn placed() -> impl Strategy<Value = Vec<Placed>> {
    vec(header(), 0..12).prop_map(|headers| {
        let mut at = 0;
        let place = |mut header: Header| {
            header.batch_length &= i32::MAX;
            header.last_offset_delta &= i32::MAX;
            header.record_count &= i32::MAX;
            at += header.size();
            (at - header.size(), header)
        };
        headers.into_iter().map(place).collect()
    })
}

const DELETE_HORIZON: i16 = 0x40;
const APPEND_TIME: i16 = 0x08;

/// A batch whose records have these times, and whose header says `highest` of them.
fn timed(codec: Codec, bits: i16, base: i64, times: &[i64], highest: i64) -> Vec<u8> {
    let (mut packed, mut records) = (Vec::new(), Vec::new());
    for (number, time) in times.iter().enumerate() {
        let mut body = vec![0];
        for field in [time - base, number as i64, -1, 3] {
            put_varint(&mut body, field);
        }
        body.extend_from_slice(b"abc\0");
        put_varint(&mut packed, body.len() as i64);
        packed.extend_from_slice(&body);
    }
    Compressor::new().append(codec, &packed, &mut records);
    let header = Header {
        attributes: codec as i16 | bits,
        last_offset_delta: times.len() as i32 - 1,
        base_timestamp: base,
        max_timestamp: highest,
        record_count: times.len() as i32,
        ..Header::read(&[0; HEADER_SIZE]).unwrap()
    };
    batch(header, &records)
}

fn walked_highest(batch: &[u8]) -> i64 {
    let found = walk(batch, 0, NO_END, 1, true).batches[0].1.max_timestamp;
    assert_eq!(whole_batch(batch, 0).unwrap().0.max_timestamp, found);
    found
}

#[test]
fn the_highest_time_is_that_of_the_records_where_a_header_cannot_have_it() {
    for codec in Codec::ALL {
        for said in [-1, 0, 999, i64::MIN] {
            assert_eq!(walked_highest(&timed(codec, 0, 1000, &[1000, 1700, 1500], said)), 1700);
        }
        assert_eq!(walked_highest(&timed(codec, 0, 1000, &[400, 300], -1)), 400);
        assert_eq!(walked_highest(&timed(codec, 0, -1, &[-1, 1700], -1)), 1700);
        assert_eq!(walked_highest(&timed(codec, DELETE_HORIZON, 5000, &[1700], -1)), 1700);
    }
}

#[test]
fn a_header_that_can_be_right_keeps_its_highest_time() {
    for said in [1000, 1600, 1700, 9999] {
        assert_eq!(walked_highest(&timed(Codec::None, 0, 1000, &[1000, 1700], said)), said);
    }
    assert_eq!(walked_highest(&timed(Codec::None, APPEND_TIME, 1000, &[1000, 1700], -1)), -1);
    assert_eq!(walked_highest(&timed(Codec::None, DELETE_HORIZON, 5000, &[1700], 1700)), 1700);
    assert_eq!(walked_highest(&timed(Codec::None, 0, -1, &[-1, -1], -1)), -1);
    assert_eq!(walked_highest(&timed(Codec::None, 0, 1000, &[], -1)), -1);
}

#[test]
fn a_header_keeps_its_highest_time_where_records_are_damaged() {
    let whole = timed(Codec::None, 0, 1000, &[1000, 1700], -1);
    let mut long = Header::read(&whole).unwrap();
    long.record_count += 1;
    let mut few = long;
    few.record_count -= 2;
    for header in [long, few] {
        assert_eq!(walked_highest(&batch(header, &whole[HEADER_SIZE..])), -1);
    }
    let zstd = Header { attributes: Codec::Zstd as i16, ..Header::read(&whole).unwrap() };
    assert_eq!(walked_highest(&batch(zstd, &whole[HEADER_SIZE..])), -1);
}

#[test]
fn a_segment_is_never_older_than_the_first_time_of_a_batch() {
    let whole = timed(Codec::None, 0, 1000, &[1000, 1700], -1);
    let damaged = batch(Header { record_count: 1, ..Header::read(&whole).unwrap() }, &whole[HEADER_SIZE..]);
    for (bytes, highest) in [(whole, 1700), (damaged, 1000)] {
        let mut segment = Segment::new(0, 4096);
        segment.add(&walk(&bytes, 0, NO_END, 1, true).batches).unwrap();
        assert_eq!(segment.facts().min_base_timestamp, Some(1000));
        assert_eq!(segment.facts().max_timestamp, highest);
    }
}

/// CRC-32C bit by bit.
fn plain_crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg()))
    })
}

proptest! {
    #[test]
    fn a_header_is_read_as_it_was_written(header in header()) {
        prop_assert_eq!(Header::read(&header.bytes()), Some(header));
        prop_assert_eq!(Header::read(&header.bytes()[..HEADER_SIZE - 1]), None);
    }

    #[test]
    fn a_checksum_is_that_of_a_loop_over_bits(bytes in vec(any::<u8>(), 0..700)) {
        prop_assert_eq!(crc32c(&bytes), plain_crc(&bytes));
    }

    #[test]
    fn any_bytes_are_walked_to_an_end(
        bytes in vec(any::<u8>(), 0..300),
        start in 0..400_usize,
        until in any::<i64>(),
        most in 0..5_usize,
        checked in any::<bool>(),
    ) {
        let found = walk(&bytes, start, until.into(), most, checked);
        prop_assert!(found.batches.len() <= most);
        prop_assert_eq!(found.end, start + headers::size(&found.batches));
        prop_assert!(last_whole(&bytes) <= bytes.len());
        if let Some(end) = whole_batches(&bytes, most * 50) {
            prop_assert!(end >= LOG_OVERHEAD);
        }
    }

    #[test]
    fn damaged_logs_give_sound_batches_only(
        parts in log(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = parts.concat();
        for (place, value) in damage {
            if !bytes.is_empty() {
                let at = place.index(bytes.len());
                bytes[at] ^= value;
            }
        }
        bytes.truncate(cut.index(bytes.len() + 1).max(bytes.len() / 2));
        let found = walk(&bytes, 0, NO_END, usize::MAX, true);
        let mut at = 0;
        for (position, header) in &found.batches {
            prop_assert_eq!(*position, at);
            prop_assert!(header.is_possible());
            prop_assert_eq!(checksum(&bytes[at..at + header.size()]), header.crc);
            at += header.size();
        }
        prop_assert_eq!(found.end, at);
        prop_assert!(at <= bytes.len());
        prop_assert_eq!(headers::first_loose(&found.batches), None);
    }

    #[test]
    fn sound_logs_are_walked_whole(parts in log(), most in 1..5_usize) {
        let bytes = parts.concat();
        let found = walk(&bytes, 0, NO_END, usize::MAX, true);
        prop_assert_eq!(found.stop, Stop::End);
        prop_assert_eq!((found.batches.len(), found.end), (parts.len(), bytes.len()));
        if let Some(last) = parts.last() {
            prop_assert_eq!(last_whole(&bytes), bytes.len() - last.len());
        }
        let mut piecewise = Vec::new();
        let mut at = 0;
        loop {
            let part = walk(&bytes, at, NO_END, most, true);
            piecewise.extend(part.batches);
            at = part.end;
            if part.stop != Stop::Most {
                break;
            }
        }
        prop_assert_eq!(piecewise, found.batches);
    }

    #[test]
    fn a_segment_does_not_depend_on_how_its_runs_were_cut(
        mut headers in placed(), cut in any::<prop::sample::Index>(), sorted in any::<bool>(), interval in 0..500_i64
    ) {
        if sorted {
            let mut next = 0;
            for (_, header) in &mut headers {
                header.base_offset = next;
                header.last_offset_delta &= 0xff;
                header.attributes &= !7;
                next += i64::from(header.last_offset_delta) + 1;
            }
        }
        let at = cut.index(headers.len() + 1);
        let (mut whole, mut parts) = (Segment::new(0, interval), Segment::new(0, interval));
        let refused = whole.add(&headers);
        let second = parts.add(&headers[..at]).and_then(|()| parts.add(&headers[at..]));
        prop_assert_eq!(refused.is_ok(), second.is_ok());
        if refused.is_ok() {
            prop_assert_eq!(whole.facts(), parts.facts());
            prop_assert_eq!(whole.finish(), parts.finish());
        } else {
            prop_assert_eq!(whole.facts().batches, 0);
            prop_assert!(!sorted || refused == Err(Refused::TooFar));
        }
    }

    #[test]
    fn batches_in_order_are_those_that_rise_below_the_end(headers in placed(), end in any::<i64>()) {
        let count = headers::in_order(&headers, i128::from(i64::MIN), end.into());
        let mut expected = i128::from(i64::MIN);
        for (_, header) in &headers[..count] {
            prop_assert!(i128::from(header.base_offset) >= expected);
            expected = header.next_offset();
            prop_assert!(expected <= end.into());
        }
        if let Some((_, header)) = headers.get(count) {
            prop_assert!(i128::from(header.base_offset) < expected || header.next_offset() > end.into());
        }
    }
}
