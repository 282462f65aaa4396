"""Decides everything before the first topic is created."""
