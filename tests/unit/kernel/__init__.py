"""The compiled kernel: its tests in Rust, and the module as Python sees it."""
