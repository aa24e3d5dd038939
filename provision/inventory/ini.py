"""Inventories in Ansible's INI form.

A host line is split like a shell command. Its variables, and those of ``[group:vars]``, are Python literals if they
parse as such, else text. ``#`` and ``;`` begin a comment at the start of a line. ``#`` also does elsewhere, except in
``[group:vars]``, where a value extends to the end of its line.
"""

from __future__ import annotations

import ast
import re
import shlex
import warnings
from pathlib import Path
from typing import Any

from provision.bounds import TEXT_MAX
from provision.inventory.errors import InventoryError, Location
from provision.inventory.groups import Groups, Setting
from provision.inventory.names import expand_host

_SECTION = re.compile(r"\[([^:\]\s]+)(?::(\w+))?\]\s*(?:#.*)?")
_CHILD = re.compile(r"([^:\]\s]+)\s*(?:#.*)?")
_LINE_MAX = 50_000  # characters
_LITERALS = (bool, int, float, str, list, tuple, dict, type(None))


def read_ini(text: str, path: Path) -> Groups:
    """Return the hosts and groups of an inventory in INI form.

    Args:
        text: Content of the file.
        path: The file, for messages.

    Raises:
        InventoryError: it is malformed.
    """
    form = _IniForm(path)
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        if stripped and stripped[0] not in "#;":
            if len(stripped) > _LINE_MAX:
                raise InventoryError(f"a line with {len(stripped):,} characters", location=Location(path, number))
            form.line(stripped, Location(path, number))
    form.close()
    return form.groups


class _IniForm:
    """Reads one file, line by line.

    Attributes:
        groups: The hosts and groups that were read.
    """

    def __init__(self, path: Path) -> None:
        self.groups = Groups(Location(path))
        self._group = "ungrouped"
        self._kind = "hosts"
        # Groups that are named before they are declared, by parent and location. A child is ordered among the others
        # when it is declared.
        self._parents: dict[str, dict[str, Location]] = {}
        self._variables: dict[str, Location] = {}

    def line(self, text: str, location: Location) -> None:
        """Read a line that is neither empty nor a comment."""
        if text.startswith("[") and not (self._kind == "hosts" and _is_host_line(text)):
            self._section(text, location)
        elif self._kind == "hosts":
            self._host(text, location)
        elif self._kind == "children":
            self._child(text, location)
        else:
            self._variable(text, location)

    def close(self) -> None:
        """End the file, and check that every group that is named is declared.

        Raises:
            InventoryError: a group is not declared.
        """
        missing = [
            (location, child, f"[{parent}:children]")
            for child, parents in self._parents.items()
            for parent, location in parents.items()
        ]
        missing += [(location, name, f"[{name}:vars]") for name, location in self._variables.items()]
        if missing:
            location, name, section = min(missing, key=lambda entry: entry[0].line)
            raise InventoryError(
                f"{section} requires the undefined group {name!r}",
                location=location,
                hint=f"add a section [{name}], or correct the name",
            )
        self.groups.close()

    def _section(self, text: str, location: Location) -> None:
        match = _SECTION.fullmatch(text)
        if not match:
            raise InventoryError(
                f"{text!r} is not a section",
                location=location,
                hint="write [GROUP], [GROUP:children], or [GROUP:vars], without spaces",
            )
        name, kind = match[1], match[2] or "hosts"
        if kind not in ("hosts", "children", "vars"):
            raise InventoryError(
                f"unknown kind of section [{name}:{kind}]",
                location=location,
                hint=f"write [{name}], [{name}:children], or [{name}:vars]",
            )
        if kind == "vars" and name not in self.groups.groups:
            self._variables[name] = location
        self.groups.group(name, location)
        if kind != "vars":
            self._variables.pop(name, None)
            for parent, named in self._parents.pop(name, {}).items():
                self.groups.add_child(parent, name, named)
        self._group, self._kind = name, kind

    def _host(self, text: str, location: Location) -> None:
        try:
            words = shlex.split(text, comments=True)
        except ValueError:
            raise InventoryError("unbalanced quotes", location=location) from None
        settings = [self._assignment(word, location) for word in words[1:]]
        user, at, rest = words[0].partition("@")
        hint = f"write {rest} ansible_user={user}" if at else ""
        self.groups.add_hosts(words[0], self._group, location, settings, hint)

    def _assignment(self, word: str, location: Location) -> tuple[str, Setting]:
        variable, equals, value = word.partition("=")
        if not equals:
            raise InventoryError(
                f"{word!r} after a host name is not variable=value",
                location=location,
                hint="write one host per line, and its variables without spaces around the =",
            )
        return variable, Setting(literal(value), location)

    def _child(self, text: str, location: Location) -> None:
        match = _CHILD.fullmatch(text)
        if not match:
            raise InventoryError(
                f"{text!r} is not a valid group name", location=location, hint="write one group per line"
            )
        child = match[1]
        if child in self.groups.groups:
            self.groups.add_child(self._group, child, location)
        else:
            self._parents.setdefault(child, {}).setdefault(self._group, location)

    def _variable(self, text: str, location: Location) -> None:
        variable, equals, value = text.partition("=")
        if not equals:
            raise InventoryError(
                f"{text!r} in [{self._group}:vars] is not variable=value",
                location=location,
                hint=f"list hosts under [{self._group}], variables under [{self._group}:vars]",
            )
        self.groups.set_group(self._group, variable.strip(), Setting(literal(value.strip()), location))


def literal(text: str) -> Any:
    """Return the Python literal that `text` is, or `text` itself."""
    if len(text) > TEXT_MAX:
        return text
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
    return value if isinstance(value, _LITERALS) else text


def _is_host_line(text: str) -> bool:
    """Return True if a line that begins with a bracket is a host, ``[1:3].lab`` or ``[2001:db8::1]:22``."""
    word = text.split(maxsplit=1)[0]
    if _SECTION.fullmatch(word):
        return False
    try:
        expand_host(word)
    except ValueError:
        return False
    return True
