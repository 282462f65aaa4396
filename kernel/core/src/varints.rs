//! The numbers of records: zigzag, seven bits a byte, the lowest first.

const LONGEST: usize = 10;

/// A number of at most 64 bits, and how many bytes it takes. None if it does not end. Bits above the 64th are dropped.
#[inline]
pub fn varint(data: &[u8]) -> Option<(i64, usize)> {
    let first = *data.first()?;
    if first < 0x80 {
        return Some((unfolded(u64::from(first)), 1));
    }
    unsigned_varint(data).map(|(number, used)| (unfolded(number), used))
}

/// The number at position `at`, which moves behind it.
#[inline]
pub fn take_varint(data: &[u8], at: &mut usize) -> Option<i64> {
    let (number, used) = varint(data.get(*at..)?)?;
    *at += used;
    Some(number)
}

/// The number as `varint` finds it before it is folded back.
pub fn unsigned_varint(data: &[u8]) -> Option<(u64, usize)> {
    let mut number = 0u64;
    for (step, byte) in data.iter().take(LONGEST).enumerate() {
        number |= u64::from(byte & 0x7f) << (7 * step);
        if *byte < 0x80 {
            return Some((number, step + 1));
        }
    }
    None
}

/// A number from its unsigned form.
#[inline]
pub fn unfolded(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

/// Appends a number.
#[inline]
pub fn put_varint(out: &mut Vec<u8>, number: i64) {
    let mut left = ((number << 1) ^ (number >> 63)) as u64;
    if left < 0x80 {
        out.push(left as u8);
        return;
    }
    let mut bytes = [0u8; LONGEST];
    let mut used = 0;
    while left >= 0x80 {
        bytes[used] = left as u8 | 0x80;
        left >>= 7;
        used += 1;
    }
    bytes[used] = left as u8;
    out.extend_from_slice(&bytes[..=used]);
}

/// The bytes that a number takes.
#[inline]
pub fn varint_size(number: i64) -> usize {
    let folded = ((number << 1) ^ (number >> 63)) as u64;
    (70 - (folded | 1).leading_zeros() as usize) / 7
}
