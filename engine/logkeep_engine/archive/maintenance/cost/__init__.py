"""The cost of an archive: what is stored, the requests that runs make, growth, and what less of it would save."""
