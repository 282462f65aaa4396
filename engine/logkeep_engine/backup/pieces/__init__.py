"""A task's pieces of partitions: their fetched batches become segments, in each format."""
