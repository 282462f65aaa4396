"""The runs: a restore, its dry run, a drill, the release of held topics, and commands about finished runs."""
