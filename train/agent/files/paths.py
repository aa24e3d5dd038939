"""Every path on a host, in one place.

ROOT/                       one fleet's files on this host, readable only by their owner
    agent/HASH.pyz          the agent, and HASH/ with its compiled modules; in $FLEET_AGENTS/ if that is set
    store/ab/abcdef…        contents by SHA-256, read only
    active                  locked by the supervisor of the running job; names it
    queue                   locked while a job is added to the queue of this host
    probe.json              cached probes of interpreters and GPUs
    hook/                   code that a task's interpreter runs first
    warm/                   socket of the process from which tasks are forked
    venvs/HASH/             a virtual environment, named by what is installed in it
        bin/python          its interpreter
        requirements.txt    requirements for pip
        constraints.txt     constraints for pip
        ready.json          written last, touched at each use
        scratch/            pip's temporary files
    venvs/lock              locked during an installation
    uv/uv                   the program, from the package index
    slot-N/                 the same again for each of several slots of the host, which share venvs/ and uv/
    jobs/JOB/TASK/
        job.json            what was committed, secrets left out
        queued              the job that this one waits for, while it waits
        src/                working directory of the task, with the bundle; or a link to its directory
        checkpoints/  logs/  model/
        replica/            newest complete snapshot of the checkpoints
        bin/                the interpreter under the names python and python3
        attempt-1/log       output of the task
        attempt-1/times     when each piece of it was read
        attempt-1/telemetry.jsonl  samples of its resource use and progress
        attempt-1/records   its records, one JSON line each
        attempt-1/spare     reserved space for these on a full disk
        agent.log           output of the supervisor
        result.json         result of the job
        control             socket of the supervisor
        processes           IDs of running processes
        bundle.json         paths of the bundle, with the hashes of their contents
        objects             contents of the store that the bundle uses, one hash per line
"""

from __future__ import annotations

import os
import posixpath
from typing import Any, List, NamedTuple

from train.agent.files.disk import list_names

SLOT_PREFIX = "slot-"


class _Path:
    """A path in the directory that the first field of a class names, or another field.

    Args:
        name: Relative to that directory.
        of: The field; empty: the first one.
    """

    def __init__(self, name: str, of: str = "") -> None:
        self._name = name
        self._of = of

    def __get__(self, paths: Any, kind: object = None) -> str:
        return os.path.join(getattr(paths, self._of) if self._of else paths[0], self._name)


class _Roots(NamedTuple):
    """Absolute directories; the others are relative to them."""

    root: str
    shared: str = ""  # directory of the host whose slot this is; empty: the host has one slot


class _Directory(NamedTuple):
    """An absolute directory; the others are relative to it."""

    directory: str


class HostPaths(_Roots):
    """Paths of one fleet on one host."""

    agent = _Path("agent")  # directory of the agents
    store = _Path("store")  # directory of contents by their hash
    active = _Path("active")  # file that the supervisor of the running job keeps locked
    queue = _Path("queue")  # file that is locked while a job is queued or uncommitted files are removed
    jobs = _Path("jobs")  # directory of all jobs
    probe = _Path("probe.json")  # cache of the probes of interpreters and GPUs
    hook = _Path("hook")  # directory of the code that a task's interpreter runs first
    warm = _Path("warm")  # directory of the process from which tasks are forked
    venvs = _Path("venvs", of="common")  # directory of the virtual environments
    venvs_lock = _Path("venvs/lock", of="common")  # locked while a virtual environment is made
    uv = _Path("uv/uv", of="common")  # the program, from the package index

    @property
    def common(self) -> str:
        """Return the directory that all slots of the host share."""
        return self.shared or self.root

    def slots(self) -> List["HostPaths"]:
        """Return the paths of the host and of all its slots."""
        names = sorted(name for name in list_names(self.common) if name.startswith(SLOT_PREFIX))
        return [HostPaths(self.common), *(HostPaths(os.path.join(self.common, name), self.common) for name in names)]

    def venv(self, name: str) -> "VenvPaths":
        """Paths of one virtual environment."""
        return VenvPaths(os.path.join(self.venvs, name))

    def task(self, job: str, task: str) -> "TaskPaths":
        """Paths of one task of one job."""
        return TaskPaths(os.path.join(self.jobs, job, task))


class VenvPaths(_Directory):
    """Paths of one virtual environment."""

    python = _Path("bin/python")  # its interpreter
    requirements = _Path("requirements.txt")  # requirements that pip installed
    constraints = _Path("constraints.txt")  # constraints on the versions
    ready = _Path("ready.json")  # file that is written last; its modification time is the time of the last use
    scratch = _Path("scratch")  # directory of pip's temporary files


class TaskPaths(_Directory):
    """Paths of one task of one job."""

    job = _Path("job.json")  # the commit
    queued = _Path("queued")  # the earlier job that this one waits for; missing once it has the host
    source = _Path("src")  # the task's working directory
    scratch = _Path("tmp")  # link to the directory for temporary files, whose path is short
    programs = _Path("bin")  # directory of programs that come first on the task's PATH
    checkpoints = _Path("checkpoints")  # default directory of checkpoints
    replica = _Path("replica")  # directory with a copy of the newest complete checkpoint
    logs = _Path("logs")  # default directory of TensorBoard's event files
    model = _Path("model")  # default directory of the exported model
    result = _Path("result.json")  # result of the job
    control = _Path("control")  # socket of the supervisor
    processes = _Path("processes")  # IDs of running processes; missing once the supervisor has ended in order
    objects = _Path("objects")  # contents of the store that the bundle uses
    bundle = _Path("bundle.json")  # paths of the bundle
    agent_log = _Path("agent.log")  # output of the supervisor itself

    @property
    def store(self) -> str:
        """Return the directory of contents of the host."""
        return HostPaths(os.path.normpath(os.path.join(self.directory, "..", "..", ".."))).store

    def attempt(self, attempt: int) -> str:
        """Directory of one attempt."""
        return os.path.join(self.directory, f"attempt-{attempt}")

    def log(self, attempt: int) -> str:
        """The task's output in one attempt."""
        return os.path.join(self.attempt(attempt), "log")

    def times(self, attempt: int) -> str:
        """The times of the task's output in one attempt."""
        return os.path.join(self.attempt(attempt), "times")

    def telemetry(self, attempt: int) -> str:
        """Samples of the task's resource use and progress in one attempt."""
        return os.path.join(self.attempt(attempt), "telemetry.jsonl")

    def records(self, attempt: int) -> str:
        """Records of the task in one attempt."""
        return os.path.join(self.attempt(attempt), "records")

    def spare(self, attempt: int) -> str:
        """Reserved space that is freed on a full disk, so that the end can still be recorded."""
        return os.path.join(self.attempt(attempt), "spare")


def is_inner_path(path: str) -> bool:
    """Return True if a relative path with forward slashes stays inside its directory."""
    return "\0" not in path and all(part not in ("", ".", "..") for part in path.split("/"))


def is_inner_link(path: str, target: str) -> bool:
    """Return True if a link at `path` points inside the directory, through no other link.

    Args:
        path: Of the link, relative to the directory.
        target: What it leads to.
    """
    steps = target.split("/")
    inner = [step for step in steps if step != ".."]
    goes_back = ".." in steps[steps.index(inner[0]) :] if inner else False
    ends = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return bool(target) and "\0" not in target and not goes_back and not ends.startswith(("/", ".."))


def inner_target(directory: str, path: str, target: str) -> str:
    """Return what a link at `path` leads to as a relative target below `directory`; empty if it leads elsewhere.

    Args:
        directory: Absolute.
        path: Of the link, relative to it.
        target: What it leads to, relative or absolute.
    """
    if target.startswith("/"):
        inside = os.path.relpath(os.path.normpath(target), os.path.normpath(directory))
        if not is_inner_path(inside):
            return ""
        target = os.path.relpath(inside, os.path.dirname(path) or ".")
    return target if is_inner_link(path, target) else ""
