//! Any bytes as records of a batch, of the Records format and of the Avro format: the rows lie inside of them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use logkeep_kernel_core::avro::{self, Shape};
use logkeep_kernel_core::header::{HEADER_SIZE, Header};
use logkeep_kernel_core::records::Packed;
use logkeep_kernel_core::records_format;
use logkeep_kernel_core::rows::{Form, Rows};

const MOST: usize = 1 << 16;

fuzz_target!(|data: &[u8]| {
    if let Some(header) = Header::read(data).filter(Header::is_possible) {
        let data = &data[HEADER_SIZE..];
        let (mut packed, mut rows) = (Packed::new(data, &header), Vec::new());
        let taken = packed.take(MOST, &mut rows);
        pass_over(&Rows { rows: &rows, data, headers: data, form: Form::Packed });
        if taken.is_ok() && packed.is_done() {
            assert_eq!(rows.len(), header.record_count as usize);
            assert!(Packed::new(data, &header).check().is_ok());
        }
    }
    let (rows, ends, _) = records_format::read(data, 0, -1, MOST);
    assert_eq!(rows.len(), ends.len());
    pass_over(&Rows { rows: &rows, data, headers: data, form: Form::Fixed });
    let (Some(count), Some(block)) = (data.first(), data.get(1..)) else { return };
    for (union, lossless) in [(0, true), (0, false), (1, false), (-1, false)] {
        let shape = Shape { key: union, value: union, headers: union, lossless };
        if let Some(found) = avro::read(block, usize::from(*count), b"", &shape, -1) {
            assert_eq!(found.rows.len(), usize::from(*count));
            pass_over(&Rows { rows: &found.rows, data: block, headers: &found.headers, form: Form::Packed });
        }
    }
});

fn pass_over(rows: &Rows<'_>) {
    for pair in rows.rows.windows(2) {
        assert!(pair[0].offset < pair[1].offset);
    }
    for row in rows.rows {
        for span in [row.key, row.value] {
            assert_eq!(span.of(rows.data).is_none(), span.is_null());
        }
        assert_eq!(rows.headers_of(row).count(), row.header_count as usize);
    }
}
