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
from importlib.util import find_spec
from pathlib import Path

from fleet.cli.application import WithJobs, command
from fleet.cli.options import FLEET, JOB, OUTPUT, SAME_JOB, Output, one_job, option
from fleet.cli.runtime import Session, resolve_fleet, session
from fleet.errors import FleetError, NotReadyError, UsageError
from fleet.events import Level, Note, TensorboardStarted
from fleet.fleets.agents import open_some
from fleet.jobs.pull import copy_named, find_pulled, raise_if_silent
from fleet.jobs.results import StoredJobs, survey_agents, survey_job
from fleet.remote.client import AgentClient
from fleet.results.runs import NAMES, Runs
from fleet.results.target import job_of
from fleet.steps import Shell, Step

_SYNC_S = 5.0
_RETRY_S = 15.0
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
        for number in (signal.SIGTERM, signal.SIGKILL):  # for all processes that TensorBoard started, too
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), opener.open(f"http://{ADDRESS}:{port}/data/environment", timeout=5.0):
            return
        time.sleep(_POLL_S)
    lines = log.read_bytes()[-_TAIL:].decode(errors="replace").strip().splitlines()
    raise NotReadyError("TensorBoard does not start", cause=lines[-1].strip() if lines else "")


class _Page:
    """TensorBoard, and the directory that it shows.

    Args:
        results: The results of a job; it shows what is added, too.
        scratch: An empty directory.
        run: The command.
    """

    def __init__(self, results: Path, scratch: Path, run: Session) -> None:
        self._directory = scratch / "runs"
        self._directory.mkdir()
        self._runs = Runs(results, self._directory)
        self._scratch = scratch
        self._run = run
        self._has_events = True

    def refresh(self, *, running: bool) -> None:
        """Update the directory, and report when it has no event files, and when they come."""
        has_events = self._runs.refresh() > 0
        if has_events and not self._has_events:
            self._run.note("event files have arrived")
        elif not has_events and self._has_events:
            waits = "no event files yet: waiting for the script to write them to FLEET_LOG_DIR"
            text = waits if running else "the script wrote no event files"
            self._run.note(f"{text}; TensorBoard shows the telemetry of the fleet")
        self._has_events = has_events

    @contextlib.contextmanager
    def serve(self, job: str, shown: str, port: int, *, opens: bool) -> Iterator[subprocess.Popen[bytes]]:
        """Run TensorBoard until the block ends; report its address."""
        self._run.note("starting TensorBoard")
        with serve(self._directory, self._scratch, port) as process:
            url = f"http://{ADDRESS}:{port}/"
            self._run.emit(TensorboardStarted(job, url, shown or None, opened=opens and _open(url)))
            yield process


def _show_live(reference: str, scratch: Path, port: int, run: Session, *, opens: bool) -> None:
    """Show a job of the fleet, and copy what its tasks add, with a new connection after each failure."""
    fleet, results = run.find_fleet(), scratch / "results"
    with fleet.open_some() as (clients, unreached):
        job = survey_job(reference, clients, fleet.directory, unreached).select(reference, run.fleet)
        copied = _copy_new(job, clients, results, "")
    page, pause_s = _Page(results, scratch, run), 0.0
    page.refresh(running=job.is_running)
    with page.serve(job.job, "", port, opens=opens) as process:
        while not _has_ended(process, pause_s):
            pause_s = _RETRY_S
            if not job.is_running:
                continue
            try:
                with open_some(fleet.record.hosts, fleet.directory.key, sink=run) as (clients, _):
                    while job.is_running and not _has_ended(process):
                        stored = survey_agents(clients, fleet.directory, [job.job])
                        raise_if_silent(stored)
                        job = stored.find(job.job) or job
                        copied = _copy_new(job, clients, results, copied)
                        page.refresh(running=job.is_running)
            except FleetError as error:
                run.emit(Note(f"the curves are not up to date: {error.message}", Level.WARNING))


def _copy_new(job: StoredJobs, clients: Sequence[AgentClient], results: Path, copied: str) -> str:
    """Copy the event files and the telemetry of a job if they are not those of the fingerprint `copied`.

    Returns:
        The fingerprint of the copy; empty: it is not complete.

    Raises:
        FleetError: every host failed.
    """
    fingerprint = " ".join(task.stored.fingerprint for task in job.tasks)
    if fingerprint == copied or not fingerprint.strip():
        return copied
    return fingerprint if copy_named(job, clients, results, NAMES) else ""


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
    job: str = JOB,
    directory: str = option("", "--dir", "Show the results that fleet pull copied to this directory.", "DIR"),
    port: int | None = option(
        None, "--port", "Port on this computer.", "N", shown="first free one from 6006", min=1, max=65535
    ),
    open_browser: bool = option(True, "--open/--no-open", "Open a browser."),
    same_job: str = SAME_JOB,
    fleet: str = FLEET,
    output: Output = OUTPUT,
) -> None:
    """Show the curves of a job in TensorBoard.

    Shows the event files that the script wrote, and the telemetry of the hosts, of all workers and attempts. Copies
    what is new while the job runs. Ctrl-C ends it.

    Examples:
      fleet tensorboard
      fleet tensorboard -1 --port 7000 --no-open
      fleet tensorboard --dir results/baseline
    """
    reference = one_job(job, same_job)
    with session(resolve_fleet(fleet), output, live=False) as run:
        if directory and reference:
            raise UsageError("JOB and --dir exclude each other", next_steps=[Step("tensorboard", reference)])
        if find_spec("tensorboard") is None:
            step = Shell("pip install tensorboard")
            raise NotReadyError("TensorBoard is not installed on this computer", next_steps=[step])
        chosen = choose_port(port)
        with (
            tempfile.TemporaryDirectory(prefix="fleet-tensorboard-") as scratch,
            contextlib.suppress(KeyboardInterrupt),
        ):
            if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # a closed terminal ends TensorBoard too
                signal.signal(signal.SIGHUP, signal.getsignal(signal.SIGTERM))
            results = find_pulled(directory, reference, run.fleet, run.services)
            if results is None:
                _show_live(reference, Path(scratch), chosen, run, opens=open_browser)
                return
            page = _Page(results, Path(scratch), run)
            page.refresh(running=False)
            with page.serve(job_of(results) or "", str(results), chosen, opens=open_browser) as process:
                while not _has_ended(process):
                    page.refresh(running=False)  # a later pull is seen too
