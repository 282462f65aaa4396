//! The table of segments in a commit's document.

use logkeep_kernel_core::segment_table::{Column, Table, in_order};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

use crate::bytes::Bytes;

/// Below this size the work is done sooner than the lock is given away and taken back from threads that read commits.
const LARGE: usize = 256 << 10;

/// Reads tables of segments.
#[pyclass(frozen, module = "logkeep_kernel")]
struct SegmentTableReader(Table);

/// Where the rows lie in the document, the number of their columns, the partition of each, and the packed rows.
type Found<'py> = (usize, usize, usize, Bound<'py, PyList>, Bound<'py, PyBytes>);

#[pymethods]
impl SegmentTableReader {
    #[new]
    fn new(
        columns: Vec<(String, Vec<Option<usize>>)>,
        codecs: Vec<String>,
        flags: Vec<String>,
        layouts: Vec<String>,
        row_bytes: usize,
    ) -> PyResult<Self> {
        if columns.len() > logkeep_kernel_core::segment_table::MOST_COLUMNS {
            return Err(PyValueError::new_err(format!("{} columns", columns.len())));
        }
        let columns = columns.into_iter().map(|(kind, places)| column(&kind, places)).collect::<PyResult<_>>()?;
        Ok(Self(Table { columns, codecs, flags, layouts, row_bytes }))
    }

    /// See the stub.
    #[pyo3(signature = (document, /))]
    fn read<'py>(&self, py: Python<'py>, document: &Bound<'py, PyAny>) -> PyResult<Option<Found<'py>>> {
        let document = Bytes::of(document)?;
        let slice = document.get();
        let found = if slice.len() < LARGE { self.0.read(slice) } else { py.detach(|| self.0.read(slice)) };
        let Some(found) = found else {
            return Ok(None);
        };
        let keys = PyList::empty(py);
        let mut topic: Option<(&str, Bound<'py, PyString>)> = None;
        for (name, partition) in found.partitions {
            let id = match topic {
                Some((known, id)) if known == name => id,
                _ => PyString::new(py, name),
            };
            keys.append(PyTuple::new(py, [id.as_any(), partition.into_pyobject(py)?.as_any()])?)?;
            topic = Some((name, id));
        }
        Ok(Some((found.place.start, found.place.end, found.width, keys, PyBytes::new(py, &found.rows))))
    }
}

fn column(kind: &str, places: Vec<Option<usize>>) -> PyResult<Column> {
    let first = places.first().copied().flatten();
    let at = || first.ok_or_else(|| PyValueError::new_err(format!("a column {kind} without a place")));
    Ok(match kind {
        "q" => Column::Long(places),
        "I" => Column::Int(places),
        "sha256" => Column::Digest(at()?, 0),
        "blake3" => Column::Digest(at()?, 1),
        "txnindexSha256" => Column::IndexHash(at()?),
        "codecs" => Column::Codecs(at()?),
        "flags" => Column::Flags,
        "layout" => Column::Layout,
        _ => return Err(PyValueError::new_err(format!("a column {kind}"))),
    })
}

/// See the stub.
#[pyfunction]
#[pyo3(signature = (rows, row_bytes, /))]
fn rows_in_order(rows: &Bound<'_, PyAny>, row_bytes: usize) -> PyResult<bool> {
    let rows = Bytes::of(rows)?;
    Ok(in_order(rows.get(), row_bytes))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<SegmentTableReader>()?;
    module.add_function(wrap_pyfunction!(rows_in_order, module)?)
}
