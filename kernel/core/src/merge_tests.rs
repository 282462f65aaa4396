use proptest::prelude::*;

use super::*;
use crate::varints::{put_varint, varint, varint_size};

fn plan() -> Plan {
    Plan {
        producer_id: 9,
        small_records: 64,
        small_bytes: 8 << 10,
        unpacked: 1 << 20,
        limit: 64 << 10,
        most: 1 << 19,
        done: 0,
        aborted: Spans::from([(1, vec![(10, 20), (30, 30)])]),
        clip: Clip::default(),
    }
}

fn header() -> impl Strategy<Value = Header> {
    let numbers = (any::<i64>(), any::<i64>(), any::<i64>(), -1..3i64, any::<i32>(), any::<i16>());
    (numbers, 0..5i32, 0..5i32, 0..0x80i16).prop_map(
        |((offset, base, max, producer, sequence, epoch), last, count, bits)| Header {
            base_offset: offset,
            batch_length: 0,
            leader_epoch: 0,
            magic: MAGIC,
            crc: 0,
            attributes: bits,
            last_offset_delta: last,
            base_timestamp: base,
            max_timestamp: max,
            producer_id: producer,
            producer_epoch: epoch,
            base_sequence: sequence,
            record_count: count,
        },
    )
}

fn batch(header: Header, records: &[u8]) -> Vec<u8> {
    let length = HEADER_SIZE - crate::header::LOG_OVERHEAD + records.len();
    let mut out = Header { batch_length: length as i32, ..header }.bytes().to_vec();
    out.extend_from_slice(records);
    out
}

/// Records that may be right or wrong in any number.
fn records() -> impl Strategy<Value = Vec<u8>> {
    let record = (0..3u8, 0..9i64, -1..6i64, -1..4i64, 0..3i64, prop::collection::vec(any::<u8>(), 0..6));
    prop::collection::vec(record, 0..5).prop_map(|all| {
        let mut out = Vec::new();
        for (wrong, time, delta, key, headers, bytes) in all {
            let mut body = vec![0];
            for number in [time, delta, key] {
                put_varint(&mut body, number);
            }
            body.resize(body.len() + key.max(0) as usize, b'k');
            put_varint(&mut body, bytes.len() as i64);
            body.extend_from_slice(&bytes);
            put_varint(&mut body, headers);
            for _ in 0..headers {
                body.extend_from_slice(&[2, b'h', 1]);
            }
            put_varint(&mut out, body.len() as i64 + i64::from(wrong / 2));
            out.extend_from_slice(&body);
        }
        out
    })
}

proptest! {
    #[test]
    fn any_batches_are_taken_or_left_and_what_is_made_is_sound(
        some in prop::collection::vec((header(), records()), 1..8), tail in prop::collection::vec(any::<u8>(), 0..80)
    ) {
        let mut stretch: Vec<u8> = some.iter().flat_map(|(header, records)| batch(*header, records)).collect();
        stretch.extend_from_slice(&tail);
        let (mut merger, mut items, mut at) = (Merger::new(plan()), Vec::new(), 0);
        loop {
            let (next, stop) = merger.feed(&stretch, at, &mut items);
            prop_assert!(next >= at && next <= stretch.len());
            match (stop, whole_batch(&stretch, next)) {
                (Stop::Odd, Some((header, _))) => at = next + header.size(),
                (Stop::Enough, _) => at = next,
                _ => break,
            }
        }
        let _ = merger.finish(&mut items);
        let mut index = 0;
        for item in items {
            prop_assert_eq!(item.index, index);
            index += item.count;
            prop_assert_eq!(item.rows.iter().map(|(_, count)| count).sum::<i64>(), item.count);
            let data = item.data.unwrap();
            let made = Header::read(&data).unwrap();
            prop_assert_eq!((made.base_offset, made.producer_id, i64::from(made.record_count)), (0, 9, item.count));
            if item.as_it_is.is_none() {
                prop_assert_eq!((made.size(), made.crc), (data.len(), checksum(&data)));
            }
        }
    }

    #[test]
    fn any_bytes_are_packed_or_refused(header in header(), data in prop::collection::vec(any::<u8>(), 0..60)) {
        let mut packer = Packer::default();
        if packer.add(&data, &header).is_ok() {
            prop_assert_eq!(packer.count, i64::from(header.record_count));
        }
        let mut at = 0;
        let whole = cut(&data, header.record_count, 30, |start, end, _| {
            assert_eq!(start, at);
            at = end;
            Ok(true)
        });
        if whole.is_ok() {
            prop_assert_eq!(at, data.len());
        }
    }

    #[test]
    fn numbers_come_back(number in any::<i64>(), shift in 0..64u32) {
        let number = number >> shift;
        let mut out = Vec::new();
        put_varint(&mut out, number);
        prop_assert_eq!(out.len(), varint_size(number));
        out.push(0x80);
        prop_assert_eq!(varint(&out), Some((number, out.len() - 1)));
        prop_assert_eq!(varint(&out[..out.len() - 2]), None);
    }
}

#[test]
fn transactions_that_were_aborted_are_left_out() {
    let plain = |offset, producer_id, attributes| {
        let header = Header {
            base_offset: offset,
            producer_id,
            attributes,
            last_offset_delta: 0,
            record_count: 1,
            ..Header::read(&[0; HEADER_SIZE]).unwrap()
        };
        batch(Header { magic: MAGIC, ..header }, &[12, 0, 0, 0, 1, 1, 0])
    };
    let mut merger = Merger::new(plan());
    let mut items = Vec::new();
    for (offset, producer, bits) in
        [(9, 1, 0x10), (10, 1, 0x10), (20, 1, 0x10), (21, 1, 0x10), (22, 1, 0x30), (30, 1, 0), (30, 2, 0x10)]
    {
        merger.feed(&plain(offset, producer, bits), 0, &mut items);
    }
    merger.finish(&mut items).unwrap();
    assert_eq!(items.len(), 1);
    assert_eq!(items[0].rows, [(9, 1), (21, 1), (30, 1), (30, 1)]);
}
