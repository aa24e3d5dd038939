"""Readers of a command's output: throughput, latency."""

from __future__ import annotations

import re
import statistics

from benchmarks.harness.command import CommandError
from benchmarks.harness.model import Sample

_STAMP = re.compile(rb"T(\d{9,}\.\d{6}) step")


class Throughput:
    """Counts lines and bytes.

    Args:
        lines: Number of lines that must arrive at least.
    """

    def __init__(self, lines: int) -> None:
        self._expected = lines
        self._lines = self._bytes = 0
        self._first = self._last = 0.0

    def feed(self, data: bytes, now: float) -> None:
        """Take bytes that arrived at `now`."""
        self._first = self._first or now
        self._last = now
        self._lines += data.count(b"\n")
        self._bytes += len(data)

    def sample(self) -> Sample:
        """Return the rates from the first to the last byte.

        Raises:
            CommandError: Lines are missing.
        """
        if self._lines < self._expected:
            raise CommandError(f"{self._lines} of {self._expected} lines arrived")
        seconds = max(self._last - self._first, 1e-3)
        return {"rate": self._lines / seconds / 1e3, "throughput": self._bytes / seconds / 1e6}


class Latency:
    """Compares the time in each line with the time when it arrives.

    Args:
        skip_s: Time after the first line in which lines are not counted.
    """

    def __init__(self, skip_s: float) -> None:
        self._skip_s = skip_s
        self._rest = b""
        self._arrivals: list[tuple[float, float]] = []

    def feed(self, data: bytes, now: float) -> None:
        """Take bytes that arrived at `now`."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if match := _STAMP.search(line):
                self._arrivals.append((float(match[1]), now))

    def sample(self) -> Sample:
        """Return the median and the 99th percentile in milliseconds.

        Raises:
            CommandError: Too few lines arrived.
        """
        if not self._arrivals:
            raise CommandError("no line with a time arrived")
        begin = min(sent for sent, _ in self._arrivals) + self._skip_s
        late = [1000 * (arrived - sent) for sent, arrived in self._arrivals if sent >= begin]
        if len(late) < 2:
            raise CommandError("too few lines with a time arrived")
        return {"p50": statistics.median(late), "p99": statistics.quantiles(late, n=100)[98]}
