//! A few kilobytes or megabytes that unpack to 300 MB, in each codec.

use logkeep_kernel_core::compression::{Codec, Compressor, Decompressor, Problem};

const LIMIT: usize = 4 << 20;
const BOMB: usize = 300 << 20;
const PIECE: usize = 64 << 10;
const LZ4_HEAD: usize = 7;
const LZ4_END: usize = 4;

/// Zeros that unpack to BOMB bytes: what one piece is packed to, again and again.
fn bomb(codec: Codec) -> Vec<u8> {
    let mut piece = Vec::new();
    Compressor::new().append(codec, &[0; PIECE], &mut piece);
    match codec {
        Codec::Lz4 => {
            // One frame of many blocks: frames behind each other are refused for another reason.
            let (head, rest) = piece.split_at(LZ4_HEAD);
            let (block, end) = rest.split_at(rest.len() - LZ4_END);
            [head, &block.repeat(BOMB / PIECE), end].concat()
        }
        _ => piece.repeat(BOMB / PIECE),
    }
}

#[test]
fn a_bomb_is_refused_at_the_limit_and_takes_no_more_memory() {
    for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
        let bomb = bomb(codec);
        let mut out = Vec::new();
        assert_eq!(Decompressor::new().append(codec, &bomb, &mut out, LIMIT), Err(Problem::NoRoom), "{codec:?}");
        assert!(out.is_empty(), "{codec:?}");
        assert!(out.capacity() <= 2 * LIMIT, "{codec:?}");
    }
}

#[test]
fn a_bomb_is_a_bomb() {
    for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
        let mut small = Vec::new();
        Compressor::new().append(codec, &[0; PIECE], &mut small);
        let mut out = Vec::new();
        assert_eq!(Decompressor::new().append(codec, &small, &mut out, LIMIT), Ok(PIECE), "{codec:?}");
        let bomb = bomb(codec);
        assert!(bomb.len() < BOMB / 10, "{codec:?}");
        if codec == Codec::Zstd {
            out.clear();
            assert_eq!(Decompressor::new().append(codec, &bomb, &mut out, BOMB), Ok(BOMB));
        }
    }
}

#[test]
fn one_frame_of_300_mb_is_refused_at_the_limit() {
    let mut bomb = Vec::new();
    Compressor::new().append(Codec::Zstd, &vec![0; BOMB], &mut bomb);
    assert!(bomb.len() < 100_000);
    let mut out = Vec::new();
    assert_eq!(Decompressor::new().append(Codec::Zstd, &bomb, &mut out, LIMIT), Err(Problem::NoRoom));
    assert!(out.capacity() <= 2 * LIMIT);
}
