//! The five codecs of record batches, as Kafka's Java clients and librdkafka write them.
//!
//! Nothing is unpacked without a bound, and nothing is allocated by a length that was only read. All checksums that a
//! format has are compared. Where a format lets several frames lie one behind the other, all of them are read.
//!
//! Source of facts: apache/kafka `org.apache.kafka.common.compress`, snappy-java's `SnappyInputStream`, the LZ4 frame
//! format, RFC 1952 (gzip).

use flate2::{Compress, Compression, Crc, Decompress, FlushCompress, FlushDecompress, Status};
use lz4_flex::block::{self, CompressTable};
use twox_hash::XxHash32;
use zstd_safe::{CCtx, DCtx};

/// Bits 0-2 of a batch's attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names are Kafka's
pub enum Codec {
    None,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

impl Codec {
    /// All of them, in the order of their numbers.
    pub const ALL: [Codec; 5] = [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd];

    /// The codec that a batch's attributes name. None if it does not exist.
    #[inline]
    pub fn of(attributes: i16) -> Option<Codec> {
        Codec::ALL.get(usize::from(attributes as u16 & 7)).copied()
    }
}

/// Why data could not be unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// It unpacks to more bytes than are allowed.
    NoRoom,
    /// It is not what the format says.
    Damaged(&'static str),
}

/// Unpacks one piece of data after another. It keeps what the libraries need from one to the next.
#[derive(Default)]
pub struct Decompressor {
    inflate: Option<Decompress>,
    zstd: Option<DCtx<'static>>,
}

impl Decompressor {
    /// One that has allocated nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Append the unpacked bytes to `out`, and return their number: at most `limit`. Where this fails, `out` is as
    /// before.
    ///
    /// `out` grows with what is really there: first by some times the compressed bytes, then step by step.
    pub fn append(&mut self, codec: Codec, data: &[u8], out: &mut Vec<u8>, limit: usize) -> Result<usize, Problem> {
        let start = out.len();
        if codec == Codec::None {
            if data.len() > limit {
                return Err(Problem::NoRoom);
            }
            out.extend_from_slice(data);
            return Ok(data.len());
        }
        let mut room = limit.min(FIRST_ROOM + FIRST_TIMES * data.len());
        loop {
            out.resize(start + room, 0);
            let result = self.into_slice(codec, data, &mut out[start..]);
            match result {
                Err(Problem::NoRoom) if room < limit => room = limit.min(STEP * room),
                _ => {
                    out.truncate(start + result.unwrap_or(0));
                    return result;
                }
            }
        }
    }

    /// Write the unpacked bytes to the beginning of `out`, and return their number. What lies behind them in `out` may
    /// change, too. `NoRoom` if they are more than `out` has.
    pub fn into_slice(&mut self, codec: Codec, data: &[u8], out: &mut [u8]) -> Result<usize, Problem> {
        if data.is_empty() && codec != Codec::None {
            return Err(Problem::Damaged("there are no bytes"));
        }
        match codec {
            Codec::None => {
                out.get_mut(..data.len()).ok_or(Problem::NoRoom)?.copy_from_slice(data);
                Ok(data.len())
            }
            Codec::Gzip => gunzip(self.inflate.get_or_insert_with(|| Decompress::new(false)), data, out),
            Codec::Snappy => unsnappy(data, out),
            Codec::Lz4 => unlz4(data, out),
            Codec::Zstd => unzstd(self.zstd.get_or_insert_with(DCtx::create), data, out),
        }
    }
}

const FIRST_ROOM: usize = 512;
const FIRST_TIMES: usize = 8;
const STEP: usize = 8;

// ---- gzip

const GZIP_HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
const GZIP_TRAILER: usize = 8;
const HEADER_CRC: u8 = 2;
const EXTRA: u8 = 4;
const NAME: u8 = 8;
const COMMENT: u8 = 16;
const RESERVED: u8 = 0xe0;

/// The members of a gzip file, one behind the other.
fn gunzip(inflate: &mut Decompress, data: &[u8], out: &mut [u8]) -> Result<usize, Problem> {
    let (mut rest, mut written) = (data, 0);
    while !rest.is_empty() {
        let body = behind_gzip_header(rest).ok_or(Problem::Damaged("the gzip header is not one"))?;
        let (taken, size) = inflated(inflate, body, &mut out[written..])?;
        let trailer = body.get(taken..taken + GZIP_TRAILER).ok_or(Problem::Damaged("the gzip trailer is cut short"))?;
        let mut crc = Crc::new();
        crc.update(&out[written..written + size]);
        if number(trailer) != crc.sum() || number(&trailer[4..]) != size as u32 {
            return Err(Problem::Damaged("the gzip trailer says other bytes"));
        }
        written += size;
        rest = &body[taken + GZIP_TRAILER..];
    }
    Ok(written)
}

fn behind_gzip_header(data: &[u8]) -> Option<&[u8]> {
    let (&[0x1f, 0x8b, 8, flags, ..], mut rest) = data.split_first_chunk::<10>()? else { return None };
    if flags & RESERVED != 0 {
        return None;
    }
    if flags & EXTRA != 0 {
        let (length, behind) = rest.split_first_chunk::<2>()?;
        rest = behind.get(usize::from(u16::from_le_bytes(*length))..)?;
    }
    for text in [NAME, COMMENT] {
        if flags & text != 0 {
            rest = &rest[1 + rest.iter().position(|byte| *byte == 0)?..];
        }
    }
    if flags & HEADER_CRC != 0 {
        let (expected, behind) = rest.split_first_chunk::<2>()?;
        let mut crc = Crc::new();
        crc.update(&data[..data.len() - rest.len()]);
        if u16::from_le_bytes(*expected) != crc.sum() as u16 {
            return None;
        }
        rest = behind;
    }
    Some(rest)
}

/// The bytes that one deflated stream takes, and those that it gives.
fn inflated(inflate: &mut Decompress, data: &[u8], out: &mut [u8]) -> Result<(usize, usize), Problem> {
    inflate.reset(false);
    let mut spare = [0; 1]; // a stream whose bytes just fit may still have its end to read
    loop {
        let (taken, size) = (inflate.total_in() as usize, inflate.total_out() as usize);
        let full = size >= out.len();
        let room = if full { &mut spare[..] } else { &mut out[size..] };
        let status = inflate
            .decompress(&data[taken..], room, FlushDecompress::Finish)
            .map_err(|_| Problem::Damaged("the deflated stream is damaged"))?;
        let (now_taken, now_size) = (inflate.total_in() as usize, inflate.total_out() as usize);
        if full && now_size > size {
            return Err(Problem::NoRoom);
        }
        if status == Status::StreamEnd {
            return Ok((now_taken, now_size));
        }
        if (now_taken, now_size) == (taken, size) {
            return Err(Problem::Damaged("the deflated stream is cut short"));
        }
    }
}

fn gzip(deflate: &mut Compress, data: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&GZIP_HEADER);
    deflate.reset();
    loop {
        let taken = deflate.total_in() as usize;
        out.reserve(64 + (data.len() - taken));
        match deflate.compress_vec(&data[taken..], out, FlushCompress::Finish) {
            Ok(Status::StreamEnd) => break,
            Ok(_) => {} // more room is needed
            Err(_) => unreachable!("a stream that was reset takes any bytes"),
        }
    }
    let mut crc = Crc::new();
    crc.update(data);
    out.extend_from_slice(&crc.sum().to_le_bytes());
    out.extend_from_slice(&(data.len() as u32).to_le_bytes());
}

// ---- snappy

const XERIAL_MAGIC: &[u8] = b"\x82SNAPPY\x00";
const XERIAL_HEADER: &[u8; 16] = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"; // version, oldest that reads it
const XERIAL_BLOCK: usize = 32 << 10;
/// A copy of at most 64 bytes takes at least 3, or 2 for at most 11: no input grows more than 22-fold.
const SNAPPY_MOST_EXPANSION: usize = 32;

fn unsnappy(data: &[u8], out: &mut [u8]) -> Result<usize, Problem> {
    if !data.starts_with(XERIAL_MAGIC) {
        return unsnappy_block(data, out); // librdkafka writes one raw block
    }
    let (mut rest, mut written) = (data, 0);
    while !rest.is_empty() {
        if rest.starts_with(XERIAL_MAGIC) {
            // A flush may begin the stream anew.
            rest = rest.get(XERIAL_HEADER.len()..).ok_or(Problem::Damaged("the snappy header is cut short"))?;
            continue;
        }
        let (length, behind) =
            rest.split_first_chunk::<4>().ok_or(Problem::Damaged("the length of a snappy block is cut short"))?;
        let (block, behind) = usize::try_from(i32::from_be_bytes(*length))
            .ok()
            .and_then(|length| behind.split_at_checked(length))
            .ok_or(Problem::Damaged("a snappy block does not fit into the bytes left"))?;
        written += unsnappy_block(block, &mut out[written..])?;
        rest = behind;
    }
    Ok(written)
}

fn unsnappy_block(block: &[u8], out: &mut [u8]) -> Result<usize, Problem> {
    let damaged = |_| Problem::Damaged("a snappy block is damaged");
    let size = snap::raw::decompress_len(block).map_err(damaged)?;
    if size > SNAPPY_MOST_EXPANSION * block.len() {
        return Err(Problem::Damaged("a snappy block claims to hold more than can be in it"));
    }
    let room = out.get_mut(..size).ok_or(Problem::NoRoom)?;
    snap::raw::Decoder::new().decompress(block, room).map_err(damaged)
}

fn snappy(encoder: &mut snap::raw::Encoder, data: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(XERIAL_HEADER);
    for block in data.chunks(XERIAL_BLOCK) {
        let start = out.len();
        out.resize(start + 4 + snap::raw::max_compress_len(block.len()), 0);
        let size = encoder.compress(block, &mut out[start + 4..]).expect("there is room for the longest block");
        out[start..start + 4].copy_from_slice(&(size as u32).to_be_bytes());
        out.truncate(start + 4 + size);
    }
}

// ---- lz4

const LZ4_MAGIC: u32 = 0x184D_2204;
const SKIPPED_MAGIC: u32 = 0x184D_2A50; // of 16 kinds of frames that hold no data
const VERSION: u8 = 0x40;
const VERSION_AND_RESERVED: u8 = 0xc2;
const INDEPENDENT: u8 = 0x20;
const BLOCK_CHECKSUM: u8 = 0x10;
const CONTENT_SIZE: u8 = 0x08;
const CONTENT_CHECKSUM: u8 = 0x04;
const DICTIONARY: u8 = 0x01;
const BLOCKS_OF_64_KIB: u8 = 0x40;
const STORED: u32 = 1 << 31;
const WINDOW: usize = 64 << 10;
const LZ4_BLOCK: usize = 64 << 10;

const LZ4_SHORT: Problem = Problem::Damaged("the lz4 frame is cut short");

/// The lz4 frames of some data, one behind the other.
fn unlz4(data: &[u8], out: &mut [u8]) -> Result<usize, Problem> {
    let (mut rest, mut written) = (data, 0);
    while !rest.is_empty() {
        match next_number(&mut rest).ok_or(LZ4_SHORT)? {
            LZ4_MAGIC => written += unlz4_frame(&mut rest, &mut out[written..])?,
            magic if magic & !0xf == SKIPPED_MAGIC => {
                let size = next_number(&mut rest).ok_or(LZ4_SHORT)?;
                rest = rest.get(size as usize..).ok_or(LZ4_SHORT)?;
            }
            _ => return Err(Problem::Damaged("the lz4 data does not start with the lz4 frame magic")),
        }
    }
    Ok(written)
}

/// One lz4 frame, whose magic was read.
fn unlz4_frame(data: &mut &[u8], out: &mut [u8]) -> Result<usize, Problem> {
    let short = LZ4_SHORT;
    let mut rest = *data;
    let descriptor = rest;
    let (&[flags, sizes], behind) = rest.split_first_chunk::<2>().ok_or(short)?;
    rest = behind;
    if flags & VERSION_AND_RESERVED != VERSION || sizes & 0x8f != 0 || sizes < BLOCKS_OF_64_KIB {
        return Err(Problem::Damaged("the lz4 frame descriptor is not one"));
    }
    if flags & DICTIONARY != 0 {
        return Err(Problem::Damaged("the lz4 frame needs a dictionary"));
    }
    let largest = 1usize << (8 + 2 * (sizes >> 4)); // 64 KiB, 256 KiB, 1 MiB, 4 MiB
    let mut content_size = None;
    if flags & CONTENT_SIZE != 0 {
        let (size, behind) = rest.split_first_chunk::<8>().ok_or(short)?;
        content_size = Some(u64::from_le_bytes(*size));
        rest = behind;
    }
    let described = &descriptor[..descriptor.len() - rest.len()];
    let (&expected, behind) = rest.split_first().ok_or(short)?;
    rest = behind;
    if (XxHash32::oneshot(0, described) >> 8) as u8 != expected {
        return Err(Problem::Damaged("the checksum of the lz4 frame descriptor is wrong"));
    }
    let mut written = 0;
    loop {
        let size = next_number(&mut rest).ok_or(short)?;
        if size == 0 {
            break;
        }
        let (block, behind) = rest.split_at_checked((size & !STORED) as usize).ok_or(short)?;
        rest = behind;
        if flags & BLOCK_CHECKSUM != 0 && next_number(&mut rest).ok_or(short)? != XxHash32::oneshot(0, block) {
            return Err(Problem::Damaged("the checksum of an lz4 block is wrong"));
        }
        let linked = if flags & INDEPENDENT == 0 { WINDOW } else { 0 };
        written += unlz4_block(block, size & STORED != 0, largest, out, written, linked)?;
    }
    if flags & CONTENT_CHECKSUM != 0 && next_number(&mut rest).ok_or(short)? != XxHash32::oneshot(0, &out[..written]) {
        return Err(Problem::Damaged("the checksum of the lz4 content is wrong"));
    }
    if content_size.is_some_and(|size| size != written as u64) {
        return Err(Problem::Damaged("the lz4 frame holds another number of bytes than it says"));
    }
    *data = rest;
    Ok(written)
}

/// The bytes that a block gives, written behind the first `written` bytes of `out`. It may refer to the last `window`
/// of those.
fn unlz4_block(
    block: &[u8],
    stored: bool,
    largest: usize,
    out: &mut [u8],
    written: usize,
    window: usize,
) -> Result<usize, Problem> {
    let (before, room) = out.split_at_mut(written);
    if stored {
        if block.len() > largest {
            return Err(Problem::Damaged("an lz4 block is larger than the frame allows"));
        }
        room.get_mut(..block.len()).ok_or(Problem::NoRoom)?.copy_from_slice(block);
        return Ok(block.len());
    }
    let all = room.len() >= largest;
    let most = room.len().min(largest);
    let room = &mut room[..most];
    let before = &before[before.len().saturating_sub(window)..];
    let result = if before.is_empty() || window == 0 {
        block::decompress_into(block, room)
    } else {
        block::decompress_into_with_dict(block, room, before)
    };
    result.map_err(|problem| match problem {
        block::DecompressError::OutputTooSmall { .. } if !all => Problem::NoRoom,
        _ => Problem::Damaged("an lz4 block is damaged"),
    })
}

/// A frame of independent blocks: Kafka's Java reader refuses others.
fn lz4(table: &mut CompressTable, data: &[u8], out: &mut Vec<u8>) {
    let descriptor = [VERSION | INDEPENDENT, BLOCKS_OF_64_KIB];
    out.extend_from_slice(&LZ4_MAGIC.to_le_bytes());
    out.extend_from_slice(&descriptor);
    out.push((XxHash32::oneshot(0, &descriptor) >> 8) as u8);
    for block in data.chunks(LZ4_BLOCK) {
        let start = out.len();
        out.resize(start + 4 + block::get_maximum_output_size(block.len()), 0);
        let size = block::compress_into_with_table(block, &mut out[start + 4..], table)
            .expect("there is room for the longest block");
        let word = if size < block.len() {
            out.truncate(start + 4 + size);
            size as u32
        } else {
            out.truncate(start + 4);
            out.extend_from_slice(block);
            block.len() as u32 | STORED
        };
        out[start..start + 4].copy_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(&[0; 4]);
}

// ---- zstd

const ZSTD_LEVEL: i32 = 3;

/// The frames of zstd data. Written at once, they need no window beside `out`, whatever they claim.
fn unzstd(context: &mut DCtx<'static>, data: &[u8], out: &mut [u8]) -> Result<usize, Problem> {
    context.decompress(out, data).map_err(|code| {
        let name = zstd_safe::get_error_name(code);
        let small = name == "Destination buffer is too small" && zstd_may_hold_more(data, out.len());
        if small { Problem::NoRoom } else { Problem::Damaged(name) }
    })
}

/// Whether whole frames may hold more than `room` bytes by the sizes that they say. Of a frame that holds more than it
/// says, and of a damaged block, the library says that there is too little room, too.
fn zstd_may_hold_more(data: &[u8], room: usize) -> bool {
    let (mut rest, mut said) = (data, 0u64);
    while !rest.is_empty() {
        let Ok(size) = zstd_safe::find_frame_compressed_size(rest) else { return false };
        let Ok(content) = zstd_safe::get_frame_content_size(rest) else { return false };
        let (Some(content), Some(behind)) = (content, rest.get(size..)) else { return true };
        said = said.saturating_add(content);
        rest = behind;
    }
    said > room as u64
}

fn zstd(context: &mut CCtx<'static>, data: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + zstd_safe::compress_bound(data.len()), 0);
    let size = context.compress(&mut out[start..], data, ZSTD_LEVEL).expect("there is room for the longest frame");
    out.truncate(start + size);
}

// ---- compression

/// Compresses one piece of data after another. It keeps what the libraries need from one to the next.
#[derive(Default)]
pub struct Compressor {
    deflate: Option<Compress>,
    snappy: Option<snap::raw::Encoder>,
    lz4: Option<CompressTable>,
    zstd: Option<CCtx<'static>>,
}

impl Compressor {
    /// One that has allocated nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Append the data to `out`, compressed so that every Kafka client can read it: xerial-framed snappy, lz4 frames of
    /// independent blocks.
    pub fn append(&mut self, codec: Codec, data: &[u8], out: &mut Vec<u8>) {
        match codec {
            Codec::None => out.extend_from_slice(data),
            Codec::Gzip => {
                gzip(self.deflate.get_or_insert_with(|| Compress::new(Compression::default(), false)), data, out);
            }
            Codec::Snappy => snappy(self.snappy.get_or_insert_with(snap::raw::Encoder::new), data, out),
            Codec::Lz4 => lz4(self.lz4.get_or_insert_with(CompressTable::default), data, out),
            Codec::Zstd => zstd(self.zstd.get_or_insert_with(CCtx::create), data, out),
        }
    }
}

#[inline]
fn number(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |word| u32::from_le_bytes(*word))
}

#[inline]
fn next_number(rest: &mut &[u8]) -> Option<u32> {
    let (word, behind) = rest.split_first_chunk::<4>()?;
    *rest = behind;
    Some(u32::from_le_bytes(*word))
}

#[cfg(test)]
#[path = "compression_tests.rs"]
mod tests;
