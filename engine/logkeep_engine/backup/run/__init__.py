"""The run: its steps in their order, its dry run, and what follows once everything is archived."""
