//! The records of one partition divided among those of a topic with another number of partitions.

use crate::header::Header;
use crate::headers::APPEND_TIME;
use crate::murmur2;
use crate::packer::{Packer, repacked_size};
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

/// The target of a record, of so many: by its key, as Java's default partitioner chooses it; without a key by its offset.
pub fn target(key: Option<&[u8]>, offset: i64, targets: u32) -> u32 {
    match key {
        Some(key) => murmur2::partition(key, targets),
        None => murmur2::partition(&offset.to_be_bytes(), targets),
    }
}

/// Divides the records of a partition among targets, and gathers those of each into batches.
///
/// A key goes where Java's default partitioner sends it; a record without a key goes where the same hash of its offset
/// in the source says. What comes out follows from the records and their order alone.
#[derive(Debug)]
pub struct Divider {
    shares: Vec<Share>,
    most: usize,
    most_records: i64,
}

impl Divider {
    /// For so many targets, at least one. A batch has at most `most` bytes before compression, unless one record has
    /// more, and at most `most_records`.
    pub fn new(targets: u32, most: usize, most_records: i64) -> Divider {
        Divider { shares: (0..targets.max(1) as usize).map(Share::of).collect(), most, most_records }
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
            let target = target(record.key.of(data), offset, targets) as usize;
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
