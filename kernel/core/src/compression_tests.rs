use proptest::prelude::*;

use super::*;

const LIMIT: usize = 1 << 20;

fn packed(codec: Codec, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    Compressor::new().append(codec, data, &mut out);
    out
}

fn unpacked(codec: Codec, data: &[u8], limit: usize) -> Result<Vec<u8>, Problem> {
    let mut out = Vec::new();
    Decompressor::new().append(codec, data, &mut out, limit).map(|size| {
        assert_eq!(size, out.len());
        out
    })
}

/// Bytes that compress well, badly, or not at all.
fn contents() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..3000),
        (prop::collection::vec(any::<u8>(), 1..40), 1..6000usize).prop_map(|(piece, times)| piece
            .iter()
            .copied()
            .cycle()
            .take(piece.len() * times)
            .collect()),
        (any::<u64>(), 60_000..140_000usize).prop_map(|(seed, size)| noise(seed, size)),
    ]
}

fn noise(seed: u64, size: usize) -> Vec<u8> {
    let mut state = seed | 1;
    (0..size)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_was_compressed_comes_back(data in contents()) {
        let (mut compressor, mut decompressor) = (Compressor::new(), Decompressor::new());
        for codec in Codec::ALL.into_iter().chain(Codec::ALL) {
            let (mut small, mut out) = (b"before".to_vec(), b"before".to_vec());
            compressor.append(codec, &data, &mut small);
            prop_assert_eq!(decompressor.append(codec, &small[6..], &mut out, data.len()), Ok(data.len()));
            prop_assert_eq!(&out[6..], &data[..]);
            prop_assert_eq!(&out[..6], b"before");
        }
    }

    #[test]
    fn one_byte_more_than_allowed_is_refused(data in contents()) {
        prop_assume!(!data.is_empty());
        for codec in Codec::ALL {
            prop_assert_eq!(unpacked(codec, &packed(codec, &data), data.len() - 1), Err(Problem::NoRoom));
        }
    }

    #[test]
    fn what_does_not_shrink_hardly_grows(seed in any::<u64>(), size in 1..200_000usize) {
        let data = noise(seed, size);
        for codec in Codec::ALL {
            // `surely_fit` of Python's relies on it.
            prop_assert!(packed(codec, &data).len() <= size + size / 256 + 128, "{:?}", codec);
        }
    }

    #[test]
    fn any_bytes_are_unpacked_or_refused(data in prop::collection::vec(any::<u8>(), 0..300)) {
        for codec in Codec::ALL {
            if let Ok(out) = unpacked(codec, &data, LIMIT) {
                prop_assert!(out.len() <= LIMIT);
            }
        }
    }

    #[test]
    fn damaged_data_never_panics_and_never_exceeds_the_limit(
        data in contents(), at in any::<prop::sample::Index>(), bits in 1..=255u8, cut in any::<prop::sample::Index>()
    ) {
        for codec in Codec::ALL {
            let mut small = packed(codec, &data);
            let whole = small.len();
            if whole == 0 {
                continue;
            }
            small[at.index(whole)] ^= bits;
            let _ = unpacked(codec, &small, data.len());
            small.truncate(cut.index(whole));
            let _ = unpacked(codec, &small, data.len());
        }
    }

    #[test]
    fn gzip_that_was_changed_behind_its_header_is_refused_or_gives_the_same(
        data in contents(), at in any::<prop::sample::Index>(), bits in 1..=255u8
    ) {
        let mut small = packed(Codec::Gzip, &data);
        let at = 10 + at.index(small.len() - 10);
        small[at] ^= bits;
        if let Ok(out) = unpacked(Codec::Gzip, &small, data.len()) {
            prop_assert_eq!(out, data);
        }
    }

    #[test]
    fn an_lz4_frame_with_a_content_checksum_gives_no_other_bytes_when_one_was_changed(
        data in contents(), at in any::<prop::sample::Index>(), bits in 1..=255u8,
        flags in prop::sample::select(vec![0, INDEPENDENT, BLOCK_CHECKSUM, BLOCK_CHECKSUM | CONTENT_SIZE | INDEPENDENT])
    ) {
        let mut frame = lz4_frame(&data, flags | CONTENT_CHECKSUM);
        prop_assert_eq!(unpacked(Codec::Lz4, &frame, data.len()), Ok(data.clone()));
        let at = at.index(frame.len());
        frame[at] ^= bits;
        if let Ok(out) = unpacked(Codec::Lz4, &frame, data.len()) {
            prop_assert_eq!(out, data, "byte {} was changed", at);
        }
    }

    #[test]
    fn an_lz4_block_with_a_checksum_is_refused_when_a_byte_was_changed(
        data in prop::collection::vec(any::<u8>(), 1..2000), at in any::<prop::sample::Index>(), bits in 1..=255u8
    ) {
        let mut frame = lz4_frame(&data, BLOCK_CHECKSUM);
        let behind_head = frame.len() - 11 - 4; // magic, descriptor and its checksum, length of the block; the end mark
        frame[11 + at.index(behind_head)] ^= bits;
        prop_assert_eq!(
            unpacked(Codec::Lz4, &frame, data.len()), Err(Problem::Damaged("the checksum of an lz4 block is wrong"))
        );
    }
}

/// An lz4 frame as a writer with these flags makes it, in blocks of 64 KiB.
fn lz4_frame(data: &[u8], flags: u8) -> Vec<u8> {
    let mut out = LZ4_MAGIC.to_le_bytes().to_vec();
    let mut descriptor = vec![VERSION | flags, BLOCKS_OF_64_KIB];
    if flags & CONTENT_SIZE != 0 {
        descriptor.extend_from_slice(&(data.len() as u64).to_le_bytes());
    }
    out.extend_from_slice(&descriptor);
    out.push((XxHash32::oneshot(0, &descriptor) >> 8) as u8);
    for (number, block) in data.chunks(LZ4_BLOCK).enumerate() {
        let before = &data[..number * LZ4_BLOCK];
        let before = &before[before.len().saturating_sub(WINDOW)..];
        let mut small = vec![0; block::get_maximum_output_size(block.len())];
        let size = if flags & INDEPENDENT == 0 && !before.is_empty() {
            block::compress_into_with_dict(block, &mut small, before).unwrap()
        } else {
            block::compress_into(block, &mut small).unwrap()
        };
        let (word, bytes) =
            if size < block.len() { (size as u32, &small[..size]) } else { (block.len() as u32 | STORED, block) };
        out.extend_from_slice(&word.to_le_bytes());
        out.extend_from_slice(bytes);
        if flags & BLOCK_CHECKSUM != 0 {
            out.extend_from_slice(&XxHash32::oneshot(0, bytes).to_le_bytes());
        }
    }
    out.extend_from_slice(&[0; 4]);
    if flags & CONTENT_CHECKSUM != 0 {
        out.extend_from_slice(&XxHash32::oneshot(0, data).to_le_bytes());
    }
    out
}

#[test]
fn a_bomb_is_refused_before_it_takes_more_than_the_limit() {
    for (codec, size) in
        [(Codec::Zstd, 300 << 20), (Codec::Gzip, 8 << 20), (Codec::Lz4, 8 << 20), (Codec::Snappy, 8 << 20)]
    {
        let bomb = packed(codec, &vec![0; size]);
        let mut out = Vec::new();
        assert_eq!(Decompressor::new().append(codec, &bomb, &mut out, LIMIT), Err(Problem::NoRoom), "{codec:?}");
        assert!(out.capacity() <= 2 * LIMIT, "{codec:?}");
    }
}

#[test]
fn a_claimed_length_allocates_nothing() {
    let zstd_says_an_exabyte = [0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0x01, 0, 0];
    let snappy_says_4_gib = [0xff, 0xff, 0xff, 0xff, 0x0f, 0x00];
    for (codec, data) in [(Codec::Zstd, &zstd_says_an_exabyte[..]), (Codec::Snappy, &snappy_says_4_gib[..])] {
        let mut out = Vec::new();
        assert!(Decompressor::new().append(codec, data, &mut out, LIMIT).is_err(), "{codec:?}");
        assert!(out.capacity() <= 2 * LIMIT, "{codec:?}");
    }
}

#[test]
fn gzip_of_several_members_with_all_header_fields_is_read() {
    let mut first = vec![0x1f, 0x8b, 8, HEADER_CRC | EXTRA | NAME | COMMENT, 0, 0, 0, 0, 0, 3];
    first.extend_from_slice(b"\x03\x00abcname\0comment\0");
    let mut crc = Crc::new();
    crc.update(&first);
    first.extend_from_slice(&(crc.sum() as u16).to_le_bytes());
    first.extend_from_slice(&packed(Codec::Gzip, b"hello, ")[10..]);
    let mut both = first.clone();
    both.extend_from_slice(&packed(Codec::Gzip, b"world"));
    assert_eq!(unpacked(Codec::Gzip, &both, LIMIT).as_deref(), Ok(&b"hello, world"[..]));
    both[11] ^= 1; // the extra field: now the CRC of the header is wrong
    assert!(unpacked(Codec::Gzip, &both, LIMIT).is_err());
}

#[test]
fn xerial_snappy_may_begin_anew_and_raw_snappy_is_one_block() {
    let mut both = packed(Codec::Snappy, b"hello, ");
    both.extend_from_slice(&packed(Codec::Snappy, b"world"));
    assert_eq!(unpacked(Codec::Snappy, &both, LIMIT).as_deref(), Ok(&b"hello, world"[..]));
    let raw = snap::raw::Encoder::new().compress_vec(b"hello").unwrap();
    assert_eq!(unpacked(Codec::Snappy, &raw, LIMIT).as_deref(), Ok(&b"hello"[..]));
    assert!(unpacked(Codec::Snappy, &both[..both.len() - 1], LIMIT).is_err());
}

#[test]
fn a_zstd_frame_that_holds_more_than_it_says_is_damaged_and_not_too_large() {
    let data: Vec<u8> = b"text, again and again ".iter().copied().cycle().take(1700).collect();
    let frame = packed(Codec::Zstd, &data);
    let (mut damaged, mut large) = (0, 0);
    for at in 0..frame.len() {
        for flip in 1..=255 {
            let mut wrong = frame.clone();
            wrong[at] ^= flip;
            match unpacked(Codec::Zstd, &wrong, LIMIT) {
                Err(Problem::Damaged(_)) => damaged += 1,
                Err(Problem::NoRoom) => large += 1,
                Ok(_) => {}
            }
        }
    }
    assert!(damaged > 1000);
    assert_eq!(large, 0, "1,700 bytes fit into a MiB");
    let two = [frame.clone(), frame].concat();
    assert_eq!(unpacked(Codec::Zstd, &two, 3399), Err(Problem::NoRoom));
    assert_eq!(unpacked(Codec::Zstd, &two, 3400).map(|out| out.len()), Ok(3400));
}

#[test]
fn frames_that_are_cut_short_or_followed_by_more_are_refused() {
    let frame = packed(Codec::Lz4, b"hello, world");
    for cut in 0..frame.len() {
        assert!(unpacked(Codec::Lz4, &frame[..cut], LIMIT).is_err(), "{cut}");
    }
    assert!(unpacked(Codec::Lz4, &[&frame[..], b"x"].concat(), LIMIT).is_err());
    let frame = packed(Codec::Zstd, b"hello, world");
    for cut in 1..frame.len() {
        assert!(unpacked(Codec::Zstd, &frame[..cut], LIMIT).is_err(), "{cut}");
    }
}
