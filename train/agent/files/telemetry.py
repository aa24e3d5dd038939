"""Samples of what a task uses and how far it is: one JSON line each, in the order of time, the older the fewer.

A line that was cut off by a crash is invalid and is left out by readers. The size of the file is bounded: it is
thinned when it has `MOST_SAMPLES` lines.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Optional

from train.agent.files.disk import write_all, write_atomic
from train.agent.protocol.records import Progress, Usage

MOST_SAMPLES = 2048
LONGEST_LINE = 1 << 12
"""Bytes; metrics with very long names are left out."""

_PROGRESS = ("epoch", "epochs", "step", "steps", "steps_per_s", "step_s", "input_s", "python_s")


class TelemetryWriter:
    """Append samples to a file, which is made with the first one. A full disk loses samples, and is not an error.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._count = len(_read_lines(path))

    def add(self, line: bytes) -> None:
        """Append a sample."""
        try:
            if self._count >= MOST_SAMPLES:
                self._thin()
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                size = os.fstat(fd).st_size
                is_cut_off = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
                write_all(fd, b"\n" + line if is_cut_off else line)
            finally:
                os.close(fd)
            self._count += 1
        except OSError:
            pass

    def _thin(self) -> None:
        """Keep every second sample of the older half, so that samples are the fewer the older they are."""
        lines = _read_lines(self._path)
        half = len(lines) // 2
        kept = [*lines[:half:2], *lines[half:]]
        write_atomic(self._path, b"".join(line + b"\n" for line in kept))
        self._count = len(kept)


def format_sample(task: str, at: float, usage: Optional[Usage], progress: Optional[Progress]) -> bytes:
    """Return the line of a sample; a value is null if it is unknown.

    Args:
        task: Name of the task.
        at: Time of the sample, seconds since the epoch.
        usage: What the task uses.
        progress: How far it is.
    """
    sample: Dict[str, Any] = {
        "at": round(at, 3),
        "task": task,
        "cpu_percent": usage.cpu_percent if usage else None,
        "memory_bytes": usage.memory_bytes if usage else None,
        "gpus": [gpu._asdict() for gpu in usage.gpus] if usage else [],
        **{name: _known(progress, name) for name in _PROGRESS},
        "metrics": {name: _finite(value) for name, value in progress.metrics.items()} if progress else {},
    }
    line = json.dumps(sample, separators=(",", ":")).encode()
    if len(line) >= LONGEST_LINE:
        line = json.dumps({**sample, "metrics": {}, "gpus": []}, separators=(",", ":")).encode()
    return line + b"\n"


def _known(progress: Optional[Progress], name: str) -> Optional[float]:
    value: Optional[float] = getattr(progress, name, None)
    return None if value is None or value < 0 else value


def _finite(value: float) -> Optional[float]:
    return value if abs(value) < float("inf") else None  # neither is JSON


def _read_lines(path: str) -> List[bytes]:
    try:
        with open(path, "rb") as file:
            return file.read(2 * MOST_SAMPLES * LONGEST_LINE).splitlines()
    except OSError:
        return []
