"""Every path on a host, in one place.

ROOT/                       one fleet's files on this host, readable by their owner alone
    agent/HASH.pyz          the agent, and HASH/ with its compiled modules
    store/ab/abcdef…        contents by SHA-256, read only
    active                  locked by the supervisor of the running job; names it
    probe.json              cached probes of interpreters and GPUs
    hook/                   code that a task's interpreter runs first
    venvs/HASH/             a virtual environment, named by what is installed in it
        bin/python          its interpreter
        requirements.txt    requirements for pip
        constraints.txt     constraints for pip
        ready.json          written last, touched at each use
        scratch/            pip's temporary files
    venvs/lock              locked during an installation
    pip/HASH.whl            pip, if the host's Python contains none
    slot-N/                 the same again for each of several slots of the host, which share venvs/ and pip/
    jobs/JOB/TASK/
        job.json            what was committed, secrets left out
        src/                working directory of the task, with the bundle; or a link to its directory
        checkpoints/  logs/  model/
        replica/            newest complete snapshot of the checkpoints
        bin/                the interpreter under the names python and python3
        attempt-1/log       output of the task
        attempt-1/records   its records, one JSON line each
        attempt-1/spare     reserved space for these on a full disk
        agent.log           output of the supervisor
        result.json         result of the job
        control             socket of the supervisor
        processes           IDs of running processes
        bundle.json         paths of the bundle, with the hashes of their contents
        objects             contents of the store that the bundle uses, one hash per line
"""

import os
from typing import List, NamedTuple

from train.agent.files.disk import list_names

SLOT_PREFIX = "slot-"


class HostPaths(NamedTuple):
    """Paths of one fleet on one host; `root` is absolute, and so is `shared` unless it is empty."""

    root: str
    shared: str = ""  # directory of the host whose slot this is; empty: the host has one slot

    @property
    def common(self) -> str:
        """Return the directory that all slots of the host share."""
        return self.shared or self.root

    def slots(self) -> List["HostPaths"]:
        """Return the paths of the host and of all its slots."""
        names = sorted(name for name in list_names(self.common) if name.startswith(SLOT_PREFIX))
        return [HostPaths(self.common), *(HostPaths(os.path.join(self.common, name), self.common) for name in names)]

    @property
    def agent(self) -> str:
        """Directory of the agents."""
        return os.path.join(self.root, "agent")

    @property
    def store(self) -> str:
        """Directory of contents by their hash."""
        return os.path.join(self.root, "store")

    @property
    def active(self) -> str:
        """File that the supervisor of the running job keeps locked."""
        return os.path.join(self.root, "active")

    @property
    def jobs(self) -> str:
        """Directory of all jobs."""
        return os.path.join(self.root, "jobs")

    @property
    def probe(self) -> str:
        """Cache of the probes of interpreters and GPUs."""
        return os.path.join(self.root, "probe.json")

    @property
    def hook(self) -> str:
        """Directory of the code that a task's interpreter runs first."""
        return os.path.join(self.root, "hook")

    @property
    def venvs(self) -> str:
        """Directory of the virtual environments."""
        return os.path.join(self.common, "venvs")

    @property
    def venvs_lock(self) -> str:
        """File that is kept locked while a virtual environment is made."""
        return os.path.join(self.venvs, "lock")

    @property
    def pip(self) -> str:
        """Directory of the pip wheels that a client sent."""
        return os.path.join(self.common, "pip")

    def pip_wheel(self, digest: str) -> str:
        """Path of the pip wheel with this SHA-256."""
        return os.path.join(self.pip, f"{digest}.whl")

    def venv(self, name: str) -> "VenvPaths":
        """Paths of one virtual environment."""
        return VenvPaths(os.path.join(self.venvs, name))

    def task(self, job: str, task: str) -> "TaskPaths":
        """Paths of one task of one job."""
        return TaskPaths(os.path.join(self.jobs, job, task))


class VenvPaths(NamedTuple):
    """Paths of one virtual environment."""

    directory: str

    @property
    def python(self) -> str:
        """Its interpreter."""
        return os.path.join(self.directory, "bin", "python")

    @property
    def requirements(self) -> str:
        """Requirements that pip installed."""
        return os.path.join(self.directory, "requirements.txt")

    @property
    def constraints(self) -> str:
        """Constraints on the versions."""
        return os.path.join(self.directory, "constraints.txt")

    @property
    def ready(self) -> str:
        """File that is written last; its modification time is the time of the last use."""
        return os.path.join(self.directory, "ready.json")

    @property
    def scratch(self) -> str:
        """Directory of pip's temporary files."""
        return os.path.join(self.directory, "scratch")


class TaskPaths(NamedTuple):
    """Paths of one task of one job."""

    directory: str

    @property
    def job(self) -> str:
        """The commit."""
        return os.path.join(self.directory, "job.json")

    @property
    def source(self) -> str:
        """The task's working directory."""
        return os.path.join(self.directory, "src")

    @property
    def programs(self) -> str:
        """Directory of programs that come first on the task's PATH."""
        return os.path.join(self.directory, "bin")

    @property
    def checkpoints(self) -> str:
        """Default directory of checkpoints."""
        return os.path.join(self.directory, "checkpoints")

    @property
    def replica(self) -> str:
        """Directory with a copy of the newest complete checkpoint."""
        return os.path.join(self.directory, "replica")

    @property
    def logs(self) -> str:
        """Default directory of TensorBoard's event files."""
        return os.path.join(self.directory, "logs")

    @property
    def model(self) -> str:
        """Default directory of the exported model."""
        return os.path.join(self.directory, "model")

    @property
    def result(self) -> str:
        """Result of the job."""
        return os.path.join(self.directory, "result.json")

    @property
    def control(self) -> str:
        """Socket of the supervisor."""
        return os.path.join(self.directory, "control")

    @property
    def processes(self) -> str:
        """IDs of running processes; missing once the supervisor has ended in order."""
        return os.path.join(self.directory, "processes")

    @property
    def objects(self) -> str:
        """Contents of the store that the bundle uses."""
        return os.path.join(self.directory, "objects")

    @property
    def bundle(self) -> str:
        """Paths of the bundle."""
        return os.path.join(self.directory, "bundle.json")

    def attempt(self, attempt: int) -> str:
        """Directory of one attempt."""
        return os.path.join(self.directory, f"attempt-{attempt}")

    def log(self, attempt: int) -> str:
        """The task's output in one attempt."""
        return os.path.join(self.attempt(attempt), "log")

    def records(self, attempt: int) -> str:
        """Records of the task in one attempt."""
        return os.path.join(self.attempt(attempt), "records")

    def spare(self, attempt: int) -> str:
        """Reserved space that is freed on a full disk, so that the end can still be recorded."""
        return os.path.join(self.attempt(attempt), "spare")

    @property
    def agent_log(self) -> str:
        """Output of the supervisor itself."""
        return os.path.join(self.directory, "agent.log")
