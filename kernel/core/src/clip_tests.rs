use proptest::prelude::*;

use super::*;
use crate::header::HEADER_SIZE;
use crate::varints::put_varint;

/// A header of a batch with offsets from `base` on, and its records, whose times are these.
fn batch(base: i64, times: &[i64], bits: i16) -> (Header, Vec<u8>) {
    let mut packed = Vec::new();
    for (at, time) in times.iter().enumerate() {
        let mut body = vec![0];
        put_varint(&mut body, time - times[0]);
        put_varint(&mut body, at as i64);
        body.extend_from_slice(&[1, 1, 0]);
        put_varint(&mut packed, body.len() as i64);
        packed.extend_from_slice(&body);
    }
    let header = Header {
        base_offset: base,
        attributes: bits,
        last_offset_delta: times.len() as i32 - 1,
        base_timestamp: times[0],
        max_timestamp: *times.iter().max().unwrap(),
        record_count: times.len() as i32,
        producer_id: 7,
        ..Header::read(&[0; HEADER_SIZE]).unwrap()
    };
    (header, packed)
}

fn left(clip: &Clip, base: i64, times: &[i64], bits: i16) -> Vec<(i64, i64)> {
    let (header, mut packed) = batch(base, times, bits);
    let header = match clip.wanted(&header) {
        Wanted::Nothing => return Vec::new(),
        Wanted::All => header,
        Wanted::Some => {
            packed.splice(0..0, [9; 5]);
            let left = clip.leave(&header, &mut packed, 5).unwrap();
            packed.drain(..5);
            left
        }
    };
    let (mut at, mut found) = (0, Vec::new());
    for _ in 0..header.record_count {
        let record = Record::at(&packed, at).unwrap();
        found.push((header.base_offset + record.offset_delta, header.base_timestamp + record.time_delta));
        at = record.end;
    }
    assert_eq!(at, packed.len());
    found
}

proptest! {
    #[test]
    fn what_is_left_is_what_is_wanted(
        base in 0..20i64, times in prop::collection::vec(-1..20i64, 1..8),
        end in 0..30i64, since in prop::option::of(0..20i64), before in prop::option::of(0..20i64)
    ) {
        let clip = Clip {
            end, since: since.unwrap_or(i64::MIN), before: before.unwrap_or(i64::MAX), whole: Spans::new()
        };
        let expected: Vec<_> = (base..).zip(times.iter().copied()).filter(|(offset, time)| {
            *offset < end && since.is_none_or(|since| *time >= since) && before.is_none_or(|before| *time < before)
        }).collect();
        prop_assert_eq!(left(&clip, base, &times, 0), expected);
    }
}

#[test]
fn records_of_the_append_all_have_the_highest_time() {
    let clip = |since, before| Clip { since, before, ..Clip::default() };
    assert_eq!(left(&clip(0, 10), 0, &[1, 9], APPEND_TIME).len(), 2);
    assert_eq!(left(&clip(0, 9), 0, &[1, 9], APPEND_TIME).len(), 0);
    assert_eq!(left(&clip(9, 10), 0, &[1, 9], APPEND_TIME).len(), 2);
}

#[test]
fn records_are_looked_at_where_the_header_hides_times() {
    let (header, _) = batch(0, &[100, 900], 0);
    let hidden = Header { max_timestamp: -1, ..header };
    for (since, before) in [(50, i64::MAX), (i64::MIN, 500), (50, 500)] {
        assert_eq!(Clip { since, before, ..Clip::default() }.wanted(&hidden), Wanted::Some);
    }
    assert_eq!(Clip::default().wanted(&hidden), Wanted::All);
}

#[test]
fn a_batch_of_a_transaction_is_whole_or_not_at_all() {
    let clip = Clip { since: 5, before: 10, whole: Spans::from([(7, vec![(0, 3)])]), ..Clip::default() };
    assert_eq!(left(&clip, 4, &[1, 9], TRANSACTIONAL).len(), 2);
    assert_eq!(left(&clip, 4, &[9, 10], TRANSACTIONAL).len(), 0);
    assert_eq!(left(&clip, 4, &[1, 4], TRANSACTIONAL).len(), 0);
    assert_eq!(left(&clip, 2, &[1, 4], TRANSACTIONAL).len(), 2);
}

#[test]
fn records_that_do_not_fit_together_are_refused() {
    let (header, mut packed) = batch(0, &[1, 2, 3], 0);
    packed.push(0);
    assert_eq!(Clip { end: 2, ..Clip::default() }.leave(&header, &mut packed, 0), Err(Odd));
}
