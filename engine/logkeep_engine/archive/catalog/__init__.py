"""The catalog: the facts that an archive keeps, the documents that hold them, and the one writer that adds to them."""
