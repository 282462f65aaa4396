"""Maintenance of an archive: check it, describe it, make branches of old ends, and remove what is old or left over."""
