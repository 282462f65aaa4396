"""Whose restore it is: notes that a run is still running, and that another one has taken it over."""
