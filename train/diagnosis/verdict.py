"""Input and output of a diagnosis."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from train.agent.protocol.records import NO_REASON, Exit, HangInspection, Reason

LARGEST_TAIL = 256 * 1024
LARGEST_HEAD = 16 * 1024
MOST_LINES = 12


class Cause(str, Enum):
    """Classes of first causes."""

    SCRIPT_EXCEPTION = "script-exception"
    HOST_OUT_OF_MEMORY = "host-out-of-memory"
    GPU_OUT_OF_MEMORY = "gpu-out-of-memory"
    GPU_FAILED = "gpu-failed"
    PACKAGES = "packages"
    PERMISSION = "permission"
    PORT_IN_USE = "port-in-use"
    PEER_UNREACHABLE = "peer-unreachable"
    PEER_NEVER_STARTED = "peer-never-started"
    SERVICE_UNREACHABLE = "service-unreachable"  # a server that is not a task of the job
    WRONG_TF_CONFIG = "wrong-tf-config"
    VERSION_MISMATCH = "version-mismatch"
    MODELS_DIFFER = "models-differ"
    DATA_RAN_OUT = "data-ran-out"
    DATA_CANNOT_BE_SHARDED = "data-cannot-be-sharded"
    FILE_NOT_FOUND = "file-not-found"
    SAVE_CONFLICT = "save-conflict"
    CHECKPOINT_NOT_SHARED = "checkpoint-not-shared"
    NCCL = "nccl"
    NAME_RESOLUTION = "name-resolution"
    DOWNLOAD = "download"  # from a server outside the job, usually in the internet
    DISK_FULL = "disk-full"
    PREEMPTED = "preempted"
    KILLED = "killed"  # by a signal that fleet did not send; includes crashes in native code
    HANG = "hang"
    DEADLINE = "deadline"  # the job ran for longer than it was allowed to
    LIFETIME = "lifetime"  # the hosts power off, or have done so
    KERAS_3 = "keras-3"
    STOPPED_EARLY = "stopped-early"  # a task exited 0 while its peers still needed it
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class TaskEvidence:
    """The evidence of one task after its end.

    Attributes:
        task: ``worker-1``.
        address: The address at which its peers reach it.
        exit: How its process ended; None if unknown.
        exited_at: Seconds since the epoch by its host's clock; None or 0 if unknown.
        reason: The reason that its agent reported, if any.
        stopped_by_us: True if its agent sent SIGTERM or SIGKILL before it ended.
        inspection: What it was doing when the tasks made no progress; None if it was not inspected.
        port: Port of its TensorFlow server in TF_CONFIG; 0 if unknown.
        log_tail: The end of its output; at most the last LARGEST_TAIL bytes are read.
        log_head: The start of its output; at most the first LARGEST_HEAD bytes are read.
    """

    task: str
    address: str = ""
    exit: Exit | None = None
    exited_at: float | None = None
    reason: Reason = NO_REASON
    stopped_by_us: bool = False
    log_tail: bytes = b""
    log_head: bytes = b""
    inspection: HangInspection | None = None
    port: int = 0


@dataclass(frozen=True)
class Verdict:
    """The first cause of a job's failure.

    Attributes:
        task: The task that failed first; empty if no single task did.
        kind: Class of the cause.
        message: Task and cause in one sentence, without a full stop.
        lines: The log lines that decided, at most MOST_LINES, without control characters.
        traceback: Line of the user's code that raised it: ``task.py:12 in main``; empty: no exception.
        consequences: Tasks whose errors are consequences of it.
        hint: What to change, one sentence; empty if unknown.
        downloads: Files that a host could not download: each URL with the path that it has there, as in
            `train.diagnosis.downloads.Download`.
    """

    task: str
    kind: Cause
    message: str
    lines: tuple[str, ...] = ()
    traceback: str = ""
    consequences: tuple[str, ...] = ()
    hint: str = ""
    downloads: tuple[str, ...] = ()
