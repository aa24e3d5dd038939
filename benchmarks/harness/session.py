"""A run of the benchmarks: its size, its hosts, and rounds in a shuffled order."""

from __future__ import annotations

import contextlib
import random
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from benchmarks.harness.command import CommandError, environment
from benchmarks.harness.hosts import FLEET, Hosts, local_arguments
from benchmarks.harness.model import LEAST_RUNS, Goal, Sample, Scene
from benchmarks.harness.peers import MissingError
from benchmarks.harness.text import scene_lines

T = TypeVar("T")
Case = Callable[[], Sample]
SIZES = ("quick", "default", "full")
_SHARE_S = {"quick": 0.0, "default": 60.0, "full": 600.0}  # of one measurement, after the rounds of a verdict
FAILURES = (CommandError, OSError, RuntimeError, TimeoutError, ValueError)


class Session:
    """The hosts and results of the groups.

    Args:
        root: An empty directory with a short path.
        size: quick, default, or full.
        only: Text in the titles of the parts and measurements that are made; empty: all are made.
    """

    def __init__(self, root: Path, size: str, only: str = "") -> None:
        self.root = root
        self.size = size
        self.only = only
        self.scenes: list[Scene] = []
        self.accounting = ""
        self._stack = contextlib.ExitStack()
        self._fleets: dict[int, Hosts] = {}
        self._count = 0
        self._random = random.Random(0)

    @property
    def is_quick(self) -> bool:
        """Return whether this is a smoke test."""
        return self.size == "quick"

    def pick(self, quick: T, default: T, full: T) -> T:
        """Return the value for the size of this run."""
        return {"quick": quick, "default": default, "full": full}[self.size]

    @staticmethod
    def supports(verb: str, option: str) -> bool:
        """Return whether a command of fleet has an option."""
        command = [FLEET, verb, "--help"]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
        return f"{option} " in done.stdout

    def begin(self) -> None:
        """Begin a group."""
        self.scenes, self.accounting = [], ""

    def finish(self) -> None:
        """Finish a group: delete its hosts. A smoke test keeps its fleets for the next group."""
        if not self.is_quick:
            self.close()

    def close(self) -> None:
        """Delete all hosts."""
        self._fleets.clear()
        self._stack.close()

    def enter(self, resource: contextlib.AbstractContextManager[T]) -> T:
        """Keep a resource until the end of the group."""
        return self._stack.enter_context(resource)

    def directory(self) -> Path:
        """Return the path of a new directory, which is not created."""
        self._count += 1
        return self.root / str(self._count)

    def local(self, workers: int) -> Hosts:
        """Return a local fleet; measurements of the same group may share it.

        Raises:
            MissingError: A local fleet cannot have this number of workers.
        """
        if workers not in self._fleets:
            self._fleets[workers] = self.add(Hosts(self.directory(), f"bench-{workers}", local_arguments(workers)))
        self.accounting = self._fleets[workers].accounting.method
        return self._fleets[workers]

    def add(self, hosts: Hosts) -> Hosts:
        """Keep a fleet until the end of the group."""
        self._stack.callback(hosts.close)
        self.accounting = hosts.accounting.method
        return hosts

    def release(self, hosts: Hosts) -> None:
        """Delete a local fleet now, unless this is a smoke test, whose other groups use it."""
        if not self.is_quick:
            self._fleets = {number: other for number, other in self._fleets.items() if other is not hosts}
            hosts.close()

    def attempt(self, title: str, part: Callable[[], object]) -> None:
        """Run a part of a group, if it is selected; if it cannot be prepared, report it and continue."""
        if not self.selects(title):
            return
        only, self.only = self.only, ""  # all measurements of the part
        try:
            part()
        except (MissingError, *FAILURES) as error:
            self._keep(Scene(title, "wall", {}, problems={"all": str(error)}))
        finally:
            self.only = only

    def selects(self, title: str) -> bool:
        """Return whether a part or measurement is selected."""
        return self.only in title

    def keep_scene(self, title: str, series: Mapping[str, Sequence[Sample]], goals: Sequence[Goal]) -> None:
        """Keep values that were measured together with others."""
        metric = goals[0].metric
        if self.selects(title):
            self._keep(Scene(title, metric, series, tuple(goals)))

    def _keep(self, scene: Scene) -> None:
        self.scenes.append(scene)
        print("\n".join(scene_lines(scene)), flush=True)

    def measure(
        self,
        title: str,
        cases: Mapping[str, Case],
        goals: Sequence[Goal] = (),
        *,
        runs: int,
        metric: str = "wall",
        warmups: int = 1,
        least: int = LEAST_RUNS,
        before: Callable[[], object] = lambda: None,
    ) -> None:
        """Run every case in every round, in a shuffled order; print and keep the result.

        A case that fails twice, or whose program is missing, is left out of the next rounds. After `least` rounds, no
        further round begins when the measurement's share of the time has passed. If a goal is for pairs, the order
        is reversed after each round, and a round in which a case failed is not kept.

        Args:
            title: The work that all cases do.
            cases: Functions by name, each of which does the work once.
            goals: Ratios to report.
            runs: Number of counted rounds.
            metric: Metric of the plot.
            warmups: Rounds before these.
            least: Rounds that are made, however long they take.
            before: Called before each case.
        """
        if not self.selects(title):
            return
        deadline = time.monotonic() + _SHARE_S[self.size]
        series: dict[str, list[Sample]] = {name: [] for name in cases}
        problems: dict[str, str] = {}
        left, paired = list(cases), any(goal.paired for goal in goals)
        for number in range(0 if self.is_quick else -warmups, runs):
            if number >= least and time.monotonic() > deadline:
                problems["all"] = f"{runs - number} of {runs} rounds, because they take too long"
                break
            left.reverse() if paired else self._random.shuffle(left)
            samples = {name: self._once(name, cases[name], before, problems, left) for name in list(left)}
            if number < 0 or (paired and len([sample for sample in samples.values() if sample]) < len(cases)):
                continue
            for name, sample in samples.items():
                if sample is not None:
                    series[name].append(sample)
        self._keep(Scene(title, metric, series, tuple(goals), problems))

    @staticmethod
    def _once(
        name: str, case: Case, before: Callable[[], object], problems: dict[str, str], left: list[str]
    ) -> Sample | None:
        """Run a case; after its second failure, remove it from `left`."""
        try:
            before()
            return case()
        except MissingError as error:
            problems[name] = str(error)
            left.remove(name)
        except FAILURES as error:
            if name in problems:
                left.remove(name)
            problems[name] = f"failed: {error}"
        return None
