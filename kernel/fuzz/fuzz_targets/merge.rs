//! Any bytes as batches that a restore merges: what is sent follows from them alone, and is sound.

#![no_main]

use libfuzzer_sys::fuzz_target;
use logkeep_kernel_core::clip::Clip;
use logkeep_kernel_core::compression::{Codec, Decompressor};
use logkeep_kernel_core::header::{HEADER_SIZE, Header, checksum};
use logkeep_kernel_core::merge::{Item, Merger, Plan, Spans, Stop, whole_batch};
use logkeep_kernel_core::records::Packed;

const PRODUCER: i64 = 7;
const UNPACKED: usize = 1 << 16;

fuzz_target!(|data: &[u8]| {
    let (whole, stop) = merged(data, 0, false);
    let (parts, stop_of_parts) = merged(data, 0, true);
    assert_eq!(stop, stop_of_parts);
    assert_eq!(whole, parts);
    let mut records = 0;
    for item in &whole {
        assert_eq!(item.index, records);
        records += item.count;
        check(data, item);
    }
    // A later attempt finds the same bounds, and makes only what is not in the target yet.
    let done = records / 2;
    let (again, stop_again) = merged(data, done, false);
    assert_eq!(stop, stop_again);
    assert_eq!(whole.len(), again.len());
    for (first, second) in whole.iter().zip(&again) {
        assert_eq!((first.index, first.count, &first.rows), (second.index, second.count, &second.rows));
        assert!(second.data.is_none() || first.data == second.data);
        assert_eq!(second.data.is_none(), second.index + second.count <= done);
    }
    cut(data);
});

fn plan(done: i64) -> Plan {
    let aborted = Spans::from([(1, vec![(0, 9), (20, 20)])]);
    Plan {
        producer_id: PRODUCER,
        small_records: 10,
        small_bytes: 1 << 12,
        unpacked: UNPACKED,
        limit: 1 << 14,
        most: UNPACKED,
        done,
        aborted,
        clip: Clip::default(),
    }
}

/// All items of the batches in `data`, up to the first that the caller must look at. With `parts` the merger gets one
/// batch at a time.
fn merged(data: &[u8], done: i64, parts: bool) -> (Vec<Item>, Option<(usize, Stop)>) {
    let (mut merger, mut items) = (Merger::new(plan(done)), Vec::new());
    let mut at = 0;
    while at < data.len() {
        let end =
            if parts { whole_batch(data, at).map_or(data.len(), |(_, batch)| at + batch.len()) } else { data.len() };
        let first = items.len();
        let (taken, stop) = merger.feed(&data[at..end], 0, &mut items);
        for item in &mut items[first..] {
            item.as_it_is = item.as_it_is.map(|place| at + place);
        }
        at += taken;
        match stop {
            Stop::End | Stop::Enough => {}
            Stop::Odd => return (finished(merger, items), Some((at, stop))),
            Stop::Damaged => {
                assert!(merger.damaged().is_some());
                return (items, Some((at, stop)));
            }
        }
    }
    (finished(merger, items), None)
}

fn finished(mut merger: Merger, mut items: Vec<Item>) -> Vec<Item> {
    if merger.finish(&mut items).is_err() {
        assert!(merger.damaged().is_some());
    }
    items
}

/// A batch to send has the header that a producer would write, and one row for each of its records.
fn check(data: &[u8], item: &Item) {
    let mut batch = item.data.clone().expect("nothing is in the target yet");
    if let Some(at) = item.as_it_is {
        assert_eq!(batch.len(), HEADER_SIZE);
        batch.extend_from_slice(&data[at + HEADER_SIZE..at + item.size]);
    }
    let header = Header::read(&batch).expect("a whole header");
    assert!(header.is_possible());
    assert_eq!((header.size(), batch.len()), (item.size, item.size));
    assert_eq!(header.crc, checksum(&batch));
    assert_eq!((header.producer_id, header.producer_epoch, header.base_offset), (PRODUCER, 0, 0));
    assert_eq!(i64::from(header.base_sequence), item.index);
    assert_eq!(i64::from(header.record_count), item.count);
    assert_eq!(header.last_offset_delta, header.record_count - 1);
    assert_eq!(item.rows.iter().map(|(_, count)| count).sum::<i64>(), item.count);
}

/// A batch that is too large to be built anew as a whole: the batches made of it have all of its records, once.
fn cut(data: &[u8]) {
    let Some((header, batch)) = whole_batch(data, 0) else { return };
    let Some(codec) = Codec::of(header.attributes) else { return };
    let mut packed = Vec::new();
    if Decompressor::new().append(codec, &batch[HEADER_SIZE..], &mut packed, UNPACKED).is_err() {
        return;
    }
    let mut merger = Merger::new(Plan { most: 200, ..plan(0) });
    let mut items = Vec::new();
    let found = merger.cut(&header, &packed, 0, &mut items);
    if header.record_count > 0 && Packed::new(&packed, &header).check().is_ok() {
        assert!(found.is_ok());
        assert_eq!(items.iter().map(|item| item.count).sum::<i64>(), i64::from(header.record_count));
    }
}
