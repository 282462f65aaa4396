//! Compaction of a partition.

use logkeep_kernel_core::compaction::{self, Piece, Plan, Section, Stop};
use logkeep_kernel_core::offset_map::{BUCKETS, OffsetMap, PAIR_BYTES};
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::bytes::Bytes;
use crate::large_pages;
use crate::merge::{Transaction, spans};

/// See the stub.
#[pyclass(module = "logkeep_kernel")]
struct Compaction(compaction::Compaction);

#[pymethods]
impl Compaction {
    #[new]
    #[pyo3(signature = (*, secret, map_bytes, unpacked, now, horizon, aborted, open, spills))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        secret: (u64, u64),
        map_bytes: usize,
        unpacked: usize,
        now: i64,
        horizon: i64,
        aborted: Vec<Transaction>,
        open: Vec<Transaction>,
        spills: bool,
    ) -> Self {
        let (aborted, open) = (spans(aborted), spans(open));
        let plan = Plan { secret, map_bytes, unpacked, now, horizon, aborted, open, spills };
        let compaction = compaction::Compaction::new(plan);
        large_pages::want(compaction.map_memory());
        Compaction(compaction)
    }

    fn begin(&mut self) -> bool {
        self.0.begin()
    }

    #[getter]
    fn parts(&self) -> u64 {
        self.0.parts()
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

    fn take_pairs<'py>(&mut self, py: Python<'py>, rest: bool) -> Vec<(Bound<'py, PyBytes>, Vec<u32>)> {
        let taken = py.detach(|| self.0.take_pairs(rest));
        taken.into_iter().map(|(pairs, ends)| (PyBytes::new(py, &pairs), ends)).collect()
    }

    fn marks<'py>(&mut self, py: Python<'py>) -> (Bound<'py, PyBytes>, Bound<'py, PyBytes>) {
        let (dead, tombstones) = self.0.marks();
        (PyBytes::new(py, &dead), PyBytes::new(py, &tombstones))
    }

    fn mark(&mut self, dead: &[u8], tombstones: &[u8], more: &[u8]) {
        self.0.mark((dead, tombstones), more);
    }

    fn copy<'py>(
        &mut self,
        py: Python<'py>,
        dirty: bool,
        stretch: &Bound<'py, PyAny>,
        at: usize,
    ) -> PyResult<(Bound<'py, PyList>, usize, &'static str)> {
        let bytes = Bytes::of(stretch)?;
        let (slice, compaction) = (bytes.get(), &mut self.0);
        let (pieces, at, stop) = py.detach(|| compaction.copy(section(dirty), slice, at));
        let made = PyList::empty(py);
        for piece in pieces {
            match piece {
                Piece::Bytes(bytes) => made.append(PyBytes::new(py, &bytes))?,
                Piece::Span(from, to) => made.append((from, to))?,
            }
        }
        Ok((made, at, word(stop)))
    }

    /// Records, tombstones among them, batches copied whole, batches rebuilt.
    #[getter]
    fn counts(&self) -> (u64, u64, u64, u64) {
        let counts = self.0.counts;
        (counts.records, counts.tombstones, counts.whole, counts.rebuilt)
    }
}

/// See the stub.
#[pyclass(module = "logkeep_kernel")]
struct KnownKeys(OffsetMap);

#[pymethods]
impl KnownKeys {
    #[new]
    fn new(map_bytes: usize) -> Self {
        let map = OffsetMap::new(map_bytes);
        large_pages::want(map.memory());
        KnownKeys(map)
    }

    #[staticmethod]
    fn most_keys(map_bytes: usize) -> usize {
        OffsetMap::most_keys(map_bytes)
    }

    fn known_of<'py>(&mut self, py: Python<'py>, pairs: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let known =
            py.detach(|| self.0.known_of(pairs)).map_err(|_| PyMemoryError::new_err("no room for more keys"))?;
        Ok(PyBytes::new(py, &known))
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
        Stop::Enough => "enough",
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("PAIR_BYTES", PAIR_BYTES)?;
    module.add("KEY_BUCKETS", BUCKETS)?;
    module.add_class::<KnownKeys>()?;
    module.add_class::<Compaction>()
}
