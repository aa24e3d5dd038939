"""What happens during a command, as frozen objects; consoles and JSON lines are made of these alone.

What the agents report is passed on as it is: TaskState, AttemptEnded, Stalled, Progress, Usage and JobResult of
train.agent.protocol.records. So is what the linter found in a script: Finding of train.lint.model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from provision.model import Offer
from train.agent.protocol.records import AttemptEnded, JobResult, Member, Progress, Stalled, TaskState, Usage
from train.lint.model import Finding


class Level(Enum):
    """How much a note matters."""

    INFO = "info"
    WARNING = "warning"


@dataclass(frozen=True)
class Note:
    """A sentence for the reader."""

    text: str
    level: Level = Level.INFO


@dataclass(frozen=True)
class FleetOpened:
    """The command works on this fleet."""

    fleet: str
    provider: str
    hosts: tuple[str, ...]
    created_at: float
    price_usd_h: float
    delete_at: float = 0.0  # seconds since the epoch; 0: never by itself
    tasks_per_host: int = 1  # more than 1: `hosts` are the places for tasks, so many on each host


@dataclass(frozen=True)
class Quoted:
    """What instances would cost that are to be made; nothing was created yet."""

    fleet: str
    provider: str
    project: str  # who pays; empty: the one of the credentials
    instances: int
    offers: tuple[Offer, ...]  # in the order in which they are tried; all instances stand in one place
    spot: bool
    priced_at: str  # date of the prices
    delete_after_s: int  # 0: never by itself
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ZoneTried:
    """A step that applies to all instances that are to be created in one zone."""

    zone: str
    step: str


@dataclass(frozen=True)
class InstanceChanged:
    """Something was done with an instance (``starting sshd``, ``ready``, ``deleting``, ``deleted``)."""

    instance: str
    step: str
    done: bool = False


@dataclass(frozen=True)
class HostConnected:
    """SSH to a host stands."""

    host: str
    address: str


@dataclass(frozen=True)
class BootstrapProgress:
    """How far a host is on its way to being ready; the same may be told again."""

    host: str
    step: str  # downloading packages
    detail: str = ""  # which one
    part: int = 0  # of `whole`: bytes of a download, packages while they are installed
    whole: int = 0  # 0: unknown
    done: bool = False


@dataclass(frozen=True)
class PushProgress:
    """Contents on their way to a host, in bytes before compression."""

    host: str
    sent: int
    total: int
    files: int


@dataclass(frozen=True)
class TaskPrepared:
    """A host reserved what a task needs."""

    slot: str
    endpoint: str
    versions: dict[str, str] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskPlanned:
    """A task as `--dry-run` shows it."""

    task: str  # empty: a spare, which has no task until another host is lost
    slot: str
    host: str  # address of its host
    tf_config: str
    command: str
    env: dict[str, str]


@dataclass(frozen=True)
class JobStarted:
    """A job was committed on all hosts, or is being followed again."""

    job: str
    script: str
    attempt: int
    members: tuple[Member, ...]  # spares have no task
    started_at: float
    attached: bool = False  # it was started before
    attempts: int = 1  # largest number of attempts; 0: no limit
    ended: bool = False  # it is not running any more


@dataclass(frozen=True)
class LogChunk:
    """Bytes of a task's output, as it wrote them; consecutive chunks have consecutive offsets."""

    slot: str
    task: str
    attempt: int
    offset: int
    data: bytes


@dataclass(frozen=True)
class JobDiagnosed:
    """Why an attempt of a job failed, out of the logs of all its tasks."""

    job: str
    task: str  # whose failure came first; empty: that of no single task
    kind: str  # class of the cause, as in train.diagnosis.Kind
    message: str
    lines: tuple[str, ...] = ()  # of the log, that decided
    traceback: str = ""  # where in the user's own code
    consequences: tuple[str, ...] = ()  # tasks whose errors only follow from it
    hint: str = ""  # what to change
    next_step: str = ""  # commands that can be pasted into a shell, one a line
    attempt: int = 1
    final: bool = True  # whether the job ended with it


@dataclass(frozen=True)
class ConnectionLost:
    """A host stopped answering; the command tries again, or has given up."""

    host: str
    reason: str
    retry_s: float  # until the next try, of which only the first is told; 0: there is none


@dataclass(frozen=True)
class ConnectionRestored:
    """A host answers again."""

    host: str


@dataclass(frozen=True)
class FleetDown:
    """A fleet was deleted, and listed again."""

    fleet: str
    deleted: tuple[str, ...]
    left: int
    cost_usd: float
    uptime_s: float
    external: bool = False


@dataclass(frozen=True)
class Orphan:
    """Something at a provider that belongs to no fleet of this computer's."""

    provider: str
    kind: str  # instance, disk, address, firewall rule
    name: str
    fleet: str
    owner: str  # state directory that it was made from
    user: str
    zone: str
    created_at: float  # 0: unknown
    price_usd_h: float
    cost_usd: float  # until now
    to_delete: bool  # whether `fleet gc` deletes it


@dataclass(frozen=True)
class OrphansFound:
    """What `fleet gc` found."""

    orphans: tuple[Orphan, ...]


@dataclass(frozen=True)
class OrphansDeleted:
    """What `fleet gc` deleted, and what it could not."""

    deleted: int
    left: tuple[str, ...]


@dataclass(frozen=True)
class Checked:
    """One thing that a provider needs, and whether it is there."""

    provider: str
    subject: str
    ok: bool
    message: str
    next_step: str = ""  # commands that can be pasted into a shell, one a line
    hint: str = ""


@dataclass(frozen=True)
class HostFacts:
    """What a host is, as far as a job is concerned."""

    host: str
    address: str  # by which the others reach it
    python: str = ""  # path of the interpreter
    versions: dict[str, str] = field(default_factory=dict)  # of python, tensorflow, keras, tf_keras
    gpus: tuple[str, ...] = ()
    disk_free: int = 0  # bytes
    memory: int = 0  # bytes
    machine: str = ""  # x86_64, aarch64
    missing: tuple[str, ...] = ()  # modules that the script imports, and the interpreter does not find
    problem: str = ""  # why it is not fit by itself


@dataclass(frozen=True)
class HostsChecked:
    """What `fleet check` found, before anything ran."""

    fleet: str
    hosts: tuple[HostFacts, ...]
    problems: tuple[str, ...]  # why a job cannot run there, a sentence each
    warnings: tuple[str, ...]
    script_fails: bool = False  # hosts are ready, but the linter expects the script to fail


@dataclass(frozen=True)
class SmokeTested:
    """How a script did on one host by itself."""

    host: str
    ok: bool
    message: str
    lines: tuple[str, ...] = ()  # the last of its output, where it failed


@dataclass(frozen=True)
class ResultPlace:
    """Results of one kind that a task left on its host."""

    task: str
    host: str
    kind: str  # model, checkpoints, tensorboard, files, logs
    path: str  # on the host
    files: int
    size: int  # bytes


@dataclass(frozen=True)
class StoredResults:
    """A job that the hosts of a fleet store."""

    job: str
    script: str
    state: str  # running, succeeded, failed, cancelled, lost; empty: unknown
    started_at: float  # 0: unknown
    size: int  # bytes on the disks of all hosts
    pulled: str  # yes, no, partly; empty: there is nothing to pull
    directory: str  # to which it was pulled, on this computer
    paths: tuple[str, ...]  # HOST:PATH of the job's directories
    results: tuple[ResultPlace, ...]


@dataclass(frozen=True)
class DiskUse:
    """The file system that holds the fleet's files on a host."""

    host: str
    free: int  # bytes
    total: int  # bytes
    jobs: int  # bytes that jobs take


@dataclass(frozen=True)
class JobsListed:
    """What the hosts of a fleet store."""

    fleet: str
    jobs: tuple[StoredResults, ...]  # newest first
    disks: tuple[DiskUse, ...]
    silent: tuple[str, ...] = ()  # hosts that do not answer


@dataclass(frozen=True)
class ResultsAtRisk:
    """What a deletion would lose, before the user is asked."""

    fleet: str
    jobs: tuple[StoredResults, ...]
    silent: tuple[str, ...] = ()  # hosts that do not answer: results unknown
    pruned: bool = False  # jobs are to be deleted, not the fleet


@dataclass(frozen=True)
class JobsDeleted:
    """`fleet jobs --prune` deleted jobs on the hosts."""

    fleet: str
    jobs: tuple[str, ...]
    freed: int  # bytes
    kept: Mapping[str, str] = field(default_factory=dict)  # why a job was not deleted


@dataclass(frozen=True)
class ResultsFound:
    """What a job that has ended left on the hosts."""

    fleet: str
    job: str
    files: int
    size: int  # bytes
    results: tuple[ResultPlace, ...]
    next_step: str


@dataclass(frozen=True)
class PullProgress:
    """Results on their way from a host."""

    host: str
    received: int  # bytes
    total: int  # bytes; 0: the host is listing its results
    files: int
    done: bool = False


@dataclass(frozen=True)
class ResultsPulled:
    """`fleet pull` is done."""

    fleet: str
    job: str
    directory: str
    files: int  # in the directory
    size: int  # bytes
    received_files: int  # of these, those that were not there before
    received: int  # bytes
    complete: bool  # all results of all tasks are on this computer


Event = (
    Note
    | FleetOpened
    | Quoted
    | ZoneTried
    | InstanceChanged
    | HostConnected
    | BootstrapProgress
    | PushProgress
    | TaskPrepared
    | TaskPlanned
    | JobStarted
    | LogChunk
    | JobDiagnosed
    | ConnectionLost
    | ConnectionRestored
    | FleetDown
    | OrphansFound
    | OrphansDeleted
    | Checked
    | HostsChecked
    | SmokeTested
    | JobsListed
    | ResultsAtRisk
    | JobsDeleted
    | ResultsFound
    | PullProgress
    | ResultsPulled
    | Finding
    | TaskState
    | AttemptEnded
    | Stalled
    | Progress
    | Usage
    | JobResult
)


class Sink(Protocol):
    """Takes events, in the order in which they happened, always from one thread at a time."""

    def emit(self, event: Event) -> None:
        """Take one event."""

    def close(self) -> None:
        """Tell what is held back, and give the terminal back until the next event, if there is one."""
