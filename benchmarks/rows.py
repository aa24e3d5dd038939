"""The ten rows: what a user waits for, compared with what can be done instead."""

from __future__ import annotations

import fcntl
import itertools
import os
import pty
import signal
import statistics
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

from benchmarks import scripts
from benchmarks.command import MeasureError, end, environment, started, wait_until
from benchmarks.hosts import FLEET, Hosts, bare, by_ssh, configurations, joined, limited_link, local
from provision.local.processes import MARK

Values = tuple[float, ...]
"""The measured values of one run of a program."""

_TERMINAL = struct.pack("HHHH", 50, 160, 0, 0)
_ENDED = (0, 101, 102)  # exit codes of fleet stop


@dataclass(frozen=True)
class Line:
    """One line of the table.

    Attributes:
        work: What is done.
        unit: Of `fleet` and `peer`.
        fleet: Value of fleet; None: it was not measured.
        instead: What a user would do instead.
        peer: Its value.
        value: What the goal limits: a ratio to the peer, or the value of fleet.
        is_ratio: Whether `value` is a ratio.
        goal: The limit.
        at_least: Whether it is a lower limit.
    """

    work: str
    unit: str
    fleet: float | None
    instead: str
    peer: float | None
    value: float | None
    is_ratio: bool
    goal: float
    at_least: bool = False

    @property
    def is_reached(self) -> bool | None:
        """Return whether the goal is reached; None if it was not measured."""
        if self.value is None:
            return None
        return self.value >= self.goal if self.at_least else self.value <= self.goal


@dataclass
class Results:
    """Values of the programs of a row, by name, in the order of the rounds."""

    samples: dict[str, list[Values]]

    def median(self, name: str, column: int = 0) -> float | None:
        """Return the median of a program; None if it was not measured."""
        values = [sample[column] for sample in self.samples.get(name, ())]
        return statistics.median(values) if values else None

    def ratio(
        self, work: str, unit: str, peer: str, goal: float, *, name: str = "fleet", at_least: bool = False
    ) -> Line:
        """Return a line whose goal limits the median ratio of two runs of the same round."""
        pairs = zip(self.samples.get(name, ()), self.samples.get(peer, ()), strict=False)
        ratios = [ours[0] / theirs[0] for ours, theirs in pairs]
        value = statistics.median(ratios) if ratios else None
        return Line(work, unit, self.median(name), peer, self.median(peer), value, True, goal, at_least)

    def limit(self, work: str, unit: str, goal: float, *, column: int = 0, peer: str = "") -> Line:
        """Return a line whose goal limits the value of fleet."""
        value = self.median("fleet", column)
        return Line(work, unit, value, peer or "-", self.median(peer, column), value, False, goal)


@dataclass
class Bench:
    """A run of the benchmarks.

    Attributes:
        root: An empty directory with a short path.
        is_quick: Whether this is a smoke test: small, and without TensorFlow.
        problems: Why a program was not measured.
    """

    root: Path
    is_quick: bool = False
    problems: list[str] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def directory(self) -> Path:
        """Return the path of a new directory, which is not created."""
        return self.root / str(next(self._numbers))

    def script(self, text: str) -> Path:
        """Return the path of a new script."""
        return scripts.write_script(self.directory(), text)

    def measure(
        self, cases: Mapping[str, Callable[[], Values]], rounds: int, before: Callable[[], object] = lambda: None
    ) -> Results:
        """Run every case in every round, in alternating order. A case that fails is left out of the next rounds.

        Args:
            cases: Functions by name of the program, each of which does the work once.
            rounds: Number of rounds; a smoke test has one.
            before: Called before each case.
        """
        samples: dict[str, list[Values]] = {name: [] for name in cases}
        left = list(cases)
        for _ in range(1 if self.is_quick else rounds):
            for name in list(left):
                before()
                try:
                    samples[name].append(cases[name]())
                except MeasureError as error:
                    self.problems.append(f"{name}: {error}")
                    left.remove(name)
            left.reverse()
        return Results(samples)


def read_marks(directory: Path, name: str, workers: int, attempt: int = 1) -> list[list[float]]:
    """Return the values that each worker wrote, when all did."""
    paths = [directory / f"{name}-{attempt}-{rank}" for rank in range(workers)]
    wait_until(lambda: all(path.exists() for path in paths), f"{name} of attempt {attempt}")
    return [[float(word) for word in path.read_text().split()] for path in paths]


def await_end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait until processes end without an error."""
    wait_until(lambda: all(process.poll() is not None for process in processes), "the end of a script", 0.05)
    if any(process.returncode for process in processes):
        raise MeasureError("a script failed")


def measure_steps(bench: Bench) -> Iterator[Line]:
    """Train two workers that share the cores, with fleet and by hand, in pairs."""
    script = bench.script(scripts.steps(5 if bench.is_quick else 250, is_standin=bench.is_quick))
    with local(bench.directory(), 2) as hosts:
        by_hand = [sys.executable, str(script), str(hosts.marks)]

        def read() -> Values:
            return tuple(statistics.mean(column) for column in zip(*read_marks(hosts.marks, "steps", 2), strict=True))

        def fleet() -> Values:
            hosts.fleet("train", str(script), "--", str(hosts.marks))
            return read()

        def hand() -> Values:
            with started([by_hand] * 2, configurations(2)) as processes:
                await_end(processes)
            return read()

        results = bench.measure({"fleet": fleet, "by hand": hand}, 10, hosts.clear)
    yield results.ratio("training steps of 2 workers, median of 10 pairs", "1/s", "by hand", 0.98, at_least=True)
    step_s, ours, theirs = results.median("by hand", 1), results.median("fleet", 2), results.median("by hand", 2)
    share = 100 * (ours - theirs) / step_s if step_s and ours is not None and theirs is not None else None
    yield Line("CPU of the hook per step, of the task's", "%", share, "-", None, share, False, 0.5)


def measure_start(bench: Bench) -> Iterator[Line]:
    """Edit a script and run it again: the time from Enter to the end of the first step of all workers."""
    text, edits = scripts.first_step(is_standin=bench.is_quick), itertools.count()
    script, by_hand = bench.script(text), "rsync + ssh by hand"
    with local(bench.directory(), 2) as hosts:

        def edit() -> None:
            hosts.clear()
            script.write_text(f"{text}# edit {next(edits)}\n")

        def first_step(start: Callable[[], object]) -> Values:
            begin = time.time()
            start()
            return (max(mark[0] for mark in read_marks(hosts.marks, "stepped", 2)) - begin,)

        def fleet(*options: str) -> None:
            hosts.fleet("train", *options, str(script), "--", str(hosts.marks))

        def hand() -> None:
            hosts.run(hosts.rsync(script.parent))
            commands = by_ssh(hosts, f"{sys.executable} job/task.py {hosts.marks}")
            with started(commands, [{}] * 2) as processes:
                await_end(processes)

        fleet("--warm")  # the first run, which leaves a warm process
        cases: dict[str, Callable[[], object]] = {
            "fleet": fleet,
            "fleet --warm": partial(fleet, "--warm"),
            by_hand: hand,
        }
        results = bench.measure({name: partial(first_step, case) for name, case in cases.items()}, 4, edit)
    work = "Enter to the first step of an edited script"
    yield results.ratio(f"{work}, second run, `--warm`", "s", by_hand, 0.35, name="fleet --warm")
    yield results.ratio(f"{work}, second run", "s", by_hand, 1.05)


def measure_restart(bench: Bench) -> Iterator[Line]:
    """Kill a worker of four; wait for the end of all, and for the user's code of the next attempt."""
    workers, script = 2 if bench.is_quick else 4, bench.script(scripts.until_killed(is_standin=bench.is_quick))
    with local(bench.directory(), workers) as hosts:

        def kill(processes: Sequence[subprocess.Popen[bytes]]) -> tuple[float, float]:
            """Kill a worker; return when, and the seconds until all have ended."""
            pids = [int(mark[1]) for mark in read_marks(hosts.marks, "stepped", workers)]
            os.kill(pids[1], signal.SIGKILL)
            begin = time.time()

            def have_ended() -> bool:
                statuses = [process.poll() for process in processes]  # which reaps those of this program
                return bool(statuses) and not any(is_alive(pid) for pid in pids)

            wait_until(have_ended, "the end of all tasks")
            return begin, time.time() - begin

        def fleet() -> Values:
            command = [FLEET, "train", "--restarts", "1", str(script), "--", str(hosts.marks)]
            with started([command], [hosts.environment]) as clients:
                begin, stopped_s = kill(clients)
                next_at = max(mark[0] for mark in read_marks(hosts.marks, "begun", workers, attempt=2))
                await_end(clients)
            return stopped_s, next_at - begin - stopped_s

        def hand() -> Values:
            with started(
                [[sys.executable, str(script), str(hosts.marks)]] * workers, configurations(workers)
            ) as tasks:
                _, stopped_s = kill(tasks)
            return (stopped_s, 0.0)

        # Only TensorFlow notices that a worker is gone; the stand-in of a smoke test would not end.
        cases = {"fleet": fleet} if bench.is_quick else {"fleet": fleet, "TensorFlow by hand": hand}
        results = bench.measure(cases, 2, hosts.clear)
    yield results.limit(f"one of {workers} workers killed: all tasks stopped", "s", 2.0, peer="TensorFlow by hand")
    yield results.limit("after that, user code of the next attempt", "s", 3.0, column=1)


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def measure_job(bench: Bench) -> Iterator[Line]:
    """Copy a new directory to all hosts, run a script that reads it, and wait for the end."""
    workers, files = (2, 20) if bench.is_quick else (8, 500)
    tree, seeds = bench.directory(), itertools.count(int(time.time()))
    with local(bench.directory(), workers) as hosts:

        def renew() -> None:
            hosts.clear()
            seed = next(seeds)
            scripts.write_tree(tree, seed, files)
            (tree / "job.py").write_text(f"assert open('d00/f000.txt').read().startswith('#{seed} ')\n")

        command = f"{sys.executable} job.py"
        cases: dict[str, Callable[[], Values]] = {
            "fleet": lambda: (hosts.fleet("train", str(tree / "job.py")).seconds,),
            "ansible": lambda: (hosts.run(hosts.ansible(tree, command)).seconds,),
            "rsync + pdsh": lambda: (hosts.run(joined(hosts.rsync(tree), hosts.pdsh_in_copies(command))).seconds,),
        }
        results = bench.measure(cases, 4, renew)
    work = f"a job with a new directory of {files} files, {files / 100:g} MB, on {workers} hosts"
    yield results.ratio(work, "s", "ansible", 0.2)
    yield results.ratio(work, "s", "rsync + pdsh", 1.0)


def measure_exec(bench: Bench) -> Iterator[Line]:
    """Run `true` on all hosts, with new connections."""
    group = "fabric's ThreadingGroup"
    for workers in (2,) if bench.is_quick else (8, 64):
        with local(bench.directory(), workers) as hosts:
            cases = {
                "fleet": partial(seconds_of, hosts, lambda _: [FLEET, "exec", "--", "true"]),
                group: partial(seconds_of, hosts, lambda hosts: hosts.group("true")),
                "pdsh": partial(seconds_of, hosts, lambda hosts: hosts.pdsh("true")),
            }
            results = bench.measure(cases, 5)
        yield results.ratio(f"`true` on {workers} hosts", "s", group, 1.1)
        if workers != 8:
            yield results.ratio(f"`true` on {workers} hosts", "s", "pdsh", 1.3)


def seconds_of(hosts: Hosts, command: Callable[[Hosts], list[str]]) -> Values:
    """Return the seconds of one run of a client."""
    return (hosts.run(command(hosts)).seconds,)


def measure_uplink(bench: Bench) -> Iterator[Line]:
    """Copy random data through a link of 200 Mbit/s to all hosts."""
    workers, megabytes, data = (2, 1, bench.directory()) if bench.is_quick else (8, 250, bench.directory())
    scripts.write_random(data, megabytes)
    with (
        limited_link(workers, "200mbit") as (prefix, addresses),
        bare(bench.directory(), addresses, prefix=prefix) as hosts,
    ):
        cases: dict[str, Callable[[], Values]] = {
            "fleet": lambda: (hosts.fleet("train", "--workdir", str(data), "--", "true").seconds,),
            "rsync": lambda: (hosts.run(hosts.rsync(data)).seconds,),
        }
        results = bench.measure(cases, 1, hosts.clear)
    yield results.ratio(f"{megabytes} MB to {workers} hosts over an uplink of 200 Mbit/s", "s", "rsync", 0.2)


def measure_logs(bench: Bench) -> Iterator[Line]:
    """Follow a job that prints as fast as it can to a pipe; then read its stored logs."""
    workers, lines = (2, 1000) if bench.is_quick else (8, 260_000)
    script, count = bench.script(scripts.EMIT), workers * lines
    with local(bench.directory(), workers) as hosts:
        train = ["train", "--raw", str(script), "--", str(lines)]
        command = f"{sys.executable} {script} {lines}"
        cases: dict[str, Callable[[], Values]] = {
            "fleet": lambda: (hosts.fleet(*train, lines=count).lines_per_s / 1000,),
            "pdsh": lambda: (hosts.run(hosts.pdsh(command), lines=count).lines_per_s / 1000,),
        }
        live = bench.measure(cases, 3)
        stored = bench.measure({"fleet": lambda: (hosts.fleet("logs", "--raw", lines=count).memory_mb,)}, 1)
    yield live.ratio(f"live logs of {workers} hosts", "1000 lines/s", "pdsh", 2.0, at_least=True)
    yield stored.limit(f"`fleet logs` of {count * 120 // 1_000_000} MB: memory of the client", "MB", 120.0)


def measure_console(bench: Bench) -> Iterator[Line]:
    """Show the output of all hosts on a terminal; then measure the agents of a silent task."""
    workers, rate, seconds = (2, 20, 2.0) if bench.is_quick else (8, 100, 10.0)
    talking, silent = bench.script(scripts.RATE), bench.script("import time\ntime.sleep(3600)\n")
    with local(bench.directory(), workers) as hosts:
        train = [FLEET, "train", str(talking), "--", str(rate), str(seconds)]
        shown = bench.measure({"fleet": lambda: (terminal_load(hosts, train, seconds),)}, 3)
        hosts.fleet("train", "--detach", str(silent))
        agents = bench.measure({"fleet": lambda: agent_load(hosts, 1.0 if bench.is_quick else 30.0)}, 1)
        hosts.fleet("stop", codes=_ENDED)
    yield shown.limit(
        f"live console, {workers} hosts with {rate} lines/s each: CPU of the client", "% of a core", 8.0
    )
    yield agents.limit("agent on a host, without its task: memory", "MB", 30.0)
    yield agents.limit("agent on a host, without its task: CPU", "% of a core", 0.1, column=1)


def terminal_load(hosts: Hosts, command: Sequence[str], seconds: float) -> float:
    """Return the CPU time of a client and its children in the middle of its output, in percent of a core."""
    reading, writing = pty.openpty()
    fcntl.ioctl(writing, termios.TIOCSWINSZ, _TERMINAL)
    env = environment({**hosts.environment, "TERM": "xterm-256color"})
    client = subprocess.Popen(command, env=env, stdin=writing, stdout=writing, stderr=writing, start_new_session=True)
    os.close(writing)
    has_begun = threading.Event()

    def drain() -> None:
        tail = b""
        with suppress(OSError):  # the other side was closed
            while data := os.read(reading, 1 << 16):
                tail = (tail + data)[-1000:]
                if b" step " in tail:
                    has_begun.set()

    reader = threading.Thread(target=drain, daemon=True)
    reader.start()
    try:
        wait_until(has_begun.is_set, "output of the job")
        time.sleep(seconds / 5)
        begin, before = time.monotonic(), family_s(client.pid)
        time.sleep(seconds * 3 / 5)
        load = 100 * (family_s(client.pid) - before) / (time.monotonic() - begin)
        wait_until(lambda: client.poll() is not None, "the end of the job", 0.05)
    finally:
        end(client)
        reader.join(5)
        os.close(reading)
    if client.returncode:
        raise MeasureError(f"fleet ended with {client.returncode}")
    return load


def family_s(pid: int) -> float:
    """Return the CPU seconds of a process and its children."""
    total = 0.0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for member in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                total += sum(member.cpu_times()[:4])  # the last two: children that have ended
    return total


def agent_load(hosts: Hosts, seconds: float) -> Values:
    """Return memory in MB and CPU time in percent of a core of the agent's processes, for each host."""
    time.sleep(min(3.0, seconds))  # until the start ends
    agents = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            variables = process.environ()
            if variables.get(MARK) in hosts.ids and "TF_CONFIG" not in variables and "python" in process.name():
                agents.append(process)
    if not agents:
        raise MeasureError("no process of an agent runs")
    before = sum(scheduled_s(process.pid) for process in agents)
    time.sleep(seconds)
    spent = sum(scheduled_s(process.pid) for process in agents) - before
    memory = 0.0
    for process in agents:
        with suppress(psutil.Error):
            memory += process.memory_full_info().pss
    return memory / 1e6 / len(hosts.ids), 100 * spent / seconds / len(hosts.ids)


def scheduled_s(pid: int) -> float:
    """Return the CPU seconds of a running process, more precisely than in clock ticks; 0 if it has ended."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):
            total += int(thread.read_text().split()[0])
    return total / 1e9


def measure_environment(bench: Bench) -> Iterator[Line]:
    """Prepare a host that has only Python, with fleet and by hand."""
    python, by_hand = str(Path(sys.executable).resolve()), "python -m venv + pip"
    packages = ["six"] if bench.is_quick else ["tensorflow", "tf-keras"]
    options = [word for package in packages for word in ("--package", package)]

    def fleet() -> Values:
        with bare(bench.directory(), ["127.78.0.1"], *options) as hosts:
            return (hosts.created.seconds,)

    def hand() -> Values:
        install = f"{python} -m venv env && env/bin/pip install -q --no-cache-dir {' '.join(packages)}"
        with bare(bench.directory(), ["127.78.0.2"]) as hosts:
            return (hosts.run(hosts.ssh("w0", install)).seconds,)

    results = bench.measure({"fleet": fleet, by_hand: hand}, 1)
    yield results.ratio(f"environment with {' and '.join(packages)} on a bare host", "s", by_hand, 0.5)


ROWS: Mapping[str, Callable[[Bench], Iterator[Line]]] = {
    "steps": measure_steps,
    "start": measure_start,
    "restart": measure_restart,
    "job": measure_job,
    "exec": measure_exec,
    "uplink": measure_uplink,
    "logs": measure_logs,
    "console": measure_console,
    "environment": measure_environment,
}
"""The measurements by name; `start` measures two rows."""
