"""The start of a line of the log: the task that wrote it, or the number of tasks that wrote the same."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.console.formatting import choose_color, paint


def format_prefix(tasks: Sequence[str], total: int = 1, *, width: int = 0, color: bool = False) -> str:
    """Return ``worker-0 | ``, ``all 8 | ``, or ``31 of 32 | ``.

    Args:
        tasks: The tasks that wrote the line.
        total: Number of tasks whose lines are compared.
        width: Smallest width of the name.
        color: True if the prefix has the color of its task.
    """
    name, style = tasks[0], choose_color(tasks[0])
    if len(tasks) > 1:
        name, style = (f"all {total}" if len(tasks) == total else f"{len(tasks)} of {total}"), "bold"
    return paint(f"{name:{width}} |", style if color else "") + " "
