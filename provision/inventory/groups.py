"""The hosts and groups of an inventory, and their variables before they are merged.

Every inventory has two more groups: ``all`` contains every group without another parent, and ``ungrouped`` every host
without another group.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Any

from provision.inventory.files import InventoryError, Location
from provision.inventory.names import HOSTS_MAX, expand_host

CONNECTION = re.compile(
    r"ansible_(connection|python_interpreter|ssh_(common_|extra_)?args|(ssh_)?(host|port|user|private_key_file))"
)
"""Variables that decide how a host is reached: if one is set twice in one location, the values must be equal."""


@dataclass(frozen=True)
class Setting:
    """The value of a variable, and the location at which it was set."""

    value: Any
    location: Location


Settings = dict[str, Setting]


@dataclass
class Group:
    """A group as the file describes it.

    Attributes:
        name: Its name.
        location: Location at which it is first named.
        hosts: Hosts named in it directly, as keys in their order.
        children: Groups named in it directly, as keys in their order.
        settings: Its variables.
        priority: Order of groups of equal depth; the highest is applied last.
    """

    name: str
    location: Location
    hosts: dict[str, None] = field(default_factory=dict)
    children: dict[str, None] = field(default_factory=dict)
    settings: Settings = field(default_factory=dict)
    priority: int = 1


class Groups:
    """The hosts and groups of one inventory, in the order of the file.

    Args:
        location: The file.
    """

    def __init__(self, location: Location) -> None:
        self.hosts: dict[str, Settings] = {}
        self.locations: dict[str, Location] = {}
        self.groups: dict[str, Group] = {name: Group(name, location) for name in ("all", "ungrouped")}
        self.groups["all"].children["ungrouped"] = None

    def group(self, name: str, location: Location) -> Group:
        """Return the group `name`; create it if it is new."""
        return self.groups.setdefault(name, Group(name, location))

    def add_hosts(
        self, word: str, group: str, location: Location, settings: Iterable[tuple[str, Setting]], hint: str = ""
    ) -> None:
        """Put the hosts of a word, ``gpu[1:3]:2222``, into `group`, which exists, and set their variables.

        Args:
            word: Name of one or more hosts, and their port.
            group: Name of the group.
            location: Location of the word.
            settings: Variables of each of the hosts; they may be repeated.
            hint: Hint if the word is malformed.

        Raises:
            InventoryError: the word is malformed, or there are too many hosts.
        """
        try:
            names, port = expand_host(word)
        except ValueError as error:
            raise InventoryError(str(error), location=location, hint=hint) from None
        ports = [("ansible_port", Setting(port, location))] if port else []
        for name in names:
            self.locations.setdefault(name, location)
            self.groups[group].hosts[name] = None
            for variable, setting in (*ports, *settings):
                self._set(self.hosts.setdefault(name, {}), f"host {name!r}", variable, setting)
            self.hosts.setdefault(name, {})
        if len(self.hosts) > HOSTS_MAX:
            raise InventoryError(f"more than {HOSTS_MAX} hosts", location=location)

    def add_child(self, parent: str, child: str, location: Location) -> None:
        """Put the group `child` into the group `parent`; both exist.

        Raises:
            InventoryError: `child` contains `parent`, or is ``all`` or ``ungrouped``.
        """
        if child in ("all", "ungrouped") and (parent, child) != ("all", "ungrouped"):
            raise InventoryError(
                f"group {child!r} cannot be nested in group {parent!r}",
                location=location,
                cause="it contains the hosts and groups that are in no other group",
                hint="use another group",
            )
        if parent in self.descendants(child):
            message = f"groups {parent!r} and {child!r} contain each other"
            if parent == child:
                message = f"group {child!r} contains itself"
            raise InventoryError(message, location=location, hint="remove one of them from the other's children")
        self.groups[parent].children[child] = None

    def set_group(self, name: str, variable: str, setting: Setting) -> None:
        """Set a variable of a group.

        Raises:
            InventoryError: it decides how hosts are reached, and was set to something else before.
        """
        group = self.groups[name]
        if variable != "ansible_group_priority":
            self._set(group.settings, f"group {name!r}", variable, setting)
            return
        try:
            group.priority = int(setting.value)
        except (TypeError, ValueError):
            message = f"ansible_group_priority of group {name!r} is not a whole number"
            raise InventoryError(message, location=setting.location) from None

    def close(self) -> None:
        """Add groups without a parent to ``all``, and hosts without a group to ``ungrouped``."""
        contained = {child for group in self.groups.values() for child in group.children}
        for group in self.groups.values():
            if group.name != "all" and group.name not in contained:
                self.groups["all"].children[group.name] = None
        named = [group for name, group in self.groups.items() if name not in ("all", "ungrouped")]
        grouped = {host for group in named for host in group.hosts}
        ungrouped = dict.fromkeys(self.groups["ungrouped"].hosts) | dict.fromkeys(self.hosts)
        self.groups["ungrouped"].hosts = {host: None for host in ungrouped if host not in grouped}

    def descendants(self, name: str) -> list[str]:
        """Return the group `name` and all groups in it: direct children first, then their children."""
        reached = {name: None}
        queue = [name]
        for parent in queue:  # grows meanwhile
            inner = [child for child in self.groups[parent].children if child not in reached]
            reached.update(dict.fromkeys(inner))
            queue += inner
        return list(reached)

    def members(self, name: str) -> list[str]:
        """Return the hosts of the group `name` and of all groups in it, in their order."""
        return list(dict.fromkeys(host for group in self.descendants(name) for host in self.groups[group].hosts))

    def by_precedence(self) -> Iterator[Group]:
        """Yield all groups in the order in which their variables apply: a later one overrides an earlier one.

        Groups are ordered by depth, then by ``ansible_group_priority``, then by name.
        """
        depths = dict.fromkeys(self.groups, 0)
        inner_first = TopologicalSorter({name: group.children for name, group in self.groups.items()}).static_order()
        for name in reversed(list(inner_first)):
            for child in self.groups[name].children:
                depths[child] = max(depths[child], depths[name] + 1)
        yield from sorted(self.groups.values(), key=lambda each: (depths[each.name], each.priority, each.name))

    def _set(self, settings: Settings, owner: str, variable: str, setting: Setting) -> None:
        before = settings.get(variable)
        if before and CONNECTION.fullmatch(variable) and str(before.value) != str(setting.value):
            raise InventoryError(
                f"{owner} has {variable}={setting.value} here, but {variable}={before.value} at {before.location}",
                location=setting.location,
                cause="the variable decides how the host is reached",
                hint="remove one of them",
            )
        settings[variable] = setting
