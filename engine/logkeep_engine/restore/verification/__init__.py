"""The verification of a restore: the target is read back and compared with the digests of the archive's records.

`step` is the driver's part, `expected` gets the archive's digests, `task` reads a partition back. `comparing` compares
it by stretches, `aligning` finds the records that differ. `document` and `page` are what is told of it.
"""
