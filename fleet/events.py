"""Define the events of a command, and the snapshot of `fleet status`, as tuples for consoles and JSON lines.

Docstrings and comments of fields are the descriptions of docs/schema/events.json. Events that agents report are made
by fleet.remote.publication.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from fleet.errors import fold
from provision.model import Offer
from train.lint.finding import Finding

if TYPE_CHECKING:
    from train.diagnosis.verdict import Verdict


class Phase(Enum):
    """Phase of a task within its attempt."""

    WAITING = "waiting"  # its process exists and is held before the first byte of user code
    RUNNING = "running"
    STOPPING = "stopping"
    EXITED = "exited"


class Outcome(Enum):
    """Outcome of a job."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"  # no host is left that can report it


class Level(Enum):
    """Importance of a note."""

    INFO = "info"
    WARNING = "warning"


class Note(NamedTuple):
    """A sentence for the reader."""

    text: str
    level: Level = Level.INFO


class FleetOpened(NamedTuple):
    """The fleet on which the command works."""

    fleet: str
    provider: str
    hosts: tuple[str, ...]  # names of the hosts; of the slots, if a host runs several tasks
    created_at: float
    price_usd_h: float  # of all its instances together
    delete_at: float = 0.0  # when the provider deletes it if it runs then, seconds since the epoch; 0: never
    tasks_per_host: int = 1  # if it is more than 1, `hosts` are the slots, this number on each host
    cost_usd: float = 0.0  # until now, with the instances that were replaced or released
    stop_at: float = 0.0  # when its jobs end and its hosts power off, seconds since the epoch; 0: never


class PriceChanged(NamedTuple):
    """A fleet has another price from now on, because hosts were lost or replaced."""

    fleet: str
    price_usd_h: float  # of the whole fleet now
    cost_usd: float  # until now, with the instances that were replaced or released


class Quoted(NamedTuple):
    """The price of instances before they are created."""

    fleet: str
    provider: str
    project: str  # the project that pays; empty: the project of the credentials
    instances: int
    offers: tuple[Offer, ...]  # in the order in which they are tried; all instances are created in the same zone
    spot: bool  # the instances can be preempted at any time
    priced_at: str  # date of the prices
    delete_after_s: int  # from their start to their automatic deletion; 0: never
    notes: tuple[str, ...] = ()  # what else to consider before paying, one sentence each
    max_cost_usd: float = 0.0  # limit of the fleet's cost, which shortens that time; 0: none
    used_usd: float = 0.0  # what the other instances of the fleet cost at most, with those that are gone
    price_source: str = ""  # the Cloud Billing catalog, or the table of this program
    stop_after_s: int = 0  # they power off after this time; 0: never
    flex_start: bool = False  # prices are those of Flex-start VMs


class ZoneTried(NamedTuple):
    """A step that applies to all instances that will be created in one zone."""

    zone: str
    step: str


class InstanceChanged(NamedTuple):
    """A step of an instance (``starting sshd``, ``ready``, ``deleting``, ``deleted``)."""

    instance: str
    step: str  # steps of a deletion begin with "delet"
    done: bool = False  # this was the last step


class HostConnected(NamedTuple):
    """An SSH connection to a host is open."""

    host: str
    address: str  # to which SSH connected


class BootstrapProgress(NamedTuple):
    """Progress of preparing a host; the same step may be reported again."""

    host: str
    step: str  # downloading packages
    detail: str = ""  # subject of the step: a package, or what was installed
    part: int = 0  # completed part of `whole`: bytes of a download, packages while they are installed
    whole: int = 0  # 0: unknown
    done: bool = False  # this was the last step


class PushProgress(NamedTuple):
    """Progress of uploading contents to a host, in bytes before compression."""

    host: str
    sent: int
    total: int
    files: int


class TaskPrepared(NamedTuple):
    """A host reserved the resources of a task."""

    slot: str
    endpoint: str  # address and port of its TensorFlow server
    versions: dict[str, str] = {}  # python, tensorflow, keras, tf_keras, if installed
    gpus: tuple[str, ...] = ()  # their names


class TaskPlanned(NamedTuple):
    """A task as `--dry-run` shows it."""

    task: str  # empty: a spare, which has no task until another host is lost
    slot: str
    host: str  # address of its host
    tf_config: str  # value of TF_CONFIG, which is JSON; empty for a spare
    command: str  # as one would type it
    env: dict[str, str]  # variables that are added to its environment


class Member(NamedTuple):
    """A slot of a job."""

    slot: str
    task: str  # empty: a spare
    address: str  # by which the other hosts reach it
    endpoint: str  # address and port of the task's TensorFlow server


class JobStarted(NamedTuple):
    """A job was committed on all hosts, or is being followed again."""

    job: str
    script: str
    attempt: int
    members: tuple[Member, ...]
    started_at: float  # seconds since the epoch
    attached: bool = False  # it was started before
    attempts: int = 1  # largest number of attempts; 0: no limit
    ended: bool = False  # no longer running
    name: str | None = None  # that the user gave it; None: none
    max_workers: int | None = None  # up to which it takes in new hosts; None: it takes in none


class JobQueued(NamedTuple):
    """A job was committed on all hosts, and starts when earlier jobs have ended."""

    job: str
    script: str
    after: str  # the job before it
    members: tuple[Member, ...]
    queued_at: float  # seconds since the epoch
    name: str | None = None  # that the user gave it; None: none
    attached: bool = False  # it was queued before


class Exit(NamedTuple):
    """The end of a process; one of the fields is set."""

    code: int | None = None
    signal: int | None = None


class TaskState(NamedTuple):
    """A task changed its phase."""

    slot: str
    task: str
    attempt: int
    phase: Phase
    at: float  # seconds since the epoch, by the host's clock
    pid: int = 0  # 0: it has no process
    exit: Exit | None = None  # None until the task has exited
    reason: str = ""  # empty: unknown
    started: bool = True  # False in the phase `exited`: it was ended before any of the user's code ran
    listened: bool | None = None  # in the phase `exited`: on its port; None: unknown, or no need to
    checkpoint: str | None = None  # that this attempt starts from; empty: none is saved; None: unknown
    reason_kind: str = "other"  # class of the reason: killed, disk-full, out-of-memory, preempted, hang, …
    cold: str | None = None  # why it was not forked from the warm process; empty: it was; None: not to be


class AttemptEnded(NamedTuple):
    """An attempt failed, or new hosts join, and another attempt follows."""

    slot: str  # that reports it
    attempt: int
    at: float
    first_failed_task: str
    reason: str  # several reasons are on one line each
    exits: Mapping[str, Exit]  # by task
    retry_s: float  # until the next attempt, at the earliest
    attempts: int = 0  # maximum number of attempts; 0: no limit, or unknown
    preempted: bool = False  # the host of that task was lost, which is not a failure of the job
    first_failed_slot: str = ""  # of that task
    reason_kind: str = "other"  # as in `task_state`
    joining: tuple[str, ...] = ()  # slots whose hosts join in the next attempt (--max-workers)


class HangInspection(NamedTuple):
    """Inspection of a task in a job that makes no progress."""

    slot: str
    task: str
    attempt: int
    at: float
    state: str  # of its process, proc(5): R, S, D, T, …
    stack: str  # of every Python thread, the most recent call first; empty: unknown
    sockets: tuple[str, ...] = ()  # one connection each: both ends, state, bytes in its queues
    kernel: str = ""  # its CPU time, and where in the kernel its main thread waits
    activity: str = ""  # what the task does, as a sentence without a period


class Progress(NamedTuple):
    """Training progress parsed from the task's output; -1: unknown."""

    slot: str = ""
    task: str = ""
    attempt: int = 0
    at: float = 0.0
    epoch: int = -1  # counted from 1
    epochs: int = -1
    step: int = -1  # of the epoch
    steps: int = -1  # of an epoch
    metrics: Mapping[str, float] = {}  # latest values by name
    steps_per_s: float = -1.0
    activity: str | None = None  # what it does before a step: importing tensorflow; None: unknown, or it trains
    step_s: float | None = None  # time of a step; this and the following are medians of the last seconds
    input_s: float | None = None  # of which the training's data set waits for the script's input pipeline
    python_s: float | None = None  # of which the task is outside of tf.functions; None with GPUs
    epochs_done: int | None = None
    epoch_s: float | None = None  # time of an epoch, if the output has one line per epoch


class TaskAwaited(NamedTuple):
    """The task that all others wait for in each step of a synchronous training."""

    task: str
    attempt: int
    cause: str  # of its delay: input (its input pipeline) or python (outside of tf.functions)
    own_s: float  # seconds of each step that this takes
    step_s: float  # seconds of a step


class GpuUse(NamedTuple):
    """Current use of a GPU."""

    number: int
    percent: float
    memory_mib: int


class Usage(NamedTuple):
    """Resource use of the task's processes."""

    slot: str
    task: str
    at: float
    cpu_percent: float  # of one core
    memory_bytes: int
    gpus: tuple[GpuUse, ...] = ()


class JobResult(NamedTuple):
    """Result of the whole job."""

    job: str
    attempt: int
    outcome: Outcome
    at: float
    first_failed_task: str = ""
    reason: str = ""  # several reasons are on one line each
    exits: Mapping[str, Exit] = {}  # by task
    started: bool = True  # any user code ran
    isolated: bool = False  # reported by a host that had lost contact with the others
    reason_kind: str = "other"  # as in `task_state`


class LogChunk(NamedTuple):
    """Bytes of a task's output, as it wrote them; consecutive chunks have consecutive offsets."""

    slot: str
    task: str
    attempt: int
    offset: int  # position of its first byte in the task's log of this attempt
    data: bytes
    at: float = -1.0  # time of its first byte by the host's clock, seconds since the epoch; -1: unknown


class JobDiagnosed(NamedTuple):
    """The cause of an attempt's failure, from the logs of all its tasks."""

    job: str
    task: str  # the task that failed first; empty: no single task
    kind: str  # class of the cause, as in train.diagnosis.verdict.Cause
    message: str
    lines: tuple[str, ...] = ()  # lines of the log from which the cause was determined
    traceback: str = ""  # location in the user's code
    consequences: tuple[str, ...] = ()  # tasks whose errors are consequences of the cause
    hint: str = ""  # what to change
    downloads: tuple[str, ...] = ()  # files that the host could not download: URL, and path there if known
    attempt: int = 1
    final: bool = True  # whether the job ended with this attempt


class ConnectionLost(NamedTuple):
    """A host stopped answering; the command retries, or has given up."""

    host: str
    reason: str
    retry_s: float  # until the next try, of which only the first is reported; 0: no retry


class ConnectionRestored(NamedTuple):
    """A host answers again."""

    host: str


class FleetResized(NamedTuple):
    """`fleet up` added hosts to a fleet or released some, and verified the deletion by listing its instances."""

    fleet: str
    workers: int  # number of hosts now
    added: tuple[str, ...]
    released: tuple[str, ...]
    cost_usd: float  # of the released hosts until now
    price_usd_h: float  # of the whole fleet now
    external: bool = False  # the hosts existed before the fleet


class FleetDown(NamedTuple):
    """A fleet was deleted, and the deletion was verified by listing its instances."""

    fleet: str
    deleted: tuple[str, ...]
    left: int  # instances that the provider still lists; of released hosts, those that did not answer
    cost_usd: float
    uptime_s: float  # from its creation to its deletion
    external: bool = False  # the hosts existed before the fleet, and were released
    max_cost_usd: float = 0.0  # limit of the cost; 0: none
    rented: bool = True  # the hosts were rented instances, not on this computer


class FleetStopped(NamedTuple):
    """The instances of a fleet were stopped; their disks are kept."""

    fleet: str
    stopped: tuple[str, ...]
    price_usd_h: float  # of the disks
    cost_usd: float  # until now
    max_cost_usd: float = 0.0  # limit of the cost; 0: none


class Orphan(NamedTuple):
    """A resource at a provider that belongs to no fleet of this computer."""

    provider: str
    kind: str  # instance, disk, address, firewall rule, placement policy, image
    name: str
    fleet: str
    owner: str  # state directory from which it was created
    user: str
    zone: str
    created_at: float  # 0: unknown
    price_usd_h: float
    cost_usd: float  # until now
    to_delete: bool  # whether `fleet gc` deletes it
    size_gb: float = 0.0  # size for which an image is billed; 0: another resource


class ImageBaked(NamedTuple):
    """An image is ready, from which new hosts with the same options boot."""

    image: str
    project: str  # empty: the project of the credentials
    size_gb: float  # size for which it is billed
    usd_month: float  # its estimated price
    created: bool  # by this command; otherwise it existed before


class OrphansFound(NamedTuple):
    """The orphans that `fleet gc` found."""

    orphans: tuple[Orphan, ...]


class OrphansDeleted(NamedTuple):
    """The result of `fleet gc`: the number of deleted resources, and those that could not be deleted."""

    deleted: int
    left: tuple[str, ...]


class Checked(NamedTuple):
    """A prerequisite of a provider, and whether it is met."""

    provider: str
    subject: str  # what was checked
    ok: bool | None  # null: could not be checked
    message: str
    next_step: str = ""  # commands that can be pasted into a shell, one a line
    hint: str = ""  # what to change, in one sentence


class HostFacts(NamedTuple):
    """The properties of a host that matter to a job."""

    host: str
    address: str  # by which the other hosts reach it
    python: str = ""  # path of the interpreter
    versions: dict[str, str] = {}  # of python, tensorflow, keras, tf_keras
    gpus: tuple[str, ...] = ()
    disk_free: int = 0  # bytes
    memory: int = 0  # bytes
    machine: str = ""  # x86_64, aarch64
    missing: tuple[str, ...] = ()  # modules that the script imports and the interpreter does not find
    problem: str = ""  # why the host itself is unsuitable


class HostsChecked(NamedTuple):
    """The result of `fleet check`, before any user code ran."""

    fleet: str
    hosts: tuple[HostFacts, ...]
    problems: tuple[str, ...]  # why a job cannot run on the fleet, a sentence each
    warnings: tuple[str, ...]  # other findings, one sentence each
    script_fails: bool = False  # hosts are ready, but the linter expects the script to fail


class SmokeTested(NamedTuple):
    """The result of running a script on a single host."""

    host: str
    ok: bool
    message: str
    lines: tuple[str, ...] = ()  # last lines of its output, if it failed


class ResultLocation(NamedTuple):
    """Results of one kind that a task left on its host."""

    task: str
    host: str
    kind: str  # model, checkpoints, tensorboard, files, logs
    path: str  # on the host
    files: int
    size: int  # bytes


class StoredResults(NamedTuple):
    """A job that the hosts of a fleet store."""

    job: str
    script: str
    state: str  # queued, running, succeeded, failed, cancelled, lost; empty: unknown
    started_at: float  # time of its start, or since when it is queued; 0: unknown
    size: int  # bytes on the disks of all hosts
    pulled: str  # yes, no, partly; empty: no results to pull
    directory: str  # the directory on this computer to which it was pulled
    paths: tuple[str, ...]  # HOST:PATH of the job's directories
    results: tuple[ResultLocation, ...]
    name: str | None = None  # that the user gave it; None: none, or unknown
    arguments: tuple[str, ...] | None = None  # of the script; None: unknown
    duration_s: float | None = None  # until its end; None: it is running, or unknown
    metrics: Mapping[str, float] | None = None  # last values of its first task that reports any; None: unknown
    steps_per_s: float | None = None  # of the same task; None: unknown
    code_sha256: str | None = None  # of all files that were uploaded; None: unknown
    versions: Mapping[str, str] | None = None  # of Python and its packages on its first host; None: unknown
    queued_after: str | None = None  # the job that it waits for; None: it is not queued


class DiskUse(NamedTuple):
    """The file system that holds the fleet's files on a host."""

    host: str
    free: int  # bytes
    total: int  # bytes
    jobs: int  # bytes that jobs take


class JobsListed(NamedTuple):
    """The jobs that the hosts of a fleet store."""

    fleet: str
    jobs: tuple[StoredResults, ...]  # newest first
    disks: tuple[DiskUse, ...]
    silent: tuple[str, ...] = ()  # hosts that do not answer


class JobsCompared(NamedTuple):
    """Two jobs that `fleet compare` compares."""

    fleet: str
    first: StoredResults
    second: StoredResults


class ResultsAtRisk(NamedTuple):
    """The results that a deletion would lose, before the user is asked."""

    fleet: str
    jobs: tuple[StoredResults, ...]  # those that run, or whose results are not on this computer
    silent: tuple[str, ...] = ()  # hosts that do not answer: results unknown
    pruned: bool = False  # jobs will be deleted, not the fleet


class JobsDeleted(NamedTuple):
    """`fleet jobs --prune` deleted jobs on the hosts."""

    fleet: str
    jobs: tuple[str, ...]
    freed: int  # bytes
    kept: Mapping[str, str] = {}  # reasons why jobs were not deleted


class ResultsFound(NamedTuple):
    """The results that a job has left on the hosts."""

    fleet: str
    job: str
    files: int
    size: int  # bytes
    results: tuple[ResultLocation, ...]
    next_step: str  # command that copies the results to this computer
    delete_at: float | None = None  # when the provider deletes them with the hosts, in seconds since the epoch


class PullProgress(NamedTuple):
    """Progress of downloading results from a host."""

    host: str
    received: int  # bytes, with those of an earlier, interrupted pull
    total: int  # bytes; 0: the host is listing its results
    files: int
    done: bool = False  # nothing more is expected from this host


class ResultsPulled(NamedTuple):
    """The result of `fleet pull`."""

    fleet: str
    job: str
    directory: str
    files: int  # in the directory
    size: int  # bytes
    received_files: int  # number of these that were not in the directory before
    received: int  # bytes
    complete: bool  # all results of all tasks are on this computer
    equal: int = 0  # further files of tasks that are equal to one of another task, and stored once


class TensorboardStarted(NamedTuple):
    """`fleet tensorboard` shows a job until Ctrl-C."""

    job: str
    url: str  # address of the page on this computer
    directory: str | None  # of the pulled results that it shows; None: it copies from the hosts
    opened: bool  # in a browser


class ReportWritten(NamedTuple):
    """`fleet report` wrote a page."""

    job: str
    page: str  # absolute path of the file
    size: int  # bytes
    fleet: str | None = None  # None: unknown
    capsule: str | None = None  # absolute path of the capsule; None: none was written
    capsule_size: int | None = None  # bytes


class SshConfigChanged(NamedTuple):
    """`fleet ssh-config` added the Include line to the user's OpenSSH configuration, or removed it."""

    file: str
    line: str
    installed: bool  # the file has the line now
    changed: bool  # this command changed the file
    hosts: tuple[str, ...] = ()  # names for ssh, if it was added


class CommandOutput(NamedTuple):
    """Output of a command that `fleet exec` runs."""

    hosts: tuple[str, ...]  # that wrote exactly this
    stream: str  # stdout or stderr
    data: bytes


class HostResult(NamedTuple):
    """The end of a command on one host."""

    host: str
    code: int | None  # exit code; 128 + N: signal N ended it; None: unknown, see `error`
    error: str = ""


class CommandResult(NamedTuple):
    """The result of `fleet exec`."""

    fleet: str
    command: tuple[str, ...]
    hosts: tuple[HostResult, ...]


class PushedHost(NamedTuple):
    """The files on one host."""

    host: str
    directory: str | None  # absolute, on the host; None: the host failed, see `error`
    written: int | None  # number of files that were not there before
    error: str = ""


class FilesPushed(NamedTuple):
    """The result of `fleet push`."""

    fleet: str
    files: int
    size: int  # bytes
    hosts: tuple[PushedHost, ...]


Event: TypeAlias = "NamedTuple | Finding"


class Sink(Protocol):
    """Takes events in the order in which they happened."""

    def emit(self, event: Event) -> None:
        """Take one event."""

    def close(self) -> None:
        """Write pending output, and release the terminal until the next event."""


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


class HostStatus(NamedTuple):
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


class StoredStatus(NamedTuple):
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


class TaskStatus(NamedTuple):
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


class JobStatus(NamedTuple):
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


class FleetStatus(NamedTuple):
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


_SHARE_MIN = 0.3  # of the step
_MARGIN = 0.2  # of the step, more than the next task
_MARGIN_S = 0.005
_INPUT_SHARE = 0.5  # of the time that a task needs: then its input pipeline is the cause
_STEPS_DIFFER = 1.25  # more: the tasks do not wait for each other at each step
NOT_TRAINING = ("ps", "evaluator")


class _OwnTime(NamedTuple):
    """The part of a step in which a task does not wait for the others."""

    own_s: float
    step_s: float
    cause: str  # input or python


def _own_time(at: Progress) -> _OwnTime | None:
    """Return the part of a step that a task needs before the collective operation; None if unknown."""
    parts = [seconds for seconds in (at.input_s, at.python_s) if seconds is not None]
    if at.step_s is None or at.step_s <= 0 or not parts:
        return None
    seconds = max(parts)
    # In a custom loop, Python waits for the input pipeline: then both are the same time.
    cause = "input" if at.input_s is not None and at.input_s >= _INPUT_SHARE * seconds else "python"
    return _OwnTime(min(seconds, at.step_s), at.step_s, cause)


def find_awaited(progress: Mapping[str, Progress | None], attempt: int = 0) -> TaskAwaited | None:
    """Return the task that all others wait for; None if there is none, or if it is unknown.

    Args:
        progress: Latest progress of all running tasks by name. Its times are medians over several windows.
        attempt: Their attempt.
    """
    training = {task: at for task, at in progress.items() if not task.startswith(NOT_TRAINING)}
    times = {task: _own_time(at) if at is not None else None for task, at in training.items()}
    ranked = sorted(((busy, task) for task, busy in times.items() if busy is not None), reverse=True)
    measured = {(at.input_s is None, at.python_s is None) for at in training.values() if at is not None}
    if len(training) < 2 or len(ranked) < len(training) or len(measured) > 1:  # they cannot be compared
        return None
    (first, task), (second, _) = ranked[:2]
    steps = [busy.step_s for busy, _ in ranked]
    is_synchronous = max(steps) <= _STEPS_DIFFER * min(steps)
    is_clear = first.own_s - second.own_s >= max(_MARGIN * first.step_s, _MARGIN_S)
    if not (is_synchronous and is_clear and first.own_s >= _SHARE_MIN * first.step_s):
        return None
    return TaskAwaited(task=task, attempt=attempt, cause=first.cause, own_s=first.own_s, step_s=first.step_s)
