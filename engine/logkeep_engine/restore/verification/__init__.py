"""The verification of a restore: the target is read back and compared with the digests of the archive's records.

`step` is the driver's part, `expected` gets the digests of what the restore brings, `task` reads a partition back.
`sources` knows which records count on both sides. What compares them is `logkeep_engine.compare`. `document` and `page`
are the report.
"""
