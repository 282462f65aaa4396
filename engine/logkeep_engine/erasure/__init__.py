"""Erasure: the records of some keys are taken out of the archived segments of a topic."""
