"""Hosts with a separate network, processes, and OpenSSH server; the computer of their user; and faults."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from fleet.state import FleetRecord, Store
from provision.keys import generate_ed25519
from provision.local import sshd
from provision.model import FleetSpec, Host
from tests.faults.namespaces import Namespace, namespaces
from tests.fork_server import start_command
from tests.program import CommandResult, agents_environment, wait_for

FLEET = "faults"
USER = "root"


def _inner_pid(pid: int) -> int:
    """Return the number of a process in its innermost namespace."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    raise AssertionError("this kernel has no NSpid")


@dataclass
class FaultHost:
    """A host with a separate network, process numbers, and sshd; `root` is the directory of `fleet` on it.

    Attributes:
        name: Name of its slot, such as ``worker-0``.
        where: Network namespace of the host.
        directory: Directory of its keys and logs; `root` is below it.
        python: Interpreter of agents and scripts.
        variables: Environment of everything that SSH starts.
    """

    name: str
    where: Namespace
    directory: Path
    python: str
    public_key: str
    variables: dict[str, str] = field(default_factory=agents_environment)
    _running: subprocess.Popen[bytes] | None = None
    _init: int = 0
    _space: str = ""

    @property
    def root(self) -> Path:
        return self.directory / "fleet"

    def prepare(self) -> Host:
        """Create its keys; return the record of how SSH reaches it."""
        self.root.mkdir(parents=True, exist_ok=True)
        pair = generate_ed25519(self.name)
        key = self.directory / "host_key"
        key.touch(0o600)
        key.write_text(pair.private)
        (self.directory / "authorized_keys").write_text(self.public_key + "\n")
        (self.directory / "sshd_config").write_text(sshd.configuration(self.directory, self.where.address, 22, USER))
        return Host(
            self.name,
            self.where.address,
            22,
            USER,
            " ".join(pair.public.split()[:2]),
            f"{FLEET}-{self.name}",
            self.where.address,
            self.python,
            str(self.root),
        )

    def start(self) -> None:
        """Start its sshd in a new process namespace; do nothing if the host runs."""
        if self._running is not None and self._running.poll() is None:
            return
        program = sshd.find()
        assert program
        # Not by `ip netns exec`, which hides the control groups.
        network = ("nsenter", f"--net=/run/netns/{self.where.name}")
        process_namespace = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
        log = self.directory / "sshd.log"
        # SHLVL: else Debian's bash reads ~/.bashrc for each command, which can take 0.2 s of CPU time.
        variables = " ".join(f"{key}={value}" for key, value in {"SHLVL": "1", **self.variables}.items())
        settings = ["-f", str(self.directory / "sshd_config"), "-o", f"SetEnv={variables}"]
        with log.open("wb") as words:
            self._running = subprocess.Popen(
                [*network, *process_namespace, program, "-D", "-e", *settings],
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                env={"PATH": os.defpath, "HOME": os.environ.get("HOME", "/")},
                start_new_session=True,
            )
        wait_for(f"sshd of {self.name}", lambda: b"Server listening" in log.read_bytes())
        pid = self._running.pid
        self._init = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        self._space = str(Path(f"/proc/{self._init}/ns/pid").readlink())

    def die(self) -> None:
        """Unplug the host and end everything that runs on it, at once."""
        self.where.unplug()
        self.power_off()

    def power_off(self) -> None:
        """End the first process of the host, and thereby all others."""
        if self._running is None:
            return
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            if str(Path(f"/proc/{self._init}/ns/pid").readlink()) == self._space:
                os.kill(self._init, signal.SIGKILL)
        self._running.wait(60)
        self._running, self._init, self._space = None, 0, ""

    def processes(self) -> dict[int, psutil.Process]:
        """Return its processes by their number on the host, except the first one, sessions of SSH, and zombies."""
        running: dict[int, psutil.Process] = {}
        if not self._space:  # the kernel gives the number of the namespace of a host that is off to another
            return running
        for pid in psutil.pids():  # no object for each process: this is called often
            with contextlib.suppress(psutil.Error, OSError):
                if pid == self._init or str(Path(f"/proc/{pid}/ns/pid").readlink()) != self._space:
                    continue
                process = psutil.Process(pid)
                if process.status() != psutil.STATUS_ZOMBIE and not process.name().startswith("sshd"):
                    running[_inner_pid(process.pid)] = process
        return running

    def is_idle(self) -> bool:
        """Return whether no process runs on it, except those from which later tasks and agents are forked."""
        return all(_is_for_later(process) for process in self.processes().values())

    def clear(self) -> None:
        """End all processes except sshd."""
        while left := self.processes():
            for process in left.values():
                with contextlib.suppress(psutil.Error):
                    process.kill()
            time.sleep(0.02)


def _is_for_later(process: psutil.Process) -> bool:
    """Return whether tasks are forked from a process; a task shows the same command."""
    try:
        parent = process.parent()
        return _has_imports(process) and not (parent is not None and _has_imports(parent))
    except psutil.NoSuchProcess:
        return True


def _has_imports(process: psutil.Process) -> bool:
    return any(word.endswith("/hook/warm.py") for word in process.cmdline())


@dataclass
class Play:
    """A job that `fleet train` started, with the hosts on which it runs.

    Attributes:
        fleet: The hosts of the job.
        client: The process of `fleet train`.
        out: File of its standard output.
        err: File of its standard error.
        before: Jobs that existed before.
    """

    fleet: FaultFleet
    client: subprocess.Popen[bytes]
    out: Path
    err: Path
    before: frozenset[str]
    _job: str = ""

    def _jobs(self) -> set[str]:
        jobs: set[str] = set()
        for host in self.fleet.hosts:
            with contextlib.suppress(FileNotFoundError):  # the oldest job is removed while the newest is made
                jobs.update(path.parent.name for path in host.root.glob("jobs/*/*"))
        return jobs

    @property
    def job(self) -> str:
        def new() -> str | None:
            assert self.client.poll() is None or self._jobs() - self.before, self.words()
            return next(iter(self._jobs() - self.before), None)

        if not self._job:
            self._job = wait_for("the job's directory", new)
        return self._job

    def words(self) -> str:
        return f"{self.out.read_text(errors='replace')[-3000:]}\n{self.err.read_text(errors='replace')[-3000:]}"

    def directory(self, number: int) -> Path:
        host = self.fleet.hosts[number]
        return host.root / "jobs" / self.job / host.name

    def log(self, number: int, attempt: int = 1) -> bytes:
        path = self.directory(number) / f"attempt-{attempt}" / "log"
        return path.read_bytes() if path.exists() else b""

    def wait_for_log(self, number: int, text: str, attempt: int = 1) -> None:
        def is_logged() -> bool:
            assert self.client.poll() in (None, -signal.SIGKILL), self.words()
            return f"{text}\n".encode() in self.log(number, attempt)

        wait_for(f"{text!r} in attempt {attempt} on host {number}", is_logged)

    def wait_for_steps(self, number: int, count: int, attempt: int) -> None:
        """Wait until a task has made `count` steps in an attempt."""
        wait_for(
            f"{count} steps in attempt {attempt} on host {number}",
            lambda: self.log(number, attempt).count(b"say step ") >= count,
        )

    def records(self, number: int, attempt: int = 1) -> list[dict[str, Any]]:
        path = self.directory(number) / f"attempt-{attempt}" / "records"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []  # without one that is being written
        return [json.loads(line) for line in lines]

    def wait_for_record(self, number: int, kind: str, attempt: int = 1, **values: object) -> None:
        def is_recorded() -> bool:
            return any(
                record["record"] == kind and all(record[key] == value for key, value in values.items())
                for record in self.records(number, attempt)
            )

        wait_for(f"{kind} {values} in attempt {attempt} on host {number}", is_recorded)

    def saved_everywhere(self, wanted: Callable[[Path], bool], *numbers: int) -> None:
        """Wait until each of the hosts keeps a snapshot with a file or a manifest for which `wanted` returns True."""

        def is_saved(number: int) -> bool:
            with contextlib.suppress(OSError, ValueError):
                for manifest in (self.directory(number) / "replica").glob("[0-9]*/manifest"):
                    if any(wanted(path) for path in manifest.parent.iterdir()):
                        return True
            return False

        for number in numbers:
            wait_for(f"a snapshot on host {number}", partial(is_saved, number))

    # --- processes --------------------------------------------------------------------------------------------------

    def process(self, number: int, kind: str) -> psutil.Process:
        """Return the ``task``, ``watchdog``, ``supervisor`` or ``replicator`` process of a host."""

        def lookup() -> psutil.Process | None:
            with contextlib.suppress(OSError, ValueError, KeyError, psutil.Error, StopIteration):
                return self._process(number, kind)
            return None

        return wait_for(f"the {kind} of host {number}", lookup)

    def _process(self, number: int, kind: str) -> psutil.Process:
        recorded = json.loads((self.directory(number) / "processes").read_text())
        running = self.fleet.hosts[number].processes()
        if kind == "task":
            return running[recorded["task"][0]]
        watchdog = running[recorded["supervisor"][0]]
        if kind == "watchdog":
            return watchdog
        (supervisor,) = (child for child in watchdog.children() if child.status() != psutil.STATUS_ZOMBIE)
        if kind == "supervisor":
            return supervisor
        return next(
            child
            for child in supervisor.children()
            if child.status() != psutil.STATUS_ZOMBIE and child.cmdline() == supervisor.cmdline()
        )

    def send(self, number: int, kind: str, signal_number: int = signal.SIGKILL) -> None:
        self.process(number, kind).send_signal(signal_number)

    # --- the end ----------------------------------------------------------------------------------------------------

    def finish(self, code: int, deadline_s: float) -> ClientReport:
        """Wait for the client to exit with `code`; return its report."""
        try:
            self.client.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end within {deadline_s} s\n{self.words()}") from None
        err = self.err.read_text(errors="replace")
        assert "\nTraceback (most recent call last)" not in "\n" + err, err  # except the traceback of the script
        assert self.client.returncode == code, f"exit code {self.client.returncode}, not {code}\n{self.words()}"
        return ClientReport([json.loads(line) for line in self.out.read_bytes().splitlines()])

    def nothing_is_left(self) -> None:
        """Wait until no process of the job, or started by it, is left on any host."""
        for host in self.fleet.hosts:
            wait_for(f"the end of all processes on {host.name}", host.is_idle)

    def no_byte_is_lost(self, report: ClientReport, *, cut: tuple[int, ...] = ()) -> None:
        """Check that the streamed logs are the logs stored on the hosts, and that these are what the tasks wrote.

        Args:
            report: Report of the client.
            cut: Numbers of hosts that were lost, or whose disk was full: a part of their logs was streamed.
        """
        for number, host in enumerate(self.fleet.hosts):
            for path in sorted(self.directory(number).glob("attempt-*/log")):
                attempt = int(path.parent.name.partition("-")[2])
                stored, streamed = path.read_bytes(), report.log(host.name, attempt)
                if number in cut:
                    assert stored.startswith(streamed) or streamed.startswith(stored)
                    continue
                assert streamed == stored, f"{host.name}, attempt {attempt}: {len(streamed)} of {len(stored)} bytes"
                side = self.directory(number) / "logs" / f"said-{attempt}"
                if side.exists():
                    written = [line for line in stored.split(b"\n")[:-1] if line.startswith(b"say ")]
                    lines = side.read_bytes().split(b"\n")[:-1]
                    assert written[: len(lines)] == lines
                    assert len(written) - len(lines) in (0, 1)


@dataclass
class ClientReport:
    """The events that a client reported, from its JSON lines."""

    events: list[dict[str, Any]]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    def log(self, slot: str, attempt: int) -> bytes:
        data = bytearray()
        for event in self.of("log_chunk"):
            if (event["slot"], event["attempt"]) == (slot, attempt):
                assert event["offset"] == len(data)
                data += event["text"].encode() if "text" in event else base64.b64decode(event["base64"])
        return bytes(data)

    def values(self, slot: str, attempt: int, word: str) -> list[str]:
        """Return the values that follow ``say WORD`` in a task's output."""
        lines = self.log(slot, attempt).decode("utf-8", "replace").splitlines()
        return [line.partition(f"say {word} ")[2] for line in lines if line.startswith(f"say {word} ")]

    @property
    def verdict(self) -> tuple[str, str]:
        """Return kind and task of the last verdict on the job; two empty strings if it has no verdict."""
        final = [event for event in self.of("job_diagnosed") if event["final"]]
        assert len(final) <= 1
        return (final[0]["kind"], final[0]["task"]) if final else ("", "")

    @property
    def ended(self) -> list[tuple[int, str]]:
        """Return the attempts that failed before the last one, each with the task that failed first."""
        return [(event["attempt"], event["first_failed_task"]) for event in self.of("attempt_ended")]

    @property
    def verdicts(self) -> list[tuple[int, str, str]]:
        """Return attempt, kind and task of the verdicts on attempts that failed before the last one."""
        return [
            (event["attempt"], event["kind"], event["task"])
            for event in self.of("job_diagnosed")
            if not event["final"]
        ]

    @property
    def result(self) -> dict[str, Any]:
        (result,) = self.of("job_result")
        return result


@dataclass
class FaultFleet:
    """Hosts on one network, and the computer from which `fleet` is typed.

    Attributes:
        hosts: Hosts by index.
        laptop: Network namespace in which the commands run.
        state: Value of FLEET_STATE_DIR.
        work: Working directory of the commands.
    """

    hosts: list[FaultHost]
    laptop: Namespace
    state: Path
    work: Path
    _repairs: list[Callable[[], None]] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _clients: list[subprocess.Popen[bytes]] = field(default_factory=list)

    # --- commands ---------------------------------------------------------------------------------------------------

    def start(self, *words: str, rest: Sequence[str] = ()) -> tuple[subprocess.Popen[bytes], Path, Path]:
        """Start a command; return its process and the files of its standard output and standard error."""
        number = next(self._numbers)
        out, err = self.work / f"out-{number}", self.work / f"err-{number}"
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("FLEET_")}
        with out.open("wb") as printed, err.open("wb") as errors:
            client = start_command(
                [*words, "--fleet", FLEET, *(["--", *rest] if rest else [])],
                directory=self.work,
                environment={**inherited, "FLEET_STATE_DIR": str(self.state), "PYTHONFAULTHANDLER": "1"},
                stdout=printed,
                stderr=errors,
                namespace=self.laptop.name,
            )
        self._clients.append(client)
        return client, out, err

    def run(self, *words: str, code: int = 0, deadline_s: float = 200) -> CommandResult:
        """Run a command to its end, and check its exit code."""
        client, out, err = self.start(*words)
        client.wait(deadline_s)
        ran = CommandResult(client.returncode, out.read_bytes(), err.read_text(errors="replace"))
        assert ran.code == code, f"exit code {ran.code}, not {code}\n{ran.text[-2000:]}\n{ran.err[-3000:]}"
        return ran

    def train(self, script: str, *options: str, arguments: Sequence[str] = ()) -> Play:
        """Start a job."""
        before = frozenset(path.parent.name for host in self.hosts for path in host.root.glob("jobs/*/*"))
        source = self.work / f"src-{next(self._numbers)}"
        source.mkdir()
        (source / "task.py").write_text(script)
        words = ("train", str(source / "task.py"), "-o", "json", "--grace", "1", *options)
        client, out, err = self.start(*words, rest=arguments)
        return Play(self, client, out, err, before)

    # --- faults of the network --------------------------------------------------------------------------------------

    def _fault(self, order: Callable[[], None], repair: Callable[[], None]) -> None:
        order()
        self._repairs.append(repair)

    def cut(self, first: int, second: int) -> None:
        """Drop all packets between two hosts."""
        self.cut_one_way(first, second)
        self.cut_one_way(second, first)

    def cut_one_way(self, sender: int, receiver: int) -> None:
        """Drop all packets from one host to another."""
        source, target = self.hosts[sender].where, self.hosts[receiver].where
        self._fault(lambda: source.mislead(target), lambda: source.find(target))

    def refuse(self, first: int, second: int) -> None:
        """Reject all packets between two hosts."""
        for source, target in itertools.permutations((self.hosts[first].where, self.hosts[second].where)):
            self._fault(partial(source.refuse_all, target), partial(source.allow_all, target))

    def isolate(self, number: int) -> None:
        """Cut a host off from all other hosts; the computer of its user still reaches it."""
        for other in range(len(self.hosts)):
            if other != number:
                self.cut(number, other)

    def unplug(self, where: Namespace) -> None:
        """Unplug the network cable of a namespace."""
        self._fault(where.unplug, where.plug)

    def choke(self, number: int) -> None:
        """Delay the packets that a host sends, and drop those that exceed the queue."""
        where = self.hosts[number].where
        self._fault(where.choke, where.widen)

    def kill_host(self, number: int) -> None:
        """Unplug a host and end everything that runs on it, at once."""
        host = self.hosts[number]
        self._repairs.append(host.start)
        self._fault(host.die, host.where.plug)

    def heal(self) -> None:
        """Undo all faults that were ordered through this object."""
        while self._repairs:
            self._repairs.pop()()

    # --- the end ----------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Undo all faults, and end the processes that a failed test left."""
        self.heal()
        for client in self._clients:
            if client.poll() is None:
                client.kill()
                client.wait(60)
        self._clients.clear()
        for host in self.hosts:
            host.start()
            host.clear()


@contextlib.contextmanager
def fault_fleet(
    directory: Path,
    count: int,
    *,
    pythons: Mapping[int, str] | None = None,
    variables: Mapping[str, str] | None = None,
) -> Iterator[FaultFleet]:
    """Yield a fleet of `count` hosts below `directory`; delete it at the end.

    Args:
        directory: Directory of all files of the fleet.
        count: Number of hosts.
        pythons: Interpreter of agents and scripts by host number, for hosts that do not use the one of the tests.
        variables: Further environment of everything that SSH starts.
    """
    sshd.make_separation_directory()
    state, work = directory / "state", directory / "work"
    work.mkdir(parents=True)
    files = Store(state).fleet(FLEET)
    public = files.create()
    with namespaces(count + 1) as places:
        hosts = [
            FaultHost(f"worker-{number}", place, directory / f"host-{number}", sys.executable, public)
            for number, place in enumerate(places[:-1])
        ]
        for number, python in (pythons or {}).items():
            hosts[number].python = python
        for host in hosts:
            host.variables.update(variables or {})
        fleet = FaultFleet(hosts, places[-1], state, work)
        try:
            reached = tuple(host.prepare() for host in hosts)
            files.write(FleetRecord(FleetSpec(FLEET, "local", count, public), time.time(), reached))
            for host in hosts:
                host.start()
            yield fleet
        finally:
            fleet.clear()
            for host in hosts:
                host.power_off()
