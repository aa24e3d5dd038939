"""Translate what agents report into public events: only fields that an event declares pass."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from fleet import events
from fleet.events import TaskStatus
from train.agent.gang.hang import describe
from train.agent.protocol import records
from train.agent.protocol.wording import endpoint

PUBLIC: dict[type, Any] = {
    records.AttemptEnded: events.AttemptEnded,
    records.Exit: events.Exit,
    records.GpuUse: events.GpuUse,
    records.HangInspection: events.HangInspection,
    records.JobReport: TaskStatus,
    records.JobResult: events.JobResult,
    records.Member: events.Member,
    records.Outcome: events.Outcome,
    records.Phase: events.Phase,
    records.Progress: events.Progress,
    records.TaskState: events.TaskState,
    records.Usage: events.Usage,
}
DERIVED: dict[tuple[type, str], Callable[[Any], Any]] = {
    (records.HangInspection, "activity"): describe,
    (records.Member, "endpoint"): lambda member: endpoint(member.address, member.port),
}


def publish(value: Any) -> Any:
    """Return a record of an agent, or a value in one, as its public type; fields are matched by their names."""
    kind = PUBLIC.get(type(value))
    if isinstance(value, Enum):
        return kind(value.value) if kind else value.value
    if kind is not None:
        return kind(**{name: _field(value, name) for name in kind._fields})
    if isinstance(value, dict):
        return {key: publish(item) for key, item in value.items()}
    return tuple(map(publish, value)) if isinstance(value, (list, tuple)) else value


def started(commit: records.Commit, at: float) -> events.JobStarted:
    """Return the event of a job that was committed on all hosts, at a time in seconds since the epoch."""
    return events.JobStarted(
        job=commit.job,
        script=commit.name,
        name=commit.job_name or None,
        attempt=commit.attempt,
        members=publish(commit.members),
        started_at=at,
        attempts=commit.policy.max_attempts,
        max_workers=commit.policy.max_workers or None,
    )


def log_chunk(record: records.Log, data: bytes) -> events.LogChunk:
    """Return the event of a piece of output."""
    return events.LogChunk(record.slot, record.task, record.attempt, record.offset, data, record.at or -1.0)


def _field(record: Any, name: str) -> Any:
    derive = DERIVED.get((type(record), name))
    return derive(record) if derive else publish(getattr(record, name))
