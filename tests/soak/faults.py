"""Run the campaign `faults`: lanes that play histories in parallel, and one lane that plays the long job."""

from __future__ import annotations

import queue
import shutil
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak.histories import Played, plan, play
from tests.soak.hour import Hour, play_hour
from tests.soak.lane import Lane

_RENEWED = 40
"""Histories after which a lane takes its fleet down and makes another."""


@dataclass
class Campaign:
    """A campaign of `histories` in `lanes` that run in parallel, and of a job of `minutes` at the same time.

    Attributes:
        seed: Seed of the first history; each further history has the next number.
        histories: Number of histories to play.
        minutes: Duration of the long job, in minutes; 0: none.
        lanes: Number of histories that run at the same time.
        keep: Directory for the output of violations.
    """

    seed: int
    histories: int
    minutes: float
    lanes: int
    keep: Path
    played: list[Played] = field(default_factory=list)
    hour: Hour | None = None
    broken: list[str] = field(default_factory=list)

    def run(self) -> int:
        """Play everything, print the figures, and return the number of violations."""
        print(f"soak faults: seed {self.seed}, {self.histories} histories in {self.lanes} lanes, "
              f"{self.minutes:g} minutes of one job; violations are kept in {self.keep}", flush=True)  # fmt: skip
        began = time.monotonic()
        self._seeds: queue.SimpleQueue[int] = queue.SimpleQueue()
        for seed in range(self.seed, self.seed + self.histories):
            self._seeds.put(seed)
        root = Path(tempfile.mkdtemp(prefix="fleet-soak-"))
        names = [f"lane-{number}" for number in range(min(self.lanes, self.histories))]
        threads = [threading.Thread(target=self._guard, args=(self._lane, root / name)) for name in names]
        if self.minutes:
            threads.append(threading.Thread(target=self._guard, args=(self._long_job, root / "hour")))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        shutil.rmtree(root, ignore_errors=True)
        return self._figures(time.monotonic() - began)

    def _guard(self, body: object, root: Path) -> None:
        """Run one lane; an exception of the driver is a violation, too."""
        assert callable(body)
        try:
            body(root)
        except Exception as error:  # noqa: BLE001 - reported with the figures
            self._violation(f"{root.name}: the driver failed: {type(error).__name__}: {error}")

    def _violation(self, message: str) -> None:
        self.broken.append(message)
        print(f"violation: {message}", flush=True)

    def _lane(self, root: Path) -> None:
        lane = Lane(root)
        played_here = 0
        try:
            while not self._seeds.empty():
                try:
                    seed = self._seeds.get_nowait()
                except queue.Empty:
                    break
                played = play(lane, plan(seed), self.keep)
                self.played.append(played)
                for message in played.violations:
                    self._violation(f"seed {seed}: {message}")
                played_here += 1
                if played_here % _RENEWED == 0:
                    for process in lane.renew():
                        self._violation(f"{root.name}: {process} was left by `down`")
                if len(self.played) % 20 == 0:
                    print(f"{len(self.played)} histories", flush=True)
        finally:
            for process in lane.close():
                self._violation(f"{root.name}: {process} was left by `down`")

    def _long_job(self, root: Path) -> None:
        lane = Lane(root)
        try:
            self.hour = play_hour(lane, self.seed, self.minutes, self.keep)
            for message in self.hour.violations:
                self._violation(f"long job of seed {self.seed}: {message}")
        finally:
            for process in lane.close():
                self._violation(f"{root.name}: {process} was left by `down`")

    def _figures(self, seconds: float) -> int:
        hit = sum((history.hit for history in self.played), Counter())
        missed = sum((history.missed for history in self.played), Counter())
        codes = Counter(history.code for history in self.played)
        gaps = sum(history.gaps for history in self.played)
        lines = [
            f"{len(self.played)} of {self.histories} histories in {seconds / 60:.1f} minutes, from seed {self.seed}",
            f"{hit.total()} faults hit, {missed.total()} met no process:",
            *(f"  {kind:22} {count:5}" for kind, count in sorted(hit.items())),
            "exit codes of `fleet train`: "
            + ", ".join(f"{code} {count} times" for code, count in codes.most_common()),
            f"{gaps} logs that `fleet train` reported as incomplete",
        ]
        if self.hour is not None:
            lines += self._hour_figures(self.hour)
        lines.append(f"{len(self.broken)} violations")
        lines += [f"  {message}" for message in self.broken]
        print("\n".join(lines), flush=True)
        return len(self.broken)

    @staticmethod
    def _hour_figures(hour: Hour) -> list[str]:
        return [
            f"long job: {hour.seconds / 60:.1f} minutes, exit code {hour.code}, {hour.attempts} attempts, "
            f"{hour.hit.total()} faults",
            *(f"  {kind:22} {count:5}" for kind, count in sorted(hour.hit.items())),
            *(f"  {worker}: {stored} lines stored, {shown} shown by `train`, {later} by `logs`"
              for worker, (stored, shown, later) in hour.lines.items()),
            *(f"  {name}: {growth}" for name, growth in hour.growth.items()),
        ]  # fmt: skip
