"""Run the campaign `results`: faults and users' actions while results are pulled, pruned, and a fleet is deleted.

A history trains, pulls with `fleet pull` or `fleet train --pull`, and runs `fleet down` without consent to any loss.
Between the commands, hosts are lost and repaired, pulled files are edited, deleted, or blocked, and jobs are pruned.
After each command, each file of each task must be on its host or whole on this computer.

A fault is aimed at a window by what the command does to files: the client is stopped at the event, the fault is
injected, and the client continues.
"""

from __future__ import annotations

import hashlib
import random
import resource
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.soak.file_events import Change, FileEvents
from tests.soak.lane import HOSTS, UP, Client, Lane, new_lane
from tests.soak.processes import ProcessKind

KINDS = ("kill the client", "interrupt the client", "fill the disk", "cut a link", "kill a host")
EVENTS = ("lose a host", "repair", "edit a file", "delete a file", "block a file", "prune", "pull one task")
_COMMANDS = ("pull", "pull", "logs", "jobs")
_ATTEMPTS = 8
_MARK = ".fleet-results"
_DIRECTORIES = {"MODEL": "model", "CHECKPOINT": "checkpoints", "LOG": "tensorboard"}
_FILES = tuple(
    (kind, rank, name) for kind in _DIRECTORIES for rank in range(len(HOSTS)) for name in ("a", "b c\n", "same")
)

# Writes files whose contents follow from their names. Argument: size of each file in KiB.
TASK = r"""
import hashlib, os, sys
size, rank = int(sys.argv[1]) << 10, os.environ["FLEET_RANK"]
for kind in ("MODEL", "CHECKPOINT", "LOG"):
    for name in ("a", "b c\n", "same"):
        seed = hashlib.sha256(f"{kind} {name if name == 'same' else rank} {name}".encode()).digest()
        with open(os.path.join(os.environ[f"FLEET_{kind}_DIR"], name), "wb") as file:
            file.write(seed * (size // len(seed)))
print("written", flush=True)
"""


@dataclass(frozen=True)
class Fault:
    """A fault in a window: when the command has changed files this number of times."""

    kind: str
    host: str
    window: str
    changes: int


# Which change of which files marks a window. Directories are named by `_directories`.
WINDOWS: dict[str, tuple[str, Change, str]] = {
    "first byte": ("results", Change.CREATED, ".part"),
    "transfer": ("results", Change.WRITTEN, ".part"),
    "rename": ("results", Change.MOVED, ".part"),
    "survey": ("hosts", Change.WRITTEN, ".log"),  # sshd logs the connections of the client
    "deletion": ("hosts", Change.DELETED, ""),
}
_PULLS = ("first byte", "transfer", "transfer", "rename", "rename")
_DOWNS = ("survey", "deletion", "deletion")


@dataclass(frozen=True)
class History:
    """A plan.

    Attributes:
        seed: The seed of the plan.
        size_kib: Size of each file in KiB.
        requested: Whether `train --pull` is used; it has the first fault of `pulls`.
        pulls: Commands that pull, each after an event and with its fault.
        complete: Whether the fleet is repaired and pulled before `down`; otherwise, `down` often refuses to delete.
        downs: The faults of `down`.
    """

    seed: int
    size_kib: int
    requested: bool
    pulls: tuple[tuple[str, str, Fault], ...]
    complete: bool
    downs: tuple[Fault, ...]


def plan(seed: int) -> History:
    """Return the history of a seed."""
    chance = random.Random(seed)

    def fault(windows: tuple[str, ...]) -> Fault:
        window = chance.choice(windows)
        kinds = KINDS[:3] if window == "deletion" else KINDS  # nothing is connected during a deletion
        return Fault(chance.choice(kinds), chance.choice(HOSTS), window, chance.randint(1, 6))

    requested = chance.random() < 0.5
    size = chance.choice((64, 1024, 4096))
    pulls = tuple(
        (chance.choice(("", *EVENTS)), chance.choice(_COMMANDS), fault(_PULLS)) for _ in range(chance.randint(1, 3))
    )
    downs = tuple(fault(_DOWNS) for _ in range(chance.randint(0, 2)))
    return History(seed, size, requested, pulls, chance.random() < 0.7, downs)


@dataclass
class _Player:
    lane: Lane
    history: History
    hit: Counter[str]

    def __post_init__(self) -> None:
        self.targets = [self.lane.work / "pulled-1"]
        self.chance = random.Random(self.history.seed)

    def play(self) -> str:
        """Play the history; return the violation, empty if there is none."""
        (self.lane.work / "write.py").write_text(TASK)
        arguments = ["write.py", "--", str(self.history.size_kib)]
        first, *others = self.history.pulls
        if self.history.requested:
            problem = self._step(["train", "--pull", self.target.name, *arguments], first[2])
        else:
            others = [first, *others]
            problem = self._check(self.lane.run("train", *arguments))
        for event, command, fault in others:
            problem = problem or self._disturb(event)
            is_pending = self.history.requested and self._missing()
            problem = problem or self._step(self._arguments(command if is_pending else "pull"), fault)
        if self.history.complete and self.history.downs and not problem:
            self.lane.run(*UP)
            problem = self._check(self.lane.run("pull", "--to", self.target.name))
        for fault in self.history.downs:
            problem = problem or self._step(["down"], fault)
        return problem or self._finish()

    @property
    def target(self) -> Path:
        return self.targets[-1]

    def _disturb(self, event: str) -> str:
        """Do what a user, or chance, does between two commands; return the violation."""
        self.hit[event or "no event"] += 1
        if event in ("repair", "prune", "pull one task"):
            partly = ("pull", "--worker", str(self.chance.randrange(len(HOSTS))), "--to", self.target.name)
            commands = {"repair": UP, "prune": ("jobs", "--prune", "--yes"), "pull one task": partly}
            return self._check(self.lane.run(*commands[event]))
        if event == "lose a host":
            lost = self.chance.choice((HOSTS[0], *HOSTS))  # mostly the one of the chief
            for process in self.lane.processes():
                if process.host == lost and process.part is not ProcessKind.TASK:
                    process.send(signal.SIGKILL)
        elif event and (copies := self._copies()):
            path = self.chance.choice(copies)
            if event == "edit a file":
                path.write_bytes(path.read_bytes()[::-1] + b"mine")
            else:
                path.unlink()
            if event == "block a file":
                path.mkdir()
        return ""

    def _copies(self) -> list[Path]:
        """Return the files on this computer that are also on their hosts: a user may change them."""
        on_hosts = [path for path in _FILES if self._is_on_host(*path)]
        return sorted(
            {path for each in on_hosts for path in self._paths(*each) if self._is_whole(path, *each)}
            if len(on_hosts) == len(_FILES)
            else ()
        )

    def _arguments(self, command: str) -> list[str]:
        """Return the arguments of a command; a pull after a complete one may copy everything to a new directory."""
        if command == "pull" and not self._missing() and self.chance.random() < 0.5:
            self.targets.append(self.lane.work / f"pulled-{len(self.targets) + 1}")
        return [command, "--to", self.target.name] if command == "pull" else [command]

    def _directories(self) -> dict[str, list[Path]]:
        if not self.target.exists():  # its creation could not be observed otherwise
            (self.target / _MARK).mkdir(parents=True, mode=0o700)
        state = self.lane.state
        return {"results": [self.target / _MARK], "hosts": [state / "local", *(state / "local").glob("*/")]}

    def _step(self, arguments: list[str], fault: Fault) -> str:
        """Run a command, and inject a fault in its window."""
        directory, change, suffix = WINDOWS[fault.window]
        name = f"{arguments[0]}, {fault.window}: {fault.kind}"
        with FileEvents(self._directories()[directory], change, suffix) as events:
            client = self.lane.start(*arguments)
            if events.wait(fault.changes, client.process):
                self.hit[name] += self._inject(client, fault)
            else:
                self.hit[f"{arguments[0]}, {fault.window}: did not occur"] += 1
        client.end()
        return self._check(client)

    def _inject(self, client: Client, fault: Fault) -> bool:
        """Inject a fault while the client is stopped; return False if it has ended already."""
        client.process.send_signal(signal.SIGSTOP)
        is_hit = client.process.poll() is None
        if fault.kind == KINDS[0]:
            client.process.send_signal(signal.SIGKILL)
        elif fault.kind == KINDS[1]:
            client.process.send_signal(signal.SIGINT)
        elif fault.kind == KINDS[2]:  # no file can become larger than this
            resource.prlimit(client.process.pid, resource.RLIMIT_FSIZE, (self.history.size_kib << 9,) * 2)
        else:
            parts = {ProcessKind.SESSION} | ({ProcessKind.LISTENER} if fault.kind == KINDS[4] else set())
            processes = [item for item in self.lane.processes() if item.host == fault.host and item.part in parts]
            is_hit &= sum(process.send(signal.SIGKILL) for process in processes) > 0
        client.process.send_signal(signal.SIGCONT)
        return is_hit

    def _check(self, client: Client) -> str:
        """Return which file is lost, and after which command."""
        lost = [path for path in self._missing() if not self._is_on_host(*path)]
        words = " ".join(client.arguments)
        if len(lost) == len(_FILES) and client.arguments[0] == "train":
            return f"`{words}` wrote nothing: {client.words[-500:]}"
        if client.hung:
            return f"`{words}` hung"
        if "Traceback" in client.words or "internal error" in client.words:
            return f"`{words}`: {client.words[-500:]}"
        return f"{len(lost)} files lost after `{words}`, code {client.code}: {lost[0]}" if lost else ""

    def _missing(self) -> list[tuple[str, int, str]]:
        """Return the files that are not whole on this computer."""
        return [each for each in _FILES if not any(self._is_whole(path, *each) for path in self._paths(*each))]

    def _paths(self, kind: str, rank: int, name: str) -> list[Path]:
        """Return the paths that a file can have on this computer."""
        directory, local = _DIRECTORIES[kind], name.replace("\n", "%0A")
        paths = [
            f"{directory}/{local}",
            f"others/worker-{rank}/{directory}/{local}",
            f"{directory}/worker-{rank}/{local}",
        ]
        return [target / path for target in self.targets for path in paths]

    def _is_on_host(self, kind: str, rank: int, name: str) -> bool:
        pattern = f"*-worker-{rank}/fleet/jobs/*/worker-{rank}/*/{name}"
        return any(self._is_whole(path, kind, rank, name) for path in (self.lane.state / "local").glob(pattern))

    def _is_whole(self, path: Path, kind: str, rank: int, name: str) -> bool:
        seed = hashlib.sha256(f"{kind} {name if name == 'same' else rank} {name}".encode()).digest()
        try:
            return path.read_bytes() == seed * ((self.history.size_kib << 10) // len(seed))
        except OSError:
            return False

    def _finish(self) -> str:
        """Repair, pull, and delete as the messages say, until the fleet is gone."""
        words = ""
        for _ in range(_ATTEMPTS):
            pull = ("pull", "--to", self.target.name)
            for arguments in (("down",), UP, ("down",), pull):
                client = self.lane.run(*arguments)
                problem = self._check(client)
                if problem:
                    return problem
                if arguments == pull and client.code == 2:  # a file was changed here
                    self.targets.append(self.lane.work / f"pulled-{len(self.targets) + 1}")
                if arguments == ("down",) and client.code == 0:
                    return f"not pulled before `down`: {self._missing()[0]}" if self._missing() else ""
                words = client.words
        return f"`down` was refused {_ATTEMPTS} times: {words[-500:]}"


def play(seed: int, hit: Counter[str], directory: Path) -> None:
    """Play the history of a seed; add its faults and events to `hit`."""
    with new_lane(directory) as lane:
        problem = _Player(lane, plan(seed), hit).play()
        assert not problem, problem
