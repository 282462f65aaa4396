//! Blocks of the Avro format.

use std::sync::Arc;

use logkeep_kernel_core::avro::{self, Block, BlockPacker, Shape};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::bytes::Bytes;
use crate::records_format::{Told, told, word};
use crate::rows::{Data, Held, Rows};

/// The records of an Avro object, packed block by block.
#[pyclass(module = "logkeep_kernel")]
struct AvroBlocks(BlockPacker);

#[pymethods]
impl AvroBlocks {
    #[new]
    #[pyo3(signature = (prefix, *, lossless))]
    fn new(prefix: Vec<u8>, lossless: bool) -> AvroBlocks {
        AvroBlocks(BlockPacker::new(prefix, lossless))
    }

    /// Takes rows from number `start` on, up to and including the one with which the block has more than `most` bytes.
    fn append(&mut self, py: Python<'_>, rows: &Rows, start: usize, most: i64) -> (usize, &'static str) {
        let view = rows.view(start);
        let packer = &mut self.0;
        let (taken, ended) = py.detach(|| packer.append(&view, usize::try_from(most).unwrap_or(0)));
        (taken, word(ended))
    }

    /// Bytes of the open block.
    #[getter]
    fn waiting(&self) -> usize {
        self.0.data.len()
    }

    /// Records of all blocks.
    #[getter]
    fn count(&self) -> u64 {
        self.0.facts.count
    }

    #[getter]
    fn last_offset(&self) -> i64 {
        self.0.facts.last
    }

    /// The records of the open block, and how many there are. The next block begins.
    fn take<'py>(&mut self, py: Python<'py>) -> (Bound<'py, PyBytes>, u64) {
        let found = (PyBytes::new(py, &self.0.data), self.0.count);
        self.0.data.clear();
        self.0.count = 0;
        found
    }

    /// (first offset, last offset, lowest timestamp, highest timestamp, whether one is of the append, largest record)
    fn facts(&self) -> Told {
        told(&self.0.facts)
    }
}

/// The records of a block. None if something in it cannot be.
#[pyfunction]
fn read_avro_block(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    count: usize,
    prefix: &[u8],
    shape: (i64, i64, i64, bool),
    last: i64,
) -> PyResult<Option<Rows>> {
    let data = Bytes::of(data)?;
    let (key, value, headers, lossless) = shape;
    let shape = Shape { key, value, headers, lossless };
    let found = py.detach(|| avro::read(data.get(), count, prefix, &shape, last));
    let data = Arc::new(Data::Buffer(data));
    Ok(found.map(|Block { rows, headers }| {
        Rows::new(Held { data, headers: Some(headers), form: Block::FORM, rows, ends: Vec::new(), begin: 0 })
    }))
}

/// What the published schema loses of these records: (kind of loss, how many records have it, offset of the first).
#[pyfunction]
fn avro_losses(py: Python<'_>, rows: &Rows) -> Vec<(&'static str, u64, i64)> {
    let view = rows.view(0);
    let found = py.detach(|| avro::losses(&view));
    let named = avro::LOSSES.into_iter().zip(found).map(|(kind, (count, first))| (kind, count, first));
    named.filter(|(_, count, _)| *count > 0).collect()
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<AvroBlocks>()?;
    module.add_function(wrap_pyfunction!(read_avro_block, module)?)?;
    module.add_function(wrap_pyfunction!(avro_losses, module)?)
}
