//! What the engine does for every batch, every record and every segment of a catalog. Decisions, plans, storage and
//! network are Python's.

#![forbid(unsafe_code)]

pub mod avro;
pub mod clip;
pub mod compaction;
pub mod compression;
pub mod digest;
pub mod divider;
pub mod facts;
pub mod header;
pub mod headers;
pub mod key_comparison;
pub mod keys;
pub mod merge;
pub mod murmur2;
pub mod objects;
pub mod offset_map;
pub mod packer;
pub mod partitioner;
pub mod records;
pub mod records_format;
pub mod rows;
pub mod segment_table;
pub mod times;
pub mod varints;
pub mod walk;
