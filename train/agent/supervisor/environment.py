"""Build the environment of a task. Pure; the client shows the same result in a dry run."""

from __future__ import annotations

import os
from typing import Dict, Mapping, NamedTuple, Sequence, Tuple

from train.agent.files.paths import TaskPaths
from train.agent.host.processes import MARK
from train.agent.injected.adaptations import JOB, TF_CONFIG, VARIABLE
from train.agent.protocol.cluster import placeholder_values, tf_config
from train.agent.protocol.records import Member

_PROXIES = ("all_proxy", "ftp_proxy", "grpc_proxy", "http_proxy", "https_proxy")
_VARIABLES = {
    "rank": "FLEET_RANK", "index": "FLEET_TASK_INDEX", "type": "FLEET_TASK_TYPE", "tasks": "FLEET_NUM_TASKS",
    "addresses": "FLEET_ADDRESSES", "attempt": "FLEET_ATTEMPT",
}  # fmt: skip
_LOCAL = ("localhost", "127.0.0.1", "::1")


def _without_proxy(variables: Mapping[str, str], members: Sequence[Member]) -> Dict[str, str]:
    """Bypass a proxy between tasks: gRPC honours these variables and hangs silently if a proxy is in the way.

    Nothing is set if there is no proxy: JAX warns of these variables.

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
