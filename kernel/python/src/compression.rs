//! Decompression.

use std::cell::RefCell;

use logkeep_kernel_core::compression::{Codec, Decompressor, Problem};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::bytes::{Bytes, Space};

thread_local! {
    /// What the libraries need from one piece of data to the next.
    static DECOMPRESSOR: RefCell<Decompressor> = RefCell::new(Decompressor::new());
}

/// Write the bytes that were compressed to `out`. Returns how many they are, or None and what is wrong: "" if there is
/// no room.
#[pyfunction]
#[pyo3(signature = (codec, data, out, /))]
fn decompress<'py>(
    py: Python<'py>,
    codec: i16,
    data: &Bound<'py, PyAny>,
    out: &Bound<'py, PyAny>,
) -> PyResult<(Option<usize>, &'static str)> {
    let codec = Codec::of(codec).ok_or_else(|| PyValueError::new_err("the codec does not exist"))?;
    let (data, mut out) = (Bytes::of(data)?, Space::of(out)?);
    let (slice, space) = (data.get(), out.get());
    Ok(py.detach(|| match DECOMPRESSOR.with_borrow_mut(|with| with.into_slice(codec, slice, space)) {
        Ok(size) => (Some(size), ""),
        Err(Problem::NoRoom) => (None, ""),
        Err(Problem::Damaged(why)) => (None, why),
    }))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(decompress, module)?)
}
