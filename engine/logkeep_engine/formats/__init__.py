"""The record-shaped segment formats: what is in their bytes. No I/O beyond the functions that are handed in."""
