//! The comparison of keys.

use logkeep_kernel_core::key_comparison::{self, Side};
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
        part: u64,
        parts: u64,
        end: i64,
        accounted: Vec<(i64, i64)>,
    ) -> PyResult<Self> {
        if part >= parts {
            return Err(PyValueError::new_err("there is no such share"));
        }
        let share = Share { part, parts };
        Ok(KeyComparison(key_comparison::KeyComparison::new(secret, map_bytes, share, end, accounted)))
    }

    fn begin_live(&mut self, log_start: i64) {
        self.0.begin_live(log_start);
    }

    fn note(&mut self, py: Python<'_>, live: bool, rows: &Rows) -> PyResult<()> {
        let (view, comparison) = (rows.view(0), &mut self.0);
        let noted = py.detach(|| comparison.note(side(live), &view));
        noted.map_err(|_| PyValueError::new_err("no log has such an offset"))
    }

    /// See the stub.
    #[getter]
    fn rest(&self) -> Vec<(u64, u64)> {
        self.0.rest().iter().map(|share| (share.part, share.parts)).collect()
    }

    /// See the stub.
    fn note_batches(
        &mut self,
        py: Python<'_>,
        live: bool,
        stretch: &Bound<'_, PyAny>,
        headers: &Headers,
        most: usize,
    ) -> PyResult<usize> {
        let bytes = Bytes::of(stretch)?;
        let (slice, batches) = (bytes.get(), headers.placed());
        let start = batches.first().map_or(0, |(at, _)| headers.position(*at));
        let comparison = &mut self.0;
        Ok(py.detach(|| comparison.note_batches(side(live), slice, batches, start, most)))
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
