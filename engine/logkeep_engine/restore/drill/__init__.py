"""A restore drill: topics are restored under names of their own, verified, and deleted again."""
