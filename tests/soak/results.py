"""Run the campaign `results`: kills of the client, a link, or a host while results are pulled and a fleet is deleted.

A history trains, pulls with `fleet pull` or `fleet train --pull`, and runs `fleet down` without consent to any loss.
After each command, each file of the job must be on its host or whole on this computer.
"""

from __future__ import annotations

import hashlib
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.soak.lane import HOSTS, Client, Lane
from tests.soak.processes import ProcessKind

KINDS = ("kill the client", "interrupt the client", "cut a link", "kill a host")
_COMMANDS = ("pull", "logs", "jobs")
_ATTEMPTS = 8

# Writes files whose contents follow from their names. Argument: size of each file in KiB.
TASK = r"""
import hashlib, os, sys
size, rank = int(sys.argv[1]) << 10, os.environ["FLEET_RANK"]
for kind in ("MODEL", "CHECKPOINT", "LOG"):
    for name in ("a", "b c\n"):
        seed = hashlib.sha256(f"{kind} {rank} {name}".encode()).digest()
        with open(os.path.join(os.environ[f"FLEET_{kind}_DIR"], f"{name}{rank}"), "wb") as file:
            file.write(seed * (size // len(seed)))
print("written", flush=True)
"""


@dataclass(frozen=True)
class Fault:
    """A fault, this time after a command has begun to copy or delete."""

    kind: str
    host: str
    delay_s: float


@dataclass(frozen=True)
class History:
    """A plan: size of each file, whether `train --pull` is used, and faults of the pulls and of `down`."""

    seed: int
    size_kib: int
    requested: bool
    pulls: tuple[tuple[str, Fault], ...]
    downs: tuple[Fault, ...]


def plan(seed: int) -> History:
    """Return the history of a seed."""
    chance = random.Random(seed)

    def fault(longest_s: float) -> Fault:
        return Fault(chance.choice(KINDS), chance.choice(HOSTS), chance.uniform(0, longest_s))

    requested = chance.random() < 0.5
    size = chance.choice((64, 1024, 4096))
    pulls = tuple((chance.choice(_COMMANDS), fault(0.4)) for _ in range(chance.randint(1, 2)))
    return History(seed, size, requested, pulls, tuple(fault(2.0) for _ in range(chance.randint(0, 2))))


@dataclass
class _Player:
    lane: Lane
    history: History
    hit: Counter[str]

    def __post_init__(self) -> None:
        self.target = self.lane.work / f"pulled-{self.history.seed}"

    def play(self) -> str:
        """Play the history; return the violation, empty if there is none."""
        self.lane.up()
        (self.lane.work / "write.py").write_text(TASK)
        options = ["--pull", self.target.name] if self.history.requested else []
        client = self.lane.start("train", *options, "write.py", "--", str(self.history.size_kib))
        first, *others = self.history.pulls
        if self.history.requested:
            self._break(client, first[1])
        else:
            others = [first, *others]
        client.end()
        problem = self._check(client)
        for command, fault in others:
            problem = problem or self._step(command, fault)
        for fault in self.history.downs:
            problem = problem or self._step("down", fault)
        return problem or self._finish()

    def _arguments(self, command: str) -> list[str]:
        return [command, "--to", self.target.name] if command == "pull" else [command]

    def _step(self, command: str, fault: Fault) -> str:
        client = self.lane.start(*self._arguments(command))
        self._break(client, fault, started=command != "pull")
        client.end()
        return self._check(client)

    def _break(self, client: Client, fault: Fault, *, started: bool = False) -> None:
        """Inject a fault after the command has begun to copy."""
        marker = self.target / ".fleet-results"
        self.lane.wait(lambda: started or marker.exists() or client.process.poll() is not None, 60)
        time.sleep(fault.delay_s)
        if client.process.poll() is not None:
            self.hit["too late"] += 1
            return
        self.hit[fault.kind] += 1
        if fault.kind == KINDS[0]:
            client.process.send_signal(signal.SIGKILL)
        elif fault.kind == KINDS[1]:
            client.process.send_signal(signal.SIGINT)
        else:
            parts = {ProcessKind.SESSION} | ({ProcessKind.LISTENER} if fault.kind == KINDS[3] else set())
            for process in self.lane.processes():
                if process.host == fault.host and process.part in parts:
                    process.send(signal.SIGKILL)

    def _check(self, client: Client) -> str:
        """Return which file is lost, and after which command."""
        lost = [path for path in self._missing() if not self._is_on_host(*path)]
        words = " ".join(client.arguments)
        if client.hung:
            return f"`{words}` hung"
        if "Traceback" in client.words or "internal error" in client.words:
            return f"`{words}`: {client.words[-500:]}"
        return f"{len(lost)} files lost after `{words}`, code {client.code}: {lost[0]}" if lost else ""

    def _missing(self) -> list[tuple[str, int, str]]:
        """Return the files that are not whole on this computer."""
        missing = []
        for kind, directory in (("MODEL", "model"), ("CHECKPOINT", "checkpoints"), ("LOG", "tensorboard")):
            for rank in range(len(HOSTS)):
                for name in ("a", "b c\n"):
                    local = f"{name}{rank}".replace("\n", "%0A")
                    paths = [
                        f"{directory}/{local}",
                        f"others/worker-{rank}/{directory}/{local}",
                        f"{directory}/worker-{rank}/{local}",
                    ]
                    if not any(self._is_whole(self.target / path, kind, rank, name) for path in paths):
                        missing.append((kind, rank, name))
        return missing

    def _is_on_host(self, kind: str, rank: int, name: str) -> bool:
        pattern = f"*-worker-{rank}/fleet/jobs/*/worker-{rank}/*/{name}{rank}"
        return any(self._is_whole(path, kind, rank, name) for path in (self.lane.state / "local").glob(pattern))

    def _is_whole(self, path: Path, kind: str, rank: int, name: str) -> bool:
        seed = hashlib.sha256(f"{kind} {rank} {name}".encode()).digest()
        try:
            return path.read_bytes() == seed * ((self.history.size_kib << 10) // len(seed))
        except OSError:
            return False

    def _finish(self) -> str:
        """Repair, pull, and delete as the messages say, until the fleet is gone."""
        words = ""
        for _ in range(_ATTEMPTS):
            for arguments in (["down"], ["up", "--workers", str(len(HOSTS))], self._arguments("pull")):
                client = self.lane.run(*arguments)
                problem = self._check(client)
                if problem:
                    return problem
                if arguments == ["down"] and client.code == 0:
                    return f"not pulled before `down`: {self._missing()[0]}" if self._missing() else ""
                words = client.words
        return f"`down` was refused {_ATTEMPTS} times: {words[-500:]}"


def run(seed: int, histories: int, report: Callable[[str], None]) -> int:
    """Play histories; return the number of violations."""
    violations, hit = 0, Counter[str]()
    for number in range(histories):
        with tempfile.TemporaryDirectory(prefix="fleet-soak-") as directory:
            lane = Lane(Path(directory) / "lane")
            try:
                problem = _Player(lane, plan(seed + number), hit).play()
            finally:
                left = lane.close()
            problem = problem or (f"{left} was left by `down`" if left else "")
        if problem:
            violations += 1
            report(f"violation: seed {seed + number}: {problem}")
        if (number + 1) % 10 == 0:
            report(f"{number + 1} of {histories} histories, {violations} violations")
    report(", ".join(f"{kind}: {count}" for kind, count in sorted(hit.items())))
    return violations
