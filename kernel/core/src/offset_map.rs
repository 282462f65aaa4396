//! Of each key the record that comes last: what Kafka's log cleaner calls an offset map.
//!
//! Source of facts: apache/kafka `SkimpyOffsetMap.java`, which has 16 bytes of hash and 8 of offset for each key.

use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher;

const EMPTY: u64 = 0;
const FIRST_SLOTS: usize = 1 << 12;
const SLOT_BYTES: usize = 24;

/// Which keys one pass looks at: those of whose hashes the division by `parts` leaves `part`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// See the type.
    pub part: u32,
    /// At least 1.
    pub parts: u32,
}

impl Share {
    /// All keys.
    pub const ALL: Share = Share { part: 0, parts: 1 };

    /// Whether the pass looks at keys of this hash.
    #[inline]
    pub fn has(&self, hash: Hash) -> bool {
        self.parts == 1 || (hash.0 % u64::from(self.parts)) as u32 == self.part
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
pub struct OffsetMap {
    /// Two halves of a hash, and the number of the record plus one.
    slots: Vec<[u64; 3]>,
    used: usize,
    most_slots: usize,
}

impl OffsetMap {
    /// A map that takes at most so many bytes, and only as many as it needs.
    pub fn new(bytes: usize) -> OffsetMap {
        let most_slots = (bytes / SLOT_BYTES).max(2);
        OffsetMap { slots: vec![[EMPTY; 3]; FIRST_SLOTS.min(most_slots)], used: 0, most_slots }
    }

    /// How many keys it has.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Forgets all keys, and keeps the memory.
    pub fn clear(&mut self) {
        self.slots.fill([EMPTY; 3]);
        self.used = 0;
    }

    /// Notes that the record of this number has the key. Returns the number of the one that had it before.
    #[inline]
    pub fn put(&mut self, hash: Hash, record: u64) -> Result<Option<u64>, Full> {
        let mut at = self.place(hash);
        if self.slots[at][2] != EMPTY {
            let before = self.slots[at][2] - 1;
            self.slots[at][2] = record + 1;
            return Ok(Some(before));
        }
        if (self.used + 1) * 4 > self.slots.len() * 3 {
            self.grow()?;
            at = self.place(hash);
        }
        self.slots[at] = [hash.0, hash.1, record + 1];
        self.used += 1;
        Ok(None)
    }

    /// Whether a record has the key.
    #[inline]
    pub fn has(&self, hash: Hash) -> bool {
        self.slots[self.place(hash)][2] != EMPTY
    }

    /// The number of the record that has the key.
    #[inline]
    pub fn get(&self, hash: Hash) -> Option<u64> {
        self.slots[self.place(hash)][2].checked_sub(1)
    }

    /// The numbers of all records that have a key, in no order.
    pub fn values(&self) -> impl Iterator<Item = u64> + '_ {
        self.slots.iter().filter_map(|slot| slot[2].checked_sub(1))
    }

    /// The slot of a hash, or the empty one for it.
    #[inline]
    fn place(&self, hash: Hash) -> usize {
        let slots = self.slots.len();
        let mut at = ((u128::from(hash.1) * slots as u128) >> 64) as usize;
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

    fn grow(&mut self) -> Result<(), Full> {
        let slots = (self.slots.len() * 2).min(self.most_slots);
        if slots == self.slots.len() {
            return Err(Full);
        }
        let before = std::mem::replace(&mut self.slots, vec![[EMPTY; 3]; slots]);
        for slot in before {
            if slot[2] != EMPTY {
                let at = self.place(Hash(slot[0], slot[1]));
                self.slots[at] = slot;
            }
        }
        Ok(())
    }
}

/// A bit for each record.
#[derive(Default)]
pub struct Bits(Vec<u64>);

impl Bits {
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

    /// How many are set.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|bits| u64::from(bits.count_ones())).sum()
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
        assert_eq!(map.len(), 7_500);
        assert!(refused > 0);
        assert!(plain.keys().all(|key| map.has(hasher.hash(key))));
        assert!(!map.has(hasher.hash(b"none")));
        map.clear();
        assert!(map.is_empty() && !map.has(hasher.hash(&0u64.to_be_bytes())));
    }

    #[test]
    fn each_hash_is_in_one_share() {
        let hasher = KeyHasher::new((3, 4));
        for number in 0..1000u32 {
            let hash = hasher.hash(&number.to_be_bytes());
            assert_eq!((0..5).filter(|part| Share { part: *part, parts: 5 }.has(hash)).count(), 1);
        }
        assert!(Share::ALL.has(hasher.hash(b"any")));
    }

    #[test]
    fn bits_are_set_alone() {
        let mut bits = Bits::default();
        [0, 63, 64, 1000].into_iter().for_each(|number| bits.set(number));
        assert_eq!((bits.count(), bits.has(63), bits.has(62), bits.has(1 << 40)), (4, true, false, false));
    }
}
