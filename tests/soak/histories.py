"""Play random histories: a short job each, with faults at random times. The seed determines the plan."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.soak.lane import HOSTS, UP, Client, Lane, new_lane
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


class Plan(NamedTuple):
    """A history to play: the options of the job, the faults, and when the user repairs the fleet."""

    lines: int
    restarts: int
    link_timeout_s: int
    host_timeout_s: int
    faults: tuple[Fault, ...]
    repair_s: float  # after the last fault; 0: after the client has ended
    thorough: bool  # also run plain `fleet logs` and `fleet status`


_TARGETS = {
    "client": 6, "listener": 2, "session": 5, "conversation": 5, "watchdog": 3, "supervisor": 4, "replicator": 1,
    "task": 3, "host": 2, "computer": 1,
}  # fmt: skip
"""Targets of faults, by frequency."""
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
    at_s, host = round(chance.uniform(0.0, 3.0), 2), chance.choice(HOSTS)
    lengths = [0.5, 2.0, 7.0, *([] if target in ("client", "task") else [FOREVER])]
    return Fault(phase, at_s, target, host, number, chance.choice(lengths) if number is _STOP else 0.0)


class Faults:
    """Inject faults at their times, in a separate thread; settle() ends it."""

    def __init__(self, lane: Lane, client: Client, faults: Sequence[Fault] = ()) -> None:
        self.hit: Counter[str] = Counter()
        self._lane = lane
        self._client = client
        self._waiting = list(faults)
        self._frozen: list[tuple[Process, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        running_at = 0.0
        while not self._over.wait(0.05):
            now = time.monotonic()
            if not running_at and self._waiting and self._lane.has_begun():
                running_at = now
            for fault in list(self._waiting):
                since = self._client.started_at if fault.phase == "start" else running_at
                if since and now >= since + fault.at_s and self.strike(fault):
                    self._waiting.remove(fault)
            self._thaw(now)

    def strike(self, fault: Fault) -> bool:
        """Inject a fault now; return False if the target process does not exist yet."""
        if fault.target == "client":
            runs = self._client.process.poll() is None
            targets = [Process(self._client.process.pid, ProcessKind.TASK, "")] if runs else []
        else:
            kinds = {"computer": [*ProcessKind], "host": AGENTS}.get(fault.target) or [ProcessKind(fault.target)]
            listed = self._lane.processes()
            targets = [process for process in listed if process.host == fault.host and process.part in kinds]
        met = [process for process in targets if process.send(fault.number)]
        self.hit[f"{fault.target} {fault.number.name}"] += bool(met)
        if fault.number is signal.SIGSTOP:
            until = time.monotonic() + fault.frozen_s
            self._frozen += [(process, until) for process in met]
        return bool(met)

    def are_over(self) -> bool:
        """Return whether each fault was injected."""
        return not self._waiting

    def _thaw(self, now: float) -> None:
        """Continue the processes that are due."""
        for process, _ in (entry for entry in self._frozen if now >= entry[1]):
            process.send(signal.SIGCONT)
        self._frozen = [entry for entry in self._frozen if now < entry[1]]

    def settle(self) -> None:
        """Stop injecting faults, and continue all frozen processes."""
        self._over.set()
        self._thread.join()
        self._thaw(time.monotonic() + FOREVER)


def play(seed: int, hit: Counter[str], directory: Path) -> None:
    """Play a history, and check the promises that must hold after it; add its faults to `hit`."""
    history = plan(seed)
    with new_lane(directory) as lane:
        client, repair = _play(lane, history, hit)
        commands = [client, *([repair] if repair is not None else [])]
        broken = [*_afterwards(lane, history, client, commands)]
        broken += [problem for command in commands for problem in _check_command(command)]
    assert not broken, f"{'; '.join(broken)}\n{history}"


def _play(lane: Lane, history: Plan, hit: Counter[str]) -> tuple[Client, Client | None]:
    """Run the job under its faults; return its client, and that of the repair."""
    client = lane.start(
        "train", "task.py", "--restarts", str(history.restarts), "--grace", "2",
        "--link-timeout", str(history.link_timeout_s), "--host-timeout", str(history.host_timeout_s),
        "--", str(history.lines), "0.025", "1e12",
    )  # fmt: skip
    faults = Faults(lane, client, history.faults)
    repair = None
    if history.repair_s:
        lane.wait(lambda: client.process.poll() is not None or faults.are_over(), _START_S)
        lane.wait(lambda: client.process.poll() is not None, history.repair_s)
        repair = lane.start(*UP)
    client.end()
    faults.settle()
    hit.update(faults.hit)
    if repair is not None:
        repair.end()
    return client, repair


def _afterwards(lane: Lane, history: Plan, client: Client, commands: list[Client]) -> Iterator[str]:
    """Follow the job to its end from another client; yield what differs from what is stored."""

    def run(*arguments: str) -> Client:
        commands.append(lane.run(*arguments))
        return commands[-1]

    if not lane.is_up() and (again := run(*UP)).code != 0:
        yield f"`up` ended with {again.code} after the faults were over"
    job = client.job or lane.job()
    if job:
        logs = run("logs", "-f", "--job", job)
        yield from _compare(lane, job, client, logs)
        if history.thorough and logs.code in _END_CODES:
            yield from _differences(lane, job, run("logs", "--job", job))
    elif client.code == 0:
        yield "`train` ended with 0, and no job exists"
    if history.thorough and (status := run("status")).code != 0:
        yield f"`status` ended with {status.code}"
    if not lane.wait(lambda: not lane.left(), _SETTLE_S):
        yield "still running: " + ", ".join(f"{process.part.value} of {process.host}" for process in lane.left())


def _compare(lane: Lane, job: str, client: Client, logs: Client) -> Iterator[str]:
    """Compare exit codes and logs of the client that started a job and of the client that followed it later."""
    differ = client.code in _END_CODES and logs.code != client.code
    denied = client.code in (14, 103) and logs.code in _END_CODES
    if differ or denied or logs.code not in (0, 14, 100, 102, 103):
        yield f"`train` ended with {client.code}, `logs -f` with {logs.code}"
    if logs.code in _END_CODES:
        yield from _differences(lane, job, logs)
        for worker in HOSTS:
            if Counter(client.lines(worker)) - Counter(lane.stored(job, worker)):
                yield f"`train` shows lines of {worker} twice, or that it did not write"
        if client.code in _END_CODES:
            yield from _differences(lane, job, client)


def _differences(lane: Lane, job: str, client: Client) -> Iterator[str]:
    """Yield the workers whose log a command does not show completely, without a report of this."""
    for worker in HOSTS:
        shown, stored = client.lines(worker), lane.stored(job, worker)
        if shown != stored and not (client.arguments[0] == "train" and client.reports_gap(worker)):
            words = " ".join(client.arguments[:2])
            yield f"`{words}` ({client.code}) shows {len(shown)} of {len(stored)} lines of {worker}"


def _check_command(command: Client) -> Iterator[str]:
    name = f"`{command.arguments[0]}`"
    if command.hung:
        yield f"{name} did not end"
    elif command.code not in _PLANNED_CODES and not (command.arguments[0] == "logs" and command.code == 102):
        yield f"{name} ended with {command.code}"
    if "Traceback (most recent call last)" in command.words or "a bug of fleet" in command.words:
        yield f"{name} printed a traceback"
