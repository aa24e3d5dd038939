"""What known failures look like, as tables: exceptions, last words of a process, reasons of agents.

The texts are those of TensorFlow 2.4 to 2.21, Keras 2 and 3, CPython, NCCL and the Linux kernel.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from train.diagnosis.model import Kind
from train.diagnosis.tracebacks import Raised


@dataclass(frozen=True)
class Rule:
    """One way in which a kind of failure shows.

    Attributes:
        kind: What it is.
        text: Found in the message of the exception, or in the line.
        types: Matches the whole short name of the exception; empty: any.
        unless: Found in the text where it is something else after all; empty: nothing.
        shared: Whether no single task is to blame: its tasks disagree with each other.
    """

    kind: Kind
    text: re.Pattern[str]
    types: re.Pattern[str] | None = None
    unless: re.Pattern[str] | None = None
    shared: bool = False

    def fits(self, raised: Raised) -> bool:
        """Whether this exception is such a failure."""
        return (self.types is None or self.types.fullmatch(raised.short) is not None) and self.reads(raised.message)

    def reads(self, text: str) -> bool:
        """Whether this text tells of such a failure."""
        return self.text.search(text) is not None and not (self.unless and self.unless.search(text))


def _rule(kind: Kind, text: str, types: str = "", unless: str = "", *, shared: bool = False) -> Rule:
    return Rule(
        kind,
        re.compile(text),
        re.compile(types) if types else None,
        re.compile(unless) if unless else None,
        shared,
    )


# --- exceptions -------------------------------------------------------------------------------------------------

# Without a match in this one, no exception is collateral.
_COLLATERAL_TEXT = re.compile(
    r"Collective ops is aborted by|failed to connect to all addresses|Socket closed|recvmsg:|sendmsg:"
    r"|stopped sending heartbeats|heartbeat timeout|RPC: /tensorflow\.|Collective has timed out|Barrier "
    r"|Deadline Exceeded|\[_Derived_\]|Additional GRPC error information from remote target"
    r"|RecvAsync is cancelled|remote process exited or there was a network error|Failed to pick subchannel"
    r"|Horovod has been shut down"
)
# Words of gRPC that are too common anywhere but at the beginning of what an exception says.
_COLLATERAL_HEAD = re.compile(
    r"OS Error|Endpoint read failed|Trying to connect an http1\.x server|Broken pipe|GOAWAY|Stream removed"
    r"|keepalive watchdog timeout|Transport closed|No route to host|Network is unreachable|Connection reset by peer"
)
_COLLATERAL_TYPE = re.compile(
    r"(?:Unavailable|DeadlineExceeded|Internal|Cancelled|Aborted|InvalidArgument)Error|InvalidArgument"
)
# A peer that ended and was started again, while this task went on.
RESTARTED = re.compile(
    r"different incarnation|different device incarnation|has likely restarted|was probably restarted"
)
RESTARTED_FOR_SURE = re.compile(r"different device incarnation|was probably restarted")
TIMED_OUT = re.compile(r"Collective has timed out")
# With these words no exception of TensorFlow is anything but collateral.
_DERIVED = re.compile(r"Collective ops is aborted by|\[_Derived_\]")
# Says what a peer reports of itself, or what the whole group disagrees on.
_NEVER_COLLATERAL = re.compile(
    r"unknown device\.|Collective instance \d+ expected type|joining a group|that group has size"
    r"|different (?:device )?incarnation|DNS resolution failed|Domain name not found|Name or service not known"
    r"|errors resolving |Address lookup failed"
)

_TF = r"\w+Error"
_MEMORY_TYPES = (
    r"ResourceExhaustedError|InternalError|UnknownError|InvalidArgumentError|RuntimeError|XlaRuntimeError"
    r"|OutOfMemoryError"
)
_NO_MEMORY = r"OOM when allocating|[Oo]ut of memory|OUT_OF_MEMORY|[Ff]ailed to alloc"
_MISSING = r"No such file or directory|[Nn]o files? matched|No file matching|[Ff]ailed to find any matching files"

EXCEPTIONS = (
    # The tasks disagree.
    _rule(
        Kind.VERSION_MISMATCH,
        r"Collective instance \d+ expected type|expected data_type .{0,40} but got",
        shared=True,
    ),
    _rule(
        Kind.WRONG_TF_CONFIG,
        r"unknown device\.|joining a group (?:with|that)|that group has size|different incarnation"
        r"|has likely restarted",
        types=_TF,
        unless=RESTARTED_FOR_SURE.pattern,
        shared=True,
    ),
    _rule(Kind.WRONG_TF_CONFIG, r"The `task_id` \S+ exceeds the maximum id", types="ValueError"),
    _rule(Kind.WRONG_TF_CONFIG, r"Task index \S+ .{0,40}(?:out of range|not in)|Job \S+ .{0,20}not .{0,30}cluster"),
    _rule(
        Kind.WRONG_TF_CONFIG,
        r"TF_CONFIG|`?task_type`? .{0,60}(?:must|should|not) |cluster_spec.{0,60}(?:invalid|must|missing)"
        r"|There is no chief .{0,40}cluster|Unrecognized task_type",
        types=r"ValueError|RuntimeError|KeyError|TypeError",
    ),
    # What a task has run out of.
    _rule(
        Kind.DISK_FULL,
        r"No space left on device|[Dd]isk quota exceeded|\[Errno 122\]|Disk is full",
        unless=r"inotify|/dev/shm",
    ),
    _rule(Kind.DISK_FULL, r"\.tempstate\d+", types="ResourceExhaustedError", unless=_NO_MEMORY),
    _rule(
        Kind.GPU_OUT_OF_MEMORY,
        rf"(?s)(?:{_NO_MEMORY}).{{0,2000}}(?:GPU|gpu|CUDA|cuda)|(?:GPU|CUDA|cuda)[^\n]{{0,400}}(?:{_NO_MEMORY})",
        types=_MEMORY_TYPES,
        unless=r"device:CPU:\d+ by allocator",
    ),
    _rule(
        Kind.HOST_OUT_OF_MEMORY,
        rf"(?s)(?:{_NO_MEMORY}).{{0,2000}}(?:device:CPU|allocator (?:mkl)?cpu)|std::bad_alloc",
        types=_MEMORY_TYPES,
    ),
    _rule(Kind.HOST_OUT_OF_MEMORY, r"", types=r"_?(?:Array)?MemoryError|ArrowMemoryError"),
    _rule(Kind.HOST_OUT_OF_MEMORY, r"node running low on memory", types="OutOfMemoryError"),
    _rule(Kind.HOST_OUT_OF_MEMORY, r"Cannot allocate memory", types=r"OSError|BlockingIOError|RuntimeError"),
    # What stands in its way.
    _rule(Kind.PORT_IN_USE, r"Could not start gRPC server|Address already in use"),
    _rule(
        Kind.NAME_RESOLUTION,
        r"DNS resolution failed|Domain name not found|errors resolving \S|Address lookup failed"
        r"|Name or service not known|Temporary failure in name resolution"
        r"|No address associated with hostname|nodename nor servname|Failed to resolve '|Could not resolve host",
    ),
    _rule(
        Kind.NCCL,
        r"\bNCCL\b|\bnccl(?:Unhandled|System|Internal|Invalid|Remote)\w*|unhandled (?:system|cuda) error",
        types=r"(?:Internal|Unknown|Unavailable|Aborted|Cancelled|FailedPrecondition|InvalidArgument)Error",
    ),
    _rule(Kind.NCCL, r"\bNCCL (?:[Ee]rror|failure)|\bnccl\w+Error\b", types="RuntimeError"),
    # Data and files.
    _rule(
        Kind.DATA_CANNOT_BE_SHARDED,
        r"FILE based sharding|not enough for the required \d+ shards|Found an unshardable source dataset"
        r"|autoshard",
    ),
    _rule(
        Kind.DATA_RAN_OUT,
        r"End of sequence|[Yy]our input ran out of data|[Yy]our dataset iterator ran out of data",
        types=r"(?:OutOfRange|Cancelled|Value|Runtime|Unknown)Error|StopIteration",
    ),
    _rule(Kind.DATA_RAN_OUT, r"Unexpected result of `?train_function`? \(Empty Logs\)", types="ValueError"),
    _rule(
        Kind.CHECKPOINT_NOT_SHARED,
        r"[Ff]ailed to find any matching files for \S*(?:ckpt|checkpoint|ck-\d)|ckpt-\d+.{0,80}No such file",
    ),
    _rule(Kind.FILE_NOT_FOUND, r"", types=r"FileNotFoundError|NotADirectoryError"),
    _rule(
        Kind.FILE_NOT_FOUND,
        rf"{_MISSING}|Could not find directory|is not a directory",
        types=r"NotFoundError|InvalidArgumentError|UnknownError|OSError|IOError|ValueError|DataLossError",
        unless=r"undefined symbol|shared object",
    ),
    _rule(Kind.FILE_NOT_FOUND, r"HTTP response code 404|The specified key does not exist", types="NotFoundError"),
    # Keras 3 where Keras 2 is meant.
    _rule(
        Kind.KERAS_3,
        r"Attempt to convert a value \(PerReplica:"
        r"|object has no attribute 'reset_states'\. Did you mean: 'reset_state'"
        r"|not (?:supported|available) in Keras 3|Keras 3 (?:only|no longer|does not)"
        r"|Keras cannot be imported\. Check that it is installed"
        r"|`?keras\.optimizers\.legacy`? is not supported"
        r"|module 'keras\.\S{0,80}' has no attribute '(?:experimental|legacy)'",
    ),
)  # fmt: skip

# Memory, or what fails without it: only the lines before can tell whose.
MEMORY = (
    _rule(
        Kind.UNKNOWN,
        rf"{_NO_MEMORY}|failed to allocate memory|[Rr]an out of memory",
        types=r"ResourceExhaustedError|XlaRuntimeError|OutOfMemoryError",
    ),
    _rule(
        Kind.UNKNOWN,
        r"cuDNN failed to initialize|[Cc]ould not create cudnn handle|failed to create cublas handle"
        r"|CU(?:DNN|BLAS)_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)|Blas \w{4,6} launch failed"
        r"|Dst tensor is not initialized",
        types=r"InternalError|UnknownError|NotFoundError|FailedPreconditionError",
    ),
)
MEMORY_WORDS = (
    _rule(
        Kind.GPU_OUT_OF_MEMORY,
        r"Allocator \(GPU_\d+_bfc\) ran out of memory|BFCAllocator dump for GPU|CUDA_ERROR_OUT_OF_MEMORY"
        r"|CU(?:DNN|BLAS)_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation",
        unless=r"not a failure",
    ),
    _rule(
        Kind.HOST_OUT_OF_MEMORY, r"Allocator \((?:mkl_)?cpu(?:_bfc)?\) ran out of memory|BFCAllocator dump for cpu"
    ),
)

# --- last words: lines of a process that ended without an exception -----------------------------------------------

LAST_WORDS = (
    _rule(
        Kind.HOST_OUT_OF_MEMORY,
        r"'std::bad_alloc'|oom-kill event|oom_kill event|out-of-memory handler|Memory cgroup out of memory"
        r"|\bOOMKilled\b|OOM Killed|Out of memory: Kill(?:ed)? process|^MemoryError$"
        r"|slurmstepd: error: .{0,80}exceeded (?:job )?memory limit|PBS: job killed: (?:v?mem|pvmem) "
        r"|reaching LSF memory usage limit",
    ),
    _rule(
        Kind.GPU_OUT_OF_MEMORY,
        r"CUDA_ERROR_OUT_OF_MEMORY|Allocator \(GPU_\d+_bfc\) ran out of memory|cudaErrorMemoryAllocation"
        r"|status: \w*(?:INTERNAL|Internal): .{0,80}out of memory",
        unless=r"not a failure",
    ),
    _rule(Kind.PORT_IN_USE, r"Could not start gRPC server|Failed to add port to server"),
    _rule(Kind.FILE_NOT_FOUND, r"can't open file '[^']{1,400}': \[Errno 2\]"),
    _rule(Kind.DISK_FULL, r"^(?!.*inotify).{0,200}: No space left on device"),
    _rule(
        Kind.PREEMPTED,
        r"PreemptionCheckpointHandler: .{0,80}(?:[Pp]reemption|[Ee]xiting|maintenance)"
        r"|CANCELLED AT \S{1,40} DUE TO PREEMPTION",
    ),
    _rule(
        Kind.DEADLINE,
        r"CANCELLED AT \S{1,40} DUE TO TIME LIMIT|PBS: job killed: walltime |reaching LSF run time limit",
    ),
)
EARLY_WORDS = (
    _rule(
        Kind.DATA_RAN_OUT,
        r"[Yy]our input ran out of data|[Yy]our dataset iterator ran out of data|OUT_OF_RANGE: End of sequence"
        r"|Out of range: End of sequence",
        unless=r"\[_Derived_\].*End of sequence.*this does not indicate an error",
    ),
)

# --- reasons that an agent gives ----------------------------------------------------------------------------------

# What the gang says once it has decided: nothing in a log knows better.
DECISIONS = (
    _rule(Kind.DEADLINE, r"^the job ran longer than \S{1,20} s\b"),
    _rule(Kind.HANG, r"^no (?:progress for|first step within) \S{1,20} s\b"),
    _rule(
        Kind.KILLED, r"^the agent of \S{1,80} was killed\b|^\S{1,80} \(\S{1,80}\) was lost: its agent was killed\b"
    ),
    _rule(Kind.PREEMPTED, r"^\S{1,80} \(\S{1,80}\) was preempted(?:, and |$)"),
    _rule(Kind.PEER_UNREACHABLE, r"^\S{1,80} \(\S{1,80}\) (?:was lost: |did not answer$)"),
)
REASONS = (
    _rule(Kind.DISK_FULL, r"(?i)no space left|disk (?:is )?full|disk quota|\bof disk left\b"),
    _rule(Kind.HOST_OUT_OF_MEMORY, r"(?i)out of memory|\boom\b|oom[- ]kill"),
    _rule(Kind.PREEMPTED, r"(?i)preempt|spot (?:instance|vm)|host maintenance|reclaimed"),
    _rule(Kind.HANG, r"(?i)no progress|\bhang|\bhung\b|\bstuck\b|\bstalled\b|no output"),
    _rule(Kind.PEER_NEVER_STARTED, r"(?i)did not join|never (?:joined|started)"),
    _rule(
        Kind.NAME_RESOLUTION,
        r"(?i)name resolution|cannot resolve|could not resolve|name or service not known|name is not known there",
    ),
    _rule(Kind.PORT_IN_USE, r"(?i)port \S{1,20} (?:is )?(?:in use|taken|busy)|address already in use"),
    _rule(Kind.VERSION_MISMATCH, r"(?i)different versions?\b|versions? differ|(?:tensorflow|keras) differs"),
    _rule(
        Kind.PEER_UNREACHABLE,
        r"(?i)\bsilent\b|\blost\b|unreachable|cannot reach|no answer|link (?:broke|is down)|connection"
        r"|closed|no longer answers|did not answer",
    ),
    _rule(Kind.KILLED, r"(?i)\bagent of \S{1,80} was killed\b|\bwas killed by (?:SIG[A-Z]|signal)"),
)
# Of a task that its own agent ended, these say why it did; anything else says only that it had to.
OWN_REASONS = (Kind.DISK_FULL, Kind.HOST_OUT_OF_MEMORY, Kind.PREEMPTED)

# --- how it is said -----------------------------------------------------------------------------------------------

CLAUSES = {
    Kind.SCRIPT_EXCEPTION: "raised an exception",
    Kind.HOST_OUT_OF_MEMORY: "ran out of host memory",
    Kind.GPU_OUT_OF_MEMORY: "ran out of GPU memory",
    Kind.PORT_IN_USE: "could not listen: its port was in use",
    Kind.PEER_UNREACHABLE: "could not be reached by its peers",
    Kind.PEER_NEVER_STARTED: "never joined the others",
    Kind.WRONG_TF_CONFIG: "has a TF_CONFIG that does not fit the cluster",
    Kind.VERSION_MISMATCH: "runs another version than its peers",
    Kind.DATA_RAN_OUT: "ran out of data",
    Kind.DATA_CANNOT_BE_SHARDED: "has a data set that cannot be shared out among the workers",
    Kind.FILE_NOT_FOUND: "did not find a file",
    Kind.CHECKPOINT_NOT_SHARED: "does not have the checkpoint that the others have",
    Kind.NCCL: "failed in NCCL",
    Kind.NAME_RESOLUTION: "could not resolve a host's name",
    Kind.DISK_FULL: "ran out of disk space",
    Kind.PREEMPTED: "was preempted",
    Kind.KILLED: "was killed",
    Kind.HANG: "made no progress",
    Kind.DEADLINE: "did not end in time",
    Kind.KERAS_3: "failed on Keras 3, which cannot do this with several workers or has another name for it",
    Kind.STOPPED_EARLY: "exited with code 0 while the others were still training",
    Kind.UNKNOWN: "failed",
}

SHARED_CLAUSES = {
    Kind.VERSION_MISMATCH: "the tasks run different programs or different versions of TensorFlow or Keras",
    Kind.WRONG_TF_CONFIG: "the tasks do not agree on the cluster: TF_CONFIG differs between them, or an index "
    "is in use twice",
    Kind.CHECKPOINT_NOT_SHARED: "the tasks resumed from different checkpoints",
}

HINTS = {
    Kind.SCRIPT_EXCEPTION: "correct the script where the traceback points",
    Kind.HOST_OUT_OF_MEMORY: "use a smaller batch, cache or shuffle buffer, or hosts with more memory",
    Kind.GPU_OUT_OF_MEMORY: "use a smaller batch a worker, or GPUs with more memory; see nvidia-smi on the host for "
    "other processes",
    Kind.PORT_IN_USE: "find the process that has the port with ss -ltnp on the host; end it, or use another port",
    Kind.PEER_UNREACHABLE: "check that the host is up, and that its firewall lets in the others on all TCP ports",
    Kind.PEER_NEVER_STARTED: "see its log and its host; check that the firewall lets the other hosts in on its port",
    Kind.WRONG_TF_CONFIG: "give every task the same cluster in TF_CONFIG, in the same order, and an index of "
    "its own; let nothing in the script set it",
    Kind.VERSION_MISMATCH: "install the same TensorFlow and Keras on all hosts, set TF_USE_LEGACY_KERAS alike "
    "on all, and start them from the same checkpoint",
    Kind.DATA_RAN_OUT: "give every worker the same number of batches: repeat() the data set and set steps_per_epoch",
    Kind.DATA_CANNOT_BE_SHARDED: "set the data set's option experimental_distribute.auto_shard_policy to "
    "tf.data.experimental.AutoShardPolicy.DATA, or give it at least as many files as there are workers",
    Kind.FILE_NOT_FOUND: "put the file on every host at that path, or beside the script so that it is pushed with it",
    Kind.CHECKPOINT_NOT_SHARED: "keep checkpoints in the job's checkpoint folder or on storage that all hosts share, "
    "so that all tasks resume from the same one",
    Kind.NCCL: "run it with --env NCCL_DEBUG=INFO to see what NCCL says; open all TCP ports among the hosts, and "
    "name their interface in NCCL_SOCKET_IFNAME",
    Kind.NAME_RESOLUTION: "use addresses in place of names, or make the name known on every host",
    Kind.DISK_FULL: "free space on the host, or take hosts with larger disks",
    Kind.PREEMPTED: "fleet up replaces the host; --preemptions N lets a job continue after N losses",
    Kind.KILLED: "the kernel log of the host (dmesg -T) may say why",
    Kind.HANG: "see in the logs what each task was doing; --on-hang restart restarts a job that hangs",
    Kind.DEADLINE: "give it more time with --timeout, or let it do less",
    Kind.KERAS_3: "install tf-keras on all hosts and set TF_USE_LEGACY_KERAS=1",
    Kind.STOPPED_EARLY: "let every worker take the same number of steps",
    Kind.UNKNOWN: "",
}


def is_collateral(raised: Raised) -> bool:
    """Whether an exception only tells that a peer is gone, or that one's own failure aborted the collective."""
    return not _NEVER_COLLATERAL.search(raised.message) and any(_is_collateral(one) for one in raised.chain())


def _is_collateral(raised: Raised) -> bool:
    if raised.short.endswith("Error") and _DERIVED.search(raised.message):
        return True
    if _COLLATERAL_TYPE.fullmatch(raised.short) is None:
        return False
    return tells_of_peers(raised.message) or _COLLATERAL_HEAD.match(raised.message) is not None


def tells_of_peers(text: str) -> bool:
    """Whether a text is of the kind that collateral failures leave."""
    return _COLLATERAL_TEXT.search(text) is not None


def rule_of(raised: Raised) -> Rule | None:
    """The rule that fits an exception, or else what directly caused it."""
    one: Raised | None = raised
    while one:
        for rule in EXCEPTIONS:
            if rule.fits(one):
                return rule
        one = one.before if one.caused else None
    return None


def reading(text: str, rules: tuple[Rule, ...]) -> Rule | None:
    """The first of `rules` that reads `text`."""
    return next((rule for rule in rules if rule.reads(text)), None)
