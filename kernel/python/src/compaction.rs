//! Compaction of a partition.

use logkeep_kernel_core::compaction::{self, Plan, Section, Stop};
use logkeep_kernel_core::offset_map::Share;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::bytes::Bytes;
use crate::merge::{Transaction, spans};

/// See the stub.
#[pyclass(module = "logkeep_kernel")]
struct Compaction(compaction::Compaction);

#[pymethods]
impl Compaction {
    #[new]
    #[pyo3(signature = (*, secret, map_bytes, unpacked, now, horizon, aborted))]
    fn new(
        secret: (u64, u64),
        map_bytes: usize,
        unpacked: usize,
        now: i64,
        horizon: i64,
        aborted: Vec<Transaction>,
    ) -> Self {
        let plan = Plan { secret, map_bytes, unpacked, now, horizon, aborted: spans(aborted) };
        Compaction(compaction::Compaction::new(plan))
    }

    fn begin(&mut self, part: u32, parts: u32) -> PyResult<()> {
        if part >= parts {
            return Err(PyValueError::new_err("there is no such share"));
        }
        self.0.begin(Share { part, parts });
        Ok(())
    }

    fn begin_copy(&mut self) {
        self.0.begin_copy();
    }

    fn note(
        &mut self,
        py: Python<'_>,
        dirty: bool,
        stretch: &Bound<'_, PyAny>,
        at: usize,
    ) -> PyResult<(usize, &'static str)> {
        let bytes = Bytes::of(stretch)?;
        let (slice, compaction) = (bytes.get(), &mut self.0);
        let (at, stop) = py.detach(|| compaction.note(section(dirty), slice, at));
        Ok((at, word(stop)))
    }

    fn note_key(&mut self, dirty: bool, key: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        let key = key.map(Bytes::of).transpose()?;
        Ok(self.0.note_key(section(dirty), key.as_ref().map(Bytes::get)).is_ok())
    }

    fn survives(&mut self, dirty: bool) -> bool {
        self.0.survives(section(dirty))
    }

    fn copy<'py>(
        &mut self,
        py: Python<'py>,
        dirty: bool,
        stretch: &Bound<'py, PyAny>,
        at: usize,
    ) -> PyResult<(Bound<'py, PyBytes>, usize, &'static str)> {
        let bytes = Bytes::of(stretch)?;
        let (slice, compaction) = (bytes.get(), &mut self.0);
        let mut out = Vec::new();
        let (at, stop) = py.detach(|| compaction.copy(section(dirty), slice, at, &mut out));
        Ok((PyBytes::new(py, &out), at, word(stop)))
    }

    /// Records, tombstones among them, batches copied whole, batches rebuilt.
    #[getter]
    fn counts(&self) -> (u64, u64, u64, u64) {
        let counts = self.0.counts;
        (counts.records, counts.tombstones, counts.whole, counts.rebuilt)
    }
}

fn section(dirty: bool) -> Section {
    if dirty { Section::Dirty } else { Section::Clean }
}

fn word(stop: Stop) -> &'static str {
    match stop {
        Stop::End => "end",
        Stop::Odd => "odd",
        Stop::Large => "large",
        Stop::Full => "full",
        Stop::Enough => "enough",
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Compaction>()
}
