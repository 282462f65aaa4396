//! Headers of record batches of magic 2.
//!
//! Source of facts: apache/kafka `DefaultRecordBatch.java`.

use crate::headers::{APPEND_TIME, DELETE_HORIZON};

/// Bytes of a batch before its records.
pub const HEADER_SIZE: usize = 61;

/// Bytes that tell a batch's size and magic, in every version of the format.
pub const PREFIX: usize = 17;

/// Bytes of base offset and length: the length field counts what lies behind them.
pub const LOG_OVERHEAD: usize = 12;

/// The magic of the only format that the kernel reads.
pub const MAGIC: u8 = 2;

/// The least that the length field of a batch may say.
pub const SMALLEST_LENGTH: i32 = (HEADER_SIZE - LOG_OVERHEAD) as i32;

const ATTRIBUTES_AT: usize = 21;

/// The fields before the records, in their order on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names are Kafka's
pub struct Header {
    pub base_offset: i64,
    pub batch_length: i32,
    pub leader_epoch: i32,
    pub magic: u8,
    pub crc: u32,
    pub attributes: i16,
    pub last_offset_delta: i32,
    pub base_timestamp: i64,
    pub max_timestamp: i64,
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub base_sequence: i32,
    pub record_count: i32,
}

impl Header {
    /// The fields as they stand in the bytes, whatever they say. None if there are fewer than 61 bytes.
    #[inline]
    pub fn read(bytes: &[u8]) -> Option<Header> {
        let b: &[u8; HEADER_SIZE] = bytes.first_chunk()?;
        Some(Header {
            base_offset: i64::from_be_bytes(part(b, 0)),
            batch_length: i32::from_be_bytes(part(b, 8)),
            leader_epoch: i32::from_be_bytes(part(b, 12)),
            magic: b[16],
            crc: u32::from_be_bytes(part(b, 17)),
            attributes: i16::from_be_bytes(part(b, 21)),
            last_offset_delta: i32::from_be_bytes(part(b, 23)),
            base_timestamp: i64::from_be_bytes(part(b, 27)),
            max_timestamp: i64::from_be_bytes(part(b, 35)),
            producer_id: i64::from_be_bytes(part(b, 43)),
            producer_epoch: i16::from_be_bytes(part(b, 51)),
            base_sequence: i32::from_be_bytes(part(b, 53)),
            record_count: i32::from_be_bytes(part(b, 57)),
        })
    }

    /// The bytes of the header, the CRC as given.
    pub fn bytes(&self) -> [u8; HEADER_SIZE] {
        let mut out = [0; HEADER_SIZE];
        out[0..8].copy_from_slice(&self.base_offset.to_be_bytes());
        out[8..12].copy_from_slice(&self.batch_length.to_be_bytes());
        out[12..16].copy_from_slice(&self.leader_epoch.to_be_bytes());
        out[16] = self.magic;
        out[17..21].copy_from_slice(&self.crc.to_be_bytes());
        out[21..23].copy_from_slice(&self.attributes.to_be_bytes());
        out[23..27].copy_from_slice(&self.last_offset_delta.to_be_bytes());
        out[27..35].copy_from_slice(&self.base_timestamp.to_be_bytes());
        out[35..43].copy_from_slice(&self.max_timestamp.to_be_bytes());
        out[43..51].copy_from_slice(&self.producer_id.to_be_bytes());
        out[51..53].copy_from_slice(&self.producer_epoch.to_be_bytes());
        out[53..57].copy_from_slice(&self.base_sequence.to_be_bytes());
        out[57..61].copy_from_slice(&self.record_count.to_be_bytes());
        out
    }

    /// Whether the fields can be those of a batch of magic 2: its length holds a header, nothing counts below zero.
    #[inline]
    pub fn is_possible(&self) -> bool {
        self.magic == MAGIC
            && self.batch_length >= SMALLEST_LENGTH
            && self.last_offset_delta >= 0
            && self.record_count >= 0
    }

    /// Whether the highest time cannot be that of the records: it is below zero, or below the first time. A producer
    /// sets it, and Apache's brokers repair it; other brokers keep what a producer has left unset.
    #[inline]
    pub fn hides_times(&self) -> bool {
        let first = if self.attributes & DELETE_HORIZON != 0 { 0 } else { self.base_timestamp.max(0) };
        self.max_timestamp < first && self.record_count > 0 && self.attributes & APPEND_TIME == 0
    }

    /// The bytes of the whole batch. Only of a header that `is_possible`.
    #[inline]
    pub fn size(&self) -> usize {
        LOG_OVERHEAD + self.batch_length as usize
    }

    /// One past the batch's last offset. A damaged header may count past the highest offset, hence the type.
    #[inline]
    pub fn next_offset(&self) -> i128 {
        i128::from(self.base_offset) + i128::from(self.last_offset_delta) + 1
    }
}

/// The checksum of a whole batch, as its header should have it.
#[inline]
pub fn checksum(batch: &[u8]) -> u32 {
    crc32c(&batch[ATTRIBUTES_AT..])
}

/// The checksum of a batch whose header and records lie apart.
pub fn checksum_of(header: &Header, records: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&header.bytes()[ATTRIBUTES_AT..]);
    digest.update(records);
    digest.finalize() as u32
}

/// CRC-32C (Castagnoli) of some bytes.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// CRC-32C of bytes that follow others, whose checksum `before` is.
#[inline]
pub fn crc32c_behind(before: u32, bytes: &[u8]) -> u32 {
    let state = u64::from(!before);
    let mut digest = crc_fast::Digest::new_with_init_state(crc_fast::CrcAlgorithm::Crc32Iscsi, state);
    digest.update(bytes);
    digest.finalize() as u32
}

#[inline]
fn part<const N: usize>(bytes: &[u8; HEADER_SIZE], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}
