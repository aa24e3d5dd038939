"""Options of fleets of existing hosts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from provision.options import PATH, TEXT, ProviderOptions, option

if TYPE_CHECKING:
    from provision.model import FleetSpec

GROUP = "Existing hosts"


def options_of(spec: FleetSpec) -> StaticOptions:
    """Return the options of a fleet of existing hosts.

    Raises:
        ValueError: another provider created it.
    """
    if not isinstance(spec.options, StaticOptions):
        raise ValueError(f"fleet {spec.name!r} does not consist of existing hosts")
    return spec.options


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
        selects=True,
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
