"""Options of fleets of existing hosts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from provision.options import PATH, TEXT, ProviderOptions, option

GROUP = "Existing hosts"


@dataclass(frozen=True)
class StaticOptions(ProviderOptions):
    """The hosts that the fleet uses.

    Attributes:
        inventory: Absolute path of the file that names the hosts, or an allocation of a batch system.
        limit: Selection of these hosts, in the syntax of Ansible's ``--limit``; empty: all.
    """

    implementation: ClassVar[str] = "provision.static.provider:StaticProvider"
    title: ClassVar[str] = "existing hosts"
    existing: ClassVar[bool] = True

    inventory: str = option(
        "",
        PATH,
        "inventory",
        flags=("--inventory", "-i"),
        metavar="FILE",
        help="Inventory file: Ansible INI or YAML, or one host per line.",
        group=GROUP,
        overrides=True,
    )
    limit: str = option(
        "",
        TEXT,
        "limit",
        flags=("--limit", "-l"),
        metavar="PATTERN",
        help="Select hosts, as with Ansible's --limit.",
        default="all",
        label="--limit",
        group=GROUP,
    )
