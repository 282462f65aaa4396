"""The plan of a run, and the choice of topics: all rooms know these."""
