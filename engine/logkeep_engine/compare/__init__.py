"""Compares the records of two sides. Every command and run that does so stands on this room.

`sources` give the records of a partition in order. `aligning` finds the differences between two lists of digests.
`stretches` holds a source against digests of whole stretches, so that nothing else of the other side is read, and
`streams` compares two sides from their beginning to their end. `account` asks another question: whether the catalog
accounts for every offset that a live log has.
"""
