"""`fleet tensorboard`: TensorBoard over the event files and the telemetry of a job, also while it runs."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import webbrowser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from fleet.cli.application import WithJobs, command
from fleet.cli.options import Fleet, JobArgument, Output, OutputOption, SameJob, one_job, option
from fleet.cli.runtime import make_services, resolve_fleet, run_command
from fleet.errors import FleetError, NotReadyError, UsageError
from fleet.events import Level, Note, Sink, TensorboardStarted
from fleet.fleets.access import Access
from fleet.fleets.agents import open_some
from fleet.jobs.pull import copy_named, find_pulled
from fleet.jobs.results import StoredJobs, survey_agents, survey_job
from fleet.remote.client import AgentClient
from fleet.results.runs import NAMES, Runs
from fleet.results.target import job_of
from fleet.services import Services
from fleet.state import FleetDirectory, FleetRecord
from fleet.steps import Shell, Step

_SYNC_S = 5.0
_RETRY_S = 15.0


@dataclass(frozen=True)
class TensorBoardRequest:
    """Request of the command.

    Attributes:
        fleet: Name of the fleet.
        job: The job, as in `select_job`.
        directory: Directory of pulled results to show instead; empty: ask the hosts.
        port: Port on this computer; None: the first free one from 6006 on.
        open_browser: Open the page in a browser.
    """

    fleet: str
    job: str = ""
    directory: str = ""
    port: int | None = None
    open_browser: bool = True


def run(request: TensorBoardRequest, services: Services, sink: Sink) -> None:
    """Show a job in TensorBoard until Ctrl-C.

    Raises:
        NotReadyError: TensorBoard is not installed or does not start, or the port is in use.
        NotFoundError: the fleet or job does not exist.
        UsageError: the directory does not hold pulled results, or several jobs are meant.
        UnreachableError: no host answers.
    """
    if request.directory and request.job:
        raise UsageError("JOB and --dir exclude each other", next_steps=[Step("tensorboard", request.job)])
    need_tensorboard()
    port = choose_port(request.port)
    with tempfile.TemporaryDirectory(prefix="fleet-tensorboard-") as name:
        page = _Page(request, port, Path(name), sink)
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # a closed terminal ends TensorBoard too
            signal.signal(signal.SIGHUP, signal.getsignal(signal.SIGTERM))
        try:
            results = find_pulled(request.directory, request.job, request.fleet, services)
            if results is not None:
                page.show_pulled(results)
            else:
                page.show_live(services)
        except KeyboardInterrupt:
            return


class _Page:
    """TensorBoard, the directory that it shows, and where that comes from."""

    def __init__(self, request: TensorBoardRequest, port: int, scratch: Path, sink: Sink) -> None:
        self._request = request
        self._port = port
        self._scratch = scratch
        self._sink = sink
        self._runs = scratch / "runs"
        self._runs.mkdir()
        self._has_events = True

    def show_pulled(self, results: Path) -> None:
        """Show pulled results; a later pull is seen too."""
        runs = Runs(results, self._runs)
        self._refresh(runs, running=False)
        self._sink.emit(Note("starting TensorBoard"))
        with serve(self._runs, self._scratch, self._port) as process:
            self._announce(job_of(results) or "", str(results))
            while not _has_ended(process):
                runs.refresh()

    def show_live(self, services: Services) -> None:
        """Show a job of the fleet, and copy what its tasks add."""
        directory, record = services.store.need(self._request.fleet)
        access = Access(record.spec, services, self._sink)
        with open_some(record.hosts, directory.key, access) as (clients, unreached):
            job = survey_job(self._request.job, clients, directory, unreached).select(
                self._request.job, self._request.fleet
            )
            copy = _Copy(job, self._scratch / "results")
            copy.update(clients)
            runs = Runs(self._scratch / "results", self._runs)
            self._refresh(runs, running=job.is_running)
            self._sink.emit(Note("starting TensorBoard"))
            with serve(self._runs, self._scratch, self._port) as process:
                self._announce(job.job, "")
                self._follow(process, copy, runs, directory, clients)
                self._keep_following(process, copy, runs, directory, record)

    def _follow(
        self,
        process: subprocess.Popen[bytes],
        copy: _Copy,
        runs: Runs,
        directory: FleetDirectory,
        clients: Sequence[AgentClient],
    ) -> None:
        """Copy what is new until the job has ended, a host fails, or TensorBoard ends."""
        while copy.is_running and not _has_ended(process):
            try:
                stored = survey_agents(clients, directory, [copy.job.job])
                job = stored.find(copy.job.job)
                if stored.silent or job is None:
                    return
                copy.job = job
                copy.update(clients)
            except FleetError:
                return
            self._refresh(runs, running=copy.is_running)

    def _keep_following(
        self,
        process: subprocess.Popen[bytes],
        copy: _Copy,
        runs: Runs,
        directory: FleetDirectory,
        record: FleetRecord,
    ) -> None:
        """Connect again while the job may run; then wait until TensorBoard ends."""
        while not _has_ended(process, _RETRY_S if copy.is_running else _SYNC_S):
            if not copy.is_running:
                continue
            try:
                with open_some(record.hosts, directory.key, sink=self._sink) as (clients, _):
                    self._follow(process, copy, runs, directory, clients)
            except FleetError as error:
                self._sink.emit(Note(f"the curves are not up to date: {error.message}", Level.WARNING))

    def _refresh(self, runs: Runs, *, running: bool) -> None:
        """Update the directory, and report when it has no event files, and when they come."""
        has_events = runs.refresh() > 0
        if has_events and not self._has_events:
            self._sink.emit(Note("event files have arrived"))
        elif not has_events and self._has_events:
            text = (
                "no event files yet: waiting for the script to write them to FLEET_LOG_DIR"
                if running
                else "the script wrote no event files"
            )
            self._sink.emit(Note(f"{text}; TensorBoard shows the telemetry of the fleet"))
        self._has_events = has_events

    def _announce(self, job: str, directory: str) -> None:
        url = f"http://{ADDRESS}:{self._port}/"
        is_open = self._request.open_browser and _open(url)
        self._sink.emit(TensorboardStarted(job=job, url=url, directory=directory or None, opened=is_open))


@dataclass
class _Copy:
    """A copy of the event files and the telemetry of a job."""

    job: StoredJobs
    directory: Path
    fingerprint: str = ""

    @property
    def is_running(self) -> bool:
        return self.job.is_running

    def update(self, clients: Sequence[AgentClient]) -> None:
        """Copy what is new.

        Raises:
            FleetError: every host failed.
        """
        fingerprint = " ".join(task.stored.fingerprint for task in self.job.tasks)
        if fingerprint == self.fingerprint or not fingerprint.strip():
            return
        is_complete = copy_named(self.job, clients, self.directory, NAMES)
        self.fingerprint = fingerprint if is_complete else ""


def _has_ended(process: subprocess.Popen[bytes], timeout_s: float = _SYNC_S) -> bool:
    """Wait; return False after the timeout.

    Raises:
        NotReadyError: TensorBoard has ended without a request.
    """
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return False
    raise NotReadyError(f"TensorBoard ended with exit code {code}")


def _open(url: str) -> bool:
    """Open a page in the user's browser; return whether there is one. One in the terminal is not used."""
    if sys.platform != "darwin" and not any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))):
        return False
    try:
        return webbrowser.open(url)
    except (webbrowser.Error, OSError):
        return False


@command("Results", WithJobs)
def tensorboard(
    job: JobArgument = "",
    directory: Annotated[
        str, option("--dir", "Show the results that fleet pull copied to this directory.", "DIR")
    ] = "",
    port: Annotated[
        int | None,
        option("--port", "Port on this computer.", "N", default="first free one from 6006", min=1, max=65535),
    ] = None,
    open_browser: Annotated[bool, option("--open/--no-open", "Open a browser.")] = True,
    same_job: SameJob = "",
    fleet: Fleet = "",
    output: OutputOption = Output.AUTO,
) -> None:
    """Show the curves of a job in TensorBoard.

    Shows the event files that the script wrote, and the telemetry of the hosts, of all workers and attempts. Copies
    what is new while the job runs. Ctrl-C ends it.

    Examples:
      fleet tensorboard
      fleet tensorboard -1 --port 7000 --no-open
      fleet tensorboard --dir results/baseline
    """
    request = TensorBoardRequest(resolve_fleet(fleet), one_job(job, same_job), directory, port, open_browser)
    run_command(request.fleet, output, lambda sink: run(request, make_services(sink), sink), live=False)


ADDRESS = "127.0.0.1"
DEFAULT_PORT = 6006
_PORTS = 100  # tried from the default one on
_START_S = 120.0
_POLL_S = 0.2
_STOP_S = 5.0
_RELOAD_S = "5"
_TAIL = 4096
# Runs a program, and ends its process group if the pipe on stdin is closed: only this command holds the other end, so
# that TensorBoard also ends if this command is killed.
_TIED = 'exec 3<&0; { trap "" TERM; read -r _ <&3; kill -TERM 0; sleep 2; kill -KILL 0; } & exec "$@" 3<&- </dev/null'


def need_tensorboard() -> None:
    """Check that TensorBoard is installed.

    Raises:
        NotReadyError: it is not.
    """
    if find_spec("tensorboard") is None:
        raise NotReadyError(
            "TensorBoard is not installed on this computer", next_steps=[Shell("pip install tensorboard")]
        )


def choose_port(given: int | None) -> int:
    """Return the port to use: the given one, or the first free one from 6006 on.

    Raises:
        NotReadyError: the given port is in use, or none is free.
    """
    ports = [given] if given is not None else range(DEFAULT_PORT, DEFAULT_PORT + _PORTS)
    for port in ports:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((ADDRESS, port))
            return port
    raise NotReadyError(
        f"port {given} cannot be used on this computer" if given else "no port is free for TensorBoard",
        next_steps=[Step("tensorboard")] if given else [],
    )


@contextlib.contextmanager
def serve(directory: Path, scratch: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run TensorBoard until the block ends; yield when it answers.

    Args:
        directory: Directory of the runs.
        scratch: Directory for its log, in which it runs: no file of the user's shadows a module.
        port: Its port.

    Raises:
        NotReadyError: it does not start.
    """
    log = scratch / "log"
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(directory), "--host", ADDRESS]
    command += ["--port", str(port), "--reload_interval", _RELOAD_S]
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["sh", "-c", _TIED, "sh", *command],
            cwd=scratch, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        _wait_until_ready(process, port, log)
        yield process
    finally:
        _end(process)


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), opener.open(f"http://{ADDRESS}:{port}/data/environment", timeout=5.0):
            return
        time.sleep(_POLL_S)
    lines = log.read_bytes()[-_TAIL:].decode(errors="replace").strip().splitlines()
    raise NotReadyError("TensorBoard does not start", cause=lines[-1].strip() if lines else "")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End TensorBoard and all processes that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
