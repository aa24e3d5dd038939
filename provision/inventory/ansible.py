"""Converts inventories that only Ansible can read, such as scripts, plugins, and directories."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from provision.directories import make_directory
from provision.inventory.errors import AnsibleOnlyError, InventoryError
from provision.inventory.reader import read_inventory

CONVERT_S = 120.0
"""Longest time that the conversion takes; plugins ask clouds."""


def convert(path: Path, target: Path) -> bool:
    """Write the hosts of an inventory to a file that `read_inventory` reads, if only Ansible can read it.

    Args:
        path: The inventory. Ansible runs the scripts and plugins that it names, on this computer.
        target: The file; its directory is created.

    Returns:
        Whether it was written; not if the inventory needs no Ansible, or is malformed.

    Raises:
        InventoryError: Ansible is not installed, fails, or does not end in time.
    """
    program = shutil.which("ansible-inventory")
    try:
        read_inventory(path)
    except AnsibleOnlyError:
        if program is None:
            raise
    except InventoryError:
        return False
    else:
        return False
    make_directory(target.parent)
    target.unlink(missing_ok=True)
    words = ("ansible-inventory", "-i", str(path), "--list", "--yaml")
    try:
        done = subprocess.run(
            [*words, "--output", str(target)],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=CONVERT_S, check=False,
        )  # fmt: skip
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reason = "" if target.is_file() and not done.returncode else lines[-1] if lines else "no output"
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error) if isinstance(error, OSError) else f"it did not end within {CONVERT_S:g} s"
    if reason:
        raise InventoryError(f"ansible-inventory cannot read {path}", cause=reason, next_steps=[words])
    return True
