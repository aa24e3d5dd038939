"""Inventories: their hosts, the order of the hosts, and the route to each.

A plain list has one host per line, ``[user@]host[:port]``, with the ranges and comments of the INI form. What only
Ansible can read, such as scripts, plugins, and directories, `convert` lets Ansible convert.

The variables of a host are merged by precedence, from the weakest to the strongest: ``all`` of the inventory, its
groups from the outermost to the innermost, the file ``group_vars/all`` next to the inventory, ``group_vars/GROUP`` in
the same order, the variables of the host in the inventory, ``host_vars/HOST``. A file may end in .yml, .yaml or
.json, or be a directory of such files, of which the last one overrides the others.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from provision.bounds import CpuLimitError, limit_cpu
from provision.directories import make_directory
from provision.inventory.entry import Entry, entry
from provision.inventory.files import AnsibleOnlyError, InventoryError, only_for_ansible, read_text
from provision.inventory.groups import Groups, Settings
from provision.inventory.ini import is_plain, read_ini, read_plain
from provision.inventory.limits import select
from provision.inventory.yaml import read_variables, read_yaml

CONVERT_S = 120.0
"""Longest time that the conversion by Ansible takes; plugins ask clouds."""

_READ_S = 20.0  # of CPU time
_SUFFIXES = ("", ".yml", ".yaml", ".json")
_YAML_START = re.compile(r"""(?:[^\S\n]*(?:#.*)?\n)*[^\S\n]*(?:---|\{|["']?[\w.-]+["']?:(?:\s|$))""")


class Inventory:
    """The hosts of an inventory.

    Names and groups are read immediately. The variables of a host are evaluated when the host is requested, so that
    an unsupported host is an error only for users that need it.

    Args:
        path: The file.
        content: Hosts and groups of the file.

    Attributes:
        names: Names of all hosts; their order is the order of indices.
        groups: Names of the hosts of each group, in their order.
    """

    def __init__(self, path: Path, content: Groups) -> None:
        self.path = path
        self.groups: Mapping[str, tuple[str, ...]] = {name: tuple(content.members(name)) for name in content}
        self.names = self.groups["all"]
        self._content = content
        self._order = [(name, frozenset(self.groups[name])) for name in content.by_precedence()]
        self._of_files = functools.cache(_variables_of_files)

    def select(self, limit: str = "") -> tuple[Entry, ...]:
        """Return the hosts that a limit names, in the order of the inventory.

        Args:
            limit: Patterns as in Ansible's ``--limit``, ``gpu:!gpu3`` or ``lab[0:3]``; empty: all hosts.

        Raises:
            InventoryError: it names no hosts, or the route to a host is not supported.
        """
        names = select(self._content, limit)
        return tuple(entry(name, self.variables(name), self._content.locations[name]) for name in names)

    def variables(self, name: str) -> Settings:
        """Return the variables of a host; some may be the user's.

        Templates are text, and an encrypted value is a mapping with the key ``__ansible_vault``.

        Raises:
            InventoryError: a file of variables is malformed.
        """
        containing = [group for group, members in self._order if name in members]
        settings: Settings = {}
        for group in containing:
            settings |= self._content[group].settings
        for group in containing:
            settings |= self._of_files(self.path.parent / "group_vars", group)
        settings |= self._content.hosts[name]
        return settings | self._of_files(self.path.parent / "host_vars", name)


def _variables_of_files(directory: Path, name: str) -> Settings:
    """Return the variables of a group or a host in the files that are named like it."""
    settings: Settings = {}
    if "/" not in name and name not in ("", ".", ".."):
        for file in _files(directory / name):
            settings |= read_variables(read_text(file), file)
    return settings


def _files(path: Path) -> list[Path]:
    """Return the files of one name, the weakest first; a directory comes before a file with a suffix."""
    if not path.is_dir():
        return [file for suffix in _SUFFIXES if (file := path.with_name(f"{path.name}{suffix}")).is_file()][:1]
    return sorted(
        file
        for file in path.rglob("*")
        if file.suffix in _SUFFIXES
        and not any(part.startswith(".") or part.endswith("~") for part in file.relative_to(path).parts)
        and file.is_file()
    )


def read_inventory(path: Path) -> Inventory:
    """Read an inventory: Ansible's INI or YAML form, or a plain list of hosts.

    The file's suffix and content determine the form. Variables in ``group_vars`` and ``host_vars`` next to it are
    read.

    Raises:
        InventoryError: it cannot be read, is malformed, or is something that only Ansible can run.
    """
    if path.is_dir():
        raise only_for_ansible(f"{path} is a directory; an inventory must be a file", path)
    text = read_text(path)
    if text.startswith("#!") and os.access(path, os.X_OK):
        raise only_for_ansible(f"{path} is executable; dynamic inventories are not supported", path)
    suffix = path.suffix.lower()
    if suffix == ".toml":
        raise only_for_ansible(f"{path}: inventories in TOML are not supported", path)
    try:
        with limit_cpu(_READ_S):
            if suffix in _SUFFIXES[1:] or (not suffix and _YAML_START.match(text)):
                return Inventory(path, read_yaml(text, path))
            if is_plain(text):
                return Inventory(path, read_plain(text, path))
            return Inventory(path, read_ini(text, path))
    except CpuLimitError as error:
        raise InventoryError(f"cannot be read: {error}", str(path)) from None


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
    try:
        read_inventory(path)
    except AnsibleOnlyError:
        if shutil.which("ansible-inventory") is None:
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
        failed = bool(done.returncode) or not target.is_file()
        reason = (done.stderr.strip().rpartition("\n")[2] or "no output") if failed else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error) if isinstance(error, OSError) else f"it did not end within {CONVERT_S:g} s"
    if reason:
        raise InventoryError(f"ansible-inventory cannot read {path}", cause=reason, next_steps=[words])
    return True
