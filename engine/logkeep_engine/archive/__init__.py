"""The archive: object names, the facts the catalog keeps, commits, verification, description."""
