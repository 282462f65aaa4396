//! Of each key the record that comes last: what Kafka's log cleaner calls an offset map.
//!
//! Source of facts: apache/kafka `SkimpyOffsetMap.java`, which has 16 bytes of hash and 8 of offset for each key.

use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher;

const EMPTY: u64 = 0;
const FIRST_SLOTS: usize = 1 << 6;
const SLOT_BYTES: usize = 24;
const TABLES: usize = 64;
/// The bytes of a pair: a hash, and the number of a record.
pub const PAIR_BYTES: usize = 20;
/// Pairs are divided by the highest bits of their hashes, which neither the tables nor the places in them go by.
pub const BUCKETS: usize = 1 << 10;

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
        (hash.0 / TABLES as u64) & (self.parts - 1) == self.part
    }

    /// Two shares that together have its keys.
    pub fn halves(self) -> (Share, Share) {
        let parts = self.parts * 2;
        (Share { part: self.part, parts }, Share { part: self.part + self.parts, parts })
    }
}

/// The hash of a key. Two keys have the same one only by an accident that never happens, since nobody knows the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hash(u64, u64);

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
        Hash(found.h1, found.h2)
    }
}

/// There is no room for one more key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The number of the last record of each key.
///
/// It has many small tables, which grow one at a time: while one is copied, the others take no more than they have.
pub struct OffsetMap {
    tables: Vec<Table>,
    most_slots: usize,
}

/// Two halves of a hash, and the number of the record plus one.
type Slot = [u64; 3];

#[inline]
fn bucket(slot: &Slot) -> usize {
    (slot[0] >> (64 - BUCKETS.trailing_zeros())) as usize
}

#[derive(Default)]
struct Table {
    slots: Vec<Slot>,
    used: usize,
}

impl OffsetMap {
    /// A map that takes at most so many bytes, and only as many as it needs.
    pub fn new(bytes: usize) -> OffsetMap {
        let most_slots = (bytes / SLOT_BYTES / TABLES).max(2);
        OffsetMap { tables: (0..TABLES).map(|_| Table::of(FIRST_SLOTS.min(most_slots))).collect(), most_slots }
    }

    /// How many keys it has.
    pub fn len(&self) -> usize {
        self.tables.iter().map(|table| table.used).sum()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets all keys, and keeps the memory.
    pub fn clear(&mut self) {
        for table in &mut self.tables {
            table.slots.fill([EMPTY; 3]);
            table.used = 0;
        }
    }

    /// Takes out all keys, as pairs of a hash and a number in the order of their buckets, and keeps the memory. Numbers
    /// must be below 2^32. Also returns for each bucket how many pairs there are in it and in those before it.
    pub fn take_pairs(&mut self) -> (Vec<u8>, Vec<u32>) {
        let slots = || self.tables.iter().flat_map(|table| &table.slots).filter(|slot| slot[2] != EMPTY);
        let mut ends = vec![0u32; BUCKETS];
        slots().for_each(|slot| ends[bucket(slot)] += 1);
        let mut at = 0;
        for end in &mut ends {
            at += std::mem::replace(end, at);
        }
        let mut pairs = vec![0; at as usize * PAIR_BYTES];
        for slot in slots() {
            let end = &mut ends[bucket(slot)];
            let pair = &mut pairs[*end as usize * PAIR_BYTES..][..PAIR_BYTES];
            pair[..8].copy_from_slice(&slot[0].to_le_bytes());
            pair[8..16].copy_from_slice(&slot[1].to_le_bytes());
            pair[16..].copy_from_slice(&((slot[2] - 1) as u32).to_le_bytes());
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
            if self.put(Hash(half(0), half(8)), 0)?.is_some() {
                known.extend_from_slice(&pair[16..]);
            }
        }
        Ok(known)
    }

    /// Forgets the keys that are not in the share.
    pub fn leave(&mut self, share: Share) {
        for table in &mut self.tables {
            let mut left = Table::of(table.slots.len());
            for slot in table.slots.iter().filter(|slot| slot[2] != EMPTY) {
                if share.has(Hash(slot[0], slot[1])) {
                    left.add(*slot);
                }
            }
            *table = left;
        }
    }

    /// Notes that the record of this number has the key. Returns the number of the one that had it before.
    #[inline]
    pub fn put(&mut self, hash: Hash, record: u64) -> Result<Option<u64>, Full> {
        let table = &mut self.tables[hash.0 as usize % TABLES];
        let at = table.place(hash);
        let slot = &mut table.slots[at];
        if slot[2] != EMPTY {
            return Ok(Some(std::mem::replace(&mut slot[2], record + 1) - 1));
        }
        let noted = [hash.0, hash.1, record + 1];
        if (table.used + 1) * 4 > table.slots.len() * 3 {
            table.grow(self.most_slots)?;
            table.add(noted);
        } else {
            table.slots[at] = noted;
            table.used += 1;
        }
        Ok(None)
    }

    /// Brings the places of some hashes into the processor's cache, all at the same time: one after the other, each
    /// would be waited for.
    #[inline]
    pub fn touch(&self, hashes: impl Iterator<Item = Hash>) {
        let mut touched = 0;
        for hash in hashes {
            let table = &self.tables[hash.0 as usize % TABLES];
            let home = table.home(hash);
            let behind = (home + 2).min(table.slots.len() - 1); // in the next line of the cache
            touched ^= table.slots[home][0] ^ table.slots[behind][2];
        }
        std::hint::black_box(touched);
    }

    /// The number of the last record that has the key.
    #[inline]
    pub fn get(&self, hash: Hash) -> Option<u64> {
        let table = &self.tables[hash.0 as usize % TABLES];
        table.slots[table.place(hash)][2].checked_sub(1)
    }

    /// The numbers of all records that have a key, in no order.
    pub fn values(&self) -> impl Iterator<Item = u64> + '_ {
        self.tables.iter().flat_map(|table| &table.slots).filter_map(|slot| slot[2].checked_sub(1))
    }
}

impl Table {
    fn of(slots: usize) -> Table {
        Table { slots: vec![[EMPTY; 3]; slots], used: 0 }
    }

    /// The slot at which the search for a hash begins.
    #[inline]
    fn home(&self, hash: Hash) -> usize {
        ((u128::from(hash.1) * self.slots.len() as u128) >> 64) as usize
    }

    /// The slot of a hash, or the empty one for it.
    #[inline]
    fn place(&self, hash: Hash) -> usize {
        let slots = self.slots.len();
        let mut at = self.home(hash);
        loop {
            let slot = &self.slots[at];
            if slot[2] == EMPTY || (slot[0] == hash.0 && slot[1] == hash.1) {
                return at;
            }
            at += 1;
            if at == slots {
                at = 0;
            }
        }
    }

    fn add(&mut self, slot: Slot) {
        let at = self.place(Hash(slot[0], slot[1]));
        self.slots[at] = slot;
        self.used += 1;
    }

    fn grow(&mut self, most_slots: usize) -> Result<(), Full> {
        let slots = (self.slots.len() * 2).min(most_slots);
        if slots == self.slots.len() {
            return Err(Full);
        }
        let before = std::mem::replace(self, Table::of(slots));
        for slot in before.slots.into_iter().filter(|slot| slot[2] != EMPTY) {
            self.add(slot);
        }
        Ok(())
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

    use super::*;

    #[test]
    fn the_last_record_of_each_key_is_kept_and_a_full_map_says_so() {
        let hasher = KeyHasher::new((1, 2));
        let mut map = OffsetMap::new(24 * 10_000);
        let mut plain = HashMap::new();
        let mut refused = 0;
        for number in 0..30_000u64 {
            let key = (number * 7919 % 9_000).to_be_bytes();
            match map.put(hasher.hash(&key), number) {
                Ok(before) => assert_eq!(plain.insert(key, number), before),
                Err(Full) => refused += 1,
            }
        }
        assert!(map.len() > 7_000 && map.len() <= 7_500);
        assert!(refused > 0);
        assert!(plain.iter().all(|(key, number)| map.get(hasher.hash(key)) == Some(*number)));
        assert_eq!(map.get(hasher.hash(b"none")), None);
        let (one, other) = Share::ALL.halves();
        map.leave(one);
        assert!(map.len() > 3_000 && map.len() < 4_500);
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
        assert!(early[..first].chunks(PAIR_BYTES).all(|pair| pair[7] < 64));
        assert!(early[first..].chunks(PAIR_BYTES).all(|pair| pair[7] >= 64));
        let mut map = OffsetMap::new(1 << 20);
        assert_eq!(map.known_of(&late), Ok(vec![]));
        let known = map.known_of(&early).unwrap();
        let mut known: Vec<u32> = known.chunks(4).map(|some| u32::from_le_bytes(some.try_into().unwrap())).collect();
        known.sort_unstable();
        assert!(known.into_iter().eq(2_000..3_000));
        assert_eq!(OffsetMap::new(24 * 100).known_of(&late), Err(Full));
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
