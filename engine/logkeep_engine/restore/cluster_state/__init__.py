"""Quotas and ACLs: a restore of everything brings them back besides topics."""
