"""Assign the tasks of a job to slots, list its members, and detect tasks that did not train together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fleet.errors import UsageError
from fleet.fleets.agents import opened
from fleet.remote.client import AgentClient
from fleet.remote.fanout import values_of
from fleet.state import FleetDirectory, FleetRecord, slots
from fleet.steps import Again, Change
from provision.model import Host
from provision.quantities import counted
from train.agent.gang.assignment import is_evaluator
from train.agent.protocol.cluster import parse_task
from train.agent.protocol.records import JobReport, JobResult, Member, Outcome, SuccessPolicy


@dataclass(frozen=True)
class TaskTypes:
    """The requested tasks other than workers.

    Attributes:
        chief: The first task is the chief.
        ps: Number of parameter servers.
        evaluator: The last task is an evaluator.
        tasks_per_host: Number of tasks on each host.
    """

    chief: bool = False
    ps: int = 0
    evaluator: bool = False
    tasks_per_host: int = 1

    @property
    def has_servers(self) -> bool:
        """Return whether the job has a chief and parameter servers."""
        return bool(self.chief and self.ps)

    @property
    def others(self) -> int:
        """Return the number of tasks that are not workers."""
        return self.chief + self.ps + self.evaluator


def check_task_types(types: TaskTypes, *, hosts: int, spares: int) -> None:
    """Reject task types that do not fit the hosts of a fleet, or that TensorFlow cannot use.

    Raises:
        UsageError: with the first reason.
    """
    for message, hint, change in _mistakes(types, hosts, hosts * types.tasks_per_host - spares):
        raise UsageError(message, hint=hint, next_steps=[Again(change)])


def _mistakes(types: TaskTypes, hosts: int, slots: int) -> Iterator[tuple[str, str, Change]]:
    if types.ps and not types.chief:
        yield (
            f"--ps {types.ps} needs --chief: under ParameterServerStrategy a chief gives the workers their work",
            "",
            {"--chief": True},
        )
    spares = hosts * types.tasks_per_host - slots
    # A chief alone trains, but under ParameterServerStrategy it has no worker to give work to.
    fewest = 0 if types.chief and not types.ps else 1
    if types.others and slots < types.others + fewest:
        options = {"--chief": types.chief, f"--ps {types.ps}": types.ps, "--evaluator": types.evaluator}
        requested = [option for option, count in options.items() if count]
        needed = types.others + fewest
        needs = "need" if len(requested) > 1 else "needs"
        room, more = counted(hosts, "host"), hosts + needed - max(0, slots)
        room += f" with {types.tasks_per_host} tasks each" if types.tasks_per_host > 1 else ""
        worker = " with a worker" if fewest else ""
        yield (
            f"{' '.join(requested)}{worker} {needs} {counted(needed, 'task')}, but there is room for {max(0, slots)} "
            f"on {room}",
            f"start a fleet of {counted(more, 'worker')}, or run several tasks on each host",
            {"--tasks-per-host": str(-(-(needed + spares) // hosts))},
        )


def success(given: str | None, ps: int) -> SuccessPolicy:
    """Return the success policy: with parameter servers only the chief must succeed, otherwise all workers.

    Args:
        given: The option's value; None: not set.
        ps: Number of parameter servers.
    """
    if given is not None:
        return SuccessPolicy(given)
    return SuccessPolicy.CHIEF if ps else SuccessPolicy.ALL_WORKERS


def assign(types: TaskTypes, slots: int, spares: int) -> list[str]:
    """Return the task of each slot in the first attempt, in the order of the hosts.

    The chief comes first, because the first host leads the job; then workers, parameter servers, the evaluator, and
    spares, which do not have a task.

    Returns:
        A task for each slot, empty for a spare.
    """
    workers = slots - spares - types.others
    return [
        *(["chief-0"] if types.chief else []),
        *(f"worker-{index}" for index in range(workers)),
        *(f"ps-{index}" for index in range(types.ps)),
        *(["evaluator-0"] if types.evaluator else []),
        *([""] * spares),
    ]


def current_members(members: Sequence[Member], reports: Mapping[str, JobReport]) -> tuple[Member, ...]:
    """Return the members of a job with their current tasks.

    Args:
        members: The members as they were committed.
        reports: The reports of the hosts about the job, by slot.
    """
    reported = {report.task for report in reports.values()}

    def task(member: Member) -> str:
        if member.slot in reports:
            return reports[member.slot].task
        return "" if member.task in reported else member.task  # another slot has it now

    return tuple(member._replace(task=task(member)) for member in members)


def worker_name(worker: str) -> str:
    """Return the task that ``1``, ``worker-1``, ``worker:1``, or ``ps-0`` names; empty for ``all``.

    Raises:
        UsageError: `worker` is not a task.
    """
    if worker == "all":
        return ""
    try:
        is_number = worker.isascii() and worker.isdigit()
        kind, index = ("worker", int(worker)) if is_number else parse_task(worker.replace(":", "-"))
    except ValueError:
        raise UsageError(
            f"--worker {worker} is not a task", hint="tasks are named as 0, worker-0, or ps-0; all shows all of them"
        ) from None
    return f"{kind}-{index}"


def independence_warning(result: JobResult, tasks: Iterable[tuple[str, bool | None]]) -> str:
    """Return a warning if a job succeeded although no task listened on its port; empty if one did.

    Args:
        result: The result of the job.
        tasks: The tasks of its last attempt, and whether each listened on its port; None: unknown.
    """
    listened = [has_listened for task, has_listened in tasks if not is_evaluator(task)]
    if (
        result.outcome is not Outcome.SUCCEEDED
        or len(listened) < 2
        or any(has_listened is not False for has_listened in listened)
    ):
        return ""
    return (
        f"no task opened its port: each of the {len(listened)} tasks trained alone; TF_CONFIG is set for each task, "
        "but the script has to create tf.distribute.MultiWorkerMirroredStrategy()"
    )


def all_members(first: JobReport, reports: Mapping[str, JobReport]) -> tuple[Member, ...]:
    """Return the members of a job as they were committed, and the slots that joined it since, without their tasks.

    Args:
        first: The report that describes the job as most hosts do.
        reports: The reports of the hosts about the job, by slot.
    """
    committed = {member.slot for member in first.members}
    joined = [
        member._replace(task="")
        for slot, report in sorted(reports.items())
        for member in report.members
        if member.slot == slot and slot in first.joinable and slot not in committed
    ]
    return (*first.members, *joined)


def added_slots(record: FleetRecord, directory: FleetDirectory) -> list[Host]:
    """Return the slots of the hosts that were added to a fleet since `record` was read."""
    now = directory.read() if directory.exists() else None
    before = {host.name for host in record.slots}
    current = slots(now.hosts, record.tasks_per_host) if now is not None else ()
    return [host for host in current if host.name not in before]


@contextlib.contextmanager
def with_added(
    clients: Sequence[AgentClient], record: FleetRecord, directory: FleetDirectory
) -> Iterator[list[AgentClient]]:
    """Yield `clients`, and those of the hosts that were added since `record` was read and that answer."""
    with opened(added_slots(record, directory), directory.key) as outcomes:
        yield [*clients, *values_of(outcomes)]


def joining_hosts(first: JobReport, reports: Sequence[JobReport]) -> tuple[str, ...]:
    """Return the slots that have joined a running job and have no task yet.

    Args:
        first: The report that describes the job as most hosts do.
        reports: The reports of its hosts.
    """
    return tuple(
        sorted(item.slot for item in reports if item.slot in first.joinable and item.alive and not item.task)
    )
