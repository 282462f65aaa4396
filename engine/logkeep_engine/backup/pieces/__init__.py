"""The writers of pieces: they make segments of fetched batches, in each format."""
