"""The agents of a fleet: open them on its hosts, send requests to all, and combine what they report about a job.

A host can be broken, or controlled by an attacker: its report never replaces the reports of the other hosts.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fleet.errors import FleetError, fold
from fleet.events import FleetOpened, Note, Sink
from fleet.fleets.access import Access, Kept
from fleet.remote.client import AgentClient
from fleet.remote.fanout import Outcome, fan_out, raise_failures, values_of
from fleet.remote.quoting import one_line
from fleet.services import Services, announce
from fleet.state import FleetDirectory, FleetRecord
from provision.model import Host
from train.agent.protocol.records import Inspect, JobReport, Stop, Stopped

T = TypeVar("T")
Opening = tuple[list[AgentClient], list[Outcome[AgentClient]]]
"""The agents that were opened, and why other hosts could not be reached."""

_MOST_JOBS = 1000  # of a host


def newest_job(jobs: Sequence[str], started: str = "") -> str:
    """Return the newest job that more than half of the hosts report.

    If there is none, return `started` if a host reports it, otherwise the newest job of all.

    Args:
        jobs: The newest job of each host that has one.
        started: The newest job that was started from this computer.
    """
    common = [job for job, count in Counter(jobs).items() if 2 * count > len(jobs)]
    return max(common or [job for job in jobs if job == started] or jobs, default="")


def newer_jobs(jobs: Mapping[str, str], newest: str) -> list[str]:
    """Return a sentence for each host that reports a newer job than the chosen newest one.

    Args:
        jobs: The newest job of each host.
        newest: The chosen newest job.
    """
    return [f"{host} reports a newer job, {one_line(job, 100)}" for host, job in jobs.items() if job > newest]


def description(reports: Sequence[JobReport]) -> JobReport:
    """Return a report that describes the job as most hosts do: its members, their first tasks, and its limits.

    Args:
        reports: Reports about one job, at least one.
    """

    def terms(report: JobReport) -> tuple[object, ...]:
        return tuple((member.slot, member.task) for member in report.members), report.attempts

    counts = Counter(map(terms, reports))
    return max(reports, key=lambda report: (counts[terms(report)], report.attempt))


def latest_attempt(reports: Sequence[JobReport], attempts: int) -> int:
    """Return the latest attempt that the hosts report, at least 1.

    Args:
        reports: Reports about one job.
        attempts: Largest number of attempts; 0: no limit.
    """
    return max([1, *(report.attempt for report in reports if not attempts or report.attempt <= attempts)])


@dataclass(frozen=True)
class ExistingFleet:
    """A fleet that existed when a command began, and what the command works with.

    Attributes:
        record: The fleet as stored in its state.
        directory: State directory of the fleet.
        services: The outside world.
        sink: Takes the events.
        command: The command line after ``fleet``, shown to other commands that wait for the fleet.
        kept: As in `Access`.
    """

    record: FleetRecord
    directory: FleetDirectory
    services: Services
    sink: Sink
    command: str = ""
    kept: Kept | None = None

    @classmethod
    def find(
        cls, name: str, services: Services, sink: Sink, command: str = "", *, stopped: bool = False
    ) -> ExistingFleet:
        """Return the fleet `name`, which must be up, or may also be `stopped`; raise errors as Store.need does."""
        directory, record = services.store.need(name, stopped=stopped)
        return cls(record, directory, services, sink, command)

    @property
    def name(self) -> str:
        """Return its name."""
        return self.record.spec.name

    @property
    def access(self) -> Access:
        """Return the access to its hosts."""
        return Access(self.record.spec, self.services, self.sink, self.kept)

    def announce(self) -> None:
        """Report on which fleet the command works, and what it has cost until now."""
        self.sink.emit(fleet_opened(self.record, self.directory, self.services.clock()))

    def open_some(
        self, hosts: Sequence[Host] | None = None, *, whole_window: bool = False
    ) -> AbstractContextManager[Opening]:
        """Open an agent on each of `hosts`, by default all of the fleet, as `open_some` does."""
        some = self.record.hosts if hosts is None else hosts
        return open_some(some, self.directory.key, self.access, whole_window=whole_window)


def fleet_opened(record: FleetRecord, directory: FleetDirectory, now: float) -> FleetOpened:
    """Return the event that names the fleet on which a command works, and what it has cost until `now`."""
    return FleetOpened(
        fleet=record.spec.name,
        provider=record.spec.provider,
        hosts=tuple(host.name for host in record.slots),
        created_at=record.created_at,
        price_usd_h=directory.price_usd_h(now),
        delete_at=record.delete_at,
        stop_at=record.stop_at,
        tasks_per_host=record.tasks_per_host,
        cost_usd=directory.cost_usd(now),
    )


@contextlib.contextmanager
def open_agents(hosts: Sequence[Host], key: Path, access: Access | None = None) -> Iterator[list[AgentClient]]:
    """Open an agent on every host, in the order of `hosts`; close them at the end.

    Raises:
        FleetError: a host could not be reached; the error names all of these hosts.
    """
    with opened(hosts, key, access) as outcomes:
        yield raise_failures(outcomes, "reach the fleet")


@contextlib.contextmanager
def open_some(
    hosts: Sequence[Host],
    key: Path,
    access: Access | None = None,
    *,
    sink: Sink | None = None,
    whole_window: bool = False,
) -> Iterator[Opening]:
    """Open an agent on every host that can be reached, in their order; yield them with the errors of the others.

    Raises:
        FleetError: no host can be reached.
    """
    with opened(hosts, key, access, sink=sink, whole_window=whole_window) as outcomes:
        failed = [outcome for outcome in outcomes if outcome.error is not None]
        if len(failed) == len(outcomes):
            raise_failures(outcomes, "reach the fleet")
        yield values_of(outcomes), failed


@contextlib.contextmanager
def opened(
    hosts: Sequence[Host],
    key: Path,
    access: Access | None = None,
    *,
    sink: Sink | None = None,
    whole_window: bool = False,
) -> Iterator[list[Outcome[AgentClient]]]:
    """Open an agent on every host; yield each agent, or why its host cannot be reached; close them at the end.

    Args:
        hosts: The hosts.
        key: Private key of the fleet.
        access: Repairs the access to hosts that do not answer; None: it is not repaired.
        sink: Takes which hosts the command waits for, if `access` is None.
        whole_window: Let each host send as much as a single one before it is read: few of them send much, which is
            written to disk. Without it, the hosts share the memory for what they send.
    """
    from fleet.remote.ssh.connection import share_window
    from fleet.remote.ssh.transport import open_agent

    window = None if whole_window else share_window(len(hosts))
    kept = access.kept if access is not None else None
    clients: Kept = {} if kept is None else kept

    def connect(host: Host) -> AgentClient:
        place = (host.address, host.port, host.host_key, host.root)
        if place not in clients:
            clients[place] = open_agent(host, key, window=window)
        return clients[place]

    def report(text: str) -> None:
        if access is not None:
            access.services.report(text)
        elif sink is not None:
            sink.emit(Note(text))

    def waiting() -> str:
        names = {client.host.name for client in list(clients.values())}
        return f"waiting for SSH on {fold(host.name for host in hosts if host.name not in names)}"

    try:
        with announce(report, waiting):
            outcomes = fan_out(hosts, connect)
        yield outcomes if access is None else access.retried(outcomes, lambda some: fan_out(some, connect))
    finally:
        for client in clients.values() if kept is None else ():
            client.close()


def call_all(clients: Sequence[AgentClient], call: Callable[[AgentClient], T], verb: str) -> list[T]:
    """Return the answers of all agents.

    Args:
        clients: The agents.
        call: Called with each agent, in parallel.
        verb: The action, for the message of an error.

    Raises:
        FleetError: at least one agent failed; the error lists every reason.
    """
    return raise_failures(call_each(clients, call), verb)


def call_each(clients: Sequence[AgentClient], call: Callable[[AgentClient], T]) -> list[Outcome[T]]:
    """Ask all agents in parallel; return the answer of each, or its error."""
    by_host = {client.host.name: client for client in clients}

    def abort() -> None:
        for client in clients:
            client.transport.sever()

    hosts = [client.host for client in clients]
    return fan_out(hosts, lambda host: call(by_host[host.name]), abort=abort)


def stop_everywhere(clients: Sequence[AgentClient], job: str, grace_s: float) -> list[Outcome[Stopped]]:
    """Stop the task of `job` on every host; an error of one host does not affect the others."""
    return call_each(clients, lambda client: client.stop(Stop(job, client.host.name, grace_s)))


@dataclass(frozen=True)
class Reports:
    """The reports of the hosts of a fleet about one job.

    Attributes:
        by_host: The reports, by host.
        failed: Hosts without a valid answer, with their errors.
        others: A sentence for each host that reports a newer job than most hosts do.
    """

    by_host: dict[str, JobReport]
    failed: tuple[Outcome[AgentClient], ...]
    others: tuple[str, ...]


def newest_reports(
    clients: Sequence[AgentClient],
    select: Callable[[Sequence[tuple[str, JobReport]]], str] | None = None,
    started: str = "",
) -> Reports:
    """Return the reports of the hosts about one job, by default the newest.

    Args:
        clients: Connections to the agents on the hosts.
        select: Returns the job, given each host with each of its reports; None: the newest job, as in `newest_job`.
        started: The newest job that was started from this computer.

    Raises:
        FleetError: no host gives a valid answer.
    """
    limit = _MOST_JOBS if select else 1
    answers = call_each(clients, lambda client: client.inspect(Inspect(limit)))
    failed: list[Outcome[AgentClient]]
    failed = [Outcome(answer.host, error=answer.error) for answer in answers if answer.error is not None]
    if failed and len(failed) == len(answers):
        raise_failures(failed, "ask for jobs")
    reports = [(answer.host.name, report) for answer in answers for report in answer.value or ()]
    newest = select(reports) if select else newest_job([report.job for _, report in reports], started)
    others = [] if select else newer_jobs({host: report.job for host, report in reports}, newest)
    return Reports({host: report for host, report in reports if report.job == newest}, tuple(failed), tuple(others))


def running_job(record: FleetRecord, key: Path, access: Access | None = None) -> str:
    """Return the job that runs on the reachable hosts of a fleet; empty if none does."""
    with opened(record.slots, key, access) as outcomes, contextlib.suppress(FleetError):
        for report in newest_reports(values_of(outcomes), started=record.last_job).by_host.values():
            if report.alive and report.result is None:
                return report.job
    return ""
