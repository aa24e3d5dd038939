"""Which host plays which task of TensorFlow, several tasks on a host included, and how people know the tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fleet.errors import UsageError
from fleet.steps import Again, Change
from provision.quantities import counted
from train.agent.protocol.cluster import parse_task
from train.agent.protocol.records import (
    JobReport,
    JobResult,
    Log,
    Member,
    Outcome,
    Progress,
    Record,
    Stalled,
    SuccessPolicy,
    TaskState,
    Usage,
)


@dataclass(frozen=True)
class Roles:
    """What the user asked for beside workers.

    Attributes:
        chief: The first task is the chief.
        ps: Number of parameter servers.
        evaluator: The last task evaluates.
        tasks_per_host: Tasks on each host.
    """

    chief: bool = False
    ps: int = 0
    evaluator: bool = False
    tasks_per_host: int = 1

    @property
    def others(self) -> int:
        """Tasks that are no workers."""
        return self.chief + self.ps + self.evaluator


def check_roles(roles: Roles, *, hosts: int, spares: int) -> None:
    """Refuse roles that the hosts of a fleet cannot play, or TensorFlow has no use for.

    Raises:
        UsageError: with the first reason.
    """
    for message, hint, change in _nonsense(roles, hosts, hosts * roles.tasks_per_host - spares):
        raise UsageError(message, hint=hint, next_steps=[Again(change)])


def _nonsense(roles: Roles, hosts: int, places: int) -> Iterator[tuple[str, str, Change]]:
    if roles.ps and not roles.chief:
        yield (
            f"--ps {roles.ps} needs --chief: under ParameterServerStrategy a chief gives the workers their work",
            "",
            {"--chief": True},
        )
    spares = hosts * roles.tasks_per_host - places
    # A chief alone trains, but under ParameterServerStrategy it has nobody to give work to.
    fewest = 0 if roles.chief and not roles.ps else 1
    if roles.others and places < roles.others + fewest:
        asked = [
            *(["--chief"] if roles.chief else []),
            *([f"--ps {roles.ps}"] if roles.ps else []),
            *(["--evaluator"] if roles.evaluator else []),
        ]
        wanted = roles.others + fewest
        needs = "need" if len(asked) > 1 else "needs"
        room, more = counted(hosts, "host"), hosts + wanted - max(0, places)
        room += f" with {roles.tasks_per_host} tasks each" if roles.tasks_per_host > 1 else ""
        worker = " with a worker" if fewest else ""
        yield (
            f"{' '.join(asked)}{worker} {needs} {counted(wanted, 'task')}, but there is room for {max(0, places)} "
            f"on {room}",
            f"start a fleet of {counted(more, 'worker')}, or run several tasks on each host",
            {"--tasks-per-host": str(-(-(wanted + spares) // hosts))},
        )


def success(said: str | None, ps: int) -> SuccessPolicy:
    """Whose success is the job's: with parameter servers only the chief's process ends, and elsewhere all do.

    Args:
        said: What the user said; None: nothing.
        ps: Number of parameter servers.
    """
    if said is not None:
        return SuccessPolicy(said)
    return SuccessPolicy.CHIEF if ps else SuccessPolicy.ALL_WORKERS


def assigned(roles: Roles, slots: int, spares: int) -> list[str]:
    """The task of TensorFlow that each slot is at first, in the order of the hosts.

    The chief comes first, since the first host leads the job; then workers, parameter servers, the evaluator, and
    spares, which have none.

    Returns:
        A name for each slot, empty for a spare; nothing at all where only workers are asked for.
    """
    if not roles.others:
        return []
    workers = slots - spares - roles.others
    return [
        *(["chief-0"] if roles.chief else []),
        *(f"worker-{index}" for index in range(workers)),
        *(f"ps-{index}" for index in range(roles.ps)),
        *(["evaluator-0"] if roles.evaluator else []),
        *([""] * spares),
    ]


@dataclass
class Names:
    """How people know the tasks of a job: by their hosts, or where roles were assigned, by these.

    Attributes:
        by_host: What the task of each host is now; empty: no roles were assigned, and each has the name of its host.
    """

    by_host: dict[str, str] = field(default_factory=dict)
    _attempts: dict[str, int] = field(default_factory=dict)

    def of(self, host: str) -> str:
        """Name of the task of a host; the host's own, where it has none."""
        return self.by_host.get(host) or host

    def host_of(self, name: str) -> str:
        """The host that has this task, or had it last; the name itself where that is not known."""
        hosts = [host for host in self.by_host if self.of(host) == name]
        return max(hosts, key=lambda host: self._attempts.get(host, 0), default=name)

    def hosts(self) -> dict[str, str]:
        """The host of each task, where roles were assigned."""
        return {name: self.host_of(name) for name in map(self.of, self.by_host)}

    def renamed(self, host: str, record: Record) -> Record:
        """What the agent of a host tells, under the name of its task."""
        if not self.by_host:
            return record
        if isinstance(record, TaskState):
            self.by_host[host] = record.role or record.task
            self._attempts[host] = max(record.attempt, self._attempts.get(host, 0))
            return record._replace(task=self.of(host), role="", host=host)
        if isinstance(record, (Log, Progress, Usage, Stalled)):
            return record._replace(task=self.of(host))
        if isinstance(record, JobResult) and record.outcome is Outcome.LOST:  # a host's own word
            return record._replace(first_failed_task=self.of(record.first_failed_task))
        return record

    def members(self, members: Sequence[Member]) -> tuple[Member, ...]:
        """The members of a job under the names of their tasks."""
        return tuple(member._replace(task=self.of(member.task)) for member in members)


def names_of(members: Sequence[Member], roles: Sequence[str], reports: Mapping[str, JobReport]) -> Names:
    """How people know the tasks of a job.

    Args:
        members: Its slots.
        roles: What each of them was at first; nothing: no roles were assigned.
        reports: What hosts tell of the tasks that they have now.
    """
    if not roles:
        return Names()
    first = {member.task: role for member, role in zip(members, roles, strict=True)}
    told = {host: report.role for host, report in reports.items() if report.role}
    return Names({**first, **told}, {host: report.attempt for host, report in reports.items()})


def worker_name(worker: str) -> str:
    """The task that ``1``, ``worker-1`` or ``ps-0`` means; empty for ``all``.

    Raises:
        UsageError: it is no task.
    """
    if worker == "all":
        return ""
    try:
        kind, index = ("worker", int(worker)) if worker.isascii() and worker.isdigit() else parse_task(worker)
    except ValueError:
        raise UsageError(
            f"--worker {worker} is not a task", hint="tasks are named as 0, worker-0, or ps-0; all shows all of them"
        ) from None
    return f"{kind}-{index}"
