"""Inventories as lines of text: Ansible's INI form, and plain lists, ``[user@]host[:port]``.

In the INI form, a host line is split like a shell command. Its variables, and those of ``[group:vars]``, are Python
literals if they parse as such, else text. ``#`` and ``;`` begin a comment at the start of a line. ``#`` also does
elsewhere, except in ``[group:vars]``, where a value extends to the end of its line.
"""

from __future__ import annotations

import ast
import contextlib
import re
import shlex
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from provision.bounds import TEXT_MAX
from provision.inventory.files import InventoryError
from provision.inventory.groups import Group, Groups, Setting
from provision.inventory.names import expand_host

_SECTION = re.compile(r"\[([^:\]\s]+)(?::(\w+))?\]\s*(?:#.*)?")
_CHILD = re.compile(r"([^:\]\s]+)\s*(?:#.*)?")
_BRACKETED = re.compile(r"\[[^\]]*\].+")
_LITERALS = (bool, int, float, str, list, tuple, dict, type(None))


def read_ini(text: str, path: Path) -> Groups:
    """Return the hosts and groups of an inventory in INI form.

    Args:
        text: Content of the file.
        path: The file, for messages.

    Raises:
        InventoryError: it is malformed.
    """
    groups = Groups()
    group, kind = "ungrouped", "hosts"
    created = {"all": 0, "ungrouped": 0}  # by the number of the first line, also of [GROUP:vars]
    declared = dict(created)
    required: list[tuple[int, str, str]] = []  # number of the line, parent, child; for [GROUP:vars] without a parent
    for number, line in _lines(text):
        location = f"{path}:{number}"
        if line.startswith("[") and not (kind == "hosts" and _is_host_line(line)):
            group, kind = _section(line, location)
            groups.setdefault(group, Group())
            created.setdefault(group, number)
            if kind == "vars":
                required.append((number, "", group))
            else:
                declared.setdefault(group, number)
        elif kind == "hosts":
            _add_host(groups, group, line, location)
        elif kind == "vars":
            hint = f"list hosts under [{group}], variables under [{group}:vars]"
            words = "=".join(word.strip() for word in line.split("=", 1))
            groups.set_variable(group, *_assignment(words, location, f"in [{group}:vars]", hint))
        elif child := _CHILD.fullmatch(line):
            required.append((number, group, child[1]))
        else:
            raise InventoryError(f"{line!r} is not a valid group name", location, hint="write one group per line")
    for number, parent, name in required:
        if name not in declared:
            section = f"[{parent}:children]" if parent else f"[{name}:vars]"
            hint = f"add a section [{name}], or correct the name"
            raise InventoryError(f"{section} requires the undefined group {name!r}", f"{path}:{number}", hint=hint)
    # A child that its parent names before any of its sections is ordered by its declaration.
    children = [(number, parent, name) for number, parent, name in required if parent]
    children.sort(key=lambda each: each[0] if created[each[2]] < each[0] else declared[each[2]])
    for number, parent, name in children:
        groups.add_child(parent, name, f"{path}:{number}")
    groups.close()
    return groups


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number and content of each line that is neither empty nor a comment."""
    for number, line in enumerate(text.split("\n"), 1):
        if (stripped := line.strip()) and stripped[0] not in "#;":
            yield number, stripped


def _section(text: str, location: str) -> tuple[str, str]:
    """Return the group and the kind of a section: ``hosts``, ``children``, or ``vars``."""
    hint = "write [GROUP], [GROUP:children], or [GROUP:vars], without spaces"
    if not (match := _SECTION.fullmatch(text)):
        raise InventoryError(f"{text!r} is not a section", location, hint=hint)
    name, kind = match[1], match[2] or "hosts"
    if kind not in ("hosts", "children", "vars"):
        raise InventoryError(f"unknown kind of section [{name}:{kind}]", location, hint=hint)
    return name, kind


def _is_host_line(text: str) -> bool:
    """Return True if a line that begins with a bracket is a host, ``[1:3].lab`` or ``[2001:db8::1]:22``."""
    word = text.split(maxsplit=1)[0]
    with contextlib.suppress(ValueError):
        return not _SECTION.fullmatch(word) and bool(expand_host(word))
    return False


def _add_host(groups: Groups, group: str, text: str, location: str) -> None:
    try:
        word, *assignments = shlex.split(text, comments=True)
    except ValueError:
        raise InventoryError("unbalanced quotes", location) from None
    rule = "write one host per line, and its variables without spaces around the ="
    settings = [_assignment(assignment, location, "after a host name", rule) for assignment in assignments]
    user, at, rest = word.partition("@")
    groups.add_hosts(word, group, location, settings, f"write {rest} ansible_user={user}" if at else "")


def _assignment(text: str, location: str, place: str, hint: str) -> tuple[str, Setting]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InventoryError(f"{text!r} {place} is not variable=value", location, hint=hint)
    return name, Setting(literal(value), location)


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


def is_plain(text: str) -> bool:
    """Return True if `text` is a plain list: no part of it sets a variable or begins a section."""
    words = [line.partition("#")[0].strip() for _, line in _lines(text)]
    return all("=" not in word and (word[0] != "[" or _BRACKETED.fullmatch(word)) for word in words)


def read_plain(text: str, path: Path) -> Groups:
    """Return the hosts of a plain list, with the ranges and comments of the INI form.

    Args:
        text: Content of the file.
        path: The file, for messages.

    Raises:
        InventoryError: it is malformed.
    """
    groups = Groups()
    for number, line in _lines(text):
        word, location = line.partition("#")[0].strip(), f"{path}:{number}"
        if len(word.split()) > 1 or "," in word:
            hint = "write one host per line: NAME, NAME:PORT, or USER@NAME"
            raise InventoryError(f"{word!r} contains several hosts", location, hint=hint)
        user, at, host = word.rpartition("@")
        if at and not user:
            raise InventoryError(f"no user before the @ in {word!r}", location)
        groups.add_hosts(host, "ungrouped", location, [("ansible_user", Setting(user, location))] if user else [])
    groups.close()
    return groups
