"""Sends the records of archived partitions to their targets, and counts what has arrived."""
