"""The option --example of `backup` and `restore`: it prints a resource to begin with. What is commented out is valid,
too."""

from __future__ import annotations

from typing import Annotated

import typer

from logkeep_engine.cli.output import print_lines

BACKUP_EXAMPLE = """\
# A backup of some topics. `logkeep backup -f backup.yaml` runs it once, here; with the operator, `kubectl apply -f`
# runs it by its schedule. `logkeep backup -f backup.yaml --dry-run` says what it would do.
apiVersion: logkeep.dev/v1alpha1
kind: KafkaBackup
metadata:
  name: nightly
spec:
  cluster:
    bootstrapServers: ["kafka-bootstrap.kafka:9092"]
    # A cluster with TLS and a login. On the command line the secrets are in LOGKEEP_KAFKA_*.
    # security: {protocol: SASL_SSL, sasl: {mechanism: SCRAM-SHA-512, secretRef: {name: kafka-user}}}
  topics:
    # Regular expressions for whole names. One without wildcards that no topic has fails the run (onUnmatched).
    include: ["orders.*", "customers"]
    # exclude: [".*-scratch"]
  storage:
    uri: s3://backups/kafka-prod  # or gs://bucket/prefix, az://container/prefix, file:///folder
    # The URL of a store that is not Amazon's or Google's. In Kubernetes engine.allowed.endpoints of the chart has it.
    # endpoint: https://s3.example.com
    # region: eu-central-1
    # The keys of the store. On the command line: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, LOGKEEP_GOOGLE_KEY, or
    # AZURE_STORAGE_KEY.
    # credentials: {secretRef: {name: archive-s3}}
  # When it runs; the first run begins at once. Only the operator does this.
  # schedule: {cron: "0 2 * * *", timeZone: Europe/Berlin}
  # What is removed after each run that succeeds. Without it, everything stays.
  # retention: {maxAge: 90d, keepRuns: 3}
  # Records that were gone before they could be archived: Fail ends the run as failed, Record notes them.
  # onDataLoss: Fail
"""
RESTORE_EXAMPLE = """\
# A restore of some topics under other names. `logkeep restore -f restore.yaml` runs it here; with the operator,
# `kubectl apply -f`. `logkeep restore -f restore.yaml --dry-run` says what it would do, and what would refuse it.
apiVersion: logkeep.dev/v1alpha1
kind: KafkaRestore
metadata:
  name: orders-again
spec:
  source:
    storage:  # with the operator also `backupRef: {name: nightly}` in its place
      uri: s3://backups/kafka-prod
      # endpoint: https://s3.example.com
      # region: eu-central-1
      # credentials: {secretRef: {name: archive-s3}}
  cluster:
    bootstrapServers: ["kafka-bootstrap.kafka:9092"]
    # security: {protocol: SASL_SSL, sasl: {mechanism: SCRAM-SHA-512, secretRef: {name: kafka-user}}}
  topics:
    include: ["orders.*"]
    rename: [{from: "(.*)", to: "restored.\\\\1"}]  # leave it out for the names of before
    # Without it, a restore of records that are older than their topics keep them is refused. `logkeep release` ends it.
    # retention: Hold
  # The state of a time, instead of all that is archived.
  # point: {asOf: "2026-11-17T14:05:00+01:00"}
  # What to do with a topic that is there: Fail, Append, Replace or Resume.
  # ifTopicExists: Fail
  # Consumer groups continue where they stood.
  # consumerGroups: {restore: Translate}
  # Read everything back, and compare each record with the archive.
  # verify: Full
"""


def _print_backup(wanted: bool) -> None:
    _print(BACKUP_EXAMPLE if wanted else "")


def _print_restore(wanted: bool) -> None:
    _print(RESTORE_EXAMPLE if wanted else "")


def _print(text: str) -> None:
    if text:
        print_lines(text)
        raise typer.Exit


_HELP = "Print a resource with comments to begin with, and do nothing else."
ExampleBackup = Annotated[bool, typer.Option("--example", callback=_print_backup, is_eager=True, help=_HELP)]
ExampleRestore = Annotated[bool, typer.Option("--example", callback=_print_restore, is_eager=True, help=_HELP)]
