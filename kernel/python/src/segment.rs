//! The facts and indexes of segments.

use std::sync::{Mutex, MutexGuard, PoisonError};

use logkeep_kernel_core::facts::{self, Refused};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::headers::Headers;

/// A segment in the making: its facts and its indexes.
#[pyclass(frozen, module = "logkeep_kernel")]
struct SegmentFacts(Mutex<facts::Segment>);

impl SegmentFacts {
    /// Nothing that could panic happens while it is held.
    fn held(&self) -> MutexGuard<'_, facts::Segment> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Indexes<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>);

fn too_far(_: Refused) -> PyErr {
    PyValueError::new_err("an offset or a position is too far from the segment's beginning")
}

fn indexes<'py>(py: Python<'py>, made: Result<(&[u8], &[u8]), Refused>) -> PyResult<Indexes<'py>> {
    let (index, timeindex) = made.map_err(too_far)?;
    Ok((PyBytes::new(py, index), PyBytes::new(py, timeindex)))
}

#[pymethods]
impl SegmentFacts {
    #[new]
    fn new(base_offset: i64, interval: i64) -> Self {
        Self(Mutex::new(facts::Segment::new(base_offset, interval)))
    }

    /// See the stub.
    fn add(&self, py: Python<'_>, headers: &Bound<'_, Headers>) -> Option<(&'static str, usize, i128)> {
        let headers = headers.get();
        match py.detach(|| self.held().add(headers.placed())) {
            Ok(()) => None,
            Err(Refused::Falls { number, expected }) => Some(("falls", number, expected)),
            Err(Refused::Codec) => Some(("codec", 0, 0)),
            Err(Refused::TooFar) => Some(("far", 0, 0)),
        }
    }

    /// See the stub.
    fn frame(&self, size: u32) {
        self.held().frame(size);
    }

    /// The contents of `.index` and `.timeindex`.
    fn finish<'py>(&self, py: Python<'py>) -> PyResult<Indexes<'py>> {
        indexes(py, self.held().finish())
    }

    #[getter]
    fn next_offset(&self) -> i128 {
        self.held().facts().next_offset
    }

    #[getter]
    fn records(&self) -> u64 {
        self.held().facts().records
    }

    #[getter]
    fn batches(&self) -> u64 {
        self.held().facts().batches
    }

    #[getter]
    fn size(&self) -> u64 {
        self.held().facts().size
    }

    #[getter]
    fn min_base_timestamp(&self) -> Option<i64> {
        self.held().facts().min_base_timestamp
    }

    #[getter]
    fn max_timestamp(&self) -> i64 {
        self.held().facts().max_timestamp
    }

    #[getter]
    fn max_batch_bytes(&self) -> u64 {
        self.held().max_batch_bytes()
    }

    #[getter]
    fn codecs(&self) -> Vec<u64> {
        self.held().facts().codecs.to_vec()
    }

    #[getter]
    fn attributes(&self) -> i16 {
        self.held().facts().attributes
    }

    #[getter]
    fn dense(&self) -> bool {
        self.held().facts().dense
    }

    #[getter]
    fn filled(&self) -> bool {
        self.held().facts().filled
    }

    #[getter]
    fn legacy(&self) -> bool {
        self.held().facts().legacy
    }
}

/// Offset and time index in the making.
#[pyclass(frozen, module = "logkeep_kernel")]
struct IndexBuilder(Mutex<facts::IndexBuilder>);

#[pymethods]
impl IndexBuilder {
    #[new]
    fn new(base_offset: i64, interval: i64) -> Self {
        Self(Mutex::new(facts::IndexBuilder::new(base_offset, interval)))
    }

    /// See the stub.
    fn extend(&self, py: Python<'_>, headers: &Bound<'_, Headers>) -> PyResult<()> {
        let headers = headers.get();
        let held = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        py.detach(|| held().extend(headers.placed())).map_err(too_far)
    }

    /// The contents of `.index` and `.timeindex`.
    fn finish<'py>(&self, py: Python<'py>) -> PyResult<Indexes<'py>> {
        indexes(py, self.0.lock().unwrap_or_else(PoisonError::into_inner).finish())
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<SegmentFacts>()?;
    module.add_class::<IndexBuilder>()
}
