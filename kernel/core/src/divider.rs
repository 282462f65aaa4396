//! The records of one partition divided among those of a topic with another number of partitions.

use crate::header::Header;
use crate::headers::APPEND_TIME;
use crate::murmur2;
use crate::packer::{Packer, repacked_size};
use crate::partitioner::Partitioner;
use crate::records::{Odd, Record};

/// The packed records of one batch for one target.
#[derive(Debug, Default)]
pub struct Share {
    /// The partition that they go to.
    pub target: usize,
    /// The codec of the batch in which the first of them lay.
    pub codec: u8,
    /// The records, packed.
    pub packer: Packer,
    /// One past the source offset of the last record.
    pub source_end: i64,
}

impl Share {
    fn of(target: usize) -> Share {
        Share { target, ..Share::default() }
    }
}

/// The target of a record, of so many: by its key, as the partitioner chooses it; by its offset if it chooses any.
pub fn target(partitioner: Partitioner, key: Option<&[u8]>, offset: i64, targets: u32) -> u32 {
    let chosen = key.and_then(|key| partitioner.partition(key, targets));
    chosen.unwrap_or_else(|| murmur2::partition(&offset.to_be_bytes(), targets))
}

/// Divides the records of a partition among targets, and gathers those of each into batches.
///
/// A key goes where the partitioner sends it; a record for which it chooses any partition goes where murmur2 of its
/// offset in the source says. What comes out follows from the records and their order alone.
#[derive(Debug)]
pub struct Divider {
    partitioner: Partitioner,
    shares: Vec<Share>,
    most: usize,
    most_records: i64,
}

impl Divider {
    /// For so many targets, at least one. A batch has at most `most` bytes before compression, unless one record has
    /// more, and at most `most_records`.
    pub fn new(partitioner: Partitioner, targets: u32, most: usize, most_records: i64) -> Divider {
        let shares = (0..targets.max(1) as usize).map(Share::of).collect();
        Divider { partitioner, shares, most, most_records }
    }

    /// Takes the decompressed records of a batch. `source` are their offsets in the source: (first, how many follow one
    /// another from there), in their order. Batches that are full are added to `full`. After an error nothing here is
    /// of use any more.
    pub fn feed(
        &mut self,
        data: &[u8],
        header: &Header,
        source: &[(i64, i64)],
        full: &mut Vec<Share>,
    ) -> Result<(), Odd> {
        let append_time = (header.attributes & APPEND_TIME != 0).then_some(header.max_timestamp);
        let codec = (header.attributes & 7) as u8;
        let targets = self.shares.len() as u32;
        let mut offsets = source.iter().flat_map(|&(first, count)| (0..count).map(move |at| first.wrapping_add(at)));
        let mut at = 0;
        for _ in 0..header.record_count {
            let record = Record::at(data, at).ok_or(Odd)?;
            let offset = offsets.next().ok_or(Odd)?;
            let time = append_time.unwrap_or_else(|| header.base_timestamp.wrapping_add(record.time_delta));
            let target = target(self.partitioner, record.key.of(data), offset, targets) as usize;
            let size = repacked_size(record.end - at, 1);
            let (most, most_records) = (self.most, self.most_records);
            let share = &mut self.shares[target];
            let packed = &share.packer;
            let has = repacked_size(packed.body.len(), packed.count as usize);
            if packed.count > 0 && (has + size > most || packed.count >= most_records) {
                full.push(std::mem::replace(share, Share::of(target)));
            }
            if share.packer.count == 0 {
                share.codec = codec;
            }
            share.packer.put(record.attributes, time, &data[record.fields..record.end]);
            share.source_end = offset.wrapping_add(1);
            at = record.end;
        }
        if at == data.len() && offsets.next().is_none() { Ok(()) } else { Err(Odd) }
    }

    /// The batches that were kept back for more records to come, by their targets.
    pub fn finish(&mut self) -> Vec<Share> {
        let mut left = Vec::new();
        for (target, share) in self.shares.iter_mut().enumerate() {
            if share.packer.count > 0 {
                left.push(std::mem::replace(share, Share::of(target)));
            }
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::{Divider, target};
    use crate::header::{HEADER_SIZE, Header};
    use crate::murmur2;
    use crate::partitioner::Partitioner::{Crc32, Murmur2};

    const A: Option<&[u8]> = Some(b"a");

    /// The records of a batch with these keys, packed.
    fn packed(keys: &[Option<&[u8]>]) -> (Header, Vec<u8>) {
        let mut data = Vec::new();
        for (at, key) in keys.iter().enumerate() {
            let mut record = vec![0, 0, 2 * at as u8];
            match key {
                None => record.push(1),
                Some(key) => {
                    record.push(2 * key.len() as u8);
                    record.extend_from_slice(key);
                }
            }
            record.extend_from_slice(&[2, b'v', 0]);
            data.push(2 * record.len() as u8);
            data.extend_from_slice(&record);
        }
        let mut header = Header::read(&[0; HEADER_SIZE]).unwrap();
        (header.record_count, header.last_offset_delta) = (keys.len() as i32, keys.len() as i32 - 1);
        (header, data)
    }

    #[test]
    fn keys_and_offsets_say_where_a_record_goes() {
        for targets in [1, 2, 5, 12] {
            assert_eq!(target(Murmur2, Some(b"foobar"), 3, targets), (-790332482_i32 as u32 & 0x7fff_ffff) % targets);
            assert_eq!(target(Crc32, Some(b"foobar"), 3, targets), 0x9ef6_1f95 % targets);
            let spread = murmur2::partition(&3_i64.to_be_bytes(), targets);
            for (partitioner, key) in [(Murmur2, None), (Crc32, None), (Crc32, Some(&b""[..]))] {
                assert_eq!(target(partitioner, key, 3, targets), spread);
            }
            assert_eq!(target(Murmur2, Some(b""), 3, targets), murmur2::partition(b"", targets));
        }
    }

    #[test]
    fn every_record_comes_out_once_where_it_belongs() {
        let keys: [Option<&[u8]>; 5] = [A, None, Some(b"b"), A, Some(b"")];
        let (header, data) = packed(&keys);
        for partitioner in [Murmur2, Crc32] {
            let mut divider = Divider::new(partitioner, 3, 1 << 20, 10);
            let mut full = Vec::new();
            divider.feed(&data, &header, &[(10, 2), (20, 3)], &mut full).unwrap();
            assert!(full.is_empty());
            let mut counts = [0; 3];
            for (key, offset) in keys.iter().zip([10, 11, 20, 21, 22]) {
                counts[target(partitioner, *key, offset, 3) as usize] += 1;
            }
            let left = divider.finish();
            assert_eq!(left.iter().map(|share| share.packer.count).sum::<i64>(), 5);
            for share in left {
                assert_eq!(share.packer.count, counts[share.target]);
            }
            assert!(divider.finish().is_empty());
        }
    }

    #[test]
    fn a_share_ends_where_it_is_full() {
        let (header, data) = packed(&[A; 7]);
        for (most, most_records, expected) in [(1 << 20, 3, vec![3, 3, 1]), (1, 10, vec![1; 7])] {
            let mut divider = Divider::new(Murmur2, 1, most, most_records);
            let mut full = Vec::new();
            divider.feed(&data, &header, &[(0, 7)], &mut full).unwrap();
            full.extend(divider.finish());
            assert_eq!(full.iter().map(|share| share.packer.count).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn what_does_not_fit_together_is_odd() {
        let (header, data) = packed(&[A, None]);
        let mut more = header;
        more.record_count = 3;
        let mut fewer = header;
        fewer.record_count = 1;
        for (header, data, offsets) in [
            (&header, &data[..data.len() - 1], 2),
            (&more, &data[..], 3),
            (&fewer, &data[..], 1),
            (&header, &data[..], 1),
            (&header, &data[..], 3),
        ] {
            let mut divider = Divider::new(Murmur2, 2, 1 << 20, 10);
            assert!(divider.feed(data, header, &[(0, offsets)], &mut Vec::new()).is_err());
        }
    }
}
