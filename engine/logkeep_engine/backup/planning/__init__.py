"""Decides what a run archives, from the cluster, the archive and the spec, and stores the plan."""
