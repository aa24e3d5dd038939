"""Collect the description of a job from its hosts."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fleet import __version__
from fleet.errors import FleetError, NotReadyError, fold
from fleet.fleets.agents import ExistingFleet, call_each, description, latest_attempt, open_some
from fleet.jobs.evidence import first_cause
from fleet.jobs.results import StoredJobs, StoredTask, result_of
from fleet.remote.client import AgentClient
from fleet.remote.fanout import where
from fleet.remote.quoting import one_line
from fleet.reports.record import Fault, FirstCause, JobRecord, TaskRecord
from fleet.state import FleetRecord
from train.agent.gang.hang import describe
from train.agent.protocol import records
from train.agent.protocol.cluster import by_rank, is_task, tf_config
from train.agent.protocol.wording import endpoint
from train.diagnosis.verdict import Verdict

MOST_RECORDS = 20_000
"""Maximum number of records of a slot; an endless list must not exhaust the memory of this computer."""

_MOST_FAULTS = 500
_LONGEST = 500  # characters of a sentence
_SAME_NOTICE_S = 60.0


@contextlib.contextmanager
def slot_agents(job: StoredJobs, clients: Sequence[AgentClient], key: Path) -> Iterator[list[AgentClient]]:
    """Yield an agent for each slot of a job, those of hosts with one slot among `clients`; close the others.

    Args:
        job: The job.
        clients: Agents of hosts.
        key: Private key of the fleet.
    """
    if any(task.stored.directory for task in job.tasks):
        places = [(task.host, task.stored.slot, task.stored.directory) for task in job.tasks]
        hosts = [
            replace(host, name=slot, root=f"{host.root}/{directory}", shared=host.root)
            for host, slot, directory in places
        ]
        with open_some(hosts, key) as (agents, _):
            yield agents
    else:
        slots = {task.stored.slot for task in job.tasks}
        yield [client for client in clients if client.host.name in slots]


def collect_record(job: StoredJobs, fleet: ExistingFleet, clients: Sequence[AgentClient]) -> JobRecord:
    """Return the description of a job; hosts that do not answer are named in it.

    Args:
        job: The job as its hosts report it.
        fleet: The fleet.
        clients: Agents of hosts.
    """
    now = fleet.services.clock()
    if not job.reports:
        return JobRecord(job.job, fleet.name, collected_at=now, fleet_version=__version__)
    history = History()
    result = None if job.is_running else result_of(job.reports)
    verdict = None
    with slot_agents(job, clients, fleet.directory.key) as slots:
        outcomes = call_each(slots, lambda agent: _read_records(agent, job.job))
        for outcome in outcomes:
            history.add(outcome.value or ())
        if result is not None:
            with contextlib.suppress(FleetError):
                verdict = first_cause(description(job.reports).members, result, slots)
    silent = [outcome.host.name for outcome in outcomes if outcome.error is not None]
    record = _describe(job, fleet.record, history, result, silent)
    return record._replace(collected_at=now, cause=_shorten(verdict) if verdict else None)


def _read_records(agent: AgentClient, job: str) -> list[records.Record]:
    """Return what happened to a task, without its output and its progress.

    Raises:
        NotReadyError: the host sends more than the limit.
    """
    request = records.Follow(job, agent.host.name, attempt=1, follow=False, logs=False, head_bytes=0)
    kept: list[records.Record] = []
    for record, _ in agent.follow(request):
        if isinstance(record, (records.TaskState, records.AttemptEnded, records.HangInspection, records.Notice)):
            kept.append(record)
        if len(kept) > MOST_RECORDS:
            raise NotReadyError(f"{where(agent.host)} sends more than {MOST_RECORDS:,} records of job {job}")
    return kept


@dataclass
class History:
    """The history of a job, from the records of its tasks; what all hosts report counts once."""

    states: dict[str, str] = field(default_factory=dict)  # the last of each slot
    faults: list[Fault] = field(default_factory=list)
    _attempts: set[int] = field(default_factory=set)
    _notices: dict[tuple[int, str], float] = field(default_factory=dict)

    def add(self, reported: Iterable[records.Record]) -> None:
        """Add the records of a slot, in their order."""
        is_stopping = False
        for record in reported:
            if isinstance(record, records.TaskState):
                is_stopping = record.phase is records.Phase.STOPPING or (
                    is_stopping and record.phase is records.Phase.EXITED
                )
                self._add_state(record, is_stopped=is_stopping)
            elif isinstance(record, records.AttemptEnded) and record.attempt not in self._attempts:
                self._attempts.add(record.attempt)
                why = one_line(record.reason, _LONGEST) or "a task failed"
                lost = "its host was lost; " if record.preempted else ""
                text = f"the attempt ended: {lost}{why}; the next one follows"
                is_failure = record.reason_kind is not records.ReasonKind.GROWTH
                self.faults.append(Fault(record.at, record.attempt, record.first_failed_task, text, is_failure))
            elif isinstance(record, records.HangInspection):
                text = f"made no progress: {one_line(describe(record), _LONGEST)}"
                self.faults.append(Fault(record.at, record.attempt, record.task, text))
            elif isinstance(record, records.Notice):
                self._add_notice(record)

    def _add_state(self, state: records.TaskState, *, is_stopped: bool) -> None:
        has_exited = state.phase is records.Phase.EXITED
        failed = (
            has_exited and not is_stopped and bool(state.reason or state.exit not in (None, records.Exit(code=0)))
        )
        self.states[state.slot] = _describe_end(state) if has_exited else state.phase.value
        if failed:
            self.faults.append(Fault(state.at, state.attempt, state.task, self.states[state.slot]))

    def _add_notice(self, notice: records.Notice) -> None:
        key = notice.attempt, notice.text
        if abs(self._notices.get(key, -math.inf) - notice.at) > _SAME_NOTICE_S:
            self._notices[key] = notice.at
            text = one_line(notice.text, _LONGEST)
            self.faults.append(Fault(notice.at, notice.attempt, "", text, is_failure=False))


def _describe_end(state: records.TaskState) -> str:
    """Return how a task exited: ``exit code 1: it was killed``."""
    how = "exited"
    if state.exit is not None and state.exit.signal is not None:
        how = f"ended by signal {state.exit.signal}"
    elif state.exit is not None and state.exit.code is not None:
        how = f"exit code {state.exit.code}"
    return f"{how}: {one_line(state.reason, _LONGEST)}" if state.reason else how


def _describe(
    job: StoredJobs, record: FleetRecord, history: History, result: records.JobResult | None, silent: Sequence[str]
) -> JobRecord:
    """Combine what is known about a job."""
    first = description(job.reports)
    stored = {task.stored.slot: task for task in job.tasks}
    members = by_rank([member for member in first.members if member.task and is_task(member.task)])
    tasks = [
        _task(member, members, stored.get(member.slot), history.states.get(member.slot, "")) for member in members
    ]
    missing = sorted({*silent, *(task.host for task in tasks if not task.state)})
    return JobRecord(
        job=job.job,
        fleet=record.spec.name,
        name=first.job_name,
        script=one_line(first.name, _LONGEST),
        arguments=list(first.arguments),
        state=job.state,
        reason=one_line(result.reason, _LONGEST)
        if result and result.outcome is not records.Outcome.SUCCEEDED
        else "",
        started_at=job.started_at,
        ended_at=(result.at or None) if result else None,
        attempt=(result.attempt if result else 0) or latest_attempt(job.reports, first.attempts),
        attempts=first.attempts,
        provider=record.spec.provider,
        hosts=len(record.hosts),
        price_usd_h=record.price_usd_h,
        code_sha256=first.code_sha256,
        fleet_version=__version__,
        tasks=tasks,
        faults=sorted(history.faults, key=lambda fault: fault.at)[-_MOST_FAULTS:],
        notes=[f"{fold(missing)} did not answer, or has no complete records: data are missing"] if missing else [],
    )


def _shorten(verdict: Verdict) -> FirstCause:
    return FirstCause(
        verdict.task,
        verdict.kind.value,
        one_line(verdict.message, 2 * _LONGEST),
        [line[: 2 * _LONGEST] for line in verdict.lines],
        one_line(verdict.traceback, _LONGEST),
        list(verdict.consequences),
        one_line(verdict.hint, 2 * _LONGEST),
    )


def _task(
    member: records.Member, members: Sequence[records.Member], stored: StoredTask | None, state: str
) -> TaskRecord:
    report = stored.stored.report if stored else None
    progress = report.progress if report else None
    config = ""
    with contextlib.suppress(ValueError):  # what a host reports need not be a cluster
        config = tf_config(members, member.task)
    made = TaskRecord(
        task=member.task,
        slot=member.slot,
        host=stored.host.name if stored else member.slot,
        endpoint=endpoint(member.address, member.port),
        tf_config=config,
        state=state,
        versions=dict(report.versions) if report else {},
    )
    if progress is None:
        return made
    return made._replace(
        metrics={name: value for name, value in progress.metrics.items() if math.isfinite(value)},
        epoch=progress.epoch if progress.epoch >= 0 else None,
        step=progress.step if progress.step >= 0 else None,
        steps_per_s=progress.steps_per_s if 0 <= progress.steps_per_s < math.inf else None,
    )
