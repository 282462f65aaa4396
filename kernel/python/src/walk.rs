//! Walks over batches.

use logkeep_kernel_core::walk::{self, Stop};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::bytes::Bytes;
use crate::headers::Headers;

/// See the stub.
#[pyfunction]
#[pyo3(name = "walk", signature = (buffer, start, until, most, *, checked, make))]
fn walk_batches(
    py: Python<'_>,
    buffer: &Bound<'_, PyAny>,
    start: usize,
    until: i128,
    most: usize,
    checked: bool,
    make: Py<PyAny>,
) -> PyResult<(Headers, usize, &'static str)> {
    let bytes = Bytes::of(buffer)?;
    let slice = bytes.get();
    let found = py.detach(|| walk::walk(slice, start, until, most, checked));
    let stop = match found.stop {
        Stop::End => "end",
        Stop::Until => "until",
        Stop::Most => "most",
        Stop::Odd => "odd",
    };
    Ok((Headers::new(found.batches, make), found.end, stop))
}

/// See the stub.
#[pyfunction]
fn last_whole(py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
    let bytes = Bytes::of(buffer)?;
    let slice = bytes.get();
    Ok(py.detach(|| walk::last_whole(slice)))
}

/// See the stub.
#[pyfunction]
fn whole_batches(py: Python<'_>, buffer: &Bound<'_, PyAny>, limit: usize) -> PyResult<usize> {
    let bytes = Bytes::of(buffer)?;
    let slice = bytes.get();
    let found = py.detach(|| walk::whole_batches(slice, limit));
    found.ok_or_else(|| PyValueError::new_err("a batch's length leads out of the buffer"))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(walk_batches, module)?)?;
    module.add_function(wrap_pyfunction!(last_whole, module)?)?;
    module.add_function(wrap_pyfunction!(whole_batches, module)?)
}
