//! Records found by their keys.

use logkeep_kernel_core::header::Header;
use logkeep_kernel_core::keys::{self, KeyDigest};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::bytes::Bytes;
use crate::rows::Rows;

/// Keys that are looked for.
#[pyclass(frozen, module = "logkeep_kernel")]
struct Keys(keys::Keys);

/// The packed records that are left of a batch, their number, and their highest timestamp.
type Left<'py> = (Bound<'py, PyBytes>, i32, i64);

fn digest_of(bytes: &[u8]) -> PyResult<KeyDigest> {
    bytes.try_into().map_err(|_| PyValueError::new_err("a digest of a key, and its secret, have 32 bytes"))
}

#[pymethods]
impl Keys {
    #[new]
    fn new(secret: &[u8], known: Vec<(usize, PyBackedBytes)>) -> PyResult<Keys> {
        let mut digests = Vec::new();
        for (length, some) in known {
            for digest in some.chunks(keys::BYTES) {
                digests.push((length, digest_of(digest)?));
            }
        }
        Ok(Keys(keys::Keys::new(digest_of(secret)?, digests)))
    }

    fn found(&self, py: Python<'_>, rows: &Rows) -> Vec<usize> {
        let view = rows.view(0);
        py.detach(|| self.0.found(&view))
    }

    fn leave<'py>(
        &self,
        py: Python<'py>,
        batch: &Bound<'py, PyAny>,
        packed: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Left<'py>>> {
        let (batch, packed) = (Bytes::of(batch)?, Bytes::of(packed)?);
        let header = Header::read(batch.get()).ok_or_else(|| PyValueError::new_err("the header is cut short"))?;
        let slice = packed.get();
        let left = py
            .detach(|| self.0.leave(&header, slice))
            .map_err(|_| PyValueError::new_err("the records of the batch do not fit together"))?;
        Ok(left.map(|left| (PyBytes::new(py, &left.packed), left.count, left.max_timestamp)))
    }
}

/// The digest of a key.
#[pyfunction]
fn key_digest<'py>(py: Python<'py>, secret: &[u8], key: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    Ok(PyBytes::new(py, &keys::digest(&digest_of(secret)?, key)))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Keys>()?;
    module.add_function(wrap_pyfunction!(key_digest, module)?)
}
