//! Records as rows: what is packed in a batch, in the Records format and in the Avro format is read as it was, and any
//! other bytes are read up to what is wrong in them.

use logkeep_kernel_core::avro::{self, BlockPacker, Shape};
use logkeep_kernel_core::header::{Header, MAGIC};
use logkeep_kernel_core::records::{Odd, Packed, Packer, largest_size};
use logkeep_kernel_core::records_format::{self, Ended, SegmentPacker, Stopped};
use logkeep_kernel_core::rows::{Form, Kind, Row, Rows, Span, put_field};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select};

const PREFIX: &[u8] = b"\x02t\x06";
const LOSSLESS: Shape = Shape { key: 0, value: 0, headers: 0, lossless: true };
const ENTRY: usize = 24;

type Field = Option<Vec<u8>>;

/// One record with bytes of its own.
#[derive(Clone, Debug, PartialEq)]
struct Record {
    offset: i64,
    timestamp: i64,
    kind: Kind,
    key: Field,
    value: Field,
    headers: Vec<(Vec<u8>, Field)>,
}

fn field() -> impl Strategy<Value = Field> {
    option::of(vec(any::<u8>(), 0..90))
}

prop_compose! {
    fn record()(
        offset in 1..5_i64,
        timestamp in prop_oneof![-1..3_i64, 1_700_000_000_000..1_700_000_001_000_i64, any::<i64>()],
        kind in select(&[Kind::Create, Kind::Append, Kind::None, Kind::CreateNull]),
        key in field(),
        value in field(),
        headers in vec((vec(any::<u8>(), 0..4), field()), 0..4),
    ) -> Record {
        let (timestamp, kind) = match kind {
            Kind::None | Kind::CreateNull => (-1, kind),
            Kind::Create if timestamp == -1 => (-1, Kind::CreateNull),
            kind => (timestamp, kind),
        };
        Record { offset, timestamp, kind, key, value, headers }
    }
}

/// Records whose offsets rise.
fn records() -> impl Strategy<Value = Vec<Record>> {
    vec(record(), 0..20).prop_map(|mut all| {
        let mut offset = -1;
        for record in &mut all {
            offset += record.offset;
            record.offset = offset;
        }
        all
    })
}

/// The rows of these, and the bytes in which they lie.
fn rows_of(records: &[Record]) -> (Vec<Row>, Vec<u8>) {
    let mut data = Vec::new();
    let mut put = |bytes: &[u8]| {
        let start = data.len();
        data.extend_from_slice(bytes);
        Span::new(start, data.len()).unwrap()
    };
    let mut rows = Vec::new();
    for record in records {
        let mut headers = Vec::new();
        for (name, value) in &record.headers {
            put_field(&mut headers, Some(name));
            put_field(&mut headers, value.as_deref());
        }
        rows.push(Row {
            offset: record.offset,
            timestamp: record.timestamp,
            key: record.key.as_deref().map_or(Span::NULL, &mut put),
            value: record.value.as_deref().map_or(Span::NULL, &mut put),
            headers: put(&headers),
            header_count: record.headers.len() as u32,
            kind: record.kind,
        });
    }
    (rows, data)
}

/// The records of rows. Every place of a row lies in the bytes, and it has the headers that it counts.
fn read_again(rows: &Rows<'_>) -> Vec<Record> {
    let of = |span: &Span| {
        let found = span.of(rows.data);
        assert_eq!(found.is_none(), span.is_null());
        found.map(<[u8]>::to_vec)
    };
    let read = |row: &Row| {
        let headers: Vec<_> =
            rows.headers_of(row).map(|(name, value)| (name.to_vec(), value.map(<[u8]>::to_vec))).collect();
        assert_eq!(headers.len(), row.header_count as usize);
        let (key, value) = (of(&row.key), of(&row.value));
        Record { offset: row.offset, timestamp: row.timestamp, kind: row.kind, key, value, headers }
    };
    rows.rows.iter().map(read).collect()
}

fn rise(rows: &[Row], mut last: i64) -> bool {
    rows.iter().all(|row| std::mem::replace(&mut last, row.offset) < row.offset)
}

/// The header of a batch of create time with so many records, numbered from 0 on.
fn header(count: i32, base_timestamp: i64) -> Header {
    Header {
        base_offset: 0,
        batch_length: 0,
        leader_epoch: -1,
        magic: MAGIC,
        crc: 0,
        attributes: 0,
        last_offset_delta: count.max(1) - 1,
        base_timestamp,
        max_timestamp: 0,
        producer_id: -1,
        producer_epoch: -1,
        base_sequence: -1,
        record_count: count,
    }
}

/// The rows of a batch, in parts of at most `most`.
fn unpacked(data: &[u8], header: &Header, most: usize) -> Result<Vec<Row>, Odd> {
    let mut all = Vec::new();
    let mut packed = Packed::new(data, header);
    loop {
        let mut part = Vec::new();
        packed.take(most, &mut part)?;
        assert!(part.len() <= most);
        all.append(&mut part);
        match packed.place() {
            Some(place) => packed = Packed::resumed(data, header, place),
            None => return Ok(all),
        }
    }
}

fn damaged(mut data: Vec<u8>, damage: &[(Index, u8)], cut: Option<Index>) -> Vec<u8> {
    for (at, byte) in damage {
        if !data.is_empty() {
            let at = at.index(data.len());
            data[at] = *byte;
        }
    }
    if let Some(cut) = cut {
        data.truncate(cut.index(data.len() + 1));
    }
    data
}

fn harm() -> impl Strategy<Value = (Vec<(Index, u8)>, Option<Index>)> {
    (vec((any::<Index>(), any::<u8>()), 0..4), option::of(any::<Index>()))
}

proptest! {
    #[test]
    fn a_batch_gives_the_records_that_were_packed(records in records(), most in 1..30_usize) {
        let (rows, data) = rows_of(&records);
        let view = Rows { rows: &rows, data: &data, headers: &data, form: Form::Packed };
        let mut packer = Packer::default();
        packer.add(&view);
        prop_assert_eq!(packer.count as usize, records.len());
        prop_assert!(packer.body.len() <= rows.iter().map(|row| largest_size(&view, row)).sum());
        let sources: Vec<i64> = packer.source.iter().flat_map(|(first, count)| *first..first + i64::from(*count)).collect();
        prop_assert_eq!(sources, records.iter().map(|record| record.offset).collect::<Vec<_>>());
        let header = header(packer.count as i32, packer.base_timestamp);
        let found = unpacked(&packer.body, &header, most).unwrap();
        let found = Rows { rows: &found, data: &packer.body, headers: &packer.body, form: Form::Packed };
        let create = |(at, record): (usize, &Record)| {
            let kind = if record.timestamp == -1 { Kind::CreateNull } else { Kind::Create };
            Record { offset: at as i64, kind, ..record.clone() }
        };
        prop_assert_eq!(read_again(&found), records.iter().enumerate().map(create).collect::<Vec<_>>());
    }

    #[test]
    fn a_segment_of_the_records_format_gives_the_records_that_were_packed(
        records in records(), most in 1..30_usize, cut in any::<Index>()
    ) {
        let (rows, data) = rows_of(&records);
        let mut packer = SegmentPacker::new(0, u64::MAX);
        let taken = packer.append(&Rows { rows: &rows, data: &data, headers: &data, form: Form::Packed }, usize::MAX);
        prop_assert_eq!(taken, (records.len(), Ended::End));
        prop_assert_eq!(packer.index.len(), ENTRY * records.len());

        let (mut all, mut at, mut last) = (Vec::new(), 0, -1);
        loop {
            let (mut found, ends, stopped) = records_format::read(&packer.data, at, last, most);
            prop_assert_eq!(found.len(), ends.len());
            at = ends.last().map_or(at, |end| *end as usize);
            last = found.last().map_or(last, |row| row.offset);
            all.append(&mut found);
            if stopped != Stopped::Most {
                prop_assert!(matches!(stopped, Stopped::Short(_)));
                break;
            }
        }
        prop_assert_eq!(at, packer.data.len());
        let view = Rows { rows: &all, data: &packer.data, headers: &packer.data, form: Form::Fixed };
        prop_assert_eq!(read_again(&view), records);

        // What is cut off anywhere is short, by no more bytes than the record has.
        let cut = cut.index(packer.data.len() + 1);
        let (found, ends, stopped) = records_format::read(&packer.data[..cut], 0, -1, usize::MAX);
        let end = ends.last().map_or(0, |end| *end as usize);
        if cut < packer.data.len() {
            let (_, next, _) = records_format::read(&packer.data, end, -1, 1);
            let Stopped::Short(needed) = stopped else { panic!("{stopped:?}") };
            prop_assert!(cut - end < needed && needed <= next[0] as usize - end);
        }
        prop_assert_eq!(found.len(), ends.len());
    }

    #[test]
    fn a_block_of_the_avro_format_gives_the_records_that_were_packed(records in records()) {
        let (rows, data) = rows_of(&records);
        let mut packer = BlockPacker::new(PREFIX.to_vec(), true);
        let taken = packer.append(&Rows { rows: &rows, data: &data, headers: &data, form: Form::Packed }, usize::MAX);
        prop_assert_eq!(taken, (records.len(), Ended::End));
        let block = avro::read(&packer.data, records.len(), PREFIX, &LOSSLESS, -1).unwrap();
        let view = Rows { rows: &block.rows, data: &packer.data, headers: &block.headers, form: Form::Packed };
        prop_assert_eq!(read_again(&view), records);
    }

    #[test]
    fn damaged_records_of_a_batch_are_refused_or_lie_in_it(
        records in records(), (damage, cut) in harm(), counted in 0..22_i32, most in 1..30_usize
    ) {
        let (rows, data) = rows_of(&records);
        let mut packer = Packer::default();
        packer.add(&Rows { rows: &rows, data: &data, headers: &data, form: Form::Packed });
        let header = header(counted, packer.base_timestamp);
        let data = damaged(packer.body, &damage, cut);
        let found = unpacked(&data, &header, most);
        prop_assert_eq!(found.is_ok(), Packed::new(&data, &header).check().is_ok());
        if let Ok(found) = found {
            prop_assert_eq!(found.len(), counted as usize);
            prop_assert!(rise(&found, -1) && found.last().is_none_or(|row| row.offset < i64::from(counted)));
            read_again(&Rows { rows: &found, data: &data, headers: &data, form: Form::Packed });
        }
    }

    #[test]
    fn damaged_segments_of_the_records_format_are_read_up_to_the_damage(
        records in records(), (damage, cut) in harm(), at in 0..60_usize, last in -1..9_i64
    ) {
        let (rows, data) = rows_of(&records);
        let mut packer = SegmentPacker::new(0, u64::MAX);
        packer.append(&Rows { rows: &rows, data: &data, headers: &data, form: Form::Packed }, usize::MAX);
        let data = damaged(packer.data, &damage, cut);
        let (found, ends, _) = records_format::read(&data, at, last, usize::MAX);
        prop_assert!(rise(&found, last) && ends.iter().all(|end| *end as usize <= data.len()));
        read_again(&Rows { rows: &found, data: &data, headers: &data, form: Form::Fixed });
    }

    #[test]
    fn damaged_blocks_of_the_avro_format_are_refused_or_read(
        records in records(), (damage, cut) in harm(), counted in 0..22_usize, last in -1..9_i64
    ) {
        let (rows, data) = rows_of(&records);
        let mut packer = BlockPacker::new(PREFIX.to_vec(), true);
        packer.append(&Rows { rows: &rows, data: &data, headers: &data, form: Form::Packed }, usize::MAX);
        let data = damaged(packer.data, &damage, cut);
        if let Some(block) = avro::read(&data, counted, PREFIX, &LOSSLESS, last) {
            prop_assert_eq!(block.rows.len(), counted);
            prop_assert!(rise(&block.rows, last) && block.headers.len() <= data.len());
            read_again(&Rows { rows: &block.rows, data: &data, headers: &block.headers, form: Form::Packed });
        }
    }

    #[test]
    fn any_bytes_are_read_to_an_end(data in vec(any::<u8>(), 0..300), count in 0..9_i32) {
        if let Ok(found) = unpacked(&data, &header(count, 0), 5) {
            prop_assert_eq!(found.len(), count as usize);
        }
        let (found, _, _) = records_format::read(&data, 0, i64::MIN, usize::MAX);
        read_again(&Rows { rows: &found, data: &data, headers: &data, form: Form::Fixed });
        for key in -1..2 {
            let shape = Shape { key, value: -key, headers: key, lossless: key == 0 };
            if let Some(block) = avro::read(&data, count as usize, b"", &shape, i64::MIN) {
                read_again(&Rows { rows: &block.rows, data: &data, headers: &block.headers, form: Form::Packed });
            }
        }
    }
}
