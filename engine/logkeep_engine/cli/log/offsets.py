"""The command `logkeep log offsets`: prints committed offsets, groups and transactions, as the coordinators keep
them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logkeep_engine.cli.errors import errors
from logkeep_engine.cli.log.options import FormOfLines, Where, leave_if_damaged
from logkeep_engine.cli.log.times import moment
from logkeep_engine.cli.options import Debug, Server, spread
from logkeep_engine.cli.output import print_json, print_json_line, print_line, stdout, table

if TYPE_CHECKING:
    from logkeep_engine.toolbox.offsets import StateRecord, StateTopic
    from logkeep_engine.toolbox.source import LogSource
    from logkeep_engine.toolbox.state import StateEntry


class StateChoice(StrEnum):
    OFFSETS = "offsets"
    TRANSACTIONS = "transactions"


@spread
def offsets(
    source: Where,
    *,
    history: Annotated[bool, typer.Option("--history", help="Every record, not only the current ones.")] = False,
    kind: Annotated[
        StateChoice | None,
        typer.Option("--as", help="Only one of the topics; also names the topic of a log whose folder does not."),
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this consumer group, or transactional id.")
    ] = None,
    server: Server,
    form: FormOfLines,
    debug: Debug = False,
) -> None:
    """Decode committed offsets and groups (__consumer_offsets) and transactions (__transaction_state)."""
    with errors(debug):
        problems: list[StateEntry] = []
        logs = _logs(source, kind, server)
        if history:
            for entry in _history(logs, group, problems):
                if form.json:
                    print_json_line(entry.to_json())
                else:
                    print_line(_history_line(entry))
        else:
            kept = _kept(logs, group, problems)
            if form.json:
                print_json([record.to_json() for record in kept])
            else:
                _print_state(kept)
        leave_if_damaged([f"{one.topic}-{one.partition} offset {one.offset}: {one.problem}" for one in problems])


def _logs(source: str, kind: StateChoice | None, server: Server) -> list[tuple[StateTopic, LogSource]]:
    from logkeep_engine.toolbox.offsets import StateTopic
    from logkeep_engine.toolbox.state import open_state

    chosen = None
    if kind is not None:
        chosen = StateTopic.OFFSETS if kind is StateChoice.OFFSETS else StateTopic.TRANSACTIONS
    return open_state(source, chosen, endpoint=server.endpoint, region=server.region)


def _history(
    logs: Sequence[tuple[StateTopic, LogSource]], group: str | None, problems: list[StateEntry]
) -> Iterator[StateEntry]:
    """Yield every record of a group, or of all groups. Records that cannot be read become problems."""
    from logkeep_engine.toolbox.state import history

    for topic, found in logs:
        for entry in history(found, topic):
            if entry.record is None:
                problems.append(entry)
            elif group is None or entry.record.owner == group:
                yield entry


def _kept(
    logs: Sequence[tuple[StateTopic, LogSource]], group: str | None, problems: list[StateEntry]
) -> list[StateRecord]:
    """Return the records in force of a group, or of all groups."""
    from logkeep_engine.toolbox.state import history, last_state

    return [
        record
        for topic, found in logs
        for record in last_state(history(found, topic), problems)
        if group is None or record.owner == group
    ]


def _history_line(entry: Any) -> str:
    record: StateRecord = entry.record
    value = "<DELETE>" if record.value is None else json.dumps(record.value, ensure_ascii=False)
    when = moment(entry.timestamp) if entry.timestamp is not None else "-"
    fate = " aborted" if entry.aborted else " undecided" if entry.undecided else ""
    key = json.dumps(record.key, ensure_ascii=False)
    return f"{entry.topic}-{entry.partition} offset: {entry.offset} {when}{fate} {record.kind} {key} {value}"


def _print_state(records: Sequence[StateRecord]) -> None:
    out = stdout()
    commits = sorted(
        (record.commit for record in records if record.commit is not None),
        key=lambda item: (item.group, item.topic, item.partition),
    )
    if commits:
        shown = table("consumer group", "topic", "partition", "offset", "leader epoch", "committed", "metadata")
        for commit in commits:
            epoch = "-" if commit.leader_epoch is None else str(commit.leader_epoch)
            when = "-" if commit.commit_timestamp is None else moment(commit.commit_timestamp)
            place = (commit.group, commit.topic, str(commit.partition), str(commit.offset))
            shown.add_row(*place, epoch, when, commit.metadata)
        out.print(shown)
    transactions = [record for record in records if record.kind == "TransactionLog" and record.value is not None]
    if transactions:
        shown = table("transactional id", "producer", "epoch", "state", "updated", "partitions")
        for record in transactions:
            value = record.value or {}
            parts = [
                f"{item['topic']}-{number}"
                for item in value["transactionPartitions"] or ()
                for number in item["partitionIds"]
            ]
            updated = moment(value["transactionLastUpdateTimestampMs"])
            producer, epoch = str(value["producerId"]), str(value["producerEpoch"])
            shown.add_row(record.owner, producer, epoch, value["transactionStatus"], updated, " ".join(parts) or "-")
        out.print(shown)
    others = [record for record in records if record.commit is None and record.kind != "TransactionLog"]
    if others:
        shown = table("group", "record", "key", "value")
        for record in others:
            rest = {name: item for name, item in record.key.items() if name not in ("group", "groupId")}
            shown.add_row(
                record.owner, record.kind, *(json.dumps(item, ensure_ascii=False) for item in (rest, record.value))
            )
        out.print(shown)
    if not records:
        print_line("nothing is kept")
