//! The division of a partition's records among those of a topic with another number of partitions.

use logkeep_kernel_core::divider::{self, Share};
use logkeep_kernel_core::partitioner::Partitioner;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::bytes::Bytes;
use crate::headers;

/// See the stub.
#[pyclass(module = "logkeep_kernel")]
struct Divider(divider::Divider);

#[pymethods]
impl Divider {
    #[new]
    fn new(partitioner: &str, targets: u32, most: usize, most_records: i64) -> PyResult<Divider> {
        Ok(Divider(divider::Divider::new(named(partitioner)?, some(targets)?, most, most_records)))
    }

    fn feed<'py>(
        &mut self,
        py: Python<'py>,
        packed: &Bound<'py, PyAny>,
        header: &Bound<'py, PyTuple>,
        source: Vec<(i64, i64)>,
    ) -> PyResult<(Bound<'py, PyList>, bool)> {
        let packed = Bytes::of(packed)?;
        let header = headers::header(header)?;
        let (slice, divider) = (packed.get(), &mut self.0);
        let mut full = Vec::new();
        let whole = py.detach(|| divider.feed(slice, &header, &source, &mut full)).is_ok();
        Ok((listed(py, full)?, whole))
    }

    fn finish<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let left = self.0.finish();
        listed(py, left)
    }
}

/// The target to which a divider gives a record.
#[pyfunction]
fn target_of_record(partitioner: &str, key: Option<&Bound<'_, PyAny>>, offset: i64, targets: u32) -> PyResult<u32> {
    let key = key.map(Bytes::of).transpose()?;
    Ok(divider::target(named(partitioner)?, key.as_ref().map(Bytes::get), offset, some(targets)?))
}

fn named(partitioner: &str) -> PyResult<Partitioner> {
    Partitioner::named(partitioner).ok_or_else(|| PyValueError::new_err("there is no such partitioner"))
}

fn some(targets: u32) -> PyResult<u32> {
    if targets == 0 {
        return Err(PyValueError::new_err("a topic has one partition at least"));
    }
    Ok(targets)
}

fn listed(py: Python<'_>, shares: Vec<Share>) -> PyResult<Bound<'_, PyList>> {
    let list = PyList::empty(py);
    for share in shares {
        let packer = &share.packer;
        let body = PyBytes::new(py, &packer.body);
        let times = (packer.base_timestamp, packer.max_timestamp);
        list.append((share.target, share.codec, packer.count, body, times.0, times.1, share.source_end))?;
    }
    Ok(list)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Divider>()?;
    module.add_function(wrap_pyfunction!(target_of_record, module)?)
}
