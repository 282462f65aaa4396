//! Digests of records, and the partitions of keys.

use logkeep_kernel_core::digest::{BatchDigester, Digest, Digester, Noted};
use logkeep_kernel_core::murmur2;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::bytes::Bytes;
use crate::headers::Headers;
use crate::rows::Rows;

/// The digest of records that follow one another.
#[pyclass(module = "logkeep_kernel")]
struct RecordDigest {
    noted: Noted,
    offsets: bool,
}

#[pymethods]
impl RecordDigest {
    #[new]
    #[pyo3(signature = (*, offsets, count = 0, value = None))]
    fn new(offsets: bool, count: u64, value: Option<&[u8]>) -> PyResult<RecordDigest> {
        let value = match value {
            None => 0,
            Some(bytes) => u128::from_be_bytes(
                bytes.try_into().map_err(|_| PyValueError::new_err("a digest of records has 16 bytes"))?,
            ),
        };
        let digest = Digest::of(count, value).ok_or_else(|| PyValueError::new_err("no records have this digest"))?;
        Ok(RecordDigest { noted: Noted { digest, ..Noted::default() }, offsets })
    }

    /// Notes records that follow.
    fn note(&mut self, py: Python<'_>, rows: &Rows) {
        let view = rows.view(0);
        let (noted, offsets) = (&mut self.noted, self.offsets);
        py.detach(|| Digester::default().note(&view, offsets, noted));
    }

    /// See the stub.
    fn note_batches(
        &mut self,
        py: Python<'_>,
        stretch: &Bound<'_, PyAny>,
        headers: &Headers,
        most: usize,
    ) -> PyResult<usize> {
        let bytes = Bytes::of(stretch)?;
        let (slice, batches) = (bytes.get(), headers.placed());
        let start = batches.first().map_or(0, |(at, _)| headers.position(*at));
        let (noted, offsets) = (&mut self.noted, self.offsets);
        Ok(py.detach(|| BatchDigester::default().note(slice, batches, start, most, offsets, noted)))
    }

    /// Notes records that follow, and of which this is the digest.
    fn follow(&mut self, next: PyRef<'_, RecordDigest>) -> PyResult<()> {
        if next.offsets != self.offsets {
            return Err(PyValueError::new_err("only one of the two digests knows offsets"));
        }
        self.noted.follow(&next.noted);
        Ok(())
    }

    #[getter]
    fn count(&self) -> u64 {
        self.noted.digest.count
    }

    #[getter]
    fn value<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.noted.digest.value.to_be_bytes())
    }

    /// The value of the polynomial of the offsets.
    #[getter]
    fn offsets_value<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.noted.offsets.value.to_be_bytes())
    }

    /// The records that were noted by their times: see the stub.
    #[getter]
    fn times(&self) -> (u32, Vec<(i64, u64, u64)>) {
        let buckets = self.noted.times.buckets.iter();
        (self.noted.times.shift, buckets.map(|bucket| (bucket.number, bucket.records, bucket.bytes)).collect())
    }

    /// The lowest and the highest time of a record that was noted.
    #[getter]
    fn span(&self) -> Option<(i64, i64)> {
        self.noted.times.span
    }
}

/// The digests of single records, of 16 bytes each.
#[pyfunction]
#[pyo3(signature = (rows, *, offsets))]
fn record_digests<'py>(py: Python<'py>, rows: &Rows, offsets: bool) -> Bound<'py, PyBytes> {
    let view = rows.view(0);
    let found = py.detach(|| {
        let mut digester = Digester::default();
        let mut found = Vec::with_capacity(16 * view.rows.len());
        for row in view.rows {
            found.extend_from_slice(&digester.record(&view, row, offsets).to_be_bytes());
        }
        found
    });
    PyBytes::new(py, &found)
}

/// The hash by which Java's default partitioner chooses partitions.
#[pyfunction(name = "murmur2")]
fn murmur2_of(key: &Bound<'_, PyAny>) -> PyResult<u32> {
    Ok(murmur2::murmur2(Bytes::of(key)?.get()))
}

/// The partition of each record by its key, as Java's default partitioner chooses it; -1 without a key.
#[pyfunction]
fn partitions_of_keys(py: Python<'_>, rows: &Rows, partitions: u32) -> PyResult<Vec<i64>> {
    if partitions == 0 {
        return Err(PyValueError::new_err("a topic has one partition at least"));
    }
    let view = rows.view(0);
    Ok(py.detach(|| {
        let partition = |key: &[u8]| i64::from(murmur2::partition(key, partitions));
        view.rows.iter().map(|row| row.key.of(view.data).map_or(-1, partition)).collect()
    }))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<RecordDigest>()?;
    module.add_function(wrap_pyfunction!(record_digests, module)?)?;
    module.add_function(wrap_pyfunction!(murmur2_of, module)?)?;
    module.add_function(wrap_pyfunction!(partitions_of_keys, module)?)
}
