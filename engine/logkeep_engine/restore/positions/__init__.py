"""The positions of consumer groups after a restore."""
