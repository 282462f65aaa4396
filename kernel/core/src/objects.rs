//! Archived objects: their digests, and the checksum of an object that is made of parts.

use crc_fast::{CrcAlgorithm, checksum_combine};

/// BLAKE3 of bytes that come one after another.
#[derive(Clone, Default)]
pub struct Blake3(blake3::Hasher);

impl Blake3 {
    /// The digest of no bytes yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Take the next bytes. One thread works, with the widest vectors that the processor has.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of the bytes so far: 256 bits, in lower-case hex.
    pub fn hexdigest(&self) -> String {
        self.0.finalize().to_hex().as_str().to_owned()
    }
}

/// The CRC-32C of bytes followed by others, from both checksums and the number of the latter bytes.
pub fn crc32c_combined(first: u32, second: u32, second_length: u64) -> u32 {
    let whole = checksum_combine(CrcAlgorithm::Crc32Iscsi, u64::from(first), u64::from(second), second_length);
    (whole & u64::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests {
    use super::{Blake3, crc32c_combined};
    use crate::header::{crc32c, crc32c_behind};
    use proptest::prelude::*;

    // Source of facts: BLAKE3-team/BLAKE3 `test_vectors/test_vectors.json`; byte number i of an input is i % 251.
    const VECTORS: [(usize, &str); 5] = [
        (0, "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"),
        (1, "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213"),
        (1024, "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7"),
        (1025, "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444"),
        (102400, "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085"),
    ];

    fn input(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at % 251) as u8).collect()
    }

    #[test]
    fn the_published_vectors_come_out() {
        for (length, expected) in VECTORS {
            let mut digest = Blake3::new();
            digest.update(&input(length));
            assert_eq!(digest.hexdigest(), expected, "{length} bytes");
        }
    }

    proptest! {
        #[test]
        fn parts_give_the_digest_of_the_whole(parts in prop::collection::vec(0usize..5000, 0..12)) {
            let all = input(parts.iter().sum());
            let (mut whole, mut parted, mut at) = (Blake3::new(), Blake3::new(), 0);
            whole.update(&all);
            for part in parts {
                parted.update(&all[at..at + part]);
                at += part;
            }
            prop_assert_eq!(parted.hexdigest(), whole.hexdigest());
        }

        #[test]
        fn checksums_of_parts_give_that_of_the_whole(
            first in prop::collection::vec(any::<u8>(), 0..3000),
            second in prop::collection::vec(any::<u8>(), 0..3000),
        ) {
            let combined = crc32c_combined(crc32c(&first), crc32c(&second), second.len() as u64);
            let whole = [&first[..], &second].concat();
            prop_assert_eq!(combined, crc32c(&whole));
            prop_assert_eq!(crc32c_behind(crc32c(&first), &second), combined);
        }
    }
}
