//! Segments of the Records format.

use std::sync::Arc;

use logkeep_kernel_core::records_format::{self, Ended, Facts, SegmentPacker, Stopped};
use logkeep_kernel_core::rows::Form;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::bytes::Bytes;
use crate::rows::{Data, Held, Rows};

/// One segment of the Records format and its index in the making.
#[pyclass(module = "logkeep_kernel")]
struct RecordsSegment(SegmentPacker);

#[pymethods]
impl RecordsSegment {
    #[new]
    fn new(position: u64, limit: u64) -> RecordsSegment {
        RecordsSegment(SegmentPacker::new(position, limit))
    }

    /// Takes rows from number `start` on, until the segment is full, an offset does not rise, or `most` bytes wait.
    fn append(&mut self, py: Python<'_>, rows: &Rows, start: usize, most: usize) -> (usize, &'static str) {
        let view = rows.view(start);
        let packer = &mut self.0;
        let (taken, ended) = py.detach(|| packer.append(&view, most));
        (taken, word(ended))
    }

    #[getter]
    fn position(&self) -> u64 {
        self.0.position
    }

    /// Bytes that wait to be handed on.
    #[getter]
    fn waiting(&self) -> usize {
        self.0.data.len()
    }

    #[getter]
    fn count(&self) -> u64 {
        self.0.facts.count
    }

    #[getter]
    fn last_offset(&self) -> i64 {
        self.0.facts.last
    }

    /// The bytes that wait, of the segment and of its index. They wait no longer.
    fn take<'py>(&mut self, py: Python<'py>) -> (Bound<'py, PyBytes>, Bound<'py, PyBytes>) {
        let found = (PyBytes::new(py, &self.0.data), PyBytes::new(py, &self.0.index));
        self.0.data.clear();
        self.0.index.clear();
        found
    }

    /// (first offset, last offset, lowest timestamp, highest timestamp, whether one is of the append, largest record)
    fn facts(&self) -> Told {
        told(&self.0.facts)
    }
}

/// What a writer tells of its records, as the stub of `RecordsSegment.facts` says.
pub type Told = (i64, i64, i64, i64, bool, u64);

pub fn told(facts: &Facts) -> Told {
    let lowest = facts.min_timestamp.unwrap_or(-1);
    (facts.first, facts.last, lowest, facts.max_timestamp, facts.append_time, facts.largest)
}

pub fn word(ended: Ended) -> &'static str {
    match ended {
        Ended::End => "end",
        Ended::Full => "full",
        Ended::Falls => "falls",
    }
}

/// The records of the Records format from position `at` of some bytes on, at most `most`, whose offsets rise above
/// `last`; and what follows them: how many bytes the next one has at least if it goes on behind these bytes, 0 if there
/// were `most`, None if it is no record that can be.
#[pyfunction]
fn read_records(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    at: usize,
    last: i64,
    most: usize,
) -> PyResult<(Rows, Option<usize>)> {
    let data = Bytes::of(data)?;
    let (rows, ends, stopped) = py.detach(|| records_format::read(data.get(), at, last, most));
    let needed = match stopped {
        Stopped::Short(needed) => Some(needed),
        Stopped::Most => Some(0),
        Stopped::Odd => None,
    };
    let data = Arc::new(Data::Buffer(data));
    Ok((Rows::new(Held { data, headers: None, form: Form::Fixed, rows, ends, begin: at as u32 }), needed))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<RecordsSegment>()?;
    module.add_function(wrap_pyfunction!(read_records, module)?)
}
