"""Backup: plan (pure) -> task (one chunk: fetch, check, write) -> commit."""
