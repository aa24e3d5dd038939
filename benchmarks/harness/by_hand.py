"""Distributed training without a launcher, as by hand."""

from __future__ import annotations

import contextlib
import json
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.harness.command import end, environment
from benchmarks.harness.hosts import Hosts


def configurations(workers: int) -> list[dict[str, str]]:
    """Return TF_CONFIG and RANK of each worker, with free ports."""
    ports = []
    for _ in range(workers):
        with socket.create_server(("127.0.0.1", 0)) as free:
            ports.append(free.getsockname()[1])
    cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
    return [
        {
            "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}}),
            "RANK": str(rank),
        }
        for rank in range(workers)
    ]


@contextlib.contextmanager
def running(
    commands: Sequence[Sequence[str]], variables: Sequence[dict[str, str]]
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run commands, each in a session of its own, as in a terminal; those that still run at the end are killed.

    Linux schedules sessions as groups (sched_autogroup): two workers in one session run 5 % faster on two cores.
    """
    nothing = subprocess.DEVNULL
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for command, more in zip(commands, variables, strict=True):
            env = environment(**more)
            processes.append(
                subprocess.Popen(
                    command, env=env, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True
                )
            )
        yield processes
    finally:
        for process in processes:
            end(process)


@contextlib.contextmanager
def workers(script: Path, marks: Path, number: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run a script as workers on this computer; the script reads its index from RANK."""
    command = [sys.executable, str(script), str(marks)]
    with running([command] * number, configurations(number)) as processes:
        yield processes


def ssh_commands(hosts: Hosts, script: str, marks: Path) -> list[list[str]]:
    """Return the commands that run a script in the directory of each host with ssh, each with its TF_CONFIG."""
    result = []
    for host, variables in enumerate(configurations(len(hosts.hosts))):
        settings = " ".join(f"{key}={shlex.quote(value)}" for key, value in variables.items())
        result.append(hosts.ssh(host, hosts.at_host(f"env {settings} {sys.executable} {script} {marks}")))
    return result
