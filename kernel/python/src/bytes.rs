//! Buffers of Python's as slices.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A buffer that is read without the interpreter's lock.
///
/// The exporter keeps the memory where it is as long as this lives. That nobody writes into it meanwhile is the
/// caller's promise: the engine fills a buffer again only when all that read from it have returned.
pub struct Bytes(PyBuffer<u8>);

impl Bytes {
    /// Raises ValueError if the buffer is not contiguous, TypeError if the object has none.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::<u8>::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(PyValueError::new_err("the buffer is not contiguous"));
        }
        Ok(Self(buffer))
    }

    /// All of it.
    pub fn get(&self) -> &[u8] {
        let length = self.0.len_bytes();
        if length == 0 {
            return &[];
        }
        // SAFETY: the buffer is contiguous and exported as long as `self` lives; nobody writes into it (above).
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast::<u8>(), length) }
    }
}

/// A buffer into which the kernel writes without the interpreter's lock, under the same promise: nobody else reads or
/// writes there meanwhile.
pub struct Space(PyBuffer<u8>);

impl Space {
    /// Raises ValueError if the buffer is not contiguous or cannot be written, TypeError if the object has none.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::<u8>::get(object)?;
        if !buffer.is_c_contiguous() || buffer.readonly() {
            return Err(PyValueError::new_err("the buffer is not contiguous, or cannot be written"));
        }
        Ok(Self(buffer))
    }

    /// All of it.
    pub fn get(&mut self) -> &mut [u8] {
        let length = self.0.len_bytes();
        if length == 0 {
            return &mut [];
        }
        // SAFETY: the buffer is contiguous, writable and exported as long as `self` lives; nobody else uses it (above).
        unsafe { std::slice::from_raw_parts_mut(self.0.buf_ptr().cast::<u8>(), length) }
    }
}
