//! The comparison of keys.

use logkeep_kernel_core::key_comparison::{self, Side, Stop};
use logkeep_kernel_core::offset_map::Share;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::bytes::Bytes;
use crate::headers::Headers;
use crate::rows::Rows;

/// See the stub.
#[pyclass(module = "logkeep_kernel")]
struct KeyComparison(key_comparison::KeyComparison);

#[pymethods]
impl KeyComparison {
    #[new]
    #[pyo3(signature = (*, secret, map_bytes, part, parts, end, accounted))]
    fn new(
        secret: (u64, u64),
        map_bytes: usize,
        part: u32,
        parts: u32,
        end: i64,
        accounted: Vec<(i64, i64)>,
    ) -> PyResult<Self> {
        if part >= parts {
            return Err(PyValueError::new_err("there is no such share"));
        }
        let share = Share { part, parts };
        Ok(KeyComparison(key_comparison::KeyComparison::new(secret, map_bytes, share, end, accounted)))
    }

    fn note(&mut self, py: Python<'_>, live: bool, rows: &Rows) -> PyResult<bool> {
        let (view, comparison) = (rows.view(0), &mut self.0);
        match py.detach(|| comparison.note(side(live), &view)) {
            Ok(()) => Ok(true),
            Err(Stop::Full) => Ok(false),
            Err(Stop::Odd) => Err(PyValueError::new_err("no log has such an offset")),
        }
    }

    /// See the stub.
    fn note_batches(
        &mut self,
        py: Python<'_>,
        live: bool,
        stretch: &Bound<'_, PyAny>,
        headers: &Headers,
        most: usize,
    ) -> PyResult<(usize, bool)> {
        let bytes = Bytes::of(stretch)?;
        let (slice, batches) = (bytes.get(), headers.placed());
        let start = batches.first().map_or(0, |(at, _)| headers.position(*at));
        let comparison = &mut self.0;
        let (taken, stop) = py.detach(|| comparison.note_batches(side(live), slice, batches, start, most));
        Ok((taken, stop != Some(Stop::Full)))
    }

    /// See the stub.
    fn counts(&self, py: Python<'_>, log_start: i64) -> (u64, u64, u64, u64, u64, u64) {
        let found = py.detach(|| self.0.counts(log_start));
        (found.keys, found.stale, found.expired, found.missing, found.differing, found.without_key)
    }

    /// See the stub.
    fn offsets(&self, py: Python<'_>, log_start: i64, most: usize) -> (Vec<i64>, Vec<i64>) {
        py.detach(|| self.0.offsets(log_start, most))
    }
}

fn side(live: bool) -> Side {
    if live { Side::Live } else { Side::Archived }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<KeyComparison>()
}
