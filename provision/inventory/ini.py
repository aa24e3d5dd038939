"""Inventories in Ansible's INI form.

A host line is split like a shell command. Its variables, and those of ``[group:vars]``, are Python literals if they
parse as such, else text. ``#`` and ``;`` begin a comment at the start of a line. ``#`` also does elsewhere, except in
``[group:vars]``, where a value extends to the end of its line.
"""

from __future__ import annotations

import ast
import contextlib
import re
import shlex
import warnings
from pathlib import Path
from typing import Any

from provision.bounds import TEXT_MAX
from provision.inventory.files import InventoryError, Location
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
        self._location = Location(path)
        # Groups that are named before they are declared, each with the parents that name it and the locations; the
        # parent of [GROUP:vars] is empty. A child is ordered among the others when it is declared.
        self._pending: dict[str, dict[str, Location]] = {}

    def line(self, text: str, location: Location) -> None:
        """Read a line that is neither empty nor a comment."""
        self._location = location
        if len(text) > _LINE_MAX:
            raise self._error(f"a line with {len(text):,} characters")
        if text.startswith("[") and not (self._kind == "hosts" and _is_host_line(text)):
            self._section(text)
        elif self._kind == "hosts":
            self._host(text)
        elif self._kind == "children":
            self._child(text)
        else:
            hint = f"list hosts under [{self._group}], variables under [{self._group}:vars]"
            name, setting = self._assignment(text, f"in [{self._group}:vars]", hint)
            self.groups.set_group(self._group, name, setting)

    def close(self) -> None:
        """End the file, and check that every group that is named is declared.

        Raises:
            InventoryError: a group is not declared.
        """
        missing = [(named, name, parent) for name, by in self._pending.items() for parent, named in by.items()]
        if missing:
            self._location, name, parent = min(missing, key=lambda entry: entry[0].line)
            section = f"[{parent}:children]" if parent else f"[{name}:vars]"
            hint = f"add a section [{name}], or correct the name"
            raise self._error(f"{section} requires the undefined group {name!r}", hint)
        self.groups.close()

    def _error(self, message: str, hint: str = "") -> InventoryError:
        return InventoryError(message, location=self._location, hint=hint)

    def _section(self, text: str) -> None:
        hint = "write [GROUP], [GROUP:children], or [GROUP:vars], without spaces"
        if not (match := _SECTION.fullmatch(text)):
            raise self._error(f"{text!r} is not a section", hint)
        name, kind = match[1], match[2] or "hosts"
        if kind not in ("hosts", "children", "vars"):
            raise self._error(f"unknown kind of section [{name}:{kind}]", hint)
        if kind == "vars" and name not in self.groups.groups:
            self._pending.setdefault(name, {})[""] = self._location
        self.groups.group(name, self._location)
        if kind != "vars":
            for parent, named in self._pending.pop(name, {}).items():
                if parent:
                    self.groups.add_child(parent, name, named)
        self._group, self._kind = name, kind

    def _host(self, text: str) -> None:
        try:
            word, *assignments = shlex.split(text, comments=True)
        except ValueError:
            raise self._error("unbalanced quotes") from None
        rule = "write one host per line, and its variables without spaces around the ="
        settings = [self._assignment(assignment, "after a host name", rule) for assignment in assignments]
        user, at, rest = word.partition("@")
        hint = f"write {rest} ansible_user={user}" if at else ""
        self.groups.add_hosts(word, self._group, self._location, settings, hint)

    def _assignment(self, text: str, place: str, hint: str) -> tuple[str, Setting]:
        name, equals, value = text.partition("=")
        if not equals:
            raise self._error(f"{text!r} {place} is not variable=value", hint)
        if self._kind == "vars":
            name, value = name.strip(), value.strip()
        return name, Setting(literal(value), self._location)

    def _child(self, text: str) -> None:
        match = _CHILD.fullmatch(text)
        if not match:
            raise self._error(f"{text!r} is not a valid group name", "write one group per line")
        if match[1] in self.groups.groups:
            self.groups.add_child(self._group, match[1], self._location)
        else:
            self._pending.setdefault(match[1], {}).setdefault(self._group, self._location)


def literal(text: str) -> Any:
    """Return the Python literal that `text` is, or `text` itself."""
    if len(text) <= TEXT_MAX:
        with contextlib.suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                value = ast.literal_eval(text)
            if isinstance(value, _LITERALS):
                return value
    return text


def _is_host_line(text: str) -> bool:
    """Return True if a line that begins with a bracket is a host, ``[1:3].lab`` or ``[2001:db8::1]:22``."""
    word = text.split(maxsplit=1)[0]
    with contextlib.suppress(ValueError):
        return not _SECTION.fullmatch(word) and bool(expand_host(word))
    return False
