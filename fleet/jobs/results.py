"""Query which jobs and results the hosts of a fleet store, and which of these are on this computer."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fleet.errors import FleetError
from fleet.events import DiskUse, Note, ResultLocation, ResultsFound, StoredResults
from fleet.fleets.access import Access
from fleet.fleets.agents import ExistingFleet, call_each, description, opened
from fleet.jobs.selection import is_id, name_jobs, select_job
from fleet.remote.client import AgentClient
from fleet.remote.fanout import Outcome as HostOutcome
from fleet.remote.fanout import errors_by_host, values_of
from fleet.remote.quoting import one_line
from fleet.remote.results import Store, list_jobs
from fleet.results.target import complete_tasks
from fleet.state import FleetDirectory, OnThisComputer
from fleet.steps import Step
from provision.model import Host
from provision.names import instance_name
from train.agent.protocol.cluster import is_task, task_rank
from train.agent.protocol.records import Area, HeldCheckpoint, JobReport, JobResult, Outcome, Progress, StoredJob

LOAD_NOTE = Note(
    "the model was saved by Keras 2: load it with tf_keras, or with TF_USE_LEGACY_KERAS=1 in the environment"
)


_ENDS = {Outcome.SUCCEEDED: "succeeded", Outcome.FAILED: "failed", Outcome.CANCELLED: "was stopped"}
_LONGEST_REASON = 200  # characters


class Agreement(NamedTuple):
    """The result of a job on which its hosts agree.

    Attributes:
        result: The result that counts; None if no host reports one.
        disputes: A sentence for each result of another host that contradicts it.
    """

    result: JobResult | None
    disputes: tuple[str, ...] = ()


def agree(results: Mapping[str, JobResult], *, size: int = 0, attempts: int = 0) -> Agreement:
    """Return the result of a job according to most of its hosts.

    A result that is not `isolated` means that its host was connected to more than half of the hosts when the job
    ended, and that all of these report the same. If half of the hosts report a different result, it counts as
    much as a result that is `isolated`. Among such results, one that other hosts report as well comes first, then one
    that is not a success, then the result of the latest attempt that the job can have had, then the earliest: the
    order in which hosts answer has no effect.

    Args:
        results: The result of each host that reports one.
        size: Number of hosts of the job; at least that of the results.
        attempts: Largest number of attempts; 0: no limit.
    """
    if not results:
        return Agreement(None)
    certain = {host: result for host, result in results.items() if result.outcome is not Outcome.LOST}
    counts = Counter(_end(result) for result in certain.values())
    hosts = max(size, len(results))

    def rank(result: JobResult) -> tuple[bool, bool, bool, int, bool, bool, int, float]:
        count = counts[_end(result)]
        return (
            result.outcome is not Outcome.LOST,
            not result.isolated and 2 * (len(certain) - count) < hosts,
            not attempts or result.attempt <= attempts,
            count,
            result.isolated or result.outcome is not Outcome.SUCCEEDED,
            not result.isolated,
            result.attempt,
            -result.at,
        )

    chosen = max(results.values(), key=rank)
    return Agreement(
        chosen, tuple(_dispute(host, result) for host, result in certain.items() if _differs(result, chosen))
    )


def _end(result: JobResult) -> tuple[Outcome, int]:
    return result.outcome, result.attempt


def _differs(result: JobResult, chosen: JobResult) -> bool:
    """Return whether a result contradicts the chosen one; an isolated host may report another attempt."""
    if result.isolated or chosen.isolated:
        return result.outcome is not chosen.outcome
    return _end(result) != _end(chosen)


def _dispute(host: str, result: JobResult) -> str:
    why = f": {one_line(result.reason, _LONGEST_REASON)}" if result.reason else ""
    end = f"{_ENDS.get(result.outcome, result.outcome.value)} in attempt {result.attempt}"
    return f"{host} reports a different result: the job {end}{why}"


@dataclass(frozen=True)
class StoredTask:
    """The results of one task of a job.

    Attributes:
        host: The host that stores them.
        stored: The report of the host.
        name: Name of the task for users.
        copied: The results were pulled, and neither copy has changed: the files here were verified.
        safe: Deleting them on the host loses nothing: they were pulled, or are a log that was shown.
    """

    host: Host
    stored: StoredJob
    name: str
    copied: bool
    safe: bool

    @property
    def key(self) -> str:
        """Return the identifier of the task within its job, as used in the fleet's state."""
        return task_key(self.host.name, self.stored)


@dataclass(frozen=True)
class StoredJobs:
    """One job on all hosts that answered.

    Attributes:
        job: Its identifier.
        tasks: The tasks by rank, the chief first.
        local: The results that are on this computer.
    """

    job: str
    tasks: tuple[StoredTask, ...]
    local: OnThisComputer

    @property
    def reports(self) -> list[JobReport]:
        """Return the reports of the hosts about the job."""
        return [task.stored.report for task in self.tasks if task.stored.report is not None]

    @property
    def started_at(self) -> float:
        """Return the time at which most hosts committed the job, in seconds since the epoch; 0: unknown."""
        times = [report.started_at for report in self.reports]
        return sorted(times)[(len(times) - 1) // 2] if times else 0.0

    @property
    def name(self) -> str | None:
        """Return the name that the user gave it; None: it has none, or it is unknown."""
        return (description(self.reports).job_name or None) if self.reports else None

    @property
    def is_running(self) -> bool:
        """Return whether a supervisor runs the job."""
        return any(report.alive and report.result is None for report in self.reports)

    @property
    def queued_after(self) -> str | None:
        """Return the job that it waits for; None: it is not queued."""
        return next((report.queued_after for report in self.reports if report.queued_after), None)

    @property
    def is_safe(self) -> bool:
        """Return whether deleting the job on the hosts loses nothing."""
        return not self.is_running and all(task.safe for task in self.tasks)

    @property
    def state(self) -> str:
        """Return ``queued``, ``running``, the outcome, or an empty string if the outcome is unknown."""
        if self.is_running:
            return "queued" if self.queued_after else "running"
        result = result_of(self.reports)
        return result.outcome.value if result else ""

    def summary(self, *, rented: bool = True) -> StoredResults:
        """Return an event that describes the job.

        Args:
            rented: Include results outside the fleet's directory, because they are deleted with the host.
        """
        first = description(self.reports) if self.reports else None
        progress = self.progress
        return StoredResults(
            job=self.job,
            script=first.name if first else "",
            name=self.name,
            arguments=tuple(first.arguments) if first else None,
            duration_s=self._duration_s(),
            code_sha256=(first.code_sha256 or None) if first else None,
            versions=self.reports[0].versions or None if first else None,
            metrics=progress.metrics if progress and progress.metrics else None,
            steps_per_s=progress.steps_per_s if progress and progress.steps_per_s >= 0 else None,
            state=self.state,
            queued_after=self.queued_after,
            started_at=self.started_at,
            size=sum(task.stored.size for task in self.tasks),
            pulled=self._pulled(),
            directory=self.local.directory,
            paths=tuple(f"{task.host.name}:{task.stored.path}" for task in self.tasks),
            results=tuple(location for task in self.tasks for location in result_locations(task, rented=rented)),
        )

    @property
    def checkpoint(self) -> HeldCheckpoint | None:
        """Return the newest complete checkpoint that a host holds; None: the hosts that answered hold none."""
        held = [task.stored.checkpoint for task in self.tasks if task.stored.checkpoint is not None]
        return max(held, key=lambda checkpoint: (checkpoint.attempt, checkpoint.number), default=None)

    @property
    def progress(self) -> Progress | None:
        """Return the last progress of the first task that reports metrics; None: no task does."""
        latest = (report.progress for report in self.reports)
        return next((progress for progress in latest if progress is not None and progress.metrics), None)

    def _duration_s(self) -> float | None:
        result = None if self.is_running else result_of(self.reports)
        return max(0.0, result.at - self.started_at) if result and result.at and self.started_at else None

    def _pulled(self) -> str:
        holding = [task for task in self.tasks if task.stored.fingerprint]
        if not holding:
            return ""
        if all(task.safe for task in holding):
            return "yes"
        return "partly" if any(task.copied for task in holding) else "no"


@dataclass(frozen=True)
class Survey:
    """The contents of the hosts of a fleet.

    Attributes:
        jobs: The stored jobs, newest first.
        disks: The disks of the hosts that answered.
        silent: The errors of the other hosts, by name.
    """

    jobs: tuple[StoredJobs, ...]
    disks: tuple[DiskUse, ...]
    silent: Mapping[str, FleetError]

    def find(self, job: str) -> StoredJobs | None:
        """Return the job with an identifier; None: the hosts that answered do not store it."""
        return next((stored for stored in self.jobs if stored.job == job), None)

    def select(self, reference: str, fleet: str) -> StoredJobs:
        """Return the job that a reference means, as in `select_job`; -1 is the running job, queued ones are the last.

        Raises:
            NotFoundError: the job does not exist.
            UsageError: several jobs are meant.
        """
        order = {"running": 0, "queued": 2}
        jobs = sorted(self.jobs, key=lambda stored: order.get(stored.state, 1))
        entries = [(task.host.name, stored.job, stored.name or "") for stored in jobs for task in stored.tasks]
        chosen = select_job(reference, name_jobs(entries), fleet)
        return next(stored for stored in self.jobs if stored.job == chosen)


def task_key(host: str, stored: StoredJob) -> str:
    """Identify a task within its job, in the fleet's state."""
    return "/".join(filter(None, (host, stored.directory, stored.slot)))


def survey(hosts: Sequence[Host], directory: FleetDirectory, access: Access | None = None) -> Survey:
    """Ask hosts of a fleet for the results of all jobs."""
    with opened(hosts, directory.key, access) as outcomes:
        return survey_agents(values_of(outcomes), directory, unreached=outcomes)


def survey_agents(
    clients: Sequence[AgentClient],
    directory: FleetDirectory,
    jobs: Sequence[str] = (),
    unreached: Iterable[HostOutcome[AgentClient]] = (),
) -> Survey:
    """Ask agents for the results of `jobs`; of all jobs if `jobs` is empty.

    Args:
        clients: The agents.
        directory: State directory of the fleet.
        jobs: The jobs.
        unreached: The outcomes of connecting; errors among them are added to those of agents that do not answer.
    """
    outcomes = call_each(clients, lambda client: list_jobs(client, jobs))
    stores = [(outcome.host, outcome.value) for outcome in outcomes if outcome.value is not None]
    return survey_of(stores, directory, {**errors_by_host(unreached), **errors_by_host(outcomes)})


def survey_job(
    reference: str,
    clients: Sequence[AgentClient],
    directory: FleetDirectory,
    unreached: Iterable[HostOutcome[AgentClient]] = (),
) -> Survey:
    """Ask agents for one job, which `Survey.select` returns.

    Args:
        reference: As in `select_job`. Only for a complete identifier, the other jobs are not examined.
        clients: The agents.
        directory: State directory of the fleet.
        unreached: As in `survey_agents`.
    """
    if is_id(reference):
        stored = survey_agents(clients, directory, [reference], unreached)
        if stored.jobs:
            return stored
    return survey_agents(clients, directory, unreached=unreached)


def survey_of(
    stores: Sequence[tuple[Host, Store]], directory: FleetDirectory, silent: Mapping[str, FleetError]
) -> Survey:
    """Combine the answers of the hosts."""
    by_job: dict[str, list[tuple[Host, StoredJob]]] = {}
    for host, store in stores:
        for stored in store.jobs:
            by_job.setdefault(stored.job, []).append((host, stored))
    disks = [
        DiskUse(host.name, store.disk.free, store.disk.total, sum(stored.size for stored in store.jobs))
        for host, store in stores
    ]
    jobs = [_job(job, entries, directory.on_this_computer(job)) for job, entries in by_job.items()]
    jobs.sort(key=lambda listed: (listed.started_at, listed.job), reverse=True)
    return Survey(tuple(jobs), tuple(disks), silent)


def _job(job: str, entries: Sequence[tuple[Host, StoredJob]], local: OnThisComputer) -> StoredJobs:
    names = _task_names([stored for _, stored in entries])
    here = complete_tasks(local.directory)
    tasks = []
    for (host, stored), name in zip(entries, names, strict=True):
        copied = here.get(task_key(host.name, stored)) == stored.fingerprint
        is_shown = local.log_shown and all(use.area is Area.LOGS for use in stored.areas)
        tasks.append(StoredTask(host, stored, name, copied, copied or is_shown or not stored.fingerprint))
    return StoredJobs(job, tuple(sorted(tasks, key=lambda task: task_rank(task.name))), local)


def _task_names(stored: Sequence[StoredJob]) -> list[str]:
    """Return a unique name for each entry: its task, or its slot if two slots had the same task last."""
    slots = [item.slot for item in stored]
    tasks = [(item.report.task if item.report is not None else "") or item.slot for item in stored]
    for names in (tasks, slots):
        if len({*names}) == len(names) and all(map(is_task, names)):
            return names
    return [instance_name(at) for at in range(len(stored))]


def result_locations(task: StoredTask, *, rented: bool = True) -> Iterable[ResultLocation]:
    """Yield the locations of a task's results."""
    for use in task.stored.areas:
        if rented or not use.outside:
            yield ResultLocation(task.name, task.host.name, use.area.value, use.path, use.files, use.size)


def load_note(job: StoredJobs) -> Note | None:
    """Return how to load the models of a job that ran with Keras 2: Keras 3, the default, cannot read them."""
    if job.local.legacy_keras and any(use.area is Area.MODEL for task in job.tasks for use in task.stored.areas):
        return LOAD_NOTE
    return None


def report_results(fleet: ExistingFleet, job: str, clients: Sequence[AgentClient]) -> StoredJobs | None:
    """Emit the locations of the results of a job that has ended, and how to pull them.

    Emits nothing if the job only has a log, or if this command pulls the results.

    Args:
        fleet: The fleet.
        job: The job.
        clients: Connections to the agents of its hosts or slots; broken ones are skipped.

    Returns:
        The job; None if the hosts that answer do not store it.
    """
    stored: StoredJobs | None = None
    with contextlib.suppress(FleetError, KeyboardInterrupt):  # the end of the job must still be reported
        stored = survey_agents(clients, fleet.directory, [job]).find(job)
        if stored is not None and not stored.local.pull_to:
            _emit_results(stored, fleet)
    return stored


def _emit_results(stored: StoredJobs, fleet: ExistingFleet) -> None:
    record = fleet.record
    hosts = {slot.name: record.hosts[at // record.tasks_per_host].name for at, slot in enumerate(record.slots)}
    results = tuple(
        location._replace(host=hosts.get(location.host, location.host))
        for task in stored.tasks
        for location in result_locations(task)
    )
    if any(location.kind != Area.LOGS.value for location in results):
        fleet.sink.emit(
            ResultsFound(
                fleet=fleet.name,
                job=stored.job,
                files=sum(location.files for location in results),
                size=sum(location.size for location in results),
                results=results,
                next_step=Step("pull", stored.job).text(fleet.name),
                delete_at=None if record.stop_at else record.delete_at or None,
            )
        )
        if note := load_note(stored):
            fleet.sink.emit(note)


def result_of(reports: Sequence[JobReport]) -> JobResult | None:
    """Return the result of a job; None if it has not ended, or if no host reports a result."""
    return agreement_of(reports).result


def agreement_of(reports: Sequence[JobReport]) -> Agreement:
    """Return the result of a job that most hosts report; None if it has not ended, or if no host reports a result.

    The report of a host with a running supervisor takes precedence over that of a host that lost its peers, and over
    that of one host in a fleet of two.
    """
    results: dict[str, JobResult] = {}
    for report in reports:
        if report.result is not None:
            taken = report.slot in results
            results[f"another host with {report.slot}" if taken else report.slot] = report.result
    if not results:
        return Agreement(None)
    terms = description(reports)
    agreement = agree(results, size=len(terms.members), attempts=terms.attempts)
    result = agreement.result
    running = sum(report.alive and report.result is None for report in reports)
    if result is not None and running:
        lone = result.isolated or result.outcome is Outcome.LOST
        if lone or 2 * running >= max(len(terms.members), len(reports)):
            return Agreement(None, agreement.disputes)
    return agreement
