//! The batches of a partition that a restore sends: which go as they are, which go together, and these sealed.
//!
//! Which go together follows from the bytes of the archive and the limits alone, never from how they were read or what
//! a compressor made of them: every attempt of a task, and every version, must find the same bounds.

use std::collections::HashMap;

use crate::clip::{Clip, Wanted};
use crate::compression::{Codec, Compressor, Decompressor, Problem};
use crate::header::{HEADER_SIZE, Header, MAGIC, checksum, checksum_of};
use crate::headers::{APPEND_TIME, CONTROL, DELETE_HORIZON, TRANSACTIONAL};
use crate::packer::{Packer, cut, repacked_size};
use crate::records::{Odd, with_times};

const ENOUGH: usize = 1 << 20; // bytes of merged batches that are made in one go
const CUT_AHEAD: usize = 2 << 20; // bytes to send that are cut from a large batch in one go

const SEQUENCES: i64 = 1 << 31; // after 2^31 - 1 comes 0

/// Transactions that were aborted: spans of offsets (first, last) of each producer, which rise and share no offset.
pub type Spans = HashMap<i64, Vec<(i64, i64)>>;

/// What is fixed for a partition.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The producer that sends the batches.
    pub producer_id: i64,
    /// A batch of so many records or fewer may go with others, if it has no more than `small_bytes`.
    pub small_records: i32,
    /// See `small_records`.
    pub small_bytes: usize,
    /// A batch that unpacks to more bytes does not go with others.
    pub unpacked: usize,
    /// The archived bytes of batches that go together.
    pub limit: usize,
    /// The most bytes of a batch before compression, unless one record has more.
    pub most: usize,
    /// So many records of the stream are in the target already: of these only sizes are wanted.
    pub done: i64,
    /// The aborted transactions.
    pub aborted: Spans,
    /// What of the partition is wanted.
    pub clip: Clip,
}

/// Whether one of these transactions has this batch.
#[inline]
pub fn holds(transactions: &Spans, header: &Header) -> bool {
    let Some(spans) = transactions.get(&header.producer_id) else {
        return false;
    };
    let behind = spans.partition_point(|(first, _)| *first <= header.base_offset);
    behind > 0 && header.base_offset <= spans[behind - 1].1
}

/// A batch to send.
#[derive(Debug, PartialEq, Eq)]
pub struct Item {
    /// The records of the stream before it.
    pub index: i64,
    /// Its records.
    pub count: i64,
    /// The bytes of the whole batch.
    pub size: usize,
    /// Its bytes, or those of its header, if it is sent `as_it_is`. None if it is in the target already.
    pub data: Option<Vec<u8>>,
    /// Rows (first source offset, count) for its records, in order.
    pub rows: Vec<(i64, i64)>,
    /// How many of the records had the time of the append.
    pub append_times: i64,
    /// The position of the batch in the stretch, if its records are sent from there.
    pub as_it_is: Option<usize>,
}

/// Why `feed` ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// All batches of the stretch were taken.
    End,
    /// Enough was made for now.
    Enough,
    /// The next batch is one that the caller must look at.
    Odd,
    /// The records of a batch that were to be packed do not fit together: see `damaged`.
    Damaged,
}

struct Member {
    header: Header,
    start: usize,
    end: usize,
}

/// Turns archived batches into those to send.
pub struct Merger {
    plan: Plan,
    index: i64,
    group: Vec<Member>,
    /// The unpacked records of the group, one member's behind the other's.
    arena: Vec<u8>,
    /// The first member as it is archived, if it may be sent like that.
    first: Vec<u8>,
    bytes: usize,
    weight: usize,
    packer: Packer,
    compressor: Compressor,
    decompressor: Decompressor,
    damaged: Option<(Header, Vec<u8>)>,
}

impl Merger {
    /// The stream of a partition from its beginning.
    pub fn new(plan: Plan) -> Merger {
        Merger {
            plan,
            index: 0,
            group: Vec::new(),
            arena: Vec::new(),
            first: Vec::new(),
            bytes: 0,
            weight: 0,
            packer: Packer::default(),
            compressor: Compressor::new(),
            decompressor: Decompressor::new(),
            damaged: None,
        }
    }

    /// The records of the stream so far.
    pub fn index(&self) -> i64 {
        self.index
    }

    /// Notes that the caller has made batches of so many records.
    pub fn passed(&mut self, records: i64) {
        self.index += records;
    }

    /// The header and the unpacked records of the batch that was found damaged.
    pub fn damaged(&self) -> Option<(&Header, &[u8])> {
        self.damaged.as_ref().map(|(header, packed)| (header, &packed[..]))
    }

    /// Takes the batches of a stretch from position `at` on, whose CRCs were checked. Returns the position of the first
    /// that was not taken, and why. `items` gets the batches that are ready.
    pub fn feed(&mut self, stretch: &[u8], at: usize, items: &mut Vec<Item>) -> (usize, Stop) {
        let mut at = at;
        let mut made = 0;
        while at < stretch.len() {
            if made >= ENOUGH {
                return (at, Stop::Enough);
            }
            let before = items.len();
            let taken = match whole_batch(stretch, at) {
                Some((header, batch)) => self.take(header, batch, at, items),
                None => Err(Stop::Odd),
            };
            made += items[before..].iter().map(|item| item.data.as_ref().map_or(0, Vec::len)).sum::<usize>();
            match taken {
                Ok(size) => at += size,
                Err(stop) => return (at, stop),
            }
        }
        (at, Stop::End)
    }

    /// Takes a batch over as a member of a group, with its records unpacked by the caller. It must weigh no more than
    /// `Plan::most`.
    pub fn member(&mut self, header: Header, batch: &[u8], packed: &[u8], items: &mut Vec<Item>) -> Result<(), Odd> {
        let start = self.arena.len();
        self.arena.extend_from_slice(packed);
        let header = if self.is_cut(&header) { self.leave_wanted(&header, start)? } else { header };
        if header.record_count == 0 { Ok(()) } else { self.join(header, batch, start, items) }
    }

    /// Whether the records of a batch must be looked at one by one, since some may lie outside of what is wanted.
    pub fn is_cut(&self, header: &Header) -> bool {
        self.plan.clip.wanted(header) == Wanted::Some
    }

    /// Leaves the wanted records of a batch in the arena, whose records lie there from `start` on.
    fn leave_wanted(&mut self, header: &Header, start: usize) -> Result<Header, Odd> {
        let left = self.plan.clip.leave(header, &mut self.arena, start);
        if left.is_err() {
            self.damaged = Some((*header, self.arena[start..].to_vec()));
        }
        left
    }

    /// The batch that was kept back for more to come.
    pub fn finish(&mut self, items: &mut Vec<Item>) -> Result<(), Odd> {
        self.flush(items, self.arena.len())
    }

    /// The batches for one that is too large to be built anew as a whole: those behind the first `taken` records, some
    /// MiB of them. `packed` are its unpacked records. Records that are not wanted are left out, and `taken` does not
    /// count them.
    pub fn cut(&mut self, header: &Header, packed: &[u8], taken: i64, items: &mut Vec<Item>) -> Result<(), Odd> {
        if !self.is_cut(header) {
            return self.cut_whole(header, packed, taken, items);
        }
        let mut wanted = packed.to_vec();
        let header = self.plan.clip.leave(header, &mut wanted, 0)?;
        if header.record_count == 0 { Ok(()) } else { self.cut_whole(&header, &wanted, taken, items) }
    }

    fn cut_whole(&mut self, header: &Header, packed: &[u8], taken: i64, items: &mut Vec<Item>) -> Result<(), Odd> {
        let codec = Codec::of(header.attributes).ok_or(Odd)?;
        let (most, mut passed, mut made) = (self.plan.most, 0, 0);
        cut(packed, header.record_count, most, |start, end, count| {
            passed += i64::from(count);
            if passed > taken {
                self.packer.clear();
                self.packer.add(&packed[start..end], &Header { record_count: count, ..*header })?;
                let item = self.packed(codec)?;
                made += item.size;
                items.push(item);
            }
            Ok(made <= CUT_AHEAD)
        })
    }

    /// Takes a batch, and returns its size.
    #[inline]
    fn take(&mut self, header: Header, batch: &[u8], at: usize, items: &mut Vec<Item>) -> Result<usize, Stop> {
        if self.is_unseen(&header) {
            return Ok(batch.len());
        }
        let wanted = self.plan.clip.wanted(&header);
        if wanted == Wanted::Nothing {
            return Ok(batch.len());
        }
        let rebuild = must_be_rebuilt(&header);
        if wanted == Wanted::All && !rebuild && !self.is_small(&header) {
            self.send_as_it_is(&header, batch, at, items)?;
            return Ok(batch.len());
        }
        let codec = Codec::of(header.attributes).ok_or(Stop::Odd)?;
        let start = self.arena.len();
        let fits = match self.decompressor.append(codec, &batch[HEADER_SIZE..], &mut self.arena, self.plan.unpacked) {
            Ok(size) => repacked_size(size, header.record_count as usize) <= self.plan.most,
            Err(Problem::NoRoom) => false,
            Err(Problem::Damaged(_)) => return Err(Stop::Odd),
        };
        if !fits {
            self.arena.truncate(start);
            if rebuild || wanted == Wanted::Some {
                return Err(Stop::Odd);
            }
            self.send_as_it_is(&header, batch, at, items)?;
            return Ok(batch.len());
        }
        let mut left = header;
        if wanted == Wanted::Some {
            left = self.leave_wanted(&header, start).map_err(|Odd| Stop::Damaged)?;
        }
        if left == header && !rebuild && !self.is_small(&header) {
            self.arena.truncate(start);
            self.send_as_it_is(&header, batch, at, items)?;
        } else if left.record_count > 0 {
            self.join(left, batch, start, items).map_err(|Odd| Stop::Damaged)?;
        }
        Ok(batch.len())
    }

    #[inline]
    fn is_small(&self, header: &Header) -> bool {
        header.record_count <= self.plan.small_records && header.size() <= self.plan.small_bytes
    }

    /// Whether consumers of committed records never see this batch.
    #[inline]
    fn is_unseen(&self, header: &Header) -> bool {
        header.attributes & CONTROL != 0
            || header.record_count == 0
            || header.attributes & TRANSACTIONAL != 0 && holds(&self.plan.aborted, header)
    }

    /// Adds a member whose records lie in the arena from `start` on; the group before it ends, if both do not fit.
    fn join(&mut self, header: Header, batch: &[u8], start: usize, items: &mut Vec<Item>) -> Result<(), Odd> {
        let weight = repacked_size(self.arena.len() - start, header.record_count as usize);
        if let Some(first) = self.group.first() {
            let together = Codec::of(first.header.attributes) == Codec::of(header.attributes)
                && self.bytes + batch.len() <= self.plan.limit
                && self.weight + weight <= self.plan.most;
            if !together {
                self.flush(items, start)?;
            }
        }
        if self.group.is_empty() {
            self.first.clear();
            if !must_be_rebuilt(&header) {
                self.first.extend_from_slice(batch);
            }
        }
        let start = self.group.last().map_or(0, |last| last.end);
        self.group.push(Member { header, start, end: self.arena.len() });
        self.bytes += batch.len();
        self.weight += weight;
        Ok(())
    }

    /// Ends the group. What lies in the arena from `rest` on stays there, and comes to its beginning.
    fn flush(&mut self, items: &mut Vec<Item>, rest: usize) -> Result<(), Odd> {
        if !self.group.is_empty() {
            let item = if self.group.len() == 1 && !self.first.is_empty() { self.alone() } else { self.together()? };
            items.push(item);
        }
        self.group.clear();
        self.arena.drain(..rest);
        (self.bytes, self.weight) = (0, 0);
        Ok(())
    }

    /// The only member of a group, with its records as they are.
    fn alone(&mut self) -> Item {
        let header = self.group[0].header;
        let size = self.first.len();
        let mut item = self.unchanged(&header, &self.first, None);
        if let Some(data) = &mut item.data {
            data.extend_from_slice(&self.first[HEADER_SIZE..]);
            debug_assert_eq!(data.len(), size);
        }
        self.index += item.count;
        item
    }

    fn together(&mut self) -> Result<Item, Odd> {
        self.packer.clear();
        for member in &self.group {
            let packed = &self.arena[member.start..member.end];
            if self.packer.add(packed, &member.header).is_err() {
                self.damaged = Some((member.header, packed.to_vec()));
                return Err(Odd);
            }
        }
        self.packed(Codec::of(self.group[0].header.attributes).ok_or(Odd)?)
    }

    /// All records that the packer has, as one batch.
    fn packed(&mut self, codec: Codec) -> Result<Item, Odd> {
        let packer = &mut self.packer;
        let mut data = Vec::with_capacity(HEADER_SIZE + packer.body.len() / if codec == Codec::None { 1 } else { 2 });
        data.resize(HEADER_SIZE, 0);
        self.compressor.append(codec, &packer.body, &mut data);
        let mut header = Header {
            base_offset: 0,
            batch_length: i32::try_from(data.len() - crate::header::LOG_OVERHEAD).map_err(|_| Odd)?,
            leader_epoch: -1,
            magic: MAGIC,
            crc: 0,
            attributes: codec as i16,
            last_offset_delta: i32::try_from(packer.count - 1).map_err(|_| Odd)?,
            base_timestamp: packer.base_timestamp,
            max_timestamp: packer.max_timestamp,
            producer_id: self.plan.producer_id,
            producer_epoch: 0,
            base_sequence: (self.index % SEQUENCES) as i32,
            record_count: i32::try_from(packer.count).map_err(|_| Odd)?,
        };
        data[..HEADER_SIZE].copy_from_slice(&header.bytes());
        header.crc = checksum(&data);
        data[..HEADER_SIZE].copy_from_slice(&header.bytes());
        let item = Item {
            index: self.index,
            count: packer.count,
            size: data.len(),
            data: (self.index + packer.count > self.plan.done).then_some(data),
            rows: std::mem::take(&mut packer.rows),
            append_times: packer.append_times,
            as_it_is: None,
        };
        self.index += item.count;
        Ok(item)
    }

    fn send_as_it_is(&mut self, header: &Header, batch: &[u8], at: usize, items: &mut Vec<Item>) -> Result<(), Stop> {
        self.flush(items, self.arena.len()).map_err(|Odd| Stop::Damaged)?;
        let item = self.unchanged(header, batch, Some(at));
        self.index += item.count;
        items.push(item);
        Ok(())
    }

    /// A batch with its records as they are; its data is its new header.
    fn unchanged(&self, header: &Header, batch: &[u8], at: Option<usize>) -> Item {
        let count = i64::from(header.record_count);
        let wanted = self.index + count > self.plan.done;
        Item {
            index: self.index,
            count,
            size: batch.len(),
            data: wanted.then(|| {
                let room = HEADER_SIZE + if at.is_none() { batch.len() } else { 0 };
                let mut data = Vec::with_capacity(room);
                data.extend_from_slice(&self.readdressed(header, &batch[HEADER_SIZE..]));
                data
            }),
            rows: vec![(header.base_offset, count)],
            append_times: 0,
            as_it_is: at,
        }
    }

    /// The header of a batch as a producer may send it with these records: offset, producer fields, bits and CRC are
    /// made anew.
    fn readdressed(&self, header: &Header, records: &[u8]) -> [u8; HEADER_SIZE] {
        let mut made = Header {
            base_offset: 0,
            leader_epoch: -1,
            crc: 0,
            attributes: header.attributes & !(DELETE_HORIZON | TRANSACTIONAL),
            producer_id: self.plan.producer_id,
            producer_epoch: 0,
            base_sequence: (self.index % SEQUENCES) as i32,
            ..*header
        };
        made.crc = checksum_of(&made, records);
        made.bytes()
    }
}

/// The whole batch of magic 2 at a position, its header `with_times`. None if there is none.
#[inline]
pub fn whole_batch(stretch: &[u8], at: usize) -> Option<(Header, &[u8])> {
    let rest = stretch.get(at..)?;
    let header = Header::read(rest)?;
    if !header.is_possible() {
        return None;
    }
    let batch = rest.get(..header.size())?;
    Some((with_times(header, batch, &mut Decompressor::new()), batch))
}

/// Whether a broker would refuse the batch, or change it.
#[inline]
fn must_be_rebuilt(header: &Header) -> bool {
    i64::from(header.record_count) != i64::from(header.last_offset_delta) + 1
        || header.attributes & (APPEND_TIME | DELETE_HORIZON) != 0
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;
