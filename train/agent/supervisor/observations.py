"""Read what the hook reports from inside a task: its activity, and the times of its steps. Pure.

`train.agent.injected.observer` describes the reports. They are in one pipe with stacks that faulthandler writes.
"""

from __future__ import annotations

import json
import re
from collections import deque
from typing import Any, Deque, Dict, List, Optional, Sequence, Set, Tuple

from train.agent.injected.observer import SERVING, WAITING

_REPORT = re.compile(rb"\x1e([^\x1e\n]*)\n")
_LONGEST = 1 << 10  # bytes of a report
_LONGEST_ACTIVITY = 64
_WINDOWS = 5
_WINDOWS_LEAST = 3
_EXPIRE_S = 30.0
_EXPIRE_STEPS = 20.0
_TIMES = ("step_s", "input_s", "python_s")


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
        self._windows: Deque[Sequence[Optional[float]]] = deque(maxlen=_WINDOWS)  # in the order of `_TIMES`
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
        activity = values.get("activity", self._activity)
        is_text = isinstance(activity, str) and activity.isprintable() and len(activity) <= _LONGEST_ACTIVITY
        if is_text or activity is None:
            self._activity = activity
            self.has_server = self.has_server or activity in (WAITING, SERVING)
        process, handles = values.get("process"), values.get("handles_sigterm")
        if isinstance(process, int) and isinstance(handles, bool):
            self.unending = self.unending - {process} if handles else self.unending | {process}
        times = [values.get(name) for name in _TIMES]
        if times[0] and all(value is None or _is_time(value) for value in times):
            self._windows.append(times)
            self._at = now

    def latest(self, now: float) -> Dict[str, Any]:
        """Return fields of a `Progress`: the present activity, and the medians of the times in the last windows.

        The times are left out if the windows are too few or too old; a time is None if it is unknown.
        """
        fields: Dict[str, Any] = {"activity": self._activity}
        medians = [_median([value for value in values if value is not None]) for values in zip(*self._windows)]
        if medians and medians[0] is not None:
            if now - self._at > max(_EXPIRE_S, _EXPIRE_STEPS * medians[0]):
                self._windows.clear()
            else:
                fields.update(zip(_TIMES, medians))
        return fields


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e6


def _median(values: Sequence[float]) -> Optional[float]:
    """Return the median; the module statistics would take a tenth of the time that a supervisor needs to start."""
    if len(values) < _WINDOWS_LEAST:
        return None
    ordered = sorted(values)
    middle = len(ordered) // 2
    return round((ordered[middle] + ordered[~middle]) / 2, 6)
