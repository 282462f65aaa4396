"""The command `logkeep log recover`: cuts a log after its last valid batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from logkeep_engine.cli.errors import errors
from logkeep_engine.cli.log.options import Chosen, Form, Interval, Where, Yes
from logkeep_engine.cli.options import Debug, Server, spread
from logkeep_engine.cli.output import print_json, print_line
from logkeep_engine.contract.names import ExitCode
from logkeep_engine.contract.values import human_bytes


@spread
def recover_log(
    source: Where,
    yes: Yes = False,
    interval_bytes: Interval = 4096,
    *,
    form: Form,
    debug: Debug = False,
) -> None:
    """Cut a log after its last valid batch, as a broker does after a crash, and make its indexes again. What is cut is
    kept as .orig. Stop the broker first. Exit code 6 if something would be cut and --yes is not given.
    """
    with errors(debug):
        from logkeep_engine.toolbox.recover import carry_out, plan_recovery

        plans = list(plan_recovery(Chosen().source(source, Server())))
        kept = carry_out(plans, interval_bytes=interval_bytes) if yes else {}
        documents = [
            {
                "segment": plan.segment.name,
                "position": plan.at,
                "validBytes": plan.valid_bytes,
                "cutBytes": plan.cut_bytes,
                "nextOffset": plan.next_offset,
                "dropped": plan.dropped,
                "lostRecords": plan.lost_records,
                "reason": plan.reason,
                "kept": [str(path) for path in kept.get(plan.segment.name, ())],
            }
            for plan in plans
        ]
        if form.json:
            print_json(documents)
        else:
            for plan, document in zip(plans, documents, strict=True):
                _print_plan(document, plan.whole, yes)
        if not yes and not all(plan.whole for plan in plans):
            raise typer.Exit(int(ExitCode.DIFFERS))


def _print_plan(plan: Mapping[str, Any], whole: bool, done: bool) -> None:
    name = plan["segment"]
    if whole:
        print_line(f"{name}: whole, {plan['validBytes']} bytes, next offset {plan['nextOffset']}")
        return
    kept = f"; kept: {', '.join(plan['kept'])}" if done and plan["kept"] else ""
    if not any((plan["cutBytes"], plan["dropped"], plan["validBytes"])):
        print_line(f"{name}: {'taken away' if done else 'would be taken away'}: {plan['reason']}{kept}")
        return
    if not plan["cutBytes"] and not plan["dropped"]:
        made = "its indexes were made" if done else "its indexes would be made"
        size = f"{plan['validBytes']} bytes"
        print_line(f"{name}: whole, {size}, next offset {plan['nextOffset']}; {made}: {plan['reason']}{kept}")
        return
    size = f"{plan['cutBytes']} bytes ({human_bytes(plan['cutBytes'])})"
    if plan["dropped"]:
        print_line(f"{name}: {'dropped' if done else 'would be dropped'}, {size}: {plan['reason']}{kept}")
        return
    verb = "cut" if done else "would be cut"
    print_line(
        f"{name}: {verb} at position {plan['position']}, {size} go, the next offset is {plan['nextOffset']}: "
        f"{plan['reason']}{kept}"
    )
