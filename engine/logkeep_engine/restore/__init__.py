"""Restores: rooms from the runs down to the streams of batches. ARCHITECTURE.md says what is in which."""
