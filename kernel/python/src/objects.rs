//! Archived objects: their digests, and the checksum of an object that is made of parts.

use std::sync::{Mutex, MutexGuard, PoisonError};

use logkeep_kernel_core::{header, objects};
use pyo3::prelude::*;

use crate::bytes::Bytes;

/// Below this size the work is done sooner than the lock is given away and taken back.
const LARGE: usize = 4096;

/// BLAKE3 of bytes that come one after another, with the methods of hashlib's objects.
#[pyclass(frozen, module = "logkeep_kernel")]
struct Blake3(Mutex<objects::Blake3>);

impl Blake3 {
    // No other thread can have left it half done: a digest does not panic.
    fn locked(&self) -> MutexGuard<'_, objects::Blake3> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Blake3 {
    #[new]
    fn new() -> Self {
        Self(Mutex::new(objects::Blake3::new()))
    }

    /// Take the next bytes.
    #[pyo3(signature = (data, /))]
    fn update(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let bytes = Bytes::of(data)?;
        let slice = bytes.get();
        if slice.len() < LARGE {
            if let Ok(mut digest) = self.0.try_lock() {
                digest.update(slice);
                return Ok(());
            }
        }
        // Another thread may hold the digest: whoever waits for it must not hold the interpreter's lock.
        py.detach(|| self.locked().update(slice));
        Ok(())
    }

    /// The digest of the bytes so far, in hex.
    fn hexdigest(&self, py: Python<'_>) -> String {
        py.detach(|| self.locked().hexdigest())
    }
}

/// The CRC-32C of some bytes; of those that follow others, whose checksum is `before`.
#[pyfunction]
#[pyo3(signature = (data, before = 0, /))]
fn crc32c(py: Python<'_>, data: &Bound<'_, PyAny>, before: u32) -> PyResult<u32> {
    let bytes = Bytes::of(data)?;
    let slice = bytes.get();
    if slice.len() < LARGE {
        return Ok(header::crc32c_behind(before, slice));
    }
    Ok(py.detach(|| header::crc32c_behind(before, slice)))
}

/// The CRC-32C of bytes followed by others, from both checksums and the number of the latter bytes.
#[pyfunction]
#[pyo3(signature = (first, second, second_length, /))]
fn crc32c_combined(first: u32, second: u32, second_length: u64) -> u32 {
    objects::crc32c_combined(first, second, second_length)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Blake3>()?;
    module.add_function(wrap_pyfunction!(crc32c, module)?)?;
    module.add_function(wrap_pyfunction!(crc32c_combined, module)?)
}
