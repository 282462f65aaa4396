//! Any bytes: what a walk returns lies back to back inside of them, and is sound.

#![no_main]

use libfuzzer_sys::fuzz_target;
use logkeep_kernel_core::header::{Header, checksum};
use logkeep_kernel_core::walk::{Stop, walk};

fuzz_target!(|data: &[u8]| {
    for checked in [false, true] {
        for most in [1, usize::MAX] {
            let found = walk(data, 0, i128::MAX, most, checked);
            let mut at = 0;
            for (position, header) in &found.batches {
                assert_eq!(*position, at);
                let said = Header::read(&data[at..]).unwrap();
                let time = if said.hides_times() { header.max_timestamp } else { said.max_timestamp };
                assert_eq!(Header { max_timestamp: time, ..said }, *header);
                assert!(header.is_possible());
                let batch = &data[at..at + header.size()];
                assert!(!checked || checksum(batch) == header.crc);
                at += header.size();
            }
            assert_eq!(found.end, at);
            assert!(found.batches.len() <= most);
            assert!(found.stop != Stop::Most || found.batches.len() == most);
        }
    }
});
