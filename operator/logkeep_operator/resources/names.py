"""Names and labels of what the operator creates. Only own labels: a copied `argocd.argoproj.io/instance` would make
Argo CD prune the child."""

from __future__ import annotations

import hashlib

from logkeep_engine.contract import names as contract
from logkeep_operator.api import Key

LABEL_MANAGED_BY = contract.LABEL_MANAGED_BY
LABEL_KIND = "logkeep.dev/kind"
LABEL_NAME = "logkeep.dev/name"
LABEL_RUN = contract.LABEL_RUN
LABEL_ROLE = contract.LABEL_ROLE
LABEL_KUEUE = "kueue.x-k8s.io/queue-name"  # of a Job: the queue of Kueue that suspends it and lets it go
ANNOTATION_RESOURCE = "logkeep.dev/resource"  # the whole name, where the label had to be shortened
# What a status says of a run, on the run's children: from them a run is known that no status shows.
ANNOTATION_RUN_KEY = "logkeep.dev/run-key"
ANNOTATION_RUN_TRIGGER = "logkeep.dev/run-trigger"
ANNOTATION_RUN_SCHEDULED = "logkeep.dev/run-scheduled"
ANNOTATION_PREVIOUS_RUN = "logkeep.dev/previous-run"
ANNOTATION_REQUESTED_BY = "logkeep.dev/requested-by"
ANNOTATION_RUN_ASKED = "logkeep.dev/run-asked"
ANNOTATION_SUSPENDED = "logkeep.dev/suspended"  # of a Job: whether the operator has suspended it, true or false
MANAGED_BY = "logkeep"
# Of everything that the operator makes. The chart's objects and the CRDs have the last one, too: it lists what is left.
OWN_LABELS = {LABEL_MANAGED_BY: MANAGED_BY, contract.LABEL_PART_OF: "logkeep"}
ROLE_DRIVER = contract.ROLE_DRIVER
ROLE_EXECUTOR = contract.ROLE_EXECUTOR

# Job names of at most 40 give driver pods of at most 46 characters ("-" and five random ones), which is the longest
# prefix that Spark's executor pod names may have (63 with "-exec-" and a number).
_JOB_NAME_MAX = 40
_LABEL_MAX = 63  # the most that Kubernetes takes


def job_name(resource_name: str, run_id: str) -> str:
    """`<resource's name, cut>-<run id>`: a DNS label."""
    cut = resource_name.replace(".", "-")[: _JOB_NAME_MAX - 1 - len(run_id)].rstrip("-")
    return f"{cut}-{run_id}"


def request_name(resource_name: str, run_id: str) -> str:
    """Return the ConfigMap with the run's request."""
    return f"{job_name(resource_name, run_id)}-request"


def progress_name(resource_name: str, run_id: str) -> str:
    """Return the ConfigMap that the driver writes progress and result to."""
    return f"{job_name(resource_name, run_id)}-progress"


def is_progress_name(name: str) -> bool:
    """Return whether a ConfigMap of a run is the one that the driver writes progress and result to."""
    return name.endswith("-progress")


def topics_name(resource_name: str, run_id: str) -> str:
    """Return the ConfigMap that the driver writes the KafkaTopics of a restore to."""
    return f"{job_name(resource_name, run_id)}-topics"


def is_topics_name(name: str) -> bool:
    """Return whether a ConfigMap of a run is the one that the driver writes the KafkaTopics of a restore to."""
    return name.endswith("-topics")


def resource_labels(key: Key) -> dict[str, str]:
    """Return the labels of every child of a resource. Names that are too long for a label are cut and end in a hash."""
    name = key.name
    if len(name) > _LABEL_MAX:
        # A dash and ten digits follow.
        name = f"{name[: _LABEL_MAX - 11].rstrip('-.')}-{hashlib.sha256(name.encode()).hexdigest()[:10]}"
    return {**OWN_LABELS, LABEL_KIND: key.kind, LABEL_NAME: name}


def run_labels(key: Key, run_id: str) -> dict[str, str]:
    """Return the labels of every child of a run."""
    return {**resource_labels(key), LABEL_RUN: run_id}
