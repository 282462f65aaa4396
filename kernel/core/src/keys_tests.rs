use super::*;
use crate::rows::put_field;
use crate::varints::put_varint;

const SECRET: KeyDigest = [7; BYTES];

fn keys(wanted: &[&[u8]]) -> Keys {
    Keys::new(SECRET, wanted.iter().map(|key| (key.len(), digest(&SECRET, key))))
}

fn record(out: &mut Vec<u8>, time: i64, offset: i64, key: Option<&[u8]>) {
    let mut body = vec![0];
    put_varint(&mut body, time);
    put_varint(&mut body, offset);
    put_field(&mut body, key);
    put_field(&mut body, Some(b"value"));
    put_varint(&mut body, 0);
    put_varint(out, body.len() as i64);
    out.extend_from_slice(&body);
}

fn batch(of: &[(i64, Option<&[u8]>)]) -> (Header, Vec<u8>) {
    let mut packed = Vec::new();
    for (number, (time, key)) in of.iter().enumerate() {
        record(&mut packed, *time, number as i64, *key);
    }
    let count = of.len() as i32;
    let head = [0u8; 61];
    let header = Header::read(&head).expect("61 bytes");
    (
        Header { record_count: count, last_offset_delta: count - 1, base_timestamp: 100, max_timestamp: 900, ..header },
        packed,
    )
}

#[test]
fn a_batch_without_the_keys_is_left_alone() {
    let (header, packed) = batch(&[(0, Some(b"a")), (1, None), (2, Some(b""))]);
    assert_eq!(keys(&[b"b", b"aa"]).leave(&header, &packed), Ok(None));
}

#[test]
fn the_other_records_stay_as_they_are() {
    let (header, packed) = batch(&[(5, Some(b"a")), (9, Some(b"x")), (2, Some(b"b")), (7, Some(b"x")), (3, None)]);
    let left = keys(&[b"x"]).leave(&header, &packed).unwrap().unwrap();
    let mut expected = Vec::new();
    record(&mut expected, 5, 0, Some(b"a"));
    record(&mut expected, 2, 2, Some(b"b"));
    record(&mut expected, 3, 4, None);
    assert_eq!((left.packed, left.count, left.max_timestamp), (expected, 3, 105));
}

#[test]
fn the_time_of_the_append_stays() {
    let (header, packed) = batch(&[(0, Some(b"x")), (0, Some(b"a"))]);
    let header = Header { attributes: APPEND_TIME, ..header };
    assert_eq!(keys(&[b"x"]).leave(&header, &packed).unwrap().unwrap().max_timestamp, 900);
}

#[test]
fn a_batch_may_lose_all_its_records() {
    let (header, packed) = batch(&[(0, Some(b"x")), (1, Some(b""))]);
    let left = keys(&[b"x", b""]).leave(&header, &packed).unwrap().unwrap();
    assert_eq!((left.packed.len(), left.count), (0, 0));
}

#[test]
fn records_that_do_not_fit_together_are_told() {
    let (header, packed) = batch(&[(0, Some(b"x")), (1, Some(b"y"))]);
    assert_eq!(keys(&[b"x"]).leave(&header, &packed[..packed.len() - 1]), Err(Odd));
    let more = Header { record_count: 1, ..header };
    assert_eq!(keys(&[b"x"]).leave(&more, &packed), Err(Odd));
}
