"""The topics of the target: created, replaced, held and given their configuration."""
