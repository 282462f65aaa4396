"""Reading an archive: what a restore or a conversion sees of it, batches and records of its segments, transactions."""
