"""Lines for people, made of resources as the API shows them. Pure: the time is handed in.

A status may be of an earlier or a later operator. What is not there is not shown, and never an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from logkeep_engine.cli.explain import page_url
from logkeep_engine.contract.facts.dry_run import DRY_RUN, EXACT
from logkeep_engine.contract.names import BACKUP, BACKUP_RUN, KAFKA_ARCHIVE, RESTORE
from logkeep_engine.contract.values import describe_aborted, human_bytes, human_duration, parse_timestamp, so_many

Body = Mapping[str, Any]
Row = tuple[str, str]

NOTHING = "-"
_COLUMNS = ("KIND", "NAME", "PHASE", "READY", "DONE", "LAST SUCCESS", "RECOVERABLE", "NEXT RUN", "SIZE", "AGE")
SHORT_NAMES = {BACKUP: "kbak", RESTORE: "krst", BACKUP_RUN: "kbrun", KAFKA_ARCHIVE: "karc"}
_NOT_ARCHIVED = "not archived"
_STATES = ("Ready", "Reconciling", "Stalled", "ScheduledRun")


def part(body: Body, *path: str) -> Any:
    """Return the value at a path of keys; None where something on the way is not there, or no mapping."""
    found: Any = body
    for key in path:
        if not isinstance(found, Mapping):
            return None
        found = found.get(key)
    return found


def items(body: Body, *path: str) -> list[Mapping[str, Any]]:
    """Return the mappings in a list at a path of keys."""
    found = part(body, *path)
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []


def condition(body: Body, kind: str) -> Mapping[str, Any]:
    """Return the condition of this type, empty if there is none."""
    return next((item for item in items(body, "status", "conditions") if item.get("type") == kind), {})


def short_name(body: Body) -> str:
    """Return the name with its kind, as kubectl takes it: kbak/nightly."""
    kind = str(body.get("kind"))
    return f"{SHORT_NAMES.get(kind, kind.lower())}/{part(body, 'metadata', 'name')}"


def clean(body: Body) -> dict[str, Any]:
    """Return the resource without what only the API server needs."""
    metadata = {key: value for key, value in (body.get("metadata") or {}).items() if key != "managedFields"}
    return {**body, "metadata": metadata}


def age(since: str | None, now: datetime) -> str:
    """Return how long ago, or with `in` how long from now, in one unit: 5m, 3h, 2d, in 40s."""
    moment = parse_timestamp(since)
    if moment is None:
        return NOTHING
    text = _one_unit(abs(now - moment))
    return f"in {text}" if moment > now else text


def ago(since: str | None, now: datetime) -> str:
    """Return a time and how long ago that was: 2026-11-21T02:00:00Z (7h ago)."""
    moment = parse_timestamp(since)
    if moment is None:
        return NOTHING
    return f"{since} ({age(since, now)})" if moment > now else f"{since} ({age(since, now)} ago)"


def _one_unit(span: timedelta) -> str:
    """Return the time as kubectl shows an age: in the largest unit of which it has at least two."""
    seconds = int(span.total_seconds())
    for size, unit in ((2 * 86400, "d"), (2 * 3600, "h"), (2 * 60, "m")):
        if seconds >= size:
            return f"{seconds // (size // 2)}{unit}"
    return f"{seconds}s"


# ---- a line a resource


def overview_columns(*, everywhere: bool) -> tuple[str, ...]:
    """Return the heads of the columns of `overview`."""
    return ("NAMESPACE", *_COLUMNS) if everywhere else _COLUMNS


def overview(body: Body, now: datetime, *, everywhere: bool) -> tuple[str, ...]:
    """Return the line of a resource. Its state is that of the condition that says most."""
    status = part(body, "status") or {}
    row = (
        str(body.get("kind")),
        str(part(body, "metadata", "name")),
        str(status.get("phase") or "Unknown"),
        ready(body),
        _done(status),
        age(status.get("lastSuccessTime"), now),
        age(part(status, "recovery", "lastTime"), now),
        age(_next_run(body), now),
        str(part(status, "archive", "size") or NOTHING),
        age(part(body, "metadata", "creationTimestamp"), now),
    )
    return (str(part(body, "metadata", "namespace")), *row) if everywhere else row


def ready(body: Body) -> str:
    """`yes`, or the reason why the resource is not ready, with what else must not be overlooked."""
    found = condition(body, "Ready")
    said = "yes" if found.get("status") == "True" else str(found.get("reason") or NOTHING)
    return ",".join([said, *alarms(body)])


def alarms(body: Body) -> list[str]:
    """Return the names of conditions in addition to the state that say that something is wrong."""
    wrong = {
        "DataLoss": "True",
        "Coverage": "False",
        "RetentionRisk": "True",
        "StaleKeys": "True",
        "Verified": "False",
    }
    return [kind for kind, bad in wrong.items() if condition(body, kind).get("status") == bad]


def _done(status: Body) -> str:
    run, progress = status.get("run"), status.get("progress")
    if not isinstance(progress, Mapping) or not isinstance(run, Mapping):
        return NOTHING
    return f"{progress.get('percent', 0)}%"


# ---- all about one resource


def detail(body: Body, now: datetime) -> list[Row]:
    """Return names and values of what the status of a resource says, without lists."""
    status = part(body, "status") or {}
    rows = [
        ("resource", f"{body.get('kind')} {part(body, 'metadata', 'namespace')}/{part(body, 'metadata', 'name')}"),
        ("phase", str(status.get("phase") or "Unknown: the operator has not looked at it yet")),
    ]
    rows += condition_rows(body)
    rows += _run(status, now)
    rows += _dry_run(status)
    rows += _emitted(status)
    rows += _held(status)
    rows += _verification(status)
    rows += _cluster_state(status)
    rows += archive_rows(status)
    rows += _times(body, status, now)
    rows += _coverage(status)
    return rows


def condition_rows(body: Body) -> list[Row]:
    """Return the condition that says the state, those next to it, and where to read about what is not as it should
    be."""
    state = next((c for c in (condition(body, kind) for kind in _STATES) if c.get("status") == "True"), None)
    state = state or condition(body, "Ready")
    rows = [("state", f"{state.get('reason')}: {state.get('message')}")] if state else []
    others = [item for item in items(body, "status", "conditions") if item.get("type") not in _STATES]
    for item in others:
        rows.append((str(item.get("type")), f"{item.get('status')}, {item.get('reason')}: {item.get('message')}"))
    wrong = [] if condition(body, "Ready").get("status") == "True" else [state]
    wrong += [condition(body, kind) for kind in alarms(body)]
    known = dict.fromkeys(str(item["reason"]) for item in wrong if item.get("reason"))
    return [*rows, *(("see", f"kubectl logkeep explain {reason}, {page_url(reason)}") for reason in known)]


def _run(status: Body, now: datetime) -> list[Row]:
    run = part(status, "run")
    if not isinstance(run, Mapping):
        return []
    doing = "is suspended" if part(status, "phase") == "Suspended" else "is running"
    outcome = run.get("outcome") or f"{doing}, attempt {run.get('attempt') or 1}"
    rows = [("run", f"{run.get('id')} {outcome}"), ("began", ago(run.get("startTime"), now))]
    if run.get("endTime"):
        rows.append(("ended", ago(run.get("endTime"), now)))
    if run.get("requestedBy"):
        rows.append(("requested by", str(run["requestedBy"])))
    if isinstance(part(status, "progress"), Mapping) and run.get("outcome") != DRY_RUN:
        rows.append(("progress", progress_line(part(status, "progress"))))
        if part(status, "progress").get("point"):
            rows.append(("point", str(part(status, "progress")["point"])))
    return rows


def _dry_run(status: Body) -> list[Row]:
    """Return the findings of a dry run, in numbers."""
    found = part(status, "dryRun")
    if not isinstance(found, Mapping):
        return []
    most = "" if found.get("counts") == EXACT else "at most "
    text = f"{most}{found.get('records')} records, {human_bytes(int(found.get('bytes') or 0))}, "
    text += f"{so_many(int(found.get('topics') or 0), 'topic')}, {found.get('topicsCreated', 0)} to be created"
    rows = [("dry run", text)]
    if found.get("abortedRecords"):
        rows.append(("left out", describe_aborted(int(found["abortedRecords"]))))
    if found.get("seconds") is not None:
        rows.append(("expected time", f"about {human_duration(int(found['seconds']))}: {found.get('rate')}"))
    if found.get("groups"):
        rows.append(("groups", f"{found['groups']}, {found.get('positions')} positions"))
    state = part(found, "clusterState")
    if isinstance(state, Mapping):
        rows.append(("ACLs", _of_kind(state, "acls", {"aclsToAdd": "to be added", "aclsHeldBack": "held back"})))
        rows.append(("client quotas", _of_kind(state, "quotas", {"quotasToAdd": "to be added"})))
        rows.append(("users to create", str(state.get("usersToCreate", _NOT_ARCHIVED))))
    if found.get("point"):
        rows.append(("point", str(found["point"])))
    refused = int(found.get("refused") or 0)
    return [
        *rows,
        ("would be refused", f"for {refused} {'reason' if refused == 1 else 'reasons'}" if refused else "no"),
    ]


def _emitted(status: Body) -> list[Row]:
    """Return where the KafkaTopics of a restore are."""
    found = part(status, "emitted")
    if not isinstance(found, Mapping):
        return []
    where = f"ConfigMap {found.get('configMap')}, key {found.get('key')}"
    return [("emitted", f"{found.get('topics', 0)} KafkaTopics in {where}")]


def _held(status: Body) -> list[Row]:
    """Return the topics that a restore holds."""
    found = part(status, "heldTopics")
    if not isinstance(found, Mapping):
        return []
    names = [str(name) for name in found.get("topicList") or ()]
    more = f" and {left} more" if (left := int(found.get("topics") or 0) - len(names)) > 0 else ""
    if found.get("releasedTime"):
        kept = ", ".join(str(item) for item in found.get("notReleasedList") or ())
        text = f"{found.get('released', 0)} of {found.get('topics')} released at {found['releasedTime']}"
        return [("held topics", f"{text}, not {kept}" if kept else text)]
    until = found.get("releaseTime") or "`logkeep release`"
    return [("held topics", f"{', '.join(names)}{more}: they keep all records until {until}")]


def run_notes(body: Body) -> list[str]:
    """Return a line for each warning of the last run, and for each range of offsets that are missing."""
    lost = [
        f"lost: {entry.get('topic')}-{entry.get('partition')} offsets {entry.get('start')} to "
        f"{int(entry.get('end') or 0) - 1}: {entry.get('reason')}"
        for entry in items(body, "status", "loss")
    ]
    warnings = part(body, "status", "warnings")
    return [*(f"warning: {warning}" for warning in (warnings if isinstance(warnings, list) else [])), *lost]


def dry_run_notes(body: Body) -> list[str]:
    """Return a line for each reason for which a run would be refused, and for what its dry run could not check."""
    found = part(body, "status", "dryRun") or {}
    refusals = items(body, "status", "dryRun", "refusals")
    lines = [f"refused: {item.get('reason')}: {item.get('message')}" for item in refusals]
    more = int(found.get("refused") or 0) - len(refusals)
    lines += [f"refused: and for {more} more reasons"] if more > 0 else []
    return [*lines, *(f"not checked: {note}" for note in found.get("notChecked") or ())]


DRY_RUN_TOPICS = ("topic", "from", "state", "partitions", "replicas", "records", "size", "configuration")


def dry_run_topics(body: Body) -> list[tuple[str, ...]]:
    """Return a row for each topic that a dry run names, below the heads DRY_RUN_TOPICS, and one for the number of
    others."""
    rows: list[tuple[str, ...]] = []
    for topic in items(body, "status", "dryRun", "topicList"):
        most = "" if topic.get("counts") == EXACT else "at most "
        rows.append(
            (
                _shown(topic.get("topic")),
                _shown(topic.get("source")),
                _shown(topic.get("state")),
                _shown(topic.get("partitions")),
                _shown(topic.get("replicas")),
                f"{most}{topic.get('records')}",
                human_bytes(float(topic.get("bytes") or 0)),
                _shown(topic.get("config")),
            )
        )
    more = int(part(body, "status", "dryRun", "topics") or 0) - len(rows)
    return [*rows, (f"and {more} more", *([""] * (len(DRY_RUN_TOPICS) - 1)))] if rows and more > 0 else rows


def _verification(status: Body) -> list[Row]:
    """Return the findings of a verification, and where all of it is listed."""
    found = part(status, "verification")
    if not isinstance(found, Mapping):
        return []
    text = ": ".join(str(found[key]) for key in ("outcome", "message") if found.get(key))
    count, known = found.get("partitions"), found.get("verified")
    if count is not None and known is not None:
        text += f" ({known} of {count} partitions are verified)"
    return [("verification", text), *((("report", str(found["report"])),) if found.get("report") else ())]


def _cluster_state(status: Body) -> list[Row]:
    """Return the ACLs and quotas that a restore of everything has brought back, and the users that must be created by
    hand."""
    found = part(status, "clusterState")
    if not isinstance(found, Mapping):
        return []
    acls = {"aclsAdded": "added", "aclsRefused": "refused", "aclsHeldBack": "held back"}
    quotas = {"quotasAdded": "added", "quotasRefused": "refused", "quotasKept": "kept"}
    users = [str(user) for user in found.get("usersToCreate") or ()]
    more = int(found.get("usersTotal") or 0) - len(users)
    named = "; ".join(users) + (f" and {more} more" if more > 0 else "")
    return [
        ("ACLs", _of_kind(found, "acls", acls)),
        ("client quotas", _of_kind(found, "quotas", quotas)),
        ("users to create", named or ("none" if "usersTotal" in found else _NOT_ARCHIVED)),
        ("ACLs, quotas, users", str(found.get("report"))),
    ]


def _of_kind(found: Body, kind: str, more: Mapping[str, str]) -> str:
    """Return the numbers of a kind of the cluster's state. It has none if the kind was not archived."""
    if found.get(kind) is None:
        return _NOT_ARCHIVED
    return ", ".join([f"{found[kind]} archived", *(f"{found.get(key, 0)} {word}" for key, word in more.items())])


def progress_line(progress: Body) -> str:
    """Return the progress of a run in one line."""
    size = human_bytes(float(progress.get("bytes") or 0))
    lines = [
        f"{progress.get('percent', 0)}%",
        f"{progress.get('display', '0/0')} partitions",
        f"{progress.get('records', 0)} records",
        size,
    ]
    if progress.get("bytesPerSecond"):
        lines.append(f"{human_bytes(float(progress['bytesPerSecond']))}/s")
    if progress.get("secondsLeft") is not None:
        lines.append(f"{human_duration(int(progress['secondsLeft']))} left")
    if progress.get("executors") is not None:
        lines.append(so_many(progress["executors"], "executor"))
    return ", ".join(lines)


def archive_rows(status: Body) -> list[Row]:
    """Return what a run has reported of the size of an archive."""
    archive = part(status, "archive")
    if not isinstance(archive, Mapping):
        return []
    rows = [("archive", f"{archive.get('uri') or archive.get('id')}, commit {archive.get('commit', NOTHING)}")]
    if archive.get("storedBytes") is not None:
        held = f"{archive.get('topics')} topics, {archive.get('records')} records, "
        held += f"{human_bytes(int(archive.get('bytes') or 0))}, stored {human_bytes(int(archive['storedBytes']))}"
        rows.append(("holds", held))
    if archive.get("growth"):
        rows.append(("grows", str(archive["growth"])))
    return rows


def _times(body: Body, status: Body, now: datetime) -> list[Row]:
    rows = []
    if body.get("kind") == BACKUP:
        rows.append(("last success", ago(status.get("lastSuccessTime"), now)))
    recovery, retention = part(status, "recovery"), part(status, "retention")
    if isinstance(recovery, Mapping):
        first, last = recovery.get("firstTime") or NOTHING, ago(recovery.get("lastTime"), now)
        rows.append(("recoverable", f"from {first} to {last}"))
        if recovery.get("topicsBehind"):
            rows.append(("behind", f"{recovery['topicsBehind']} of {recovery.get('topics')} topics"))
    if isinstance(retention, Mapping) and retention.get("deadline"):
        rows.append(("kept by the cluster until", ago(retention["deadline"], now)))
    drill = part(status, "drill")
    if isinstance(drill, Mapping):
        rows.append(("last good drill", ago(drill.get("lastGoodTime"), now)))
        rows += [(name, str(drill[key])) for name, key in _OF_A_DRILL if drill.get(key)]
    if _next_run(body):
        rows.append(("next run", ago(_next_run(body), now)))
    return rows


_OF_A_DRILL = (("recovery time", "recovery"), ("drilled", "progress"), ("drill report", "report"))


def _next_run(body: Body) -> Any:
    """Return the next time of the schedule; None for a suspended backup, which begins no run then."""
    return None if part(body, "spec", "suspend") is True else part(body, "status", "nextScheduleTime")


def _coverage(status: Body) -> list[Row]:
    coverage = part(status, "coverage")
    if not isinstance(coverage, Mapping):
        return []
    words = {"protected": "protected", "leftOut": "left out", "unmatched": "patterns without a topic"}
    words |= {"vanished": "vanished", "unreadable": "unreadable"}
    lines = [f"{coverage.get(key)} {word}" for key, word in words.items() if coverage.get(key)]
    return [("topics", ", ".join(lines) or "none")]


HISTORY = ("run", "outcome", "began", "seconds", "records", "bytes", "executors", "requested by", "message")


def history(body: Body, now: datetime) -> list[tuple[str, ...]]:
    """Return a row for each run that has ended, the newest first, below the heads HISTORY."""
    rows: list[tuple[str, ...]] = []
    for entry in items(body, "status", "history"):
        size = entry.get("bytes")
        rows.append(
            (
                _shown(entry.get("runId")),
                _shown(entry.get("outcome")),
                ago(entry.get("startTime"), now),
                _seconds(entry),
                _shown(entry.get("records")),
                NOTHING if size is None else human_bytes(float(size)),
                _shown(entry.get("executors")),
                _shown(entry.get("requestedBy")),
                _shown(entry.get("message")),
            )
        )
    return rows


def _seconds(entry: Body) -> str:
    if entry.get("durationSeconds") is not None:
        return str(entry["durationSeconds"])
    start, end = parse_timestamp(entry.get("startTime")), parse_timestamp(entry.get("endTime"))
    return NOTHING if start is None or end is None else str(int((end - start).total_seconds()))


def _shown(value: object) -> str:
    return NOTHING if value is None or value == "" else str(value)


# ---- topics

TOPICS = ("NAME", "TOPIC", "STATE", "RECOVERABLE TO", "NOT ARCHIVED", "KEPT UNTIL")
_LISTS = (("topicsLeftOut", "left out"), ("topicsVanished", "vanished"), ("topicsUnreadable", "unreadable"))


def topics(body: Body, now: datetime) -> list[tuple[str, ...]]:
    """Return a row for each topic that the status of a backup names, below the heads TOPICS: those furthest behind,
    those that the cluster deletes soonest, those that are not protected."""
    name = str(part(body, "metadata", "name"))
    behind = {str(item.get("topic")): item for item in items(body, "status", "recovery", "behind")}
    deadlines = {str(item.get("topic")): item for item in items(body, "status", "retention", "topics")}
    all_to = part(body, "status", "recovery", "lastTime")
    rows: list[tuple[str, ...]] = []
    for topic in dict.fromkeys([*behind, *deadlines]):
        late = behind.get(topic)
        to = late.get("lastTime") if late is not None else all_to
        state = "behind" if late is not None else "protected"
        left = late.get("offsets") if late is not None else 0
        until = part(deadlines.get(topic, {}), "deadline")
        rows.append((name, topic, state, ago(to, now), _shown(left), ago(until, now)))
    for pattern in part(body, "status", "coverage", "patternsUnmatched") or ():
        rows.append((name, str(pattern), "pattern without a topic", NOTHING, NOTHING, NOTHING))
    for key, state in _LISTS:
        for topic in part(body, "status", "coverage", key) or ():
            rows.append((name, str(topic), state, NOTHING, NOTHING, NOTHING))
    return rows


def topic_sums(body: Body, now: datetime) -> list[str]:
    """Sentences about all topics of a backup, also those that the status does not name."""
    name = str(part(body, "metadata", "name"))
    recovery, coverage = part(body, "status", "recovery") or {}, part(body, "status", "coverage") or {}
    lines = []
    if coverage:
        lines.append(f"{coverage.get('protected', 0)} topics protected, {coverage.get('leftOut', 0)} left out")
    if recovery:
        lines.append(f"{recovery.get('topicsBehind', 0)} of {recovery.get('topics', 0)} behind")
        lines.append(f"all others recoverable to {ago(recovery.get('lastTime'), now)}")
    unknown = part(body, "status", "retention", "unknownTopics")
    if unknown:
        lines.append(f"{unknown} with limits that the brokers do not report")
    if not lines:
        return [f"{name}: no run has reported topics yet"]
    shown = [*_names(coverage), *(item.get("topic") for item in items(body, "status", "recovery", "behind"))]
    wanted = sum(int(coverage.get(key) or 0) for key in ("leftOut", "vanished", "unreadable", "unmatched"))
    wanted += int(recovery.get("topicsBehind") or 0)
    if wanted > len(shown):
        lines.append(f"{wanted - len(shown)} more are not named in the status")
    return [f"{name}: " + "; ".join(lines)]


def _names(coverage: Body) -> Sequence[Any]:
    keys: Iterable[str] = ("patternsUnmatched", *(key for key, _ in _LISTS))
    return [name for key in keys for name in coverage.get(key) or ()]


# ---- a run that is waited for


def run_line(body: Body) -> str:
    """Return the state of a KafkaBackupRun in one line."""
    status = part(body, "status") or {}
    if not status.get("phase"):
        return "asked for; no operator has answered yet"
    lines = [str(status.get("phase") or "Pending").lower()]
    if status.get("runId"):
        lines.append(f"run {status['runId']}")
    if status.get("records") is not None and status.get("phase") != "Pending":
        lines.append(f"{status.get('percent', 0)}%, {status['records']} records")
        lines.append(human_bytes(float(status.get("bytes") or 0)))
    found = condition(body, "Ready")
    if found.get("message"):
        lines.append(f"{found.get('reason')}: {found['message']}")
    return ", ".join(lines)
