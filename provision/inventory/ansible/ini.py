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

from provision.inventory.ansible.groups import Groups, Setting
from provision.inventory.ansible.ranges import expand_host
from provision.inventory.errors import InventoryError, Place

_SECTION = re.compile(r"\[([^:\]\s]+)(?::(\w+))?\]\s*(?:#.*)?")
_CHILD = re.compile(r"([^:\]\s]+)\s*(?:#.*)?")
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
            form.line(stripped, Place(path, number))
    form.close()
    return form.groups


class _IniForm:
    """Reads one file, line by line.

    Attributes:
        groups: The hosts and groups that were read.
    """

    def __init__(self, path: Path) -> None:
        self.groups = Groups(Place(path))
        self._group = "ungrouped"
        self._kind = "hosts"
        # Groups that are named before they are declared, by parent and place. A child is ordered among the others
        # when it is declared.
        self._parents: dict[str, dict[str, Place]] = {}
        self._variables: dict[str, Place] = {}

    def line(self, text: str, place: Place) -> None:
        """Read a line that is neither empty nor a comment."""
        if text.startswith("[") and not (self._kind == "hosts" and _is_host_line(text)):
            self._section(text, place)
        elif self._kind == "hosts":
            self._host(text, place)
        elif self._kind == "children":
            self._child(text, place)
        else:
            self._variable(text, place)

    def close(self) -> None:
        """End the file, and check that every group that is named is declared.

        Raises:
            InventoryError: a group is not declared.
        """
        missing = [
            (place, child, f"[{parent}:children]")
            for child, parents in self._parents.items()
            for parent, place in parents.items()
        ]
        missing += [(place, name, f"[{name}:vars]") for name, place in self._variables.items()]
        if missing:
            place, name, section = min(missing, key=lambda entry: entry[0].line)
            raise InventoryError(
                f"the group {name!r} is not defined, and {section} needs it",
                place=place,
                hint=f"add a section [{name}], or correct the name",
            )
        self.groups.close()

    def _section(self, text: str, place: Place) -> None:
        match = _SECTION.fullmatch(text)
        if not match:
            raise InventoryError(
                f"{text!r} is no section",
                place=place,
                hint="write [GROUP], [GROUP:children] or [GROUP:vars], without spaces",
            )
        name, kind = match[1], match[2] or "hosts"
        if kind not in ("hosts", "children", "vars"):
            raise InventoryError(
                f"the section [{name}:{kind}] is of an unknown kind",
                place=place,
                hint=f"write [{name}], [{name}:children] or [{name}:vars]",
            )
        if kind == "vars" and name not in self.groups.groups:
            self._variables[name] = place
        self.groups.group(name, place)
        if kind != "vars":
            self._variables.pop(name, None)
            for parent, named in self._parents.pop(name, {}).items():
                self.groups.add_child(parent, name, named)
        self._group, self._kind = name, kind

    def _host(self, text: str, place: Place) -> None:
        try:
            words = shlex.split(text, comments=True)
        except ValueError:
            raise InventoryError("a quote is opened and not closed", place=place) from None
        settings = [self._assignment(word, place) for word in words[1:]]
        try:
            names, port = expand_host(words[0])
        except ValueError as error:
            user, at, rest = words[0].partition("@")
            hint = f"write {rest} ansible_user={user}" if at else ""
            raise InventoryError(str(error), place=place, hint=hint) from None
        for name in names:
            self.groups.add_host(name, self._group, place)
            if port:
                self.groups.set_host(name, "ansible_port", Setting(port, place))
            for variable, setting in settings:
                self.groups.set_host(name, variable, setting)

    def _assignment(self, word: str, place: Place) -> tuple[str, Setting]:
        variable, equals, value = word.partition("=")
        if not equals:
            raise InventoryError(
                f"{word!r} stands behind a host and is no variable=value",
                place=place,
                hint="write one host a line, and its variables without spaces around the =",
            )
        return variable, Setting(literal(value), place)

    def _child(self, text: str, place: Place) -> None:
        match = _CHILD.fullmatch(text)
        if not match:
            raise InventoryError(f"{text!r} is no name of a group", place=place, hint="write one group a line")
        child = match[1]
        if child in self.groups.groups:
            self.groups.add_child(self._group, child, place)
        else:
            self._parents.setdefault(child, {}).setdefault(self._group, place)

    def _variable(self, text: str, place: Place) -> None:
        variable, equals, value = text.partition("=")
        if not equals:
            raise InventoryError(
                f"{text!r} in [{self._group}:vars] is no variable=value",
                place=place,
                hint=f"hosts stand below [{self._group}], variables below [{self._group}:vars]",
            )
        self.groups.set_group(self._group, variable.strip(), Setting(literal(value.strip()), place))


def literal(text: str) -> Any:
    """Return the Python literal that `text` is, or `text` itself."""
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
