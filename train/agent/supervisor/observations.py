"""Read what the hook reports from inside a task: its activity, and the times of its steps. Pure.

`train.agent.injected.observer` describes the reports. They are in one pipe with stacks that faulthandler writes.
"""

from __future__ import annotations

import json
import re
from collections import deque
from typing import Deque, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from train.agent.injected.observer import SERVING, WAITING

_REPORT = re.compile(rb"\x1e([^\x1e\n]*)\n")
_LONGEST = 1 << 10  # bytes of a report
_LONGEST_ACTIVITY = 64
_WINDOWS = 5
_WINDOWS_LEAST = 3
_EXPIRE_S = 30.0
_EXPIRE_STEPS = 20.0
_TIMES = ("step_s", "input_s", "python_s")


class StepTimes(NamedTuple):
    """Times of a step in seconds; None: unknown."""

    step_s: float
    input_s: Optional[float]  # the data set of the training waits for the script's pipeline
    python_s: Optional[float]  # outside of tf.functions


class Observation(NamedTuple):
    """State of a task as its hook reports it; None: unknown."""

    activity: Optional[str] = None
    steps: Optional[StepTimes] = None


def split_reports(data: bytes) -> Tuple[List[bytes], bytes, bytes]:
    """Split what came through the hook's pipe.

    Returns:
        The reports, everything else without them, and the beginning of a report that is not complete.
    """
    reports = _REPORT.findall(data)
    rest = _REPORT.sub(b"", data)
    start = rest.rfind(b"\x1e")
    if start < 0 or len(rest) - start > _LONGEST:
        return reports, rest, b""
    return reports, rest[:start], rest[start:]


class Observations:
    """The latest reports of a task."""

    def __init__(self) -> None:
        self._activity: Optional[str] = None
        self.has_server = False  # True once the task has begun to wait for its peers, or to serve them
        self.unending: Set[int] = set()  # processes that SIGTERM does not end, because only TensorFlow catches it
        self._windows: Deque[StepTimes] = deque(maxlen=_WINDOWS)
        self._at = 0.0

    def add(self, report: bytes, now: float) -> None:
        """Add a report; one that is not valid is ignored.

        Args:
            report: A JSON object.
            now: The current time, by a monotonic clock.
        """
        try:
            values = json.loads(report) if len(report) <= _LONGEST else None
        except (ValueError, RecursionError):
            return
        if not isinstance(values, dict):
            return
        if "activity" in values:
            self._set_activity(values["activity"])
        process, handles = values.get("process"), values.get("handles_sigterm")
        if isinstance(process, int) and isinstance(handles, bool):
            self.unending = self.unending - {process} if handles else self.unending | {process}
        times = read_times(values)
        if times is not None:
            self._windows.append(times)
            self._at = now

    def _set_activity(self, activity: object) -> None:
        if activity is None:
            self._activity = None
        elif isinstance(activity, str) and activity.isprintable() and len(activity) <= _LONGEST_ACTIVITY:
            self._activity = activity
            self.has_server = self.has_server or activity in (WAITING, SERVING)

    def latest(self, now: float) -> Observation:
        """Return the present activity, and the medians of the last windows unless they are too few or too old."""
        if len(self._windows) < _WINDOWS_LEAST:
            return Observation(self._activity)
        steps = _medians(list(self._windows))
        if now - self._at > max(_EXPIRE_S, _EXPIRE_STEPS * steps.step_s):
            self._windows.clear()
            return Observation(self._activity)
        return Observation(self._activity, steps)


def read_times(values: Dict[str, object]) -> Optional[StepTimes]:
    """Return the times in a report; None if it has none, or if one of them is not valid."""
    times: Dict[str, Optional[float]] = {}
    for name in _TIMES:
        value = values.get(name)
        if value is None:
            times[name] = None
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e6:
            times[name] = float(value)
        else:
            return None
    step_s = times["step_s"]
    return StepTimes(step_s, times["input_s"], times["python_s"]) if step_s else None


def _median(values: Sequence[float]) -> float:
    """Return the median; the module statistics would take a tenth of the time that a supervisor needs to start."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return (ordered[middle] + ordered[~middle]) / 2


def _medians(windows: List[StepTimes]) -> StepTimes:
    def middle(values: List[Optional[float]]) -> Optional[float]:
        valid = [value for value in values if value is not None]
        return round(_median(valid), 6) if len(valid) >= _WINDOWS_LEAST else None

    step_s = _median([window.step_s for window in windows])
    return StepTimes(
        round(step_s, 6),
        middle([window.input_s for window in windows]),
        middle([window.python_s for window in windows]),
    )
