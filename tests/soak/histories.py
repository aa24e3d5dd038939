"""Play random histories: a short job each, with faults at random times. The seed determines the plan."""

from __future__ import annotations

import random
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.soak.lane import HOSTS, Client, Lane, thaw
from tests.soak.processes import AGENTS, Process, ProcessKind

FOREVER = 3600.0
"""Frozen until the client has ended: longer than any client may take, in seconds."""

_SETTLE_S = 40.0
_START_S = 60.0
_END_CODES = (0, 100)
_PLANNED_CODES = (0, 13, 14, 100, 101, 103, -signal.SIGKILL, -signal.SIGHUP, -signal.SIGINT, -signal.SIGTERM)


class Fault(NamedTuple):
    """A fault in processes of a fleet.

    Attributes:
        phase: Event that `at_s` counts from: ``start`` of the client, or the first output of a task (``running``).
        at_s: Seconds after that event.
        target: ``client``, ``host`` (all of its agents), ``computer`` (its agents and its sshd), or a process kind.
        host: Host of the processes, if `target` is not the client.
        number: Signal to send.
        frozen_s: For SIGSTOP, seconds until SIGCONT, which is sent earlier if the client ends.
    """

    phase: str
    at_s: float
    target: str
    host: str
    number: signal.Signals
    frozen_s: float = 0.0

    @property
    def kind(self) -> str:
        return f"{self.target} {self.number.name.removeprefix('SIG')}"


class Plan(NamedTuple):
    """A history to play: the options of the job, the faults, and when the user repairs the fleet."""

    seed: int
    lines: int
    restarts: int
    link_timeout_s: int
    host_timeout_s: int
    faults: tuple[Fault, ...]
    repair_s: float  # after the last fault; 0: after the client has ended
    thorough: bool  # also run plain `fleet logs` and `fleet status`


_TARGETS = {
    "client": 6,
    "listener": 2,
    "session": 5,
    "conversation": 5,
    "watchdog": 3,
    "supervisor": 4,
    "replicator": 1,
    "task": 3,
    "host": 2,
    "computer": 1,
}
_KILL, _STOP = signal.SIGKILL, signal.SIGSTOP
_SIGNALS = {
    "client": [_KILL, _KILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, _STOP, _STOP],
    "conversation": [_KILL, signal.SIGTERM, _STOP, _STOP],
    "task": [_KILL, signal.SIGTERM, signal.SIGSEGV, _STOP],
    "computer": [_KILL],
}


def plan(seed: int) -> Plan:
    """Return the history of a seed."""
    chance = random.Random(f"soak faults {seed}")
    lines = chance.randrange(60, 140)
    faults = tuple(_fault(chance) for _ in range(chance.choice([1, 1, 2, 2, 3])))
    severe = {fault.host for fault in faults if fault.target in ("listener", "watchdog", "host", "computer")}
    repair_s = chance.uniform(0.2, 4.0)
    return Plan(
        seed,
        lines,
        restarts=chance.choice([0, 0, 2, 5]),
        link_timeout_s=chance.choice([4, 10]),
        host_timeout_s=chance.choice([2, 8]),
        faults=faults,
        repair_s=repair_s if len(severe) > 1 or (severe and chance.random() < 0.6) else 0.0,
        thorough=chance.random() < 0.25,
    )


def _fault(chance: random.Random) -> Fault:
    target = chance.choices(list(_TARGETS), list(_TARGETS.values()))[0]
    number = chance.choice(_SIGNALS.get(target, [_KILL, _STOP]))
    phase = chance.choice(["start", "running", "running", "running"])
    finite = target in ("client", "task")
    lengths = [0.5, 2.0, 7.0] if finite else [0.5, 2.0, 7.0, FOREVER]
    return Fault(
        phase,
        round(chance.uniform(0.0, 3.0), 2),
        target,
        chance.choice(HOSTS),
        number,
        chance.choice(lengths) if number is _STOP else 0.0,
    )


@dataclass
class Played:
    """The outcome of a history.

    Attributes:
        seed: Seed of the history.
        hit: Number of faults by kind, for faults that reached a process.
        missed: Number of faults by kind, for faults that did not reach a process.
        violations: A sentence for each rule that was broken.
        gaps: Logs that the client reported as incomplete.
        code: Exit code of `fleet train`.
    """

    seed: int
    hit: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    gaps: int = 0
    code: int | None = None


class Faults:
    """Inject faults at their times, in a separate thread; settle() ends it."""

    def __init__(self, lane: Lane, client: Client, before: set[str], faults: Sequence[Fault]) -> None:
        self.hit: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()
        self._lane = lane
        self._client = client
        self._before = before
        self._faults = faults
        self._frozen: list[tuple[Process, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        waiting = sorted(self._faults, key=lambda fault: (fault.phase != "start", fault.at_s))
        running_at = 0.0
        while waiting and not self._over.wait(0.05):
            now = time.monotonic()
            if not running_at and self._lane.begun(self._before):
                running_at = now
            for fault in list(waiting):
                since = self._client.started_at if fault.phase == "start" else running_at
                if since and now >= since + fault.at_s and self.strike(fault):
                    waiting.remove(fault)
            self.thaw_due(now)
        while not self._over.wait(0.05):
            self.thaw_due(time.monotonic())
        self.missed.update(fault.kind for fault in waiting)

    def strike(self, fault: Fault) -> bool:
        """Inject a fault now; return False if the target process does not exist yet."""
        if fault.target == "client":
            targets = [Process(self._client.process.pid, 0, ProcessKind.TASK, "", 0, 0)]
            targets = targets if self._client.process.poll() is None else []
        else:
            targets = [
                process
                for process in self._lane.processes()
                if process.host == fault.host and self._is_met(fault, process)
            ]
        met = [process for process in targets if process.send(fault.number)]
        self.hit[fault.kind] += bool(met)
        if fault.number is signal.SIGSTOP:
            until = time.monotonic() + fault.frozen_s
            self._frozen += [(process, until) for process in met]
        return bool(met)

    @staticmethod
    def _is_met(fault: Fault, process: Process) -> bool:
        if fault.target == "computer":
            return True
        if fault.target == "host":
            return process.part in AGENTS
        return process.part.value == fault.target

    def thaw_due(self, now: float) -> None:
        due = [entry for entry in self._frozen if now >= entry[1]]
        self._frozen = [entry for entry in self._frozen if now < entry[1]]
        thaw([process for process, _ in due])

    def settle(self) -> None:
        """Stop injecting faults, and continue all frozen processes."""
        self._over.set()
        self._thread.join()
        thaw([process for process, _ in self._frozen])


def play(lane: Lane, plan: Plan, keep: Path) -> Played:
    """Play a history, and check the rules that must hold after it."""
    played = Played(plan.seed)
    before = lane.jobs()
    client = lane.start(
        "train", "task.py", "--restarts", str(plan.restarts), "--grace", "2",
        "--link-timeout", str(plan.link_timeout_s), "--host-timeout", str(plan.host_timeout_s),
        "--", str(plan.lines), "0.025", "1e12",
    )  # fmt: skip
    faults = Faults(lane, client, before, plan.faults)
    repair = None
    if plan.repair_s:
        lane.wait(lambda: client.process.poll() is not None or faults.hit.total() == len(plan.faults), _START_S)
        lane.wait(lambda: client.process.poll() is not None, plan.repair_s)
        repair = lane.start("up", "--workers", str(len(HOSTS)))
    client.end()
    faults.settle()
    played.code, played.hit, played.missed = client.code, faults.hit, faults.missed
    if repair is not None:
        repair.end()
    commands = [client, *([repair] if repair else [])]
    commands += _afterwards(lane, plan, client, before, played)
    for command in commands:
        _check_command(command, played)
    if played.violations:
        _keep(lane, plan, keep)
    lane.clear_output()
    return played


def _afterwards(lane: Lane, plan: Plan, client: Client, before: set[str], played: Played) -> list[Client]:
    """Follow the job to its end from another client, and compare what was shown with what is stored."""
    commands = []
    if not lane.is_up():
        again = lane.up()
        commands.append(again)
        if again.code != 0:
            played.violations.append(f"`up` ended with {again.code} after the faults were over")
    job = client.job or next(iter(lane.jobs() - before), "")
    if job:
        logs = lane.run("logs", "-f", "--job", job)
        commands.append(logs)
        _compare(lane, job, client, logs, played)
        if plan.thorough and logs.code in _END_CODES:
            plain = lane.run("logs", "--job", job)
            commands.append(plain)
            played.violations += [
                f"`logs` shows {len(plain.lines(worker))} of {len(stored)} lines of {worker}"
                for worker in HOSTS
                if plain.lines(worker) != (stored := lane.stored(job, worker))
            ]
    elif client.code == 0:
        played.violations.append("`train` ended with 0, and no job exists")
    if plan.thorough:
        status = lane.run("status")
        commands.append(status)
        if status.code != 0:
            played.violations.append(f"`status` ended with {status.code}")
    if not lane.wait(lambda: not lane.left(), _SETTLE_S):
        left = lane.left()
        played.violations.append(
            "still running: " + ", ".join(f"{process.part.value} of {process.host}" for process in left)
        )
        for process in left:
            process.send(signal.SIGKILL)
    return commands


def _compare(lane: Lane, job: str, client: Client, logs: Client, played: Played) -> None:
    """Compare exit codes and logs of the client that started a job and of the client that followed it later."""
    codes = f"`train` ended with {client.code}, `logs -f` with {logs.code}"
    differ = client.code in _END_CODES and logs.code != client.code
    denied = client.code in (14, 103) and logs.code in _END_CODES
    if differ or denied or logs.code not in (0, 14, 100, 102, 103):
        played.violations.append(codes)
    if logs.code not in _END_CODES:
        return
    for worker in HOSTS:
        stored = lane.stored(job, worker)
        if logs.lines(worker) != stored:
            played.violations.append(f"`logs -f` shows {len(logs.lines(worker))} of {len(stored)} lines of {worker}")
        shown = client.lines(worker)
        if Counter(shown) - Counter(stored):
            played.violations.append(f"`train` shows lines of {worker} twice, or that it did not write")
        elif client.code in _END_CODES and shown != stored:
            if client.reports_gap(worker):
                played.gaps += 1
            else:
                shown_of = f"{len(shown)} of {len(stored)} lines of {worker}"
                played.violations.append(f"`train` ({client.code}) shows {shown_of}, and does not say so")


def _check_command(command: Client, played: Played) -> None:
    command_name = f"`{' '.join(command.arguments[:1])}`"
    if command.hung:
        played.violations.append(f"{command_name} did not end")
    elif command.code not in _PLANNED_CODES and not (command.arguments[0] == "logs" and command.code == 102):
        played.violations.append(f"{command_name} ended with {command.code}")
    words = command.words
    if "Traceback (most recent call last)" in words or "a bug of fleet" in words:
        played.violations.append(f"{command_name} printed a traceback")


def _keep(lane: Lane, plan: Plan, keep: Path) -> None:
    target = keep / f"seed-{plan.seed}"
    shutil.copytree(lane.output, target, dirs_exist_ok=True)
    (target / "plan").write_text("\n".join(map(str, [plan._replace(faults=()), *plan.faults])) + "\n")
