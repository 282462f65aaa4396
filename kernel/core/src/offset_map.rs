//! Of each key the record that comes last: what Kafka's log cleaner calls an offset map.
//!
//! Source of facts: apache/kafka `SkimpyOffsetMap.java`, which has 16 bytes of hash and 8 of offset for each key. Here
//! both are in 16 bytes (docs/design/0012).

use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher;

const FIRST_SLOTS: usize = 1 << 12;
const SLOT_BYTES: usize = 16;
/// The bits of a slot of a compaction that say the number of a record, plus one.
const RECORD_BITS: u32 = 36;
/// The bits of a hash besides its place.
const REST_BITS: u32 = u64::BITS - RECORD_BITS;
/// The bytes of a pair: a hash, and the number of a record.
pub const PAIR_BYTES: usize = 16;
/// Pairs are divided by the highest bits of the rests of their hashes.
pub const BUCKETS: usize = 1 << 10;
/// Records of a compaction are numbered below this.
pub const MOST_RECORDS: u64 = OffsetMap::MOST;

/// Which keys one pass looks at: those of whose hashes the division by `parts`, a power of two, leaves `part`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// See the type.
    pub part: u64,
    /// At least 1.
    pub parts: u64,
}

impl Share {
    /// All keys.
    pub const ALL: Share = Share { part: 0, parts: 1 };

    /// Whether the pass looks at keys of this hash.
    #[inline]
    pub fn has(&self, hash: Hash) -> bool {
        hash.rest & (self.parts - 1) == self.part
    }

    /// Two shares that together have its keys.
    pub fn halves(self) -> (Share, Share) {
        let parts = self.parts * 2;
        (Share { part: self.part, parts }, Share { part: self.part + self.parts, parts })
    }
}

/// The hash of a key: 92 bits, made with a secret that nobody knows. Of 10^8 keys, two have the same one in one of
/// 10^12 compactions; of 10^6 keys, in one of 10^16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hash {
    /// Searches begin where the highest bits of this say.
    place: u64,
    /// `REST_BITS` more.
    rest: u64,
}

/// Makes hashes of keys with a secret.
#[derive(Clone, Copy)]
pub struct KeyHasher(SipHasher13);

impl KeyHasher {
    /// The secret should be new for each compaction.
    pub fn new(secret: (u64, u64)) -> KeyHasher {
        KeyHasher(SipHasher13::new_with_keys(secret.0, secret.1))
    }

    /// The hash of a key.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> Hash {
        let mut hasher = self.0;
        hasher.write(key);
        let found = hasher.finish128();
        Hash { place: found.h1, rest: found.h2 >> (u64::BITS - REST_BITS) }
    }
}

/// There is no room for one more key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// A key and the number of its last record: the complement of the hash's place, and a word of its rest and of the number
/// plus one. All zero: there is none. Of arrays of numbers Rust gets memory that is zero already, and does not touch it.
type Slot = [u64; 2];

const EMPTY: Slot = [0; 2];

/// The slots at the end at which no search begins. Searches end there, too.
#[inline]
fn margin(slots: usize) -> usize {
    slots / 256 + 32
}

#[inline]
fn bucket(hash: Hash) -> usize {
    (hash.rest >> (REST_BITS - BUCKETS.trailing_zeros())) as usize
}

/// The number of the last record of each key.
///
/// Slots are searched one after the other, and lie in the order of places. So a search ends as soon for a key that is
/// not there as for one that is, also when the map is nearly full. The memory is there from the beginning; the map uses
/// a first part of it that grows. With more bits for numbers it keeps fewer of a hash: it forgets the highest of the rest.
pub struct NumberMap<const NUMBER_BITS: u32> {
    memory: Vec<Slot>,
    /// So many slots are in use. The others were never touched, or are empty.
    slots: usize,
    /// Places at which a search may begin: all of those slots but a margin.
    homes: usize,
    keys: usize,
}

/// The map of a compaction.
pub type OffsetMap = NumberMap<RECORD_BITS>;

impl<const NUMBER_BITS: u32> NumberMap<NUMBER_BITS> {
    /// Numbers must be below this.
    pub const MOST: u64 = (1 << NUMBER_BITS) - 1;

    #[inline]
    fn slot_of(hash: Hash, number: u64) -> Slot {
        debug_assert!(number < Self::MOST);
        [!hash.place, hash.rest << NUMBER_BITS | (number + 1)]
    }

    #[inline]
    fn number(slot: &Slot) -> Option<u64> {
        (slot[1] & Self::MOST).checked_sub(1)
    }

    #[inline]
    fn hash(slot: &Slot) -> Hash {
        Hash { place: !slot[0], rest: slot[1] >> NUMBER_BITS }
    }

    #[inline]
    fn have_same_rest(one: &Slot, other: &Slot) -> bool {
        (one[1] ^ other[1]) >> NUMBER_BITS == 0
    }

    /// A map that takes at most so many bytes, and only as many as it needs.
    pub fn new(bytes: usize) -> Self {
        let memory = vec![EMPTY; (bytes / SLOT_BYTES).max(2 * margin(0))];
        let mut map = NumberMap { memory, slots: 0, homes: 0, keys: 0 };
        map.set_slots(FIRST_SLOTS.min(map.memory.len()));
        map
    }

    /// How many keys fit for sure into a map of so many bytes.
    pub fn most_keys(bytes: usize) -> usize {
        bytes / SLOT_BYTES * 3 / 4
    }

    /// Where its memory begins and how many bytes it has, for advice to the operating system.
    pub fn memory(&self) -> (*const u8, usize) {
        (self.memory.as_ptr().cast(), self.memory.len() * SLOT_BYTES)
    }

    /// How many keys it has.
    pub fn len(&self) -> usize {
        self.keys
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.keys == 0
    }

    /// Forgets all keys, and keeps the memory.
    pub fn clear(&mut self) {
        self.memory[..self.slots].fill(EMPTY);
        self.keys = 0;
    }

    /// The hash of each key, and the number of its last record.
    fn entries(&self) -> impl Iterator<Item = (Hash, u64)> + '_ {
        self.memory[..self.slots].iter().filter_map(|slot| Some((Self::hash(slot), Self::number(slot)?)))
    }

    /// Takes out all keys, as pairs of a hash and a number in the order of their buckets, and keeps the memory. Numbers
    /// must be below 2^32. Also returns for each bucket how many pairs there are in it and in those before it.
    pub fn take_pairs(&mut self) -> (Vec<u8>, Vec<u32>) {
        let mut ends = vec![0u32; BUCKETS];
        self.entries().for_each(|(hash, _)| ends[bucket(hash)] += 1);
        let mut at = 0;
        for end in &mut ends {
            at += std::mem::replace(end, at);
        }
        let mut pairs = vec![0; at as usize * PAIR_BYTES];
        for (hash, number) in self.entries() {
            let end = &mut ends[bucket(hash)];
            let pair = &mut pairs[*end as usize * PAIR_BYTES..][..PAIR_BYTES];
            pair[..8].copy_from_slice(&hash.place.to_le_bytes());
            pair[8..].copy_from_slice(&(hash.rest << 32 | number).to_le_bytes());
            *end += 1;
        }
        self.clear();
        (pairs, ends)
    }

    /// Passes over pairs. Returns the numbers of those whose keys the map has, and puts the others into it.
    pub fn known_of(&mut self, pairs: &[u8]) -> Result<Vec<u8>, Full> {
        let mut known = Vec::new();
        for pair in pairs.chunks_exact(PAIR_BYTES) {
            let half = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| pair[at + byte]));
            if self.put(Hash { place: half(0), rest: half(8) >> 32 }, 0)?.is_some() {
                known.extend_from_slice(&pair[8..12]);
            }
        }
        Ok(known)
    }

    /// Forgets the keys that are not in the share.
    pub fn leave(&mut self, share: Share) {
        let mut free = 0;
        self.keys = 0;
        for at in 0..self.slots {
            let slot = std::mem::replace(&mut self.memory[at], EMPTY);
            if slot != EMPTY && share.has(Self::hash(&slot)) {
                free = self.lay(slot, free);
            }
        }
    }

    /// Notes that the record of this number, which is below `MOST`, has the key. Returns the number of the one
    /// that had it before.
    #[inline]
    pub fn put(&mut self, hash: Hash, record: u64) -> Result<Option<u64>, Full> {
        let noted = Self::slot_of(hash, record);
        let at = self.find(&noted);
        let slot = &mut self.memory[at];
        if slot[0] == noted[0] && *slot != EMPTY {
            return Ok(Self::number(&std::mem::replace(slot, noted)));
        }
        self.insert(at, noted)?;
        Ok(None)
    }

    /// Brings the places of some hashes into the processor's cache, all at the same time: one after the other, each
    /// would be waited for.
    #[inline]
    pub fn touch(&self, hashes: impl Iterator<Item = Hash>) {
        let mut touched = 0;
        for hash in hashes {
            let home = self.home(!hash.place);
            // These slots lie in lines of the cache that follow each other.
            touched ^= self.memory[home][0] ^ self.memory[home + 4][0] ^ self.memory[home + 8][0];
        }
        std::hint::black_box(touched);
    }

    /// The number of the last record that has the key.
    #[inline]
    pub fn get(&self, hash: Hash) -> Option<u64> {
        let wanted = Self::slot_of(hash, 0);
        let slot = &self.memory[self.find(&wanted)];
        if slot[0] == wanted[0] { Self::number(slot) } else { None }
    }

    /// The numbers of all records that have a key, in no order.
    pub fn values(&self) -> impl Iterator<Item = u64> + '_ {
        self.entries().map(|(_, number)| number)
    }

    fn set_slots(&mut self, slots: usize) {
        self.slots = slots;
        self.homes = slots - margin(slots);
    }

    /// The slot at which the search for a place, or rather its complement, begins.
    #[inline]
    fn home(&self, place: u64) -> usize {
        ((u128::from(!place) * self.homes as u128) >> 64) as usize
    }

    /// The slot of a key, or the one before which it would lie. The last slot is always empty, and an empty one has the
    /// lowest place: complements fall from slot to slot.
    #[inline]
    fn find(&self, wanted: &Slot) -> usize {
        let mut at = self.home(wanted[0]);
        while self.memory[at][0] > wanted[0] {
            at += 1;
        }
        while self.memory[at][0] == wanted[0]
            && self.memory[at] != EMPTY
            && !Self::have_same_rest(&self.memory[at], wanted)
        {
            at += 1;
        }
        at
    }

    /// Puts a key that is not there before the slot that `find` gave.
    fn insert(&mut self, at: usize, noted: Slot) -> Result<(), Full> {
        let (slots, all) = (self.slots, self.memory.len());
        let most = if slots == all { slots / 32 * 31 } else { slots / 4 * 3 };
        let free = at + self.memory[at..].iter().position(|slot| *slot == EMPTY).expect("the last slot is empty");
        if free + 1 < slots && self.keys < most {
            self.memory.copy_within(at..free, at + 1);
            self.memory[at] = noted;
            self.keys += 1;
            return Ok(());
        }
        if slots == all {
            return Err(Full);
        }
        self.grow((slots * 2).min(all));
        self.insert(self.find(&noted), noted)
    }

    /// Uses more slots. All keys move to the last ones of them, and from there to their places, which never lie behind.
    fn grow(&mut self, slots: usize) {
        let mut last = slots;
        for at in (0..self.slots).rev() {
            if self.memory[at] != EMPTY {
                last -= 1;
                self.memory[last] = std::mem::replace(&mut self.memory[at], EMPTY);
            }
        }
        self.set_slots(slots);
        let mut free = 0;
        self.keys = 0;
        for at in last..slots {
            let slot = std::mem::replace(&mut self.memory[at], EMPTY);
            free = self.lay(slot, free);
        }
    }

    /// Lays a key into the first slot for it from `free` on. Returns the slot behind it.
    #[inline]
    fn lay(&mut self, slot: Slot, free: usize) -> usize {
        let at = self.home(slot[0]).max(free);
        self.memory[at] = slot;
        self.keys += 1;
        at + 1
    }
}

/// A bit for each record.
#[derive(Default)]
pub struct Bits(Vec<u64>);

impl Bits {
    /// The bits that `bytes` has said.
    pub fn of(bytes: &[u8]) -> Bits {
        Bits(bytes.chunks_exact(8).map(|some| u64::from_le_bytes(std::array::from_fn(|at| some[at]))).collect())
    }

    /// All bits.
    pub fn bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|bits| bits.to_le_bytes()).collect()
    }

    /// Sets the bit of a number.
    #[inline]
    pub fn set(&mut self, number: u64) {
        let at = (number / 64) as usize;
        if at >= self.0.len() {
            self.0.resize(at + 1, 0);
        }
        self.0[at] |= 1 << (number % 64);
    }

    /// Whether it is set.
    #[inline]
    pub fn has(&self, number: u64) -> bool {
        self.0.get((number / 64) as usize).is_some_and(|bits| bits >> (number % 64) & 1 == 1)
    }

    /// How many are set from a number on and below another.
    #[inline]
    pub fn count(&self, from: u64, below: u64) -> u64 {
        let below = below.min(self.0.len() as u64 * 64);
        if from >= below {
            return 0;
        }
        let (first, last) = ((from / 64) as usize, ((below - 1) / 64) as usize);
        let mut count = 0;
        for (at, bits) in self.0[first..=last].iter().enumerate() {
            let mut bits = *bits;
            if at == 0 {
                bits &= u64::MAX << (from % 64);
            }
            if first + at == last {
                bits &= u64::MAX >> (63 - (below - 1) % 64);
            }
            count += u64::from(bits.count_ones());
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::collection::vec;
    use proptest::proptest;

    use super::*;

    #[test]
    fn the_last_record_of_each_key_is_kept_and_a_full_map_says_so() {
        let hasher = KeyHasher::new((1, 2));
        let mut map = OffsetMap::new(SLOT_BYTES * 8_000);
        let mut plain = HashMap::new();
        let mut refused = 0;
        for number in 0..30_000u64 {
            let key = (number * 7919 % 9_000).to_be_bytes();
            match map.put(hasher.hash(&key), number) {
                Ok(before) => assert_eq!(plain.insert(key, number), before),
                Err(Full) => refused += 1,
            }
        }
        assert!(map.len() > 4_000 && map.len() <= 7_750, "{}", map.len());
        assert!(refused > 0);
        assert!(plain.iter().all(|(key, number)| map.get(hasher.hash(key)) == Some(*number)));
        assert_eq!(map.get(hasher.hash(b"none")), None);
        let (one, other) = Share::ALL.halves();
        map.leave(one);
        let left = map.len();
        assert!(plain.len() / 3 < left && left < plain.len() / 3 * 2);
        assert!(plain.keys().map(|key| hasher.hash(key)).all(|hash| map.get(hash).is_some() != other.has(hash)));
        map.clear();
        assert!(map.is_empty() && map.get(hasher.hash(&0u64.to_be_bytes())).is_none());
    }

    #[test]
    fn pairs_tell_which_keys_come_again() {
        let (hasher, keys) = (KeyHasher::new((5, 6)), |from: u64, to: u64| (from..to).map(u64::to_be_bytes));
        let pairs_of = |from, to| {
            let mut map = OffsetMap::new(1 << 20);
            keys(from, to).zip(0..).for_each(|(key, number)| assert_eq!(map.put(hasher.hash(&key), number), Ok(None)));
            let (pairs, ends) = map.take_pairs();
            assert!(map.is_empty() && ends.is_sorted() && ends.len() == BUCKETS);
            assert_eq!((ends[BUCKETS - 1], pairs.len() as u64), ((to - from) as u32, (to - from) * PAIR_BYTES as u64));
            (pairs, ends)
        };
        let ((early, ends), (late, _)) = (pairs_of(0, 3_000), pairs_of(2_000, 5_000));
        let first = ends[BUCKETS / 4 - 1] as usize * PAIR_BYTES;
        assert!(early[..first].chunks(PAIR_BYTES).all(|pair| pair[15] < 4));
        assert!(early[first..].chunks(PAIR_BYTES).all(|pair| pair[15] >= 4));
        let mut map = OffsetMap::new(1 << 20);
        assert_eq!(map.known_of(&late), Ok(vec![]));
        let known = map.known_of(&early).unwrap();
        let mut known: Vec<u32> = known.chunks(4).map(|some| u32::from_le_bytes(some.try_into().unwrap())).collect();
        known.sort_unstable();
        assert!(known.into_iter().eq(2_000..3_000));
        assert_eq!(OffsetMap::new(SLOT_BYTES * 100).known_of(&late), Err(Full));
    }

    proptest! {
        /// Places of few bits: many keys want the same slot, have the same place, or lie at the end of a table.
        #[test]
        fn crowded_tables_find_each_key(
            puts in vec((0..4u64, 0..300u64, 0..4u64, 0..1000u64), 0..3000), slots in 64..4000usize,
        ) {
            let mut map = OffsetMap::new(SLOT_BYTES * slots);
            let mut plain = HashMap::new();
            let hash = |(high, low, rest): (u64, u64, u64)| Hash {
                place: [0, 1 << 62, u64::MAX << 14, u64::MAX - 299][high as usize].wrapping_add(low),
                rest,
            };
            for (high, low, rest, number) in puts {
                let key = (high, low, rest);
                match map.put(hash(key), number) {
                    Ok(before) => assert_eq!(plain.insert(key, number), before),
                    Err(Full) => assert!(!plain.contains_key(&key) && plain.len() > 20),
                }
            }
            assert_eq!(map.len(), plain.len());
            let every = (0..4).flat_map(|high| (0..300).flat_map(move |low| (0..4).map(move |rest| (high, low, rest))));
            for key in every {
                assert_eq!(map.get(hash(key)), plain.get(&key).copied());
            }
            let mut entries: Vec<_> = map.entries().collect();
            for (hash, number) in &entries {
                assert_eq!(map.get(*hash), Some(*number));
            }
            entries.dedup();
            assert_eq!(entries.len(), plain.len());
            let share = Share { part: 1, parts: 2 };
            map.leave(share);
            for (key, number) in plain {
                assert_eq!(map.get(hash(key)), share.has(hash(key)).then_some(number));
            }
        }
    }

    #[test]
    fn a_nearly_full_map_takes_what_it_says() {
        let (hasher, bytes) = (KeyHasher::new((7, 8)), 1 << 22);
        let mut map = OffsetMap::new(bytes);
        let most = OffsetMap::most_keys(bytes) as u64;
        let more = most * 6 / 5; // nine of ten slots are used
        for number in 0..more {
            assert_eq!(map.put(hasher.hash(&number.to_be_bytes()), number), Ok(None), "{number} of {most}");
        }
        assert!((0..more).all(|number| map.get(hasher.hash(&number.to_be_bytes())) == Some(number)));
        assert!((more..2 * more).all(|number| map.get(hasher.hash(&number.to_be_bytes())).is_none()));
        assert!((more..2 * more).any(|number| map.put(hasher.hash(&number.to_be_bytes()), number) == Err(Full)));
    }

    #[test]
    fn each_hash_is_in_one_share() {
        let hasher = KeyHasher::new((3, 4));
        for number in 0..1000u32 {
            let hash = hasher.hash(&number.to_be_bytes());
            assert_eq!((0..8).filter(|part| Share { part: *part, parts: 8 }.has(hash)).count(), 1);
        }
        assert!(Share::ALL.has(hasher.hash(b"any")));
        let (one, other) = Share { part: 2, parts: 4 }.halves();
        assert_eq!((one.part, other.part, one.parts), (2, 6, 8));
    }

    #[test]
    fn bits_are_set_alone() {
        let mut bits = Bits::default();
        [0, 63, 64, 1000].into_iter().for_each(|number| bits.set(number));
        bits = Bits::of(&bits.bytes());
        assert_eq!((bits.count(0, 2000), bits.has(63), bits.has(62), bits.has(1 << 40)), (4, true, false, false));
        assert_eq!(
            [(0, 63), (0, 64), (1, 65), (63, 64), (64, 1000), (1000, 1001), (5, 5), (2000, 9000)]
                .map(|(from, below)| bits.count(from, below)),
            [1, 2, 2, 1, 1, 1, 0, 0]
        );
    }
}
