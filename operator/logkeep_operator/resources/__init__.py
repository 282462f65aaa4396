"""Pure builders of everything the operator creates: access objects of a namespace, ConfigMaps and Job of a run."""

from logkeep_operator.resources.access import EARLIER_ACCESS, access_objects
from logkeep_operator.resources.checks import check_spec
from logkeep_operator.resources.names import (
    ANNOTATION_PREVIOUS_RUN,
    ANNOTATION_RESOURCE,
    ANNOTATION_RUN_KEY,
    ANNOTATION_RUN_TRIGGER,
    ANNOTATION_SUSPENDED,
    LABEL_KIND,
    LABEL_MANAGED_BY,
    LABEL_NAME,
    LABEL_ROLE,
    LABEL_RUN,
    MANAGED_BY,
    ROLE_DRIVER,
    ROLE_EXECUTOR,
    job_name,
    progress_name,
    request_name,
    resource_labels,
    run_labels,
)
from logkeep_operator.resources.run import GRACE_SECONDS, RunToStart, job, progress_config_map, request_config_map

__all__ = [
    "ANNOTATION_PREVIOUS_RUN",
    "ANNOTATION_RESOURCE",
    "ANNOTATION_RUN_KEY",
    "ANNOTATION_RUN_TRIGGER",
    "ANNOTATION_SUSPENDED",
    "EARLIER_ACCESS",
    "GRACE_SECONDS",
    "LABEL_KIND",
    "LABEL_MANAGED_BY",
    "LABEL_NAME",
    "LABEL_ROLE",
    "LABEL_RUN",
    "MANAGED_BY",
    "ROLE_DRIVER",
    "ROLE_EXECUTOR",
    "RunToStart",
    "access_objects",
    "check_spec",
    "job",
    "job_name",
    "progress_config_map",
    "progress_name",
    "request_config_map",
    "request_name",
    "resource_labels",
    "run_labels",
]
