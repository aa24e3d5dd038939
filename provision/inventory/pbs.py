"""The node file of PBS: one line, the name of the node, for each task that PBS would start."""

from __future__ import annotations

from pathlib import Path

from provision.inventory.errors import InventoryError
from provision.inventory.nodelist import NODES_MAX, is_node_name


def parse_nodefile(text: str, path: Path) -> tuple[str, ...]:
    """Return the names in the file PBS_NODEFILE, in the order of their first lines.

    Args:
        text: Content of the file.
        path: The file, for messages.

    Raises:
        InventoryError: it names no node, or a line is not a node name.
    """
    lines = ((number, line.strip()) for number, line in enumerate(text.split("\n"), 1))
    names: dict[str, None] = {}
    for number, name in lines:
        if not name:
            continue
        if not is_node_name(name):
            raise InventoryError(
                f"{path}:{number}: {name!r} is not a valid node name",
                hint="PBS_NODEFILE must be the file that PBS wrote",
            )
        names[name] = None
        if len(names) > NODES_MAX:
            raise InventoryError(f"{path}:{number}: more than {NODES_MAX} nodes")
    if not names:
        raise InventoryError(
            f"{path} does not list a node",
            cause="PBS writes it when the job starts",
            hint="run fleet inside a job of PBS",
        )
    return tuple(names)
