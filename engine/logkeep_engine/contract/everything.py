"""Fields about what a cluster has beside topics and groups: its ACLs, client quotas and SCRAM users."""

from __future__ import annotations

from enum import StrEnum


class ClusterStateMode(StrEnum):
    """`Archive`: each run archives ACLs, client quotas and the names of SCRAM users, as far as its user may see them."""

    ARCHIVE = "Archive"
    IGNORE = "Ignore"
