//! Rows: records that were taken apart, and are made objects only where somebody asks for one.

use std::ops::Range;
use std::sync::Arc;

use logkeep_kernel_core::header::Header;
use logkeep_kernel_core::records::{self, Packed, Packer};
use logkeep_kernel_core::records_format::Facts;
use logkeep_kernel_core::rows as core;
use logkeep_kernel_core::rows::{Form, Kind, Row, Span};
use pyo3::exceptions::{PyIndexError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyIterator, PyList, PyModule, PySlice, PyString, PyTuple, PyType};

use crate::bytes::Bytes;
use crate::headers;

/// The class of the records that rows become, and how it takes the memory of one.
static RECORD: PyOnceLock<(Py<PyType>, ffi::allocfunc)> = PyOnceLock::new();

/// The number of its fields.
const FIELDS: usize = 6;

/// Where keys, values and headers lie.
pub enum Data {
    Buffer(Bytes),
    Owned(Vec<u8>),
}

impl Data {
    pub fn get(&self) -> &[u8] {
        match self {
            Data::Buffer(bytes) => bytes.get(),
            Data::Owned(bytes) => bytes,
        }
    }
}

/// What slices of rows share.
pub struct Held {
    pub data: Arc<Data>,
    /// Where headers lie, if they do not lie with keys and values.
    pub headers: Option<Vec<u8>>,
    pub form: Form,
    pub rows: Vec<Row>,
    /// The position behind each record, if it is known, and that of the first.
    pub ends: Vec<u32>,
    pub begin: u32,
}

/// Records of one partition, taken apart, in the order of their offsets.
#[pyclass(frozen, sequence, module = "logkeep_kernel")]
pub struct Rows {
    held: Arc<Held>,
    range: Range<usize>,
}

impl Rows {
    pub fn new(held: Held) -> Rows {
        let range = 0..held.rows.len();
        Rows { held: Arc::new(held), range }
    }

    pub fn packed(data: Arc<Data>, rows: Vec<Row>) -> Rows {
        Rows::new(Held { data, headers: None, form: Form::Packed, rows, ends: Vec::new(), begin: 0 })
    }

    /// These rows from `start` on.
    pub fn view(&self, start: usize) -> core::Rows<'_> {
        let data = self.held.data.get();
        core::Rows {
            rows: self.held.rows[self.range.clone()].get(start..).unwrap_or_default(),
            data,
            headers: self.held.headers.as_deref().unwrap_or(data),
            form: self.held.form,
        }
    }

    fn part(&self, start: usize, end: usize) -> Rows {
        let from = self.range.start;
        Rows { held: Arc::clone(&self.held), range: from + start..from + end.max(start) }
    }

    /// The records of some rows of `view` as objects.
    fn objects<'py>(&self, py: Python<'py>, view: &core::Rows<'_>, rows: &[Row]) -> PyResult<Bound<'py, PyList>> {
        let mut found = Vec::with_capacity(rows.len());
        let class = class_of_records(py)?;
        for row in rows {
            found.push(record(py, class, view, row)?);
        }
        PyList::new(py, found)
    }
}

fn class_of_records(py: Python<'_>) -> PyResult<&(Py<PyType>, ffi::allocfunc)> {
    RECORD.get(py).ok_or_else(|| PyRuntimeError::new_err("no class of records was named"))
}

/// The object of one row. Its class is a tuple's without fields of its own, so the fields are set where they lie: a call
/// of the class would take twice the time.
#[inline]
fn record<'py>(
    py: Python<'py>,
    (class, alloc): &(Py<PyType>, ffi::allocfunc),
    view: &core::Rows<'_>,
    row: &Row,
) -> PyResult<Bound<'py, PyAny>> {
    let none = || py.None().into_bound(py);
    let number = |number: i64| number.into_pyobject(py).map(Bound::into_any);
    let bytes = |span: &Span| span.of(view.data).map_or_else(none, |found| PyBytes::new(py, found).into_any());
    let kind = match row.kind {
        Kind::None => none(),
        Kind::Append => number(1)?,
        Kind::Create | Kind::CreateNull => number(0)?,
    };
    let timestamp = if row.timestamp == -1 { none() } else { number(row.timestamp)? };
    let headers = headers_of(py, view, row)?.into_any();
    let fields: [_; FIELDS] = [number(row.offset)?, timestamp, kind, bytes(&row.key), bytes(&row.value), headers];
    // SAFETY: the class is a tuple's, so its memory is that of a tuple of so many fields, all null; nobody else has the
    // object yet, so they can be set, and each is owned by it from then on.
    unsafe {
        let made = alloc(class.as_ptr().cast(), FIELDS as ffi::Py_ssize_t);
        let object = Bound::from_owned_ptr_or_err(py, made)?;
        for (at, field) in (0..).zip(fields) {
            if ffi::PyTuple_SetItem(made, at, field.into_ptr()) != 0 {
                return Err(PyErr::fetch(py));
            }
        }
        Ok(object)
    }
}

fn headers_of<'py>(py: Python<'py>, view: &core::Rows<'_>, row: &Row) -> PyResult<Bound<'py, PyTuple>> {
    if row.header_count == 0 {
        return Ok(PyTuple::empty(py));
    }
    let mut found = Vec::new();
    for (name, value) in view.headers_of(row) {
        found.push((text(py, name)?, value.map(|bytes| PyBytes::new(py, bytes))));
    }
    PyTuple::new(py, found)
}

/// A header's key as text; bytes that are not UTF-8 are surrogate-escaped.
fn text<'py>(py: Python<'py>, name: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    match std::str::from_utf8(name) {
        Ok(name) => Ok(PyString::new(py, name).into_any()),
        Err(_) => PyBytes::new(py, name).call_method1("decode", ("utf-8", "surrogateescape")),
    }
}

#[pymethods]
impl Rows {
    fn __len__(&self) -> usize {
        self.range.len()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        if let Ok(slice) = index.cast::<PySlice>() {
            let found = slice.indices(self.range.len() as isize)?;
            if found.step != 1 {
                return Err(PyValueError::new_err("rows have slices of step 1 only"));
            }
            let part = self.part(found.start as usize, found.stop.max(found.start) as usize);
            return Ok(Bound::new(py, part)?.into_any());
        }
        let at: isize = index.extract()?;
        let at = if at < 0 { at + self.range.len() as isize } else { at };
        let view = self.view(0);
        let row = usize::try_from(at).ok().and_then(|at| view.rows.get(at));
        let row = row.ok_or_else(|| PyIndexError::new_err("no such record"))?;
        record(py, class_of_records(py)?, &view, row)
    }

    /// All of them as objects.
    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        let view = self.view(0);
        self.objects(py, &view, view.rows)?.try_iter()
    }

    /// The first from number `start` on as objects: at most `count`, which take at most `size` bytes, but at least one.
    fn listed<'py>(&self, py: Python<'py>, start: usize, count: usize, size: usize) -> PyResult<Bound<'py, PyList>> {
        let view = self.view(start);
        let (taken, _) = records::fitting(&view, size, count);
        self.objects(py, &view, &view.rows[..taken.max(1).min(view.rows.len())])
    }

    #[getter]
    fn first_offset(&self) -> i64 {
        self.view(0).rows.first().map_or(-1, |row| row.offset)
    }

    #[getter]
    fn last_offset(&self) -> i64 {
        self.view(0).rows.last().map_or(-1, |row| row.offset)
    }

    /// (first offset, last offset, lowest timestamp, highest timestamp, whether one is of the append, largest record)
    fn facts(&self, header_bytes: usize) -> (i64, i64, Option<i64>, i64, bool, u64) {
        let facts = Facts::of(&self.view(0), header_bytes);
        (facts.first, facts.last, facts.min_timestamp, facts.max_timestamp, facts.append_time, facts.largest)
    }

    fn offsets(&self) -> Vec<i64> {
        self.view(0).rows.iter().map(|row| row.offset).collect()
    }

    /// Those with offsets in [start, until).
    fn between(&self, start: i64, until: i64) -> Rows {
        let rows = self.view(0).rows;
        self.part(rows.partition_point(|row| row.offset < start), rows.partition_point(|row| row.offset < until))
    }

    /// Those of a time from `since` on and below `before`; their positions are not known any more.
    fn of_times(&self, since: Option<i64>, before: Option<i64>) -> Rows {
        let all = self.view(0).rows;
        let wanted = |row: &&Row| {
            since.is_none_or(|since| row.timestamp >= since) && before.is_none_or(|end| row.timestamp < end)
        };
        let count = all.iter().filter(wanted).count();
        if count == all.len() {
            return self.part(0, count);
        }
        let rows = all.iter().filter(wanted).copied().collect();
        let held = &self.held;
        let headers = if count == 0 { None } else { held.headers.clone() };
        Rows::new(Held { data: Arc::clone(&held.data), headers, form: held.form, rows, ends: Vec::new(), begin: 0 })
    }

    /// The positions of each record and of their end, if they were read where records lie one behind the other.
    fn positions(&self, origin: u64) -> Vec<u64> {
        let Range { start, end } = self.range;
        let ends = &self.held.ends;
        let Some(ends_here) = ends.get(start..end) else { return Vec::new() };
        let first = if start == 0 { self.held.begin } else { ends[start - 1] };
        std::iter::once(&first).chain(ends_here).map(|at| origin + u64::from(*at)).collect()
    }

    /// How many of the first records fit into `size` bytes of a batch, at most `count`, and the bytes that they take.
    #[pyo3(signature = (size, count))]
    fn fitting(&self, size: usize, count: usize) -> (usize, usize) {
        records::fitting(&self.view(0), size, count)
    }

    /// The number of the first record without a key.
    fn first_without_key(&self) -> Option<usize> {
        self.view(0).rows.iter().position(|row| row.key.is_null())
    }

    /// The number of the first record of that time or later. A record without a timestamp has -1.
    fn first_since(&self, time: i64) -> Option<usize> {
        self.view(0).rows.iter().position(|row| row.timestamp >= time)
    }
}

/// The class of records: named tuples of offset, timestamp, timestamp type, key, value and headers.
#[pyfunction]
#[pyo3(signature = (record, /))]
fn records_are(py: Python<'_>, record: &Bound<'_, PyType>) -> PyResult<()> {
    let fields: usize = record.getattr("_fields")?.len()?;
    if !record.is_subclass_of::<PyTuple>()? || fields != FIELDS {
        return Err(PyTypeError::new_err("records are named tuples of six fields"));
    }
    // SAFETY: a class has this slot, and what lies there is a function of this kind.
    let alloc = unsafe {
        let slot = ffi::PyType_GetSlot(record.as_type_ptr(), ffi::Py_tp_alloc);
        if slot.is_null() {
            return Err(PyTypeError::new_err("the class of records does not take memory"));
        }
        std::mem::transmute::<*mut std::ffi::c_void, ffi::allocfunc>(slot)
    };
    let _ = RECORD.set(py, (record.clone().unbind(), alloc));
    Ok(())
}

/// The records of one batch, in rows of bounded size. All of it was looked through before the first.
#[pyclass(module = "logkeep_kernel")]
struct BatchRows {
    data: Arc<Data>,
    header: Header,
    most: usize,
    /// Records of a small batch: they were kept when it was looked through.
    found: Option<Vec<Row>>,
    /// Where a large batch goes on.
    taken: Option<records::Place>,
}

#[pymethods]
impl BatchRows {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&mut self, py: Python<'_>) -> PyResult<Option<Rows>> {
        if let Some(rows) = self.found.take() {
            return Ok((!rows.is_empty()).then(|| Rows::packed(Arc::clone(&self.data), rows)));
        }
        let Some(place) = self.taken else { return Ok(None) };
        let (data, header, most) = (&self.data, &self.header, self.most);
        let (rows, place) = py
            .detach(|| {
                let mut rows = Vec::new();
                let mut packed = Packed::resumed(data.get(), header, place);
                packed.take(most, &mut rows)?;
                Ok::<_, records::Odd>((rows, packed.place()))
            })
            .map_err(|_| PyValueError::new_err("the records have changed"))?;
        self.taken = place;
        Ok(Some(Rows::packed(Arc::clone(data), rows)))
    }
}

/// The records of a batch of magic 2, decompressed, in rows of at most `most`. None if they do not fit together.
#[pyfunction]
fn batch_rows(
    py: Python<'_>,
    records: &Bound<'_, PyAny>,
    header: &Bound<'_, PyTuple>,
    most: usize,
) -> PyResult<Option<BatchRows>> {
    let data = Data::Buffer(Bytes::of(records)?);
    let header = headers::header(header)?;
    let looked = py.detach(|| {
        let mut packed = Packed::new(data.get(), &header);
        let mut found = Vec::new();
        packed.take(most, &mut found)?;
        if packed.is_done() {
            return Ok((Some(found), None));
        }
        packed.check()?;
        Ok::<_, records::Odd>((None, Packed::new(data.get(), &header).place()))
    });
    Ok(looked.ok().map(|(found, taken)| BatchRows { data: Arc::new(data), header, most, found, taken }))
}

/// Rows of records that are objects already.
#[pyfunction]
fn rows_of(records: &Bound<'_, PyAny>) -> PyResult<Rows> {
    let mut data = Vec::new();
    let mut rows = Vec::new();
    for record in records.try_iter()? {
        rows.push(row_of(&record?, &mut data)?);
    }
    Ok(Rows::packed(Arc::new(Data::Owned(data)), rows))
}

fn row_of(object: &Bound<'_, PyAny>, data: &mut Vec<u8>) -> PyResult<Row> {
    let py = object.py();
    let offset: i64 = object.getattr(pyo3::intern!(py, "offset"))?.extract()?;
    let timestamp: Option<i64> = object.getattr(pyo3::intern!(py, "timestamp"))?.extract()?;
    let kind: Option<i64> = object.getattr(pyo3::intern!(py, "timestamp_type"))?.extract()?;
    let timestamp = timestamp.unwrap_or(-1);
    let kind = match kind {
        None => Kind::None,
        Some(0) if timestamp == -1 => Kind::CreateNull,
        Some(0) => Kind::Create,
        Some(1) => Kind::Append,
        Some(other) => {
            return Err(PyValueError::new_err(format!(
                "the record at offset {offset} has the timestamp type {other}; 0, 1 and None exist"
            )));
        }
    };
    let key = span_of(&object.getattr(pyo3::intern!(py, "key"))?, data)?;
    let value = span_of(&object.getattr(pyo3::intern!(py, "value"))?, data)?;
    let start = data.len();
    let mut count = 0;
    for header in object.getattr(pyo3::intern!(py, "headers"))?.try_iter()? {
        let (name, value): (Bound<'_, PyAny>, Option<Bound<'_, PyBytes>>) = header?.extract()?;
        let name = match name.cast::<PyString>() {
            Ok(name) => name.call_method1("encode", ("utf-8", "surrogateescape"))?,
            Err(_) => return Err(PyTypeError::new_err("the key of a header is text")),
        };
        core::put_field(data, Some(name.cast::<PyBytes>()?.as_bytes()));
        core::put_field(data, value.as_ref().map(|bytes| bytes.as_bytes()));
        count += 1;
    }
    let headers = span(start, data.len())?;
    Ok(Row { offset, timestamp, key, value, headers, header_count: count, kind })
}

fn span_of(field: &Bound<'_, PyAny>, data: &mut Vec<u8>) -> PyResult<Span> {
    if field.is_none() {
        return Ok(Span::NULL);
    }
    let start = data.len();
    match field.cast::<PyBytes>() {
        Ok(bytes) => data.extend_from_slice(bytes.as_bytes()),
        Err(_) => data.extend_from_slice(Bytes::of(field)?.get()),
    }
    span(start, data.len())
}

fn span(start: usize, end: usize) -> PyResult<Span> {
    Span::new(start, end).ok_or_else(|| PyValueError::new_err("4 GiB of records and more do not go into rows"))
}

/// The records of these rows as those of one batch of create time, uncompressed: the bytes, the first timestamp, the
/// highest one, how many had the time of the append, and (first offset, count) of their offsets. They are numbered from
/// 0 on, or keep their offsets in a batch that begins at `base`.
#[pyfunction]
#[pyo3(signature = (parts, base = None))]
#[allow(clippy::type_complexity)]
fn packed_rows<'py>(
    py: Python<'py>,
    parts: Vec<PyRef<'py, Rows>>,
    base: Option<i64>,
) -> PyResult<(Bound<'py, PyBytes>, i64, i64, u32, Vec<(i64, u32)>)> {
    let views: Vec<_> = parts.iter().map(|rows| rows.view(0)).collect();
    let mut packer = Packer::default();
    py.detach(|| {
        for view in &views {
            match base {
                None => packer.add(view),
                Some(base) => packer.add_from(view, base)?,
            }
        }
        Ok(())
    })
    .map_err(|offset: i64| {
        let before = i128::from(base.unwrap_or(0)) + i128::from(packer.end) - 1;
        let base = base.unwrap_or(0);
        PyValueError::new_err(format!("offset {offset} cannot follow {before} in a batch from {base}"))
    })?;
    let body = PyBytes::new(py, &packer.body);
    Ok((body, packer.base_timestamp, packer.max_timestamp, packer.append_times, packer.source))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Rows>()?;
    module.add_function(wrap_pyfunction!(records_are, module)?)?;
    module.add_function(wrap_pyfunction!(batch_rows, module)?)?;
    module.add_function(wrap_pyfunction!(rows_of, module)?)?;
    module.add_function(wrap_pyfunction!(packed_rows, module)?)
}
