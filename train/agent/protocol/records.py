"""Define the records that client and agent exchange, and that the agent writes on its host.

A message is one line of JSON, ``{"record": "task_state", "slot": "worker-2", "task": "ps-0", …}``. If it has a field
``payload`` greater than zero, that many raw bytes follow the line. Unknown fields are ignored and missing ones take
their default, so that a client can follow a job which an older agent supervises.

One exec of the agent on a host is one conversation:

    agent   → Hello
    client  → Prepare            agent → NeedContents    (which contents are not yet on the host)
    client  → Chunk* Chunk(0)                            (these contents in that order, in blocks of 512 KiB at most
                                                          (files/contents.py); nothing if it is empty)
                                 agent → Prepared | Refused
    client  → Relay              agent → ContentsReceived*, then NeedContents | Prepared | Refused
                                                         (after a NeedContents with a port, in place of the chunks:
                                                          another host sends them, and the client what it did not;
                                                          or before the chunks, which this host then passes on)
    client  → Commit             agent → Committed       (the task now waits for its peers, without this connection)
    client  → ReadClock          agent → ClockTime
    client  → Follow             agent → TaskState | AttemptEnded | HangInspection | Notice | Progress | Usage | Log |
                                         JobResult | Beat …, then End
    client  → GetJoinInfo        agent → JoinInfo        (what another host needs to replace a lost one)
    client  → FetchContents      agent → Chunk* Chunk(0)
    client  → Stop               agent → Stopped
    client  → Inspect            agent → JobReport*, End
    client  → Bootstrap          agent → BootstrapStep*, then Bootstrapped | Refused
    client  → SmokeTest          agent → BootstrapStep*, then SmokeTestResult | Refused
                                                         (after Prepared, in place of Commit)
    client  → ListJobs           agent → (StoredJob | Beat)*, DiskSpace, End
    client  → ListFiles          agent → (FileEntry | Beat)*, FilesListed
    client  → ReadFiles          agent → (Chunk* FileEnd)* for each file, in that order
    client  → GetBundle          agent → BundleInfo | Refused
    client  → PruneJobs          agent → Beat*, JobsPruned
    client  → PushFiles          agent → Beat*, NeedContents
    client  → Chunk* Chunk(0)    agent → Beat*, FilesStored | Refused

An empty NeedContents is followed by Prepared at once; a stream that comes nevertheless is passed over, as is the rest
of one after Refused. End of input before Commit gives everything back that Prepare reserved. During Follow the client
may send Stop, answered with Stopped before End. After every answer but a broken connection the next request may come.
"""

from __future__ import annotations

import functools
import json
from enum import Enum
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    List,
    NamedTuple,
    Optional,
    Protocol,
    Type,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from train import defaults
from train.agent.protocol.strict_json import JsonError, check_number, check_text, parse_json

if TYPE_CHECKING:
    from typing import TypeAlias

    class Record(Protocol):
        """One of the records below. Not a union of them: narrowing that takes mypy 0.1 to 1 s in each place."""

        def _asdict(self) -> Dict[str, Any]: ...

else:
    Record = tuple


class Phase(str, Enum):
    """Phase of a task within its attempt."""

    WAITING = "waiting"  # its process exists and is held before the first byte of user code
    RUNNING = "running"
    STOPPING = "stopping"
    EXITED = "exited"


class Outcome(str, Enum):
    """Outcome of a job."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"  # no host is left that knows


class RestartPolicy(str, Enum):
    """The failures after which a job is restarted; names as in Kubeflow's TFJob."""

    NEVER = "never"
    ON_FAILURE = "on-failure"
    EXIT_CODE = "exit-code"  # after signals and exit codes 42 and from 128 on, which need not happen again


class SuccessPolicy(str, Enum):
    """The tasks whose success decides the success of the job; names as in Kubeflow's TFJob."""

    CHIEF = "chief"
    ALL_WORKERS = "all-workers"


class OnHang(str, Enum):
    """The action when a job hangs."""

    REPORT = "report"
    RESTART = "restart"


class ReasonKind(str, Enum):
    """Class of a reason that an agent reports. Programs decide by it, never by the text."""

    OTHER = "other"
    DISK_FULL = "disk-full"
    OUT_OF_MEMORY = "out-of-memory"  # the kernel killed the task
    KILLED = "killed"  # a signal ended the task
    AGENT_KILLED = "agent-killed"
    PREEMPTED = "preempted"
    HANG = "hang"  # no progress
    TIMEOUT = "timeout"  # of the job
    LIFETIME = "lifetime"  # of the hosts is over
    NOT_JOINED = "not-joined"
    HOST_LOST = "host-lost"
    UNREACHABLE = "unreachable"
    NAME_RESOLUTION = "name-resolution"
    PORT_IN_USE = "port-in-use"
    VERSIONS = "versions"  # differ between the hosts
    GROWTH = "growth"  # the number of workers changes, which is not a failure


class Reason(NamedTuple):
    """Why a task, an attempt, or a job ended; false without a text."""

    text: str = ""
    kind: ReasonKind = ReasonKind.OTHER

    def __bool__(self) -> bool:
        """Return True if there is a text."""
        return bool(self.text)


NO_REASON = Reason()


class EntryKind(str, Enum):
    """Type of a path in the bundle."""

    FILE = "file"  # the task may change its copy
    DATA = "data"  # shared with the store, read only
    LINK = "link"
    DIRECTORY = "directory"


class Entry(NamedTuple):
    """One path of the bundle, relative to the task's working directory, with forward slashes."""

    path: str
    kind: EntryKind
    mode: int = 0o644
    size: int = 0  # bytes
    sha256: str = ""
    target: str = ""  # of a link


class Area(str, Enum):
    """Kind of results."""

    MODEL = "model"  # FLEET_MODEL_DIR
    CHECKPOINTS = "checkpoints"  # FLEET_CHECKPOINT_DIR
    TENSORBOARD = "tensorboard"  # FLEET_LOG_DIR
    FILES = "files"  # new or changed in the working directory, compared to what was pushed
    LOGS = "logs"  # the task's output, a file for each attempt


class AreaUse(NamedTuple):
    """Results of one kind that a task left on its host."""

    area: Area
    path: str  # absolute
    files: int
    size: int  # bytes
    outside: bool = False  # not below the fleet's directory, and not deleted with it


class FilePart(NamedTuple):
    """A part of a file of a task."""

    area: Area
    path: str  # relative to the area's directory
    offset: int  # bytes
    end: int  # bytes


class Gpu(NamedTuple):
    """A GPU as nvidia-smi lists it."""

    number: int
    name: str
    memory_mib: int
    driver: str


class GpuUse(NamedTuple):
    """Current use of a GPU."""

    number: int
    percent: float
    memory_mib: int


class Member(NamedTuple):
    """A slot of the job as its host prepared it, with the task that it has."""

    slot: str  # its place in the fleet: worker-2
    task: str  # type and index in the cluster: ps-0; empty: a spare, or not known yet
    address: str  # by which the other hosts reach it
    port: int  # of the task's TensorFlow server
    link_port: int  # of its agent


class Exit(NamedTuple):
    """The end of a process; one of the fields is set."""

    code: Optional[int] = None
    signal: Optional[int] = None


LATEST_S = 1 << 36
"""Later times, in seconds since the epoch, are not valid, although another host may send them: the year 4147."""


class Policy(NamedTuple):
    """The reaction of a job to failures."""

    restart: RestartPolicy = RestartPolicy.ON_FAILURE
    restarts: int = 0  # maximum number
    success: SuccessPolicy = SuccessPolicy.ALL_WORKERS
    min_workers: int = 0  # minimum for a restart; 0: all that the job started with
    max_workers: int = 0  # up to which a running job takes in new hosts; 0: it takes in none
    backoff_s: float = defaults.BACKOFF_S  # before the first restart; doubled for each further one
    host_timeout_s: float = defaults.HOST_TIMEOUT_S  # how long a lost host may take to come back, or to be replaced
    timeout_s: float = 0.0  # for the whole job; 0: none
    start_timeout_s: float = defaults.START_TIMEOUT_S  # to the first step of an attempt; 0: none
    hang_timeout_s: float = 0.0  # without progress; 0: no hang detection
    on_hang: OnHang = OnHang.REPORT
    preemptions: int = 0  # tolerated losses of a host; -1: no limit
    idle_timeout_s: float = 0.0  # after which hosts without activity power off; 0: never

    @property
    def max_attempts(self) -> int:
        """Return the maximum number of attempts of a job; 0 means no limit."""
        restarts = 0 if self.restart is RestartPolicy.NEVER else self.restarts
        return 0 if self.preemptions < 0 or self.max_workers else 1 + restarts + self.preemptions


class PreemptionNotice(NamedTuple):
    """An HTTP server on which a cloud announces that it is about to take a host, and when the jobs of a host end.

    The response is a JSON object. A key of it is a path, ``attributes/fleet-end-at``.
    """

    product: str  # product name of the cloud's hosts, in their DMI table
    url: str
    variable: str  # environment variable that replaces the server, HOST or HOST:PORT
    headers: Dict[str, str]  # of the request, and of each valid response
    value: str  # of `key` when the host is about to be taken; case is ignored
    wait: str = ""  # query that delays the response until the value changes, with {etag} and {seconds}
    key: str = ""  # of the notice that the host is about to be taken
    end_key: str = ""  # of the time by which all jobs must have ended, seconds since the epoch; 0: never


class Replication(NamedTuple):
    """Replication of checkpoints to all hosts."""

    directory: str = ""  # where the script writes them; relative to its working directory; empty: the job's own
    mib_s: float = defaults.REPLICATION_MIB_S  # maximum number MiB a second leave a host; 0: nothing is replicated


class HeldCheckpoint(NamedTuple):
    """A complete checkpoint of an ended job that a host holds."""

    attempt: int
    number: int  # counts up within the attempt
    name: str  # of its newest file


class Resumption(NamedTuple):
    """The checkpoint of an earlier job from which a job continues."""

    job: str
    attempt: int  # as in HeldCheckpoint
    number: int


class PipSource(NamedTuple):
    """The index from which pip gets packages, and the proxy through which it reaches the index."""

    index_url: str = ""  # without a login; empty: the settings of the host
    user: str = ""  # of the index; empty: it needs no login
    password: str = ""
    proxy: str = ""  # URL with a login; empty: the settings of the host


# --- requests ---------------------------------------------------------------------------------------------------


class Prepare(NamedTuple):
    """Prepare everything for a task in `slot`, and reserve what it needs."""

    job: str
    fleet: str
    slot: str
    entries: List[Entry]
    address: str
    python: str = ""  # empty: find one
    first_port: int = defaults.FIRST_PORT
    dry_run: bool = False  # reserve and report; nothing is wanted or unpacked
    join: bool = False  # the job runs already; what this host still has of it is kept
    directory: str = ""  # absolute: the task runs in this directory as it is, and entries is empty
    program: str = ""  # required in addition to the interpreter, e.g. Rscript; empty: none
    imports: List[str] = []  # top-level modules that the interpreter ought to find
    import_directories: List[str] = []  # where it looks for them, too
    after: str = ""  # the last job of this host's queue, which the task waits for; empty: the host must be free


class Chunk(NamedTuple):
    """A piece of the stream of wanted contents; payload 0 ends it."""

    payload: int
    size: int = 0  # of the piece before it was compressed; 0: it is not compressed


class Relay(NamedTuple):
    """Pass the wanted contents on to hosts that know the secret, and receive them from a host that does."""

    secret: str  # hexadecimal, of this upload
    address: str = ""  # of that host; empty: the contents follow
    port: int = 0


class Commit(NamedTuple):
    """Start the task of `slot` together with its peers, and supervise it with or without a client."""

    job: str
    slot: str
    members: List[Member]  # with the tasks of the first attempt; spares have none until a host is lost
    secret: str  # hexadecimal, of this job
    command: List[str]
    env: Dict[str, str]
    secret_env: Dict[str, str]  # never written anywhere
    attempt: int = 1
    grace_s: float = defaults.GRACE_S
    join_timeout_s: float = defaults.JOIN_TIMEOUT_S
    link_timeout_s: float = defaults.LINK_TIMEOUT_S
    policy: Policy = Policy()
    replication: Replication = Replication()
    join: bool = False  # the job runs already; the task begins with its next attempt
    requirements: str = ""  # that were installed for it, for a host that replaces a lost one
    constraints: str = ""  # of these
    name: str = ""  # of the program, for people: task.py, -m package.task, bash run.sh
    preemption_notices: List[PreemptionNotice] = []
    job_name: str = ""  # that the user gave the job; empty: none
    arguments: List[str] = []  # of the program, for people; also part of `command`
    code_sha256: str = ""  # of all uploaded files; empty: unknown
    resume: Optional[Resumption] = None  # where the first attempt starts; None: without a checkpoint
    clock_correction_s: float = 0.0  # is added to the host's clock in all times of the job
    joinable: List[str] = []  # slots that may join the running job (max_workers)
    after: str = ""  # as in Prepare
    warm: bool = False  # the task may be forked from a process that has imported what its script imports first


class Follow(NamedTuple):
    """Send the past and future records and log of the task in `slot` of `job`."""

    job: str
    slot: str
    log_offset: int = 0  # bytes
    record_offset: int = 0  # bytes of the file of records
    tail_lines: int = -1  # 0 or more: send only this many last lines of the log after log_offset
    attempt: int = 0  # from this one on, to which both offsets belong; 0: the newest
    logs: bool = True
    follow: bool = True  # False: what is there now, then End
    head_bytes: int = -1  # 0 or more: send only the first bytes of the log and the last `tail_bytes`; no Progress
    tail_bytes: int = 0
    since: float = 0.0  # only output since this time, by the host's clock, from the beginning of its line; 0: all
    interval_s: float = 0.0  # output that follows other output sooner than this is sent together with later output


class ReadClock(NamedTuple):
    """Request the time of the host."""


class ClockTime(NamedTuple):
    """The answer to ReadClock."""

    at: float  # seconds since the epoch


class GetJoinInfo(NamedTuple):
    """Request what a host needs to join `job`, of which this host supervises `slot`."""

    job: str
    slot: str


class FetchContents(NamedTuple):
    """Request contents of the store, by their hashes in the order of transfer."""

    objects: List[str]


class Stop(NamedTuple):
    """End the whole job: TERM, `grace_s` seconds, KILL."""

    job: str
    slot: str
    grace_s: float = defaults.GRACE_S


class Inspect(NamedTuple):
    """Report the newest `limit` jobs of this host."""

    limit: int = 1


class Release(NamedTuple):
    """End all jobs of the fleet on this host, and remove all of the fleet's files, including the agent."""

    grace_s: float = defaults.GRACE_S


class Bootstrap(NamedTuple):
    """Create a virtual environment with packages, once per content, and check that the GPUs are usable."""

    requirements: str = ""  # lines as in a requirements file of pip's; empty: nothing is installed
    python: str = ""  # with which it is made; empty: the one that runs the agent
    gpus: int = 0  # number that must be usable; 0: not checked
    constraints: str = ""  # lines as in a constraints file of pip's
    on_top: bool = False  # what that interpreter finds, the environment's finds, too, and is not installed again
    scripts: Dict[str, str] = {}  # SHA-256 of root's scripts to wait for, by option
    again: bool = False  # those that failed before run again
    source: PipSource = PipSource()


class SmokeTest(NamedTuple):
    """Run what was prepared alone, as a cluster of one, until its first step, and leave nothing behind."""

    command: List[str]
    env: Dict[str, str]
    secret_env: Dict[str, str]  # never written anywhere
    seconds: float  # time limit


class ListJobs(NamedTuple):
    """Report the jobs that this host stores, newest first, with their results and disk space."""

    jobs: List[str] = []  # only these; empty: all


class ListFiles(NamedTuple):
    """List the results of a slot with their hashes."""

    job: str
    slot: str
    directory: str = ""  # as in StoredJob
    areas: List[Area] = []  # kinds to list; empty: all
    names: List[str] = []  # list only files whose name contains one of these; empty: all


class ReadFiles(NamedTuple):
    """Send parts of files of a slot."""

    job: str
    slot: str
    directory: str
    parts: List[FilePart]


class GetBundle(NamedTuple):
    """Report what was uploaded for a slot of a job, and the packages of its interpreter."""

    job: str
    slot: str
    directory: str = ""  # as in StoredJob


class PruneJobs(NamedTuple):
    """Delete ended jobs with all of their files on this host."""

    jobs: List[str]


class PushFiles(NamedTuple):
    """Write files into a directory of the user, without following links in it."""

    directory: str  # relative to the login directory, or absolute
    entries: List[Entry]
    address: str = ""  # at which other hosts reach this one; empty: it does not pass contents on


# --- answers ----------------------------------------------------------------------------------------------------


class Hello(NamedTuple):
    """First message of the agent."""

    agent: str  # hash of its zipapp
    python: str  # version that runs it
    pid: int
    address: str = ""  # of the host, as other hosts reach it most likely


class NeedContents(NamedTuple):
    """Contents that the host lacks: their hashes, in the order of transfer."""

    objects: List[str]
    size: int  # bytes, uncompressed
    offset: int = 0  # bytes of the first content that have arrived already
    port: int = 0  # on which this host passes the contents on to other hosts; 0: it does not


class ContentsReceived(NamedTuple):
    """Contents are arriving from another host."""

    size: int  # bytes so far


class Prepared(NamedTuple):
    """The host is ready for the task, and holds its reservation until Commit or the end of input."""

    member: Member  # its task is not known yet
    python: str  # path of the interpreter for the script
    versions: Dict[str, str]  # python, tensorflow, keras, tf_keras: those that are installed
    gpus: List[Gpu]
    disk_free: int  # bytes
    memory_total: int  # bytes
    hostname: str
    workdir: str  # absolute, where the bundle was unpacked
    machine: str = ""  # x86_64, aarch64; empty: unknown
    missing: List[str] = []  # of the imports that were asked for
    keras_backend: str = ""  # that Keras 3 uses on this host unless the job sets another; empty: not set


class Refusal(str, Enum):
    """Why a host refuses a task."""

    BUSY = "busy"  # a job is running on it
    DISK = "disk"
    PYTHON = "python"  # no usable interpreter
    PORT = "port"
    BUNDLE = "bundle"  # contents did not arrive as announced
    REQUEST = "request"  # the request is invalid here
    PACKAGES = "packages"  # they cannot be installed on any host with the same Python
    INSTALLATION = "installation"  # the host cannot install packages; another one may
    SETUP = "setup"  # a script that root runs failed
    GPU = "gpu"  # missing, or not usable
    PROGRAM = "program"  # it is not there
    FAULT = "fault"  # a bug of the agent


class Refused(NamedTuple):
    """The request cannot be met; nothing is left of it on the host."""

    kind: Refusal
    reason: str
    hint: str = ""  # what to change, one sentence
    job: str = ""  # the running one, if BUSY
    cause: str = ""  # in the words of a program that was asked
    next_step: str = ""  # commands for a shell on the user's computer, one a line


RESTARTING = (
    "restarting the host, because an upgrade replaced the NVIDIA driver"  # a step after which it answers again
)


class BootstrapStep(NamedTuple):
    """Progress of a Bootstrap; repeated if nothing is new."""

    step: str  # downloading packages
    detail: str = ""  # which one
    part: int = 0  # of `whole`: bytes of a download, packages while they are installed
    whole: int = 0  # 0: not known


class Bootstrapped(NamedTuple):
    """The packages are installed, and the GPUs are usable."""

    python: str  # path of the interpreter that finds the packages
    versions: Dict[str, str]  # as in Prepared
    gpus: List[Gpu]
    seen: int  # GPUs that TensorFlow lists; 0 if not checked
    made: bool  # whether anything was installed
    seconds: float


class SmokeTestResult(NamedTuple):
    """Result of a smoke test."""

    seconds: float  # that it ran
    stepped: bool  # it made a step
    exit: Optional[Exit]  # None: it was still running, and was ended
    lines: List[str]  # the last of its output


class Committed(NamedTuple):
    """The supervisor of the task is running."""

    pid: int


class JoinInfo(NamedTuple):
    """Data that a host needs to join a job: the bundle and the commit, including secrets."""

    fleet: str
    entries: List[Entry]
    commit: Commit
    python: str = ""  # interpreter of the answering host, if the command of the commit contains it


class Stopped(NamedTuple):
    """No process of the job is left on this host."""

    killed: bool  # the task ran until SIGKILL
    running: bool  # there was something to stop


class Released(NamedTuple):
    """Nothing of the fleet is left on this host except this conversation."""

    running: bool  # there was something to end


class JobReport(NamedTuple):
    """State of a job on this host."""

    job: str
    fleet: str
    slot: str
    task: str  # in `attempt`; empty: a spare
    attempt: int
    phase: Phase
    alive: bool  # a supervisor looks after it
    started_at: float
    command: List[str]
    members: List[Member]
    log_size: int  # bytes
    exit: Optional[Exit] = None
    result: Optional[JobResult] = None
    progress: Optional[Progress] = None
    usage: Optional[Usage] = None
    attempts: int = 1  # maximum number of attempts; 0: no limit
    listened: Optional[bool] = None  # as in TaskState
    name: str = ""  # as in Commit
    job_name: str = ""  # as in Commit
    arguments: List[str] = []  # as in Commit
    code_sha256: str = ""  # as in Commit
    versions: Dict[str, str] = {}  # as in Prepared, when the job was committed
    joinable: List[str] = []  # as in Commit
    max_workers: Optional[int] = None  # as in Policy; None: the job takes in no new hosts
    queued_after: str = ""  # the job that it waits for; empty: it does not wait


class StoredJob(NamedTuple):
    """A job that this host stores, with the results of its task."""

    job: str
    slot: str
    directory: str  # of the slot, below that of the fleet; empty: none
    path: str  # of the slot's directory of the job, absolute
    size: int  # bytes on the disk
    fingerprint: str  # changes when a result is added, changed or removed; empty: there are none
    areas: List[AreaUse]  # that are not empty
    report: Optional[JobReport] = None  # None: its records cannot be read
    checkpoint: Optional[HeldCheckpoint] = None  # the newest complete one here; None: none


class DiskSpace(NamedTuple):
    """The file system of the fleet's directory."""

    path: str
    free: int  # bytes
    total: int  # bytes


class BundleInfo(NamedTuple):
    """Description of the files that were uploaded for a job; FetchContents returns the contents."""

    entries: List[Entry]
    environment: List[str]  # names of the variables in the commit, without values
    requirements: str  # as in Commit
    constraints: str  # as in Commit
    packages: List[str]  # of the interpreter, NAME==VERSION; empty: unknown


class FileEntry(NamedTuple):
    """A file or link among the results of a task."""

    area: Area
    path: str  # relative to the area's directory, with forward slashes
    kind: EntryKind
    mode: int = 0o644
    size: int = 0  # bytes
    mtime_ns: int = 0
    sha256: str = ""  # of the first `size` bytes; empty: it cannot be read
    target: str = ""  # of a link


class FilesListed(NamedTuple):
    """End of the list of results."""

    fingerprint: str  # as in StoredJob
    notes: List[str] = []  # what was left out, a sentence each


class FileEnd(NamedTuple):
    """The end of a part of a file."""

    problem: str = ""  # why it is not complete


class JobsPruned(NamedTuple):
    """The jobs were deleted."""

    jobs: List[str]  # that are gone now
    freed: int  # bytes
    kept: Dict[str, str] = {}  # why a job was not deleted


class FilesStored(NamedTuple):
    """The files of PushFiles are complete in the directory."""

    directory: str  # absolute
    written: int  # number of files, without those that were there with the same content


# --- what happens to a job --------------------------------------------------------------------------------------


class TaskState(NamedTuple):
    """A task changed its phase."""

    slot: str
    task: str
    attempt: int
    phase: Phase
    at: float  # seconds since the epoch, by the host's clock
    pid: int = 0
    exit: Optional[Exit] = None
    reason: str = ""
    started: bool = True  # False in the phase `exited`: it was ended before any of the user's code ran
    listened: Optional[bool] = None  # in the phase `exited`: on its port; None: unknown, or no need to
    # The newest file of the checkpoint that this attempt starts from; empty: the job has saved no checkpoint;
    # None: the first attempt of a job without `resume`, or the agents do not copy checkpoints.
    checkpoint: Optional[str] = None
    reason_kind: ReasonKind = ReasonKind.OTHER
    cold: Optional[str] = None  # why it was not forked from the warm process; empty: it was; None: not to be


class AttemptEnded(NamedTuple):
    """An attempt failed and another one follows; equal on every host of the job but for `slot`."""

    slot: str  # that reports it
    attempt: int
    at: float
    first_failed_task: str
    reason: str
    exits: Dict[str, Exit]  # by task
    retry_s: float  # until the next attempt, at the earliest
    attempts: int = 0  # maximum number of attempts; 0: no limit, or unknown
    preempted: bool = False  # the host of that task was lost, which is not a failure of the job
    first_failed_slot: str = ""  # of that task
    reason_kind: ReasonKind = ReasonKind.OTHER
    joining: List[str] = []  # slots that are to join in the next attempt


class HangInspection(NamedTuple):
    """Inspection of a task in a job that makes no progress."""

    slot: str
    task: str
    attempt: int
    at: float
    state: str  # of its process, proc(5): R, S, D, T, …
    stack: str  # of every Python thread, the most recent call first; empty: not known
    sockets: List[str]  # one connection each: both ends, state, bytes in its queues
    kernel: str = ""  # its CPU time, and where in the kernel its main thread waits


class Notice(NamedTuple):
    """A notice to the user; equal on every host of the job."""

    slot: str  # that reports it
    attempt: int
    at: float
    text: str


class Progress(NamedTuple):
    """Training progress parsed from the task's output; -1 if unknown."""

    slot: str
    task: str
    attempt: int
    at: float
    epoch: int = -1
    epochs: int = -1
    step: int = -1
    steps: int = -1
    metrics: Dict[str, float] = {}
    steps_per_s: float = -1.0
    activity: Optional[str] = None  # what it does before a step: importing tensorflow; None: unknown, or it trains
    step_s: Optional[float] = None  # time of a step; this and the following are medians of the last seconds
    input_s: Optional[float] = None  # of which the training's data set waits for the script's input pipeline
    python_s: Optional[float] = None  # of which the task is outside of tf.functions
    epochs_done: Optional[int] = None
    epoch_s: Optional[float] = None  # time of an epoch, if the output has one line per epoch
    first_epoch: Optional[int] = (
        None  # with which the attempt began, also if it ended before the first of these records
    )


class Usage(NamedTuple):
    """Resource use of the task's processes."""

    slot: str
    task: str
    at: float
    cpu_percent: float  # of one core
    memory_bytes: int
    gpus: List[GpuUse] = []


class Log(NamedTuple):
    """Bytes of the task's output."""

    slot: str
    task: str
    attempt: int
    offset: int
    payload: int
    at: float = 0.0  # time of the first byte by the host's clock, seconds since the epoch; 0: unknown
    # Times of further bytes, two numbers each: bytes after the previous time, and microseconds after it.
    marks: List[int] = []


class JobResult(NamedTuple):
    """Result of the whole job; equal on every host that received it."""

    job: str
    attempt: int
    outcome: Outcome
    at: float
    first_failed_task: str = ""
    reason: str = ""
    exits: Dict[str, Exit] = {}  # by task
    started: bool = True  # True if any user code ran
    isolated: bool = False  # reported by a host that had lost contact with the others
    reason_kind: ReasonKind = ReasonKind.OTHER


class Beat(NamedTuple):
    """Heartbeat: the connection and the answering process are alive.

    Attributes:
        at: Time of the host.
        record_offset: Bytes of records sent so far, of `attempt`.
        log_offset: Bytes of log sent so far, of `attempt`.
        attempt: Attempt that both offsets belong to; 0: none yet.
        unanswered_s: Seconds since the supervisor of the task last answered.
        complete: Everything that was written before `at` has been sent.
    """

    at: float
    record_offset: int = 0
    log_offset: int = 0
    attempt: int = 0
    unanswered_s: float = 0.0
    complete: bool = False


class End(NamedTuple):
    """The answer is complete."""


def _name(kind: Type[Any]) -> str:
    """Return the name of a class of records on the wire."""
    words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in kind.__name__)
    return words[1:]


_KINDS = [kind for kind in globals().values() if isinstance(kind, type) and hasattr(kind, "_fields")]
_NAMES: Dict[str, Type[Any]] = {_name(kind): kind for kind in _KINDS}
_NAME_OF = {kind: name for name, kind in _NAMES.items()}


class MalformedRecordError(ValueError):
    """A line that is not one of the records above."""


def name_of(record: Record) -> str:
    """Return the name of a record on the wire: ``task_state`` for TaskState."""
    return _NAME_OF[type(record)]


_LEAVES = frozenset((str, int, float, bool, type(None)))
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)


def to_dict(value: Any) -> Any:
    """Return a record, or a value in one, as plain JSON values."""
    if type(value) in _LEAVES:
        return value
    if isinstance(value, Enum):
        return value.value
    if hasattr(value, "_fields"):
        return {key: to_dict(getattr(value, key)) for key in value._fields}
    if isinstance(value, dict):
        return {key: to_dict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_dict(item) for item in value]
    return value


class SharedList(list):  # type: ignore[type-arg]
    """A list in the records to many hosts, which is encoded once and never changed after that."""

    text = ""


def encode(record: Record) -> bytes:
    """Return a record as one line of JSON, newline included."""
    values: Any = record
    if SharedList in map(type, values):
        texts = [f'"{field}":{_text(getattr(record, field))}' for field in values._fields]
        line = f'{{"record":"{name_of(record)}",{",".join(texts)}}}'
    else:
        line = _ENCODER.encode({"record": name_of(record), **to_dict(record)})
    return line.encode("utf-8", "surrogateescape") + b"\n"


def _text(value: Any) -> str:
    if not isinstance(value, SharedList):
        return _ENCODER.encode(to_dict(value))
    value.text = value.text or _ENCODER.encode(to_dict(value))
    return value.text


def build(kind: Type[Any], values: Any) -> Any:
    """Return a named tuple of `kind` from plain JSON values, each checked against the annotation of its field.

    Unknown fields are ignored.

    Raises:
        MalformedRecordError: the values do not fit.
    """
    if not isinstance(values, dict):
        raise MalformedRecordError(f"{kind.__name__} is not an object")
    readers = _readers(kind)
    fields = {}
    for key, value in values.items():
        if key in readers:
            try:
                fields[key] = readers[key](value)
            except ValueError as error:
                raise MalformedRecordError(f"{kind.__name__}, {key}: {error}") from error
    try:
        return kind(**fields)
    except TypeError as error:
        raise MalformedRecordError(f"{kind.__name__} lacks a field") from error


_Reader: TypeAlias = "Callable[[Any], Any]"


_READERS: Dict[Type[Any], Dict[str, _Reader]] = {}


def _readers(kind: Type[Any]) -> Dict[str, _Reader]:
    if kind not in _READERS:
        _READERS[kind] = {name: _reader(hint) for name, hint in get_type_hints(kind).items()}
    return _READERS[kind]


def _reader(kind: Any) -> _Reader:
    """Return a function that returns a JSON value as `kind`, or raises ValueError."""
    origin, parts = get_origin(kind), get_args(kind)
    if type(None) in parts:  # Optional
        read_value = _reader(parts[0])
        return lambda value: None if value is None else read_value(value)
    if origin is list:
        read_item = _reader(parts[0])
        return lambda value: [read_item(item) for item in _typed(value, list)]
    if origin is dict:  # of metrics, which may well be NaN
        read_item = _read_metric if parts[1] is float else _reader(parts[1])
        return lambda value: {_read_text(key): read_item(item) for key, item in _typed(value, dict).items()}
    if kind in _PLAIN:
        return _PLAIN[kind]
    if issubclass(kind, Enum):
        return lambda value: kind(_read_text(value))
    return functools.partial(build, kind)


def _typed(value: Any, *kinds: Type[Any]) -> Any:
    if type(value) not in kinds:
        raise ValueError(f"{type(value).__name__} instead of {kinds[0].__name__}")
    return value


def _read_text(value: Any) -> Any:
    check_text(_typed(value, str))
    return value


def _read_int(value: Any) -> Any:
    check_number(_typed(value, int))
    return value


def _read_float(value: Any) -> Any:
    check_number(_typed(value, float, int))
    return value


def _read_metric(value: Any) -> Any:
    return value if type(value) is float else _read_float(value)


_PLAIN: Dict[Any, _Reader] = {
    str: _read_text,
    bool: lambda value: _typed(value, bool),
    int: _read_int,
    float: _read_float,
}


def decode(line: Union[bytes, str]) -> Record:
    """Return the record of one line of JSON.

    Raises:
        MalformedRecordError: the line is not JSON, of no known record, lacks a field without a default, or has a
            field of another type.
    """
    try:
        values = parse_json(line)
    except JsonError as error:
        raise MalformedRecordError(f"not a line of JSON: {line[:80]!r}") from error
    name = values.pop("record", "") if isinstance(values, dict) else None
    kind = _NAMES.get(name) if isinstance(name, str) else None
    if kind is None:
        raise MalformedRecordError(f"of no known record: {line[:80]!r}")
    record: Record = build(kind, values)
    return record
