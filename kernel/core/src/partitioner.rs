//! The partitioners by which producers choose a partition for a key.
//!
//! Source of facts: apache/kafka `BuiltInPartitioner.java`; librdkafka `rd_kafka_msg_partitioner_consistent_random`.

use flate2::Crc;

use crate::murmur2;

/// A partitioner, by the hash that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partitioner {
    /// Java's default, and `murmur2_random` of librdkafka.
    Murmur2,
    /// librdkafka's default, `consistent_random`.
    Crc32,
}

impl Partitioner {
    /// The partitioner of this name.
    pub fn named(name: &str) -> Option<Partitioner> {
        match name {
            "murmur2" => Some(Partitioner::Murmur2),
            "crc32" => Some(Partitioner::Crc32),
            _ => None,
        }
    }

    /// The partition, of `partitions`, to which it sends a record with this key; None if it chooses any.
    pub fn partition(self, key: &[u8], partitions: u32) -> Option<u32> {
        match self {
            Partitioner::Murmur2 => Some(murmur2::partition(key, partitions)),
            Partitioner::Crc32 if key.is_empty() => None,
            Partitioner::Crc32 => {
                let mut crc = Crc::new();
                crc.update(key);
                Some(crc.sum() % partitions.max(1))
            }
        }
    }
}
