"""Restore: plan (pure) → check → create topics → tasks (one target partition each) → the source's configuration."""
