"""Find and end the warm process of a host, from which tasks are forked; see train.agent.injected.warm."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Dict

from train.agent.files.disk import list_names, read_json, read_text, remove_file
from train.agent.host.processes import ProcessId, await_exit, is_alive

_RECORD = ".json"
_EXIT_S = 5.0


def _recorded(root: str) -> Dict[str, ProcessId]:
    result = {}
    for name in list_names(root):
        value = (read_json(os.path.join(root, name)) or {}).get("process") if name.endswith(_RECORD) else None
        if isinstance(value, list) and len(value) == 3:
            result[name] = ProcessId(*value)
    return result


def end_warm(root: str, wait_s: float = _EXIT_S) -> None:
    """End the warm process of a host, and wait until it has ended; tasks that were forked from it continue."""
    for name, process in _recorded(root).items():
        if is_alive(process):
            with contextlib.suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)
            await_exit(process, wait_s)
        for path in (name, name[: -len(_RECORD)]):
            remove_file(os.path.join(root, path))


def warm_memory(root: str) -> int:
    """Return the memory of the warm process of a host that it shares with no task, in bytes; 0 if there is none."""
    return sum(_proportional_size(process.pid) for process in _recorded(root).values() if is_alive(process))


def _proportional_size(pid: int) -> int:
    for line in read_text(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return 1024 * int(line.split()[1])
    return 0
