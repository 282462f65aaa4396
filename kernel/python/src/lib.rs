//! The module `logkeep_kernel`. Everything here is about crossing over: buffers, tuples, the interpreter's lock, errors.

use pyo3::prelude::*;

mod avro;
mod bytes;
mod compaction;
mod compression;
mod digest;
mod divider;
mod headers;
mod key_comparison;
mod keys;
mod large_pages;
mod merge;
mod objects;
mod records_format;
mod rows;
mod segment;
mod segment_table;
mod walk;

/// The module.
#[pymodule]
fn logkeep_kernel(module: &Bound<'_, PyModule>) -> PyResult<()> {
    objects::register(module)?;
    compression::register(module)?;
    headers::register(module)?;
    segment::register(module)?;
    segment_table::register(module)?;
    merge::register(module)?;
    rows::register(module)?;
    records_format::register(module)?;
    avro::register(module)?;
    digest::register(module)?;
    keys::register(module)?;
    divider::register(module)?;
    compaction::register(module)?;
    key_comparison::register(module)?;
    walk::register(module)
}
