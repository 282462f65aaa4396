"""Opens a run of a restore for commands that look at it, or change what it has left, and restore nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Never

from logkeep_engine.contract.model import replace
from logkeep_engine.contract.restore_spec import KafkaRestoreSpec
from logkeep_engine.kafka.connection import connection_from
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.report import Reporter
from logkeep_engine.restore.model.context import RestoreContext
from logkeep_engine.restore.model.state import archive_to_restore, open_state


@contextmanager
def open_run(
    spec: KafkaRestoreSpec, run_id: str, environ: Mapping[str, str], anchor: str | None = None
) -> Iterator[RestoreContext]:
    """Give the context of a run, which has no tasks. The archive must have the commit of `anchor`. Raises what storage
    and brokers raise."""
    archive, connection = archive_to_restore(spec, environ, anchor), connection_from(spec.cluster, environ)
    state = open_state(run_id, spec, archive, environ)
    with ControlPlane(connection) as control:
        cluster_id = control.cluster_id()
        control.only(cluster_id)
        yield RestoreContext(
            run_id=state.run_id,
            spec=spec,
            archive=archive,
            state=state,
            cluster_id=cluster_id,
            control=control,
            connection=replace(connection, cluster_id=cluster_id),
            runner_factory=_no_tasks,
            reporter=Reporter(state.run_id),
            only_asked=True,
        )


def _no_tasks() -> Never:
    raise AssertionError("commands about a run have no tasks")
