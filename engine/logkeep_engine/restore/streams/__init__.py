"""The streams of batches that a restore sends: what is left out of them, merged, rebuilt and filled. Pure."""
