"""The agents of a fleet: open them on all hosts, ask them all, stop what they supervise."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fleet.errors import FleetError
from fleet.events import FleetOpened
from fleet.fleets.agreement import newer_jobs, newest_job
from fleet.state import FleetRecord
from provision.model import Host
from train.agent.protocol.records import Inspect, JobReport, Stop, Stopped

if TYPE_CHECKING:
    from fleet.fleets.access import Access
    from fleet.remote.channel import AgentChannel
    from fleet.remote.fanout import Outcome

T = TypeVar("T")


def fleet_opened(record: FleetRecord) -> FleetOpened:
    """The event that a command works on a fleet."""
    return FleetOpened(
        fleet=record.spec.name,
        provider=record.spec.provider,
        hosts=tuple(host.name for host in record.places),
        created_at=record.created_at,
        price_usd_h=record.price_usd_h,
        delete_at=record.delete_at,
        tasks_per_host=record.tasks_per_host,
    )


@contextlib.contextmanager
def open_agents(hosts: Sequence[Host], key: Path, access: Access | None = None) -> Iterator[list[AgentChannel]]:
    """An agent on every host, in the order of `hosts`; closed at the end.

    Raises:
        FleetError: a host could not be reached; all of these are named.
    """
    with opened(hosts, key, access) as outcomes:
        from fleet.remote.fanout import raise_failures

        yield raise_failures(outcomes, "reach the fleet")


@contextlib.contextmanager
def open_some(
    hosts: Sequence[Host], key: Path, access: Access | None = None
) -> Iterator[tuple[list[AgentChannel], list[Outcome[AgentChannel]]]]:
    """An agent on every host that can be reached, in their order, and why the others cannot; closed at the end.

    Raises:
        FleetError: none can be reached.
    """
    with opened(hosts, key, access) as outcomes:
        from fleet.remote.fanout import raise_failures

        failed = [outcome for outcome in outcomes if outcome.error is not None]
        if len(failed) == len(outcomes):
            raise_failures(outcomes, "reach the fleet")
        yield [outcome.value for outcome in outcomes if outcome.value is not None], failed


@contextlib.contextmanager
def opened(hosts: Sequence[Host], key: Path, access: Access | None = None) -> Iterator[list[Outcome[AgentChannel]]]:
    """An agent on every host that can be reached, or why it cannot; closed at the end.

    Args:
        hosts: The hosts.
        key: Private key of the fleet.
        access: Repairs the way to the hosts if they do not answer; None: nothing does.
    """
    from fleet.remote.channel import open_agent
    from fleet.remote.fanout import fan_out

    channels: list[AgentChannel] = []

    def one(host: Host) -> AgentChannel:
        channel = open_agent(host, key)
        channels.append(channel)
        return channel

    try:
        outcomes = fan_out(hosts, one)
        yield outcomes if access is None else access.retried(outcomes, lambda some: fan_out(some, one))
    finally:
        for channel in channels:
            channel.connection.close()


def ask(channels: Sequence[AgentChannel], question: Callable[[AgentChannel], T], verb: str) -> list[T]:
    """The answers of all agents.

    Args:
        channels: The agents.
        question: Asked of each, side by side.
        verb: What is being done, for the sentence of an error.

    Raises:
        FleetError: at least one failed; every reason is given.
    """
    from fleet.remote.fanout import raise_failures

    return raise_failures(ask_each(channels, question), verb)


def ask_each(channels: Sequence[AgentChannel], question: Callable[[AgentChannel], T]) -> list[Outcome[T]]:
    """What each agent answers, or why it does not, side by side."""
    from fleet.remote.fanout import fan_out

    by_host = {channel.connection.host.name: channel for channel in channels}

    def abort() -> None:
        for channel in channels:
            channel.connection.sever()

    hosts = [channel.connection.host for channel in channels]
    return fan_out(hosts, lambda host: question(by_host[host.name]), abort=abort)


def stop_everywhere(channels: Sequence[AgentChannel], job: str, grace_s: float) -> list[Outcome[Stopped]]:
    """Have every host end its task of `job`; all are tried, whatever one answers."""
    from fleet.remote.job import stop

    return ask_each(channels, lambda channel: stop(channel, Stop(job, channel.connection.host.name, grace_s)))


@dataclass(frozen=True)
class Reports:
    """What the hosts of a fleet report about one job.

    Attributes:
        by_host: The reports.
        failed: Hosts that give no valid answer, and why.
        others: A sentence for each host that reports a newer job than most hosts do.
    """

    by_host: dict[str, JobReport]
    failed: tuple[Outcome[AgentChannel], ...]
    others: tuple[str, ...]


def newest_reports(channels: Sequence[AgentChannel], job: str = "", known: str = "") -> Reports:
    """Return what the hosts report about `job`, or about the newest one.

    Args:
        channels: Conversations with the hosts.
        job: The job; empty: the newest one, as in `newest_job`.
        known: The newest job that was started from this computer.

    Raises:
        FleetError: no host gives a valid answer.
    """
    from fleet.remote.fanout import Outcome, raise_failures
    from fleet.remote.job import inspect

    limit = 1000 if job else 1
    answers = ask_each(channels, lambda channel: inspect(channel, Inspect(limit)))
    failed: list[Outcome[AgentChannel]]
    failed = [Outcome(one.host, error=one.error) for one in answers if one.error is not None]
    if failed and len(failed) == len(answers):
        raise_failures(failed, "ask for jobs")
    reports = [(one.host.name, report) for one in answers for report in one.value or ()]
    wanted = job or newest_job([report.job for _, report in reports], known)
    others = [] if job else newer_jobs({host: report.job for host, report in reports}, wanted)
    return Reports({host: one for host, one in reports if one.job == wanted}, tuple(failed), tuple(others))


def running_job(record: FleetRecord, key: Path, access: Access | None = None) -> str:
    """Return the job that runs on a fleet, as far as its hosts can be reached; empty if none does."""
    with opened(record.places, key, access) as outcomes:
        channels = [outcome.value for outcome in outcomes if outcome.value is not None]
        with contextlib.suppress(FleetError):
            for report in newest_reports(channels, known=record.last_job).by_host.values():
                if report.alive and report.result is None:
                    return report.job
    return ""
