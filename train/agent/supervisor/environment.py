"""Build the environment of a task, and its part that depends on the host: programs, and a network interface."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import time
from typing import Dict, List, Mapping, NamedTuple, Sequence, Tuple

from train.agent.files.disk import make_directory, read_text
from train.agent.files.paths import HostPaths, TaskPaths
from train.agent.gang.readiness import ReadinessFacts
from train.agent.host.ports import TaskPort
from train.agent.host.processes import MARK
from train.agent.injected.adaptations import JOB, TF_CONFIG, VARIABLE
from train.agent.protocol.cluster import placeholder_values, tf_config
from train.agent.protocol.records import Commit, Member

_PROXIES = ("all_proxy", "ftp_proxy", "grpc_proxy", "http_proxy", "https_proxy")
_VARIABLES = {
    "rank": "FLEET_RANK", "index": "FLEET_TASK_INDEX", "type": "FLEET_TASK_TYPE", "tasks": "FLEET_NUM_TASKS",
    "addresses": "FLEET_ADDRESSES", "attempt": "FLEET_ATTEMPT",
}  # fmt: skip
_NAMES = ("python", "python3")
_SIOCGIFADDR = 0x8915  # netdevice(7)
_LOCAL = ("localhost", "127.0.0.1", "::1")


def _without_proxy(variables: Mapping[str, str], members: Sequence[Member]) -> Dict[str, str]:
    """Bypass a proxy between tasks: gRPC honours these variables and hangs silently if a proxy is in the way.

    Without a proxy, nothing is set: JAX warns of these variables.

    Source: https://github.com/grpc/grpc/blob/master/doc/environment_variables.md
    """
    if not any(value and name.lower() in _PROXIES for name, value in variables.items()):
        return {}
    hosts = [*(member.address for member in members), *_LOCAL]
    both = [variables.get("no_proxy", ""), variables.get("NO_PROXY", "")]
    bypasses = {"no_proxy": both, "NO_PROXY": both}
    if "no_grpc_proxy" in variables:
        bypasses["no_grpc_proxy"] = [variables["no_grpc_proxy"]]
    merged = {}
    for name, values in bypasses.items():
        given = [item.strip() for value in values for item in value.split(",")]
        merged[name] = ",".join(dict.fromkeys(item for item in [*given, *hosts] if item))
    return merged


def _of_python(session: Mapping[str, str], host_environment: "HostEnvironment") -> Dict[str, str]:
    """Return variables by which programs find the interpreter by name; RETICULATE_PYTHON is read by R's reticulate.

    Source: https://rstudio.github.io/reticulate/articles/versions.html
    """
    variables = {}
    if host_environment.python:
        variables["RETICULATE_PYTHON"] = host_environment.python
    if host_environment.directories:
        variables["PATH"] = os.pathsep.join([*host_environment.directories, session.get("PATH") or os.defpath])
    return variables


def _nccl(host_environment: "HostEnvironment") -> Dict[str, str]:
    """Return settings of NCCL for hosts with GPUs: the shared network interface, and its warnings.

    Where the interface is not known NCCL chooses by itself.
    Source: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    if not host_environment.gpus:
        return {}
    variables = {"NCCL_DEBUG": "WARN"}
    if host_environment.interface:
        variables["NCCL_SOCKET_IFNAME"] = f"={host_environment.interface}"
    return variables


def checkpoint_directory(paths: TaskPaths, directory: str) -> str:
    """Return the directory or URL where the script keeps checkpoints.

    Args:
        paths: The task's paths on its host.
        directory: As given: relative to the working directory; empty: the default directory.
    """
    if "://" in directory:
        return directory
    return os.path.join(paths.source, os.path.expanduser(directory)) if directory else paths.checkpoints


class TaskIdentity(NamedTuple):
    """The task and attempt that the environment is for."""

    fleet: str
    job: str
    task: str  # as the cluster spec has it: worker-1
    attempt: int  # from 1
    members: Sequence[Member]  # all tasks of the job


class HostEnvironment(NamedTuple):
    """The part of the environment that depends on the host."""

    python: str = ""  # the interpreter
    directories: Tuple[str, ...] = ()  # of programs that come first on the PATH
    interface: str = ""  # network interface with the private address; empty: not known, or not looked for
    gpus: int = 0  # that the task will see


class Start(NamedTuple):
    """Everything that a supervisor needs at its start."""

    commit: Commit
    fleet: str
    paths: TaskPaths
    session: Dict[str, str]
    umask: int
    facts: ReadinessFacts
    port: TaskPort
    listener: socket.socket
    control: socket.socket
    hook: str  # directory of the hook; empty: the interpreter does not run it
    host_environment: HostEnvironment
    host: HostPaths
    lock: int  # of the host; a queued job takes it when it is its turn

    def now(self) -> float:
        """Return the time for everything that is stored and reported about the job, in seconds since the epoch."""
        return time.time() + self.commit.clock_correction_s

    @property
    def checkpoints(self) -> str:
        """Return the directory or URL where the script keeps checkpoints."""
        return checkpoint_directory(self.paths, self.commit.replication.directory)


_NOTHING = HostEnvironment()


def task_environment(
    session: Mapping[str, str],
    user: Mapping[str, str],
    *,
    identity: TaskIdentity,
    paths: TaskPaths,
    checkpoints: str = "",
    scratch: str = "",
    host_environment: HostEnvironment = _NOTHING,
) -> Dict[str, str]:
    """Return all environment variables of a task.

    Args:
        session: Environment of the host.
        user: Variables set by the user; they override all others except TF_CONFIG and the proxy bypass.
        identity: Task and attempt.
        paths: The task's paths on its host.
        checkpoints: Directory or URL of the checkpoints; empty: the default directory.
        scratch: Directory for temporary files; empty: that of the host.
        host_environment: Host-specific part.
    """
    checkpoints = checkpoints or paths.checkpoints
    fleet, job, task, attempt, members = identity
    values = placeholder_values(members, task, attempt)
    variables = {**_nccl(host_environment), **session}
    variables.update(_of_python(session, host_environment))
    variables.update(
        PYTHONUNBUFFERED="1",
        PWD=paths.source,
        FLEET_NAME=fleet,
        FLEET_JOB_ID=job,
        **{variable: values[name] for name, variable in _VARIABLES.items()},
        FLEET_CHECKPOINT_DIR=checkpoints,
        FLEET_LOG_DIR=paths.logs,
        FLEET_MODEL_DIR=paths.model,
        # Names of Vertex AI, https://cloud.google.com/vertex-ai/docs/training/code-requirements
        AIP_CHECKPOINT_DIR=checkpoints,
        AIP_TENSORBOARD_LOG_DIR=paths.logs,
        AIP_MODEL_DIR=paths.model,
    )
    variables.update({"TMPDIR": scratch} if scratch else {})
    variables.update(user)
    variables.update(_without_proxy(variables, members))
    variables["TF_CONFIG"] = tf_config(members, task)
    if TF_CONFIG in variables.get(VARIABLE, ""):
        variables[JOB] = variables["TF_CONFIG"]
    variables[MARK] = paths.directory
    return variables


# --- the host ------------------------------------------------------------------------------------------------------


def create_host_environment(programs: str, python: str, address: str, gpus: int) -> HostEnvironment:
    """Return the host-specific environment of a task, and write its programs.

    Args:
        programs: Directory for them.
        python: The interpreter of the task.
        address: By which the other hosts reach this one.
        gpus: That the task will see.

    Raises:
        OSError: they cannot be written.
    """
    write_programs(programs, python)
    directories = (programs, *program_directories(python))
    return HostEnvironment(python, directories, interface_of(address) if gpus else "", gpus)


def program_directories(python: str) -> List[str]:
    """Return the directory of programs of an interpreter's virtual environment; empty for any other interpreter."""
    directory = os.path.dirname(python)
    return [directory] if os.path.exists(os.path.join(os.path.dirname(directory), "pyvenv.cfg")) else []


def write_programs(directory: str, python: str) -> None:
    """Make the names python and python3 run one interpreter.

    A link is not sufficient: Python finds a virtual environment by the directory of its executable.

    Raises:
        OSError: they cannot be written.
    """
    quoted = "'" + python.replace("'", "'\\''") + "'"
    make_directory(directory)
    for name in _NAMES:
        path = os.path.join(directory, name)
        with open(path, "wb") as file:
            file.write(f'#!/bin/sh\nexec {quoted} "$@"\n'.encode("utf-8", "surrogateescape"))
        os.chmod(path, 0o700)


def interface_of(address: str) -> str:
    """Return the network interface that has an address; empty if unknown, for example behind NAT."""
    if address == "::1" or address.startswith("127."):
        return "lo"
    return next((name for name, candidate in _interfaces() if candidate == address), "")


def _interfaces() -> List[Tuple[str, str]]:
    """Return the addresses of this host, each with its interface. Sources: netdevice(7), proc(5)."""
    addresses = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has no address
                continue
            addresses.append((name, socket.inet_ntop(socket.AF_INET, answer[20:24])))
    for fields in map(str.split, read_text("/proc/net/if_inet6").splitlines()):
        if len(fields) > 5:
            addresses.append((fields[5], socket.inet_ntop(socket.AF_INET6, bytes.fromhex(fields[0]))))
    return addresses
