"""Backups: rooms from the run down to its plan. ARCHITECTURE.md says what is in which."""
