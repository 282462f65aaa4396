"""Finds keys that are alive in the archive and gone from the cluster: `step` is the driver's part, `task` an
executor's."""
