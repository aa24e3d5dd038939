"""Define the snapshot that `fleet status` shows: a fleet, its hosts, and its newest job."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleet.events import Exit, JobResult, Phase, Progress, TaskAwaited
from fleet.folding import fold

if TYPE_CHECKING:
    from train.diagnosis.verdict import Verdict

UNREADY = "hosts"
"""Name of what is shown instead of the hosts of a fleet that cannot be used; its reason says why."""
_YEAR_10000 = 253_402_300_800.0  # in seconds since the epoch


def describe_maintenance(windows: Mapping[str, Sequence[float]]) -> list[str]:
    """Return a sentence for each time window of planned maintenance, with the hosts that it stops.

    Args:
        windows: Start and end by host, in seconds since the epoch, 0: unknown; empty: none. Times that no calendar
            has are ignored: hosts report them.
    """
    sentences = []
    for window in sorted({tuple(window) for window in windows.values() if 0 < max(window, default=0) < _YEAR_10000}):
        times = " to ".join(time.strftime("%Y-%m-%d %H:%M", time.localtime(at)) for at in window if at > 0)
        hosts = fold(name for name, other in windows.items() if tuple(other) == window)
        sentences.append(f"maintenance {times}: stops {hosts}")
    return sentences


@dataclass(frozen=True)
class HostStatus:
    """A host; -1: unknown.

    Attributes:
        name: ``worker-0``.
        address: Address that SSH connects to.
        port: TCP port that SSH connects to.
        reachable: Whether its agent answered.
        reason: Why it did not answer.
        cpu_percent: CPU use of the task's processes, in percent of one core.
        memory_bytes: Memory of the task's processes.
        gpu_percent: Mean use of its GPUs, in percent.
        disk_free: Free bytes of the disk that holds the fleet's files.
        disk_total: Size of that disk in bytes.
        jobs_size: Bytes that jobs use on that disk.
        stopped: Whether its instance is stopped, and its disk is kept.
        maintenance: Start and end of planned maintenance that stops it, in seconds since the epoch, 0: unknown;
            empty: none is known, or no job runs on it.
    """

    name: str
    address: str
    port: int
    reachable: bool
    reason: str = ""
    cpu_percent: float = -1.0
    memory_bytes: int = -1
    gpu_percent: float = -1.0
    disk_free: int = -1
    disk_total: int = -1
    jobs_size: int = -1
    stopped: bool = False
    maintenance: tuple[float, ...] = ()


@dataclass(frozen=True)
class StoredStatus:
    """A job that the hosts store.

    Attributes:
        job: Its identifier.
        size: Bytes that it uses on the disks of all hosts.
        pulled: Whether its results are on this computer: ``yes``, ``no``, ``partly``; empty: it has no results.
        queued_after: The job that it waits for; None: it is not queued.
    """

    job: str
    size: int
    pulled: str
    queued_after: str | None = None


@dataclass(frozen=True)
class TaskStatus:
    """A task of the newest job.

    Attributes:
        task: Type and index in the cluster: ``worker-0``; empty: a spare, which has no task until a host is lost.
        slot: Its slot in the fleet.
        phase: Its phase in the attempt; None if its host did not report it.
        alive: Whether a supervisor runs it.
        exit: How it exited; None if it has not exited.
        progress: Its latest progress; None: unknown.
    """

    task: str
    slot: str
    phase: Phase | None = None
    alive: bool = False
    exit: Exit | None = None
    progress: Progress | None = None


@dataclass(frozen=True)
class JobStatus:
    """The newest job of a fleet.

    Attributes:
        id: Its identifier.
        script: Name of its program.
        attempt: The latest attempt.
        attempts: Largest number of attempts; 0: no limit.
        waits: Whether that attempt failed, and the next one has not started yet.
        started_at: Seconds since the epoch.
        tasks: In the order of their names.
        result: How it ended; None: it is running, or its result is unknown.
        verdict: The first cause, if it failed and its hosts could be asked.
        warning: Why the job may not have done what the user intended although it succeeded, or which report of a host
            contradicts the other hosts; empty: neither.
        name: The name that the user gave it; None: none.
        awaited: The task that the others wait for in each step; None: none, or unknown.
        max_workers: Number of workers up to which it takes in new hosts; None: it takes in none.
        joining: Slots whose hosts have joined and take part from the next complete checkpoint on.
        queued_after: The job that it waits for; None: it is not queued.
    """

    id: str
    script: str
    attempt: int
    started_at: float
    tasks: tuple[TaskStatus, ...] = ()
    result: JobResult | None = None
    attempts: int = 1
    waits: bool = False
    verdict: Verdict | None = None
    warning: str = ""
    name: str | None = None
    awaited: TaskAwaited | None = None
    max_workers: int | None = None
    joining: tuple[str, ...] = ()
    queued_after: str | None = None


@dataclass(frozen=True)
class FleetStatus:
    """A fleet.

    Attributes:
        name: Its name.
        provider: Provider of its instances.
        hosts: In the order of their names.
        job: The newest job; None: it has no job, or no host reported one.
        price_usd_h: US dollars an hour.
        cost_usd: What its instances have cost so far, with those that were replaced or released.
        max_cost_usd: Limit of the cost; 0: none.
        created_at: Seconds since the epoch.
        delete_at: Time at which its provider deletes it, in seconds since the epoch; 0: never.
        stored: The jobs that its hosts store, largest first.
        stopped_at: When it was stopped or powered off, in seconds since the epoch; 0: it runs.
        stop_at: Time at which its jobs end and its hosts power off, in seconds since the epoch; 0: never.
    """

    name: str
    provider: str
    hosts: tuple[HostStatus, ...] = ()
    job: JobStatus | None = None
    price_usd_h: float = 0.0
    created_at: float = 0.0
    delete_at: float = 0.0
    cost_usd: float = 0.0
    max_cost_usd: float = 0.0
    stored: tuple[StoredStatus, ...] = ()
    stopped_at: float = 0.0
    stop_at: float = 0.0
