"""Memory and CPU time of the agent on a host while its task runs."""

from __future__ import annotations

import contextlib
import subprocess
import time

import psutil

from benchmarks.harness.accounting import marked, scheduled_s
from benchmarks.harness.command import CommandError, end
from benchmarks.harness.hosts import Hosts
from benchmarks.harness.model import Goal, Sample
from benchmarks.harness.scripts import RATE, write_script
from benchmarks.harness.session import Session

TITLE = "The agent on a host"
_SLEEP = "import time\ntime.sleep(3600)\n"
_RATE_HZ = 10


def measure(session: Session) -> None:
    """Measure the agents of two hosts: of a silent task, and of a task whose output a client follows."""
    hosts, seconds = session.local(2), session.pick(0.5, 30.0, 300.0)
    silent = write_script(session.directory(), _SLEEP)
    chatty = write_script(session.directory(), RATE)

    def idle() -> Sample:
        hosts.run_fleet("train", "--detach", str(silent))
        return _agents(hosts, seconds)

    def followed() -> Sample:
        hosts.run_fleet("train", "--detach", str(chatty), "--", str(_RATE_HZ), "3600")
        nothing = subprocess.DEVNULL
        client = subprocess.Popen(
            hosts.fleet("logs", "-f"), env=hosts.environment(), stdin=nothing, stdout=nothing, stderr=nothing,
            start_new_session=True,
        )  # fmt: skip
        try:
            return _agents(hosts, seconds)
        finally:
            end(client)

    silent_name, followed_name = "fleet: silent task", "fleet: task that a client follows"
    session.measure(
        f"processes of the agent without the task, for each host; the client reads {_RATE_HZ} lines per second",
        {silent_name: lambda: _stopped(hosts, idle()), followed_name: lambda: _stopped(hosts, followed())},
        [
            Goal("resident", silent_name, "", 25.0),
            Goal("load", silent_name, "", 0.1),
            Goal("resident", followed_name),
            Goal("load", followed_name, "", 0.4),
        ],
        metric="load",
        runs=session.pick(1, 3, 3),
        warmups=0,
        before=lambda: hosts.run_fleet("stop", codes=(0, 101, 102)),
    )


def _stopped(hosts: Hosts, sample: Sample) -> Sample:
    hosts.run_fleet("stop", codes=(0, 101, 102))
    return sample


def _agents(hosts: Hosts, seconds: float) -> Sample:
    """Return memory and CPU time for each host, after a pause in which the start ends."""
    time.sleep(min(3.0, seconds))
    processes = []
    for directory in marked(hosts.ids):
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(int(directory.name))
            if "python" in process.name() and "TF_CONFIG" not in process.environ():
                processes.append(process)
    if not processes:
        raise CommandError("no process of an agent runs")
    before = sum(scheduled_s(process.pid) for process in processes)
    time.sleep(seconds)
    spent = sum(scheduled_s(process.pid) for process in processes) - before
    memory = 0.0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            memory += process.memory_full_info().pss
    return {"load": 100 * spent / seconds / len(hosts.hosts), "resident": memory / 1e6 / len(hosts.hosts)}
