//! Merging of small batches.

use logkeep_kernel_core::clip::Clip;
use logkeep_kernel_core::header::Header;
use logkeep_kernel_core::merge::{self, Item, Plan, Spans, Stop};
use logkeep_kernel_core::packer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::bytes::Bytes;

/// Batches that are ready, and whether no damage was found.
type Made<'py> = (Bound<'py, PyList>, bool);

/// A transaction: its producer, and its first and last offset.
pub type Transaction = (i64, i64, i64);

/// What of a partition is wanted: its end, times from one on and below another, and transactions that are whole.
type Bounds = (Option<i64>, Option<i64>, Option<i64>, Vec<Transaction>);

pub fn spans(transactions: Vec<Transaction>) -> Spans {
    let mut spans = Spans::new();
    for (producer, first, last) in transactions {
        spans.entry(producer).or_default().push((first, last));
    }
    spans
}

/// The stream of batches of one partition that a restore sends, small ones merged.
#[pyclass(module = "logkeep_kernel")]
struct Merger(merge::Merger);

#[pymethods]
impl Merger {
    #[new]
    #[pyo3(signature = (*, producer_id, small, unpacked, limit, most, done, aborted, clip=None))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        producer_id: i64,
        small: (i32, usize),
        unpacked: usize,
        limit: usize,
        most: usize,
        done: i64,
        aborted: Vec<Transaction>,
        clip: Option<Bounds>,
    ) -> Self {
        let (small_records, small_bytes) = small;
        let clip = clip.map_or_else(Clip::default, |(end, since, before, whole)| Clip {
            end: end.unwrap_or(i64::MAX),
            since: since.unwrap_or(i64::MIN),
            before: before.unwrap_or(i64::MAX),
            whole: spans(whole),
        });
        Merger(merge::Merger::new(Plan {
            producer_id,
            small_records,
            small_bytes,
            unpacked,
            limit,
            most,
            done,
            aborted: spans(aborted),
            clip,
        }))
    }

    /// The records of the stream so far.
    #[getter]
    fn index(&self) -> i64 {
        self.0.index()
    }

    fn passed(&mut self, records: i64) {
        self.0.passed(records);
    }

    fn is_cut(&self, batch: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(self.0.is_cut(&header(batch)?))
    }

    fn feed<'py>(
        &mut self,
        py: Python<'py>,
        stretch: &Bound<'py, PyAny>,
        at: usize,
    ) -> PyResult<(Bound<'py, PyList>, usize, &'static str)> {
        let bytes = Bytes::of(stretch)?;
        let (slice, merger) = (bytes.get(), &mut self.0);
        let mut items = Vec::new();
        let (at, stop) = py.detach(|| merger.feed(slice, at, &mut items));
        Ok((listed(py, items)?, at, word(stop)))
    }

    fn member<'py>(
        &mut self,
        py: Python<'py>,
        batch: &Bound<'py, PyAny>,
        packed: &Bound<'py, PyAny>,
    ) -> PyResult<Made<'py>> {
        let (batch, packed) = (Bytes::of(batch)?, Bytes::of(packed)?);
        let mut items = Vec::new();
        let (header, batch) =
            merge::whole_batch(batch.get(), 0).ok_or_else(|| PyValueError::new_err("no whole batch of magic 2"))?;
        let (slice, merger) = (packed.get(), &mut self.0);
        let whole = py.detach(|| merger.member(header, batch, slice, &mut items)).is_ok();
        Ok((listed(py, items)?, whole))
    }

    fn finish<'py>(&mut self, py: Python<'py>) -> PyResult<Made<'py>> {
        let mut items = Vec::new();
        let merger = &mut self.0;
        let whole = py.detach(|| merger.finish(&mut items)).is_ok();
        Ok((listed(py, items)?, whole))
    }

    fn cut<'py>(
        &mut self,
        py: Python<'py>,
        batch: &Bound<'py, PyAny>,
        packed: &Bound<'py, PyAny>,
        taken: i64,
    ) -> PyResult<Made<'py>> {
        let header = header(batch)?;
        let packed = Bytes::of(packed)?;
        let (slice, merger) = (packed.get(), &mut self.0);
        let mut items = Vec::new();
        let whole = py.detach(|| merger.cut(&header, slice, taken, &mut items)).is_ok();
        Ok((listed(py, items)?, whole))
    }

    fn damaged<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        let (header, packed) = self.0.damaged().ok_or_else(|| PyValueError::new_err("no batch was found damaged"))?;
        Ok((PyBytes::new(py, &header.bytes()), PyBytes::new(py, packed)))
    }
}

/// Packed records of several batches, gathered into one batch.
#[pyclass(module = "logkeep_kernel")]
#[derive(Default)]
struct Packed(packer::Packer);

#[pymethods]
impl Packed {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    fn add(&mut self, head: &Bound<'_, PyAny>, packed: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(self.0.add(Bytes::of(packed)?.get(), &header(head)?).is_ok())
    }

    #[getter]
    fn count(&self) -> i64 {
        self.0.count
    }

    #[getter]
    fn times(&self) -> (i64, i64) {
        (self.0.base_timestamp, self.0.max_timestamp)
    }

    #[getter]
    fn rows<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.0.rows)
    }

    #[getter]
    fn body<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.body)
    }
}

fn header(batch: &Bound<'_, PyAny>) -> PyResult<Header> {
    Header::read(Bytes::of(batch)?.get()).ok_or_else(|| PyValueError::new_err("the header is cut short"))
}

fn word(stop: Stop) -> &'static str {
    match stop {
        Stop::End => "end",
        Stop::Enough => "enough",
        Stop::Odd => "odd",
        Stop::Damaged => "damaged",
    }
}

fn listed(py: Python<'_>, items: Vec<Item>) -> PyResult<Bound<'_, PyList>> {
    let list = PyList::empty(py);
    for item in items {
        let data = item.data.map(|data| PyBytes::new(py, &data));
        let rows = PyTuple::new(py, item.rows)?;
        list.append((item.index, item.count, item.size, data, rows, item.append_times, item.as_it_is))?;
    }
    Ok(list)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Merger>()?;
    module.add_class::<Packed>()
}
