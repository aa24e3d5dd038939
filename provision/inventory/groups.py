"""The hosts and groups of an inventory, and their variables before they are merged.

Every inventory has two more groups: ``all`` contains every group without another parent, and ``ungrouped`` every host
without another group.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Any, NamedTuple

from provision.inventory.files import InventoryError
from provision.inventory.names import HOSTS_MAX, expand_host

CONNECTION = re.compile(
    r"ansible_(connection|python_interpreter|ssh_(common_|extra_)?args|(ssh_)?(host|port|user|private_key_file))"
)
"""Variables that decide how a host is reached: if one is set twice in one location, the values must be equal."""


class Setting(NamedTuple):
    """The value of a variable, and the file and line in which it was set."""

    value: Any
    location: str


Settings = dict[str, Setting]


@dataclass
class Group:
    """A group as the file describes it.

    Attributes:
        hosts: Hosts named in it directly, as keys in their order.
        children: Groups named in it directly, as keys in their order.
        settings: Its variables.
        priority: Order of groups of equal depth; the highest is applied last.
    """

    hosts: dict[str, None] = field(default_factory=dict)
    children: dict[str, None] = field(default_factory=dict)
    settings: Settings = field(default_factory=dict)
    priority: int = 1


class Groups(dict[str, Group]):
    """The groups of one inventory by name, and its hosts, in the order of the file.

    Attributes:
        hosts: Variables of each host.
        locations: File and line that name each host first.
    """

    def __init__(self) -> None:
        super().__init__(all=Group(children={"ungrouped": None}), ungrouped=Group())
        self.hosts: dict[str, Settings] = {}
        self.locations: dict[str, str] = {}

    def add_hosts(
        self, word: str, group: str, location: str, settings: Iterable[tuple[str, Setting]], hint: str = ""
    ) -> None:
        """Put the hosts of a word, ``gpu[1:3]:2222``, into `group`, which exists, and set their variables.

        Args:
            word: Name of one or more hosts, and their port.
            group: Name of the group.
            location: File and line of the word.
            settings: Variables of each of the hosts; they may be repeated.
            hint: Hint if the word is malformed.

        Raises:
            InventoryError: the word is malformed, or there are too many hosts.
        """
        try:
            names, port = expand_host(word)
        except ValueError as error:
            raise InventoryError(str(error), location, hint=hint) from None
        ports = [("ansible_port", Setting(port, location))] if port else []
        for name in names:
            self.locations.setdefault(name, location)
            self[group].hosts[name] = None
            variables = self.hosts.setdefault(name, {})
            for variable, setting in (*ports, *settings):
                _set(variables, f"host {name!r}", variable, setting)
        if len(self.hosts) > HOSTS_MAX:
            raise InventoryError(f"more than {HOSTS_MAX} hosts", location)

    def add_child(self, parent: str, child: str, location: str) -> None:
        """Put the group `child` into the group `parent`; both exist.

        Raises:
            InventoryError: `child` contains `parent`, or is ``all`` or ``ungrouped``.
        """
        if child in ("all", "ungrouped") and (parent, child) != ("all", "ungrouped"):
            raise InventoryError(
                f"group {child!r} cannot be nested in group {parent!r}",
                location,
                cause="it contains the hosts and groups that are in no other group",
                hint="use another group",
            )
        if parent in self.descendants(child):
            message = f"groups {parent!r} and {child!r} contain each other"
            if parent == child:
                message = f"group {child!r} contains itself"
            raise InventoryError(message, location, hint="remove one of them from the other's children")
        self[parent].children[child] = None

    def set_variable(self, name: str, variable: str, setting: Setting) -> None:
        """Set a variable of a group.

        Raises:
            InventoryError: it decides how hosts are reached, and was set to something else before.
        """
        if variable != "ansible_group_priority":
            _set(self[name].settings, f"group {name!r}", variable, setting)
            return
        try:
            self[name].priority = int(setting.value)
        except (TypeError, ValueError):
            message = f"ansible_group_priority of group {name!r} is not a whole number"
            raise InventoryError(message, setting.location) from None

    def close(self) -> None:
        """Add groups without a parent to ``all``, and hosts without a group to ``ungrouped``."""
        contained = {"all", *(child for group in self.values() for child in group.children)}
        self["all"].children |= dict.fromkeys(name for name in self if name not in contained)
        grouped = {host for name in self if name not in ("all", "ungrouped") for host in self[name].hosts}
        ungrouped = [*self["ungrouped"].hosts, *self.hosts]
        self["ungrouped"].hosts = dict.fromkeys(host for host in ungrouped if host not in grouped)

    def descendants(self, name: str) -> list[str]:
        """Return the group `name` and all groups in it: direct children first, then their children."""
        reached = {name: None}
        queue = [name]
        for parent in queue:  # grows meanwhile
            inner = [child for child in self[parent].children if child not in reached]
            reached |= dict.fromkeys(inner)
            queue += inner
        return queue

    def members(self, name: str) -> list[str]:
        """Return the hosts of the group `name` and of all groups in it, in their order."""
        return list(dict.fromkeys(host for group in self.descendants(name) for host in self[group].hosts))

    def by_precedence(self) -> list[str]:
        """Return all groups in the order in which their variables apply: a later one overrides an earlier one.

        Groups are ordered by depth, then by ``ansible_group_priority``, then by name.
        """
        depths = dict.fromkeys(self, 0)
        inner_first = TopologicalSorter({name: group.children for name, group in self.items()}).static_order()
        for name in reversed(list(inner_first)):
            for child in self[name].children:
                depths[child] = max(depths[child], depths[name] + 1)
        return sorted(self, key=lambda name: (depths[name], self[name].priority, name))


def _set(settings: Settings, owner: str, variable: str, setting: Setting) -> None:
    before = settings.get(variable)
    if before and CONNECTION.fullmatch(variable) and str(before.value) != str(setting.value):
        raise InventoryError(
            f"{owner} has {variable}={setting.value} here, but {variable}={before.value} at {before.location}",
            setting.location,
            cause="the variable decides how the host is reached",
            hint="remove one of them",
        )
    settings[variable] = setting
