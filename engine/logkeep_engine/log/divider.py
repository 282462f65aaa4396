"""Divides the records of one partition among those of a topic with another number of partitions. The kernel does it."""

from logkeep_kernel import Divider, target_of_record

__all__ = ["Divider", "Share", "target_of_record"]

Share = tuple[int, int, int, bytes, int, int, int]
"""The packed records of a batch that a `Divider` has made. Its stub says what is in it."""
