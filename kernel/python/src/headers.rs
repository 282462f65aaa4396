//! Headers of batches that lie back to back.

use std::ops::Range;
use std::sync::Arc;

use logkeep_kernel_core::header::Header;
use logkeep_kernel_core::headers::{self, Placed, Room};
use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyInt, PySlice, PyTuple};

/// Headers of batches that lie back to back in a buffer, with their positions. Slices share the memory.
#[pyclass(frozen, sequence, module = "logkeep_kernel")]
pub struct Headers {
    all: Arc<Vec<Placed>>,
    range: Range<usize>,
    /// What positions lose: a stretch has positions of its own.
    back: usize,
    /// Makes of the fields of a header what iterating gives.
    make: Arc<Py<PyAny>>,
}

impl Headers {
    /// The batches must lie back to back.
    pub fn new(batches: Vec<Placed>, make: Py<PyAny>) -> Self {
        let range = 0..batches.len();
        Self { all: Arc::new(batches), range, back: 0, make: Arc::new(make) }
    }

    /// The batches. Their positions are those of the walk: `position` tells those of this sequence.
    pub fn placed(&self) -> &[Placed] {
        &self.all[self.range.clone()]
    }

    /// The position in this sequence of a place in the walk.
    pub fn position(&self, place: usize) -> usize {
        place - self.back
    }

    fn part(&self, range: Range<usize>) -> Self {
        Self { all: self.all.clone(), range, back: self.back, make: self.make.clone() }
    }

    fn item<'py>(&self, py: Python<'py>, number: usize) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let Some((at, header)) = self.placed().get(number) else {
            return Ok(None);
        };
        let header = self.make.bind(py).call1((fields(py, header)?,))?;
        Ok(Some((self.position(*at), header).into_pyobject(py)?))
    }
}

#[pymethods]
impl Headers {
    /// See the stub.
    #[staticmethod]
    fn of(items: &Bound<'_, PyAny>, make: Py<PyAny>) -> PyResult<Self> {
        let mut batches = Vec::new();
        for item in items.try_iter()? {
            let (at, fields): (usize, Bound<'_, PyTuple>) = item?.extract()?;
            batches.push((at, header(&fields)?));
        }
        if let Some(loose) = headers::first_loose(&batches) {
            let (at, header) = batches[loose];
            let end = headers::end(&batches[..loose]);
            return Err(PyValueError::new_err(format!(
                "the batch at offset {} is at {at}, its predecessor ends at {end}",
                header.base_offset
            )));
        }
        Ok(Self::new(batches, make))
    }

    fn __len__(&self) -> usize {
        self.range.len()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let length = self.range.len();
        if let Ok(slice) = index.cast::<PySlice>() {
            let found = slice.indices(length.try_into()?)?;
            if found.step != 1 {
                return Err(PyValueError::new_err("headers are sliced in steps of 1"));
            }
            let start = self.range.start + found.start as usize;
            return Ok(Bound::new(py, self.part(start..start + found.slicelength))?.into_any());
        }
        let number: isize =
            index.cast::<PyInt>().map_err(|_| PyTypeError::new_err("no number and no slice"))?.extract()?;
        let number = if number < 0 { number + length as isize } else { number };
        let found = usize::try_from(number).ok().map(|number| self.item(py, number)).transpose()?.flatten();
        found.map(Bound::into_any).ok_or_else(|| PyIndexError::new_err("no such batch"))
    }

    fn __iter__(slf: Bound<'_, Self>) -> Items {
        Items { headers: slf.unbind(), next: 0 }
    }

    /// Bytes of all batches.
    #[getter]
    fn size(&self) -> usize {
        headers::size(self.placed())
    }

    /// The position of the first batch.
    #[getter]
    fn start(&self) -> usize {
        self.placed().first().map_or(0, |(at, _)| self.position(*at))
    }

    /// The position behind the last batch.
    #[getter]
    fn end(&self) -> usize {
        if self.range.is_empty() { 0 } else { self.position(headers::end(self.placed())) }
    }

    /// One past the last offset of the last batch.
    #[getter]
    fn next_offset(&self) -> PyResult<i128> {
        let (_, last) = self.placed().last().ok_or_else(|| PyIndexError::new_err("no batch"))?;
        Ok(last.next_offset())
    }

    /// The same with positions from the first batch on.
    fn relative(&self) -> Self {
        Self { back: self.placed().first().map_or(0, |(at, _)| *at), ..self.part(self.range.clone()) }
    }

    /// See the stub.
    fn in_order(&self, expected: i128, end: i128) -> usize {
        headers::in_order(self.placed(), expected, end)
    }

    /// See the stub.
    fn plain(&self, first: usize, at: i128, end: i128, room: i64, epoch: i32) -> usize {
        headers::plain(self.placed().get(first..).unwrap_or_default(), Room { bytes: room, end, at, epoch })
    }

    /// See the stub.
    fn first_gap(&self, at: i128) -> usize {
        headers::first_gap(self.placed(), at)
    }

    /// See the stub.
    fn first_reaching(&self, offset: i128) -> usize {
        headers::first_reaching(self.placed(), offset)
    }

    /// See the stub.
    fn first_since(&self, time: i64) -> usize {
        headers::first_since(self.placed(), time)
    }

    /// See the stub.
    fn with_bits(&self, bits: i16) -> Vec<usize> {
        headers::with_bits(self.placed(), bits)
    }

    /// See the stub.
    fn with_producer(&self) -> Vec<usize> {
        headers::with_producer(self.placed())
    }

    /// See the stub.
    fn epoch_starts(&self, epoch: i32) -> Vec<usize> {
        headers::epoch_starts(self.placed(), epoch)
    }
}

/// Iterates over headers.
#[pyclass(module = "logkeep_kernel")]
struct Items {
    headers: Py<Headers>,
    next: usize,
}

#[pymethods]
impl Items {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let number = self.next;
        self.next += 1;
        self.headers.get().item(py, number)
    }
}

/// The 13 fields of a header, in their order on disk.
fn fields<'py>(py: Python<'py>, header: &Header) -> PyResult<Bound<'py, PyTuple>> {
    let all: [Bound<'py, PyInt>; 13] = [
        header.base_offset.into_pyobject(py)?,
        header.batch_length.into_pyobject(py)?,
        header.leader_epoch.into_pyobject(py)?,
        header.magic.into_pyobject(py)?,
        header.crc.into_pyobject(py)?,
        header.attributes.into_pyobject(py)?,
        header.last_offset_delta.into_pyobject(py)?,
        header.base_timestamp.into_pyobject(py)?,
        header.max_timestamp.into_pyobject(py)?,
        header.producer_id.into_pyobject(py)?,
        header.producer_epoch.into_pyobject(py)?,
        header.base_sequence.into_pyobject(py)?,
        header.record_count.into_pyobject(py)?,
    ];
    PyTuple::new(py, all)
}

pub fn header(fields: &Bound<'_, PyTuple>) -> PyResult<Header> {
    if fields.len() != 13 {
        return Err(PyValueError::new_err("a header has 13 fields"));
    }
    Ok(Header {
        base_offset: fields.get_item(0)?.extract()?,
        batch_length: fields.get_item(1)?.extract()?,
        leader_epoch: fields.get_item(2)?.extract()?,
        magic: fields.get_item(3)?.extract()?,
        crc: fields.get_item(4)?.extract()?,
        attributes: fields.get_item(5)?.extract()?,
        last_offset_delta: fields.get_item(6)?.extract()?,
        base_timestamp: fields.get_item(7)?.extract()?,
        max_timestamp: fields.get_item(8)?.extract()?,
        producer_id: fields.get_item(9)?.extract()?,
        producer_epoch: fields.get_item(10)?.extract()?,
        base_sequence: fields.get_item(11)?.extract()?,
        record_count: fields.get_item(12)?.extract()?,
    })
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Headers>()
}
