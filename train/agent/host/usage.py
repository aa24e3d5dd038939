"""Measure what a task's processes use: CPU and memory from /proc, GPUs from nvidia-smi."""

from __future__ import annotations

import os
from typing import Dict, Iterable, List, Set, Tuple

from train.agent.host.processes import Stat
from train.agent.protocol.channel import LineBuffer, LineTooLongError
from train.agent.protocol.records import GpuUse

PERIOD_S = 5.0
SLACK_S = 1.5
GPU_COMMAND = (
    "nvidia-smi",
    "--query-gpu=index,utilization.gpu,memory.used",
    "--format=csv,noheader,nounits",
    "-l",
    str(int(PERIOD_S)),
)
_LONGEST_LINE = 1 << 12


class CpuMeter:
    """CPU use of a changing set of processes."""

    def __init__(self) -> None:
        self._ticks: Dict[int, int] = {}
        self._at = 0.0
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._page = os.sysconf("SC_PAGE_SIZE")

    def read(self, table: Dict[int, Stat], pids: Set[int], now: float) -> Tuple[float, int]:
        """Return percent of one core since the last call (-1 at the first call), and bytes of memory.

        Pages that processes share are counted for each of them.
        """
        current = {pid: table[pid].ticks for pid in pids if pid in table}
        spent = sum(ticks - self._ticks.get(pid, 0) for pid, ticks in current.items())
        seconds = now - self._at
        percent = 100.0 * spent / self._ticks_per_s / seconds if self._at and seconds > 0 else -1.0
        self._ticks, self._at = current, now
        return percent, sum(table[pid].resident for pid in current) * self._page


class GpuMeter:
    """The latest values that the running nvidia-smi printed for each GPU."""

    def __init__(self) -> None:
        self._lines = LineBuffer(_LONGEST_LINE)
        self._uses: Dict[int, GpuUse] = {}

    def feed(self, data: bytes) -> None:
        """Parse output of nvidia-smi."""
        self._lines.feed(data)
        try:
            for line in iter(self._lines.line, None):
                for use in parse_gpu_use([line.decode("ascii", "replace")]):
                    self._uses[use.number] = use
        except LineTooLongError:
            self._lines = LineBuffer(_LONGEST_LINE)

    def read(self) -> List[GpuUse]:
        """Return the use of all GPUs, ordered by number."""
        return [self._uses[number] for number in sorted(self._uses)]


def parse_gpu_use(lines: Iterable[str]) -> List[GpuUse]:
    """Parse the output of `GPU_COMMAND`; a GPU without values (``[N/A]``) is left out."""
    uses = []
    for line in lines:
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 3 and all(field.isdigit() for field in fields):
            uses.append(GpuUse(int(fields[0]), float(fields[1]), int(fields[2])))
    return uses
