"""Names that the operator and the engine both use: kinds of resources, exit codes, environment variables, keys of
ConfigMaps, paths in the pod.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from logkeep_engine import __version__
from logkeep_engine.contract.model import replace

BACKUP, RESTORE, BACKUP_RUN = "KafkaBackup", "KafkaRestore", "KafkaBackupRun"
KAFKA_ARCHIVE = "KafkaArchive"
ERASURE = "Erasure"
RETENTION, HOLD, RECONCILIATION = "Retention", "Hold", "Reconciliation"
MAINTENANCE_KINDS = frozenset({RETENTION, HOLD, RECONCILIATION, ERASURE})
"""The kinds of runs that keep an archive in order and add no records to it: their ends are not points."""
# The CRDs of this version, in the files of its release (names.toml).
CRDS = f"https://logkeep.dev/releases/{__version__}/logkeep-crds.yaml"
APPLY_CRDS = f"kubectl apply --server-side --force-conflicts -f {CRDS}"
# The kinds of resources, with their names in paths of the Kubernetes API.
PLURALS = {
    BACKUP: "kafkabackups",
    RESTORE: "kafkarestores",
    BACKUP_RUN: "kafkabackupruns",
    KAFKA_ARCHIVE: "kafkaarchives",
}


class ExitCode(IntEnum):
    """Exit codes of the driver and of the `logkeep` command.

    The Job's `podFailurePolicy` retries 1 and fails at once on 2, 3, 4 and 5.
    """

    OK = 0
    FAILED = 1  # may succeed when tried again
    REFUSED = 2  # the configuration, the archive or the target must change first
    FENCED = 3  # another run owns the archive
    DATA_LOSS = 4  # records were gone before they could be archived, and onDataLoss is Fail
    INCOMPLETE = 5  # the target was written to, and it is not known to have what the archive has
    DIFFERS = 6  # a command that compares has found what it looks for: damage, a difference, something unprotected
    INTERRUPTED = 130  # 128 and the number of SIGINT, as shells report it


NEVER_RETRIED = (ExitCode.REFUSED, ExitCode.FENCED, ExitCode.DATA_LOSS, ExitCode.INCOMPLETE)

# Environment of driver and executors. Values come from Secrets by secretKeyRef, or from the user's shell for the CLI.
# What may be renewed in a run is in a file, which a variable names.
ENV_KAFKA_USERNAME = "LOGKEEP_KAFKA_USERNAME"
ENV_KAFKA_PASSWORD = "LOGKEEP_KAFKA_PASSWORD"
FILE_SUFFIX = "_FILE"
"""A variable of this ending names the file that holds the value of the variable without it."""
ENV_KAFKA_TOKEN_FILE = "LOGKEEP_KAFKA_TOKEN_FILE"
ENV_KAFKA_TOKEN_CA_FILE = "LOGKEEP_KAFKA_TOKEN_CA_FILE"
ENV_KAFKA_CA_FILE = "LOGKEEP_KAFKA_CA_FILE"
ENV_KAFKA_CERT_FILE = "LOGKEEP_KAFKA_CERT_FILE"
ENV_KAFKA_KEY_FILE = "LOGKEEP_KAFKA_KEY_FILE"
ENV_S3_ACCESS_KEY = "AWS_ACCESS_KEY_ID"
ENV_S3_SECRET_KEY = "AWS_SECRET_ACCESS_KEY"
ENV_S3_SESSION_TOKEN = "AWS_SESSION_TOKEN"
ENV_GOOGLE_KEY = "LOGKEEP_GOOGLE_KEY"
ENV_AZURE_KEY = "AZURE_STORAGE_KEY"
ENV_AZURE_SAS = "AZURE_STORAGE_SAS_TOKEN"
ENV_S3_CA_FILE = "LOGKEEP_S3_CA_FILE"
ENV_S3_OPTIONS = "LOGKEEP_S3_OPTIONS"
ENV_S3_IGNORE_ENDPOINTS = "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"
ENV_STATE_S3_ACCESS_KEY = "LOGKEEP_STATE_ACCESS_KEY_ID"
ENV_STATE_S3_SECRET_KEY = "LOGKEEP_STATE_SECRET_ACCESS_KEY"
ENV_STATE_S3_SESSION_TOKEN = "LOGKEEP_STATE_SESSION_TOKEN"
ENV_STATE_S3_CA_FILE = "LOGKEEP_STATE_S3_CA_FILE"
ENV_STATE_GOOGLE_KEY = "LOGKEEP_STATE_GOOGLE_KEY"
ENV_STATE_AZURE_KEY = "LOGKEEP_STATE_AZURE_STORAGE_KEY"
ENV_STATE_AZURE_SAS = "LOGKEEP_STATE_AZURE_STORAGE_SAS_TOKEN"
ENV_ERASURES_DIR = "LOGKEEP_ERASURES_DIR"
ENV_SIGNING_DIR = "LOGKEEP_SIGNING_DIR"
ENV_TASK_MEMORY = "LOGKEEP_TASK_MEMORY"
ENV_POD_NAME = "LOGKEEP_POD_NAME"
# Where the site of the docs is read: mkdocs.yml and pyproject.toml say the same.
SITE = "https://logkeep.dev"
COMMAND_LINE = "command line"
"""The `RunRequest.requested_by` of a run that a user starts by hand. Users and hosts are not reported."""
ENV_POD_IP = "LOGKEEP_POD_IP"
ENV_POD_NAMESPACE = "LOGKEEP_POD_NAMESPACE"


@dataclass(frozen=True, slots=True)
class Keys:
    """Names of the variables that hold the credentials of one store.

    An access key of S3 with its secret and its session token; the key of a service account of Google; the key of an
    account of Azure, or a shared access signature. `ca_file` holds the path of the certificate authorities to trust as
    that store. `field`: where a resource describes the store; empty if options do.
    """

    access: str
    secret: str
    token: str
    field: str
    ca_file: str
    google: str
    azure_key: str
    azure_sas: str

    def part(self, name: str) -> str:
        """Return the name of a part of the store as the user writes it: storage.endpoint, --endpoint."""
        if self.field:
            return f"{self.field}.{name}"
        return "the URI" if name == "uri" else f"--{name}"


OWN_KEYS = Keys(
    ENV_S3_ACCESS_KEY,
    ENV_S3_SECRET_KEY,
    ENV_S3_SESSION_TOKEN,
    "storage",
    ENV_S3_CA_FILE,
    ENV_GOOGLE_KEY,
    ENV_AZURE_KEY,
    ENV_AZURE_SAS,
)
OPTION_KEYS = replace(OWN_KEYS, field="")
STATE_KEYS = Keys(
    ENV_STATE_S3_ACCESS_KEY,
    ENV_STATE_S3_SECRET_KEY,
    ENV_STATE_S3_SESSION_TOKEN,
    "state",
    ENV_STATE_S3_CA_FILE,
    ENV_STATE_GOOGLE_KEY,
    ENV_STATE_AZURE_KEY,
    ENV_STATE_AZURE_SAS,
)

# Where the operator mounts things in driver and executor pods.
PATH_REQUEST_DIR = "/etc/logkeep/run"
PATH_KAFKA_CA_DIR = "/etc/logkeep/kafka-ca"
PATH_KAFKA_CLIENT_DIR = "/etc/logkeep/kafka-client"
PATH_KAFKA_LOGIN_DIR = "/etc/logkeep/kafka-login"
PATH_KAFKA_TOKEN_DIR = "/etc/logkeep/kafka-token"
PATH_KAFKA_TOKEN_CA_DIR = "/etc/logkeep/kafka-token-ca"
PATH_S3_CA_DIR = "/etc/logkeep/s3-ca"
PATH_STATE_CA_DIR = "/etc/logkeep/state-ca"
PATH_ERASURES_DIR = "/etc/logkeep/erasures"  # a folder for each erasure, of its name; in the driver only
PATH_SIGNING_DIR = "/etc/logkeep/signing"  # the Secret as it is; in the driver only
# Names of the files there, whatever their keys in a Secret are.
FILE_CA = "ca.crt"
FILE_CLIENT_CERT = "tls.crt"
FILE_CLIENT_KEY = "tls.key"
FILE_USERNAME, FILE_PASSWORD = "username", "password"
FILE_TOKEN = "token"
FILE_ERASED_KEYS = "keys"
FILE_PRIVATE_KEY, FILE_PUBLIC_KEYS = "ed25519", "publicKeys"
PATH_TERMINATION_LOG = "/dev/termination-log"

# Keys of the run's ConfigMap (written by the operator, read-only) and of the progress ConfigMap (written by the
# driver).
KEY_REQUEST = "request.json"
KEY_EXECUTOR_TEMPLATE = "executor-pod.yaml"
KEY_KAFKA_CA = "kafka-ca.crt"  # certificate authorities that Strimzi's Kafka resource shows
KEY_PROGRESS = "progress.json"
KEY_RESULT = "result.json"

# The ConfigMap with the endpoints that an installation allows, one a line, which the chart makes in the operator's
# namespace, and the usual name of that.
ENDPOINTS_CONFIG_MAP, KEY_ENDPOINTS = "logkeep-endpoints", "endpoints"
OPERATOR_NAMESPACE = "logkeep"

# Labels of the pods of a run.
LABEL_RUN = "logkeep.dev/run"
LABEL_ROLE = "logkeep.dev/role"
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
LABEL_PART_OF = "app.kubernetes.io/part-of"
ROLE_DRIVER, ROLE_EXECUTOR = "driver", "executor"

TERMINATION_MESSAGE_MAX_BYTES = 4096  # the kubelet cuts off more
