//! Any bytes in any codec: they are unpacked within the limit or refused, and what was packed comes back.

#![no_main]

use libfuzzer_sys::fuzz_target;
use logkeep_kernel_core::compression::{Codec, Compressor, Decompressor};

const LIMIT: usize = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let mut decompressor = Decompressor::new();
    for codec in Codec::ALL {
        let mut out = b"before".to_vec();
        match decompressor.append(codec, data, &mut out, LIMIT) {
            Ok(size) => assert!(size <= LIMIT && out.len() == 6 + size),
            Err(_) => assert_eq!(out, b"before"),
        }
        assert!(out.capacity() <= 2 * LIMIT);
        let mut packed = Vec::new();
        Compressor::new().append(codec, data, &mut packed);
        let mut back = Vec::new();
        assert_eq!(decompressor.append(codec, &packed, &mut back, data.len()), Ok(data.len()));
        assert_eq!(back, data);
    }
});
