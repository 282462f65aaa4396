//! How many records, and bytes of them, fall into which time.
//!
//! Times are counted in buckets of one width, a power of two of milliseconds, aligned to the beginning of 1970. There are
//! at most `MOST` buckets with records: where one more is needed, the width doubles. So memory is bounded whatever the times
//! are, and what two stretches have counted can be put together.

/// The most buckets that have records.
pub const MOST: usize = 64;

/// What the records of one bucket are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The time shifted to the right; -1 holds the records without a time, too.
    pub number: i64,
    /// How many there are.
    pub records: u64,
    /// The bytes of all of them.
    pub bytes: u64,
}

/// Counts of records by their times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// A bucket is 2^shift milliseconds wide.
    pub shift: u32,
    /// In the order of their numbers.
    pub buckets: Vec<Bucket>,
    /// The lowest and the highest time, -1 for a record without a time. None without a record.
    pub span: Option<(i64, i64)>,
    at: usize,
}

impl Times {
    /// Counts one more record.
    #[inline]
    pub fn note(&mut self, time: i64, bytes: u64) {
        self.span = match self.span {
            None => Some((time, time)),
            Some((low, high)) => Some((low.min(time), high.max(time))),
        };
        let number = time >> self.shift;
        match self.buckets.get_mut(self.at) {
            Some(bucket) if bucket.number == number => {
                bucket.records += 1;
                bucket.bytes += bytes;
            }
            _ => self.elsewhere(number, 1, bytes),
        }
    }

    /// Counts the records that another has counted.
    pub fn add(&mut self, other: &Times) {
        if let Some((low, high)) = other.span {
            let (own_low, own_high) = self.span.unwrap_or((low, high));
            self.span = Some((own_low.min(low), own_high.max(high)));
        }
        while self.shift < other.shift {
            self.coarser();
        }
        for bucket in &other.buckets {
            self.elsewhere(bucket.number >> (self.shift - other.shift), bucket.records, bucket.bytes);
        }
    }

    fn elsewhere(&mut self, number: i64, records: u64, bytes: u64) {
        match self.buckets.binary_search_by_key(&number, |bucket| bucket.number) {
            Ok(at) => {
                self.at = at;
                self.buckets[at].records += records;
                self.buckets[at].bytes += bytes;
            }
            Err(at) => {
                self.at = at;
                self.buckets.insert(at, Bucket { number, records, bytes });
                while self.buckets.len() > MOST {
                    self.coarser();
                }
            }
        }
    }

    fn coarser(&mut self) {
        self.shift += 1;
        self.at = 0;
        for bucket in &mut self.buckets {
            bucket.number >>= 1;
        }
        self.buckets.dedup_by(|next, kept| {
            let same = next.number == kept.number;
            if same {
                kept.records += next.records;
                kept.bytes += next.bytes;
            }
            same
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_width_doubles_until_the_buckets_suffice() {
        let mut times = Times::default();
        for time in 0..10_000 {
            times.note(time, 3);
        }
        assert!(times.buckets.len() <= MOST);
        assert_eq!(times.shift, 8);
        assert_eq!(times.buckets.iter().map(|bucket| bucket.records).sum::<u64>(), 10_000);
        assert_eq!(times.buckets.iter().map(|bucket| bucket.bytes).sum::<u64>(), 30_000);
        assert_eq!(times.buckets[1], Bucket { number: 1, records: 256, bytes: 768 });
        assert_eq!(times.span, Some((0, 9_999)));
    }

    #[test]
    fn times_far_apart_and_without_order_stay_narrow() {
        let mut times = Times::default();
        for time in [i64::MAX, 0, -1, i64::MIN, 5, 0] {
            times.note(time, 1);
        }
        assert_eq!(times.shift, 0);
        assert_eq!(times.buckets.iter().map(|bucket| bucket.records).collect::<Vec<_>>(), [1, 1, 2, 1, 1]);
        assert_eq!(times.span, Some((i64::MIN, i64::MAX)));
    }

    #[test]
    fn what_two_have_counted_is_put_together() {
        let of = |from: i64, until: i64, step: usize| {
            let mut times = Times::default();
            (from..until).step_by(step).for_each(|time| times.note(time, 1));
            times
        };
        let (narrow, wide) = (of(100, 110, 1), of(0, 100_000, 7));
        for (mut one, other) in [(narrow.clone(), &wide), (wide.clone(), &narrow)] {
            one.add(other);
            assert_eq!(one.shift, wide.shift);
            assert_eq!(one.buckets.iter().map(|bucket| bucket.records).sum::<u64>(), 10 + 100_000_u64.div_ceil(7));
            assert_eq!(one.span, wide.span);
        }
    }
}
