//! What stands in the header of a batch is read and written as it is.

use logkeep_kernel_core::header::{HEADER_SIZE, Header, crc32c};
use proptest::prelude::*;

#[test]
fn the_checksum_is_castagnolis() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
}

proptest! {
    #[test]
    fn every_header_is_written_as_it_was_read(bytes in prop::collection::vec(any::<u8>(), HEADER_SIZE..100)) {
        let header = Header::read(&bytes).expect("there are enough bytes");
        prop_assert_eq!(&header.bytes()[..], &bytes[..HEADER_SIZE]);
    }

    #[test]
    fn fewer_bytes_are_no_header(bytes in prop::collection::vec(any::<u8>(), 0..HEADER_SIZE)) {
        prop_assert_eq!(Header::read(&bytes), None);
    }
}
