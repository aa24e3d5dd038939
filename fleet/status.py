"""What `fleet status` tells: a snapshot of a fleet, its hosts and its newest job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from train.agent.protocol.records import Exit, Outcome, Phase

if TYPE_CHECKING:
    from train.diagnosis import Verdict


@dataclass(frozen=True)
class HostStatus:
    """A host; -1 stands for unknown.

    Attributes:
        name: ``worker-0``.
        address: Address that SSH connects to.
        port: TCP port that SSH connects to.
        reachable: Whether its agent answered.
        reason: Why it did not.
        cpu_percent: What the task's processes take, of one core.
        memory_bytes: Memory of the task's processes.
        gpu_percent: Mean of its GPUs.
        disk_free: Free bytes of the disk that holds the fleet's files.
        disk_total: Bytes of that disk.
        jobs_size: Bytes that jobs take on it.
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


@dataclass(frozen=True)
class StoredStatus:
    """A job that the hosts store.

    Attributes:
        job: Its identifier.
        size: Bytes that it takes on the disks of all hosts.
        pulled: Whether its results are on this computer: ``yes``, ``no``, ``partly``; empty: there are none.
    """

    job: str
    size: int
    pulled: str


@dataclass(frozen=True)
class TaskStatus:
    """A task of the newest job; -1 stands for unknown.

    Attributes:
        task: Type and index in the cluster: ``worker-0``; empty: a spare, which has no task until a host is lost.
        slot: Its place in the fleet.
        phase: Where it is in its attempt; None where its host did not say.
        alive: A supervisor looks after it.
        epoch: Of `epochs`, counted from 1.
        epochs: How many there will be.
        step: Of `steps`, within the epoch.
        steps: Steps of an epoch.
        metrics: Latest values, by name.
        steps_per_s: Speed.
        exit: How it ended.
    """

    task: str
    slot: str
    phase: Phase | None = None
    alive: bool = False
    epoch: int = -1
    epochs: int = -1
    step: int = -1
    steps: int = -1
    metrics: Mapping[str, float] = field(default_factory=dict)
    steps_per_s: float = -1.0
    exit: Exit | None = None


@dataclass(frozen=True)
class JobStatus:
    """The newest job of a fleet.

    Attributes:
        id: Its identifier.
        script: What it runs.
        attempt: The latest one.
        attempts: How many there are at most.
        waits: That attempt failed, and the next one has not begun yet.
        started_at: Seconds since the epoch.
        tasks: In the order of their names.
        outcome: How it ended; None: it goes on, or nobody knows.
        reason: Why it ended so.
        first_failed_task: The task that failed first.
        ended_at: Seconds since the epoch; 0: it goes on.
        verdict: The first cause, where it failed and its hosts could be asked.
        warning: Why it may not have done what was meant although it succeeded, or what a host reports that
            contradicts the other hosts; empty if there is nothing.
    """

    id: str
    script: str
    attempt: int
    started_at: float
    tasks: tuple[TaskStatus, ...] = ()
    outcome: Outcome | None = None
    reason: str = ""
    first_failed_task: str = ""
    ended_at: float = 0.0
    attempts: int = 1
    waits: bool = False
    verdict: Verdict | None = None
    warning: str = ""


@dataclass(frozen=True)
class FleetStatus:
    """A fleet.

    Attributes:
        name: Its name.
        provider: Where its instances come from.
        hosts: In the order of their names.
        job: The newest; None: there was none, or no host could tell.
        price_usd_h: US dollars an hour.
        created_at: Seconds since the epoch.
        delete_at: When it deletes itself, in seconds since the epoch; 0: never.
        stored: The jobs that its hosts store, the largest first.
    """

    name: str
    provider: str
    hosts: tuple[HostStatus, ...] = ()
    job: JobStatus | None = None
    price_usd_h: float = 0.0
    created_at: float = 0.0
    delete_at: float = 0.0
    stored: tuple[StoredStatus, ...] = ()
