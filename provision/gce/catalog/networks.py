"""Parse and format names, paths, and URLs of networks and subnetworks.

A Shared VPC belongs to the host project, not to the project of the instances. Its firewall rules are there, too.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_PREFIX = r"(?:https://[a-z.]+/compute/[a-z0-9]+/)?"
_NETWORK = re.compile(rf"(?:{_PREFIX}projects/([^/]+)/)?global/networks/([^/]+)")
_SUBNETWORK = re.compile(rf"(?:{_PREFIX}projects/([^/]+)/)?regions/([^/]+)/subnetworks/([^/]+)")


class Network(NamedTuple):
    """A network: its project (empty: the one that pays) and its name."""

    project: str
    name: str


class Subnetwork(NamedTuple):
    """A subnetwork: its project (empty: the one that pays), its region (empty: that of the instances), its name."""

    project: str
    region: str
    name: str


def network_of(text: str) -> Network:
    """Read ``default``, ``global/networks/N``, ``projects/P/global/networks/N``, or the URL of a network.

    Raises:
        ValueError: it is none of these.
    """
    if "/" not in text:
        return Network("", text)
    match = _NETWORK.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a network; write a name, or projects/PROJECT/global/networks/NAME")
    return Network(match[1] or "", match[2])


def subnetwork_of(text: str) -> Subnetwork:
    """Read a name, ``regions/R/subnetworks/S``, ``projects/P/regions/R/subnetworks/S``, or the URL of a subnetwork.

    Raises:
        ValueError: it is none of these.
    """
    if "/" not in text:
        return Subnetwork("", "", text)
    match = _SUBNETWORK.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is not a subnetwork; write a name, or projects/PROJECT/regions/REGION/subnetworks/NAME"
        )
    return Subnetwork(match[1] or "", match[2], match[3])


def network_path(text: str) -> str:
    """Return a network as requests name it, ``global/networks/N`` or ``projects/P/global/networks/N``."""
    network = network_of(text)
    path = f"global/networks/{network.name}"
    return f"projects/{network.project}/{path}" if network.project else path


def subnetwork_path(text: str, region: str, host: str = "") -> str:
    """Return a subnetwork as requests name it.

    Args:
        text: Name, path, or URL that the user gave.
        region: Region of the instances; required unless `text` names a region.
        host: Project of the network, which contains a subnetwork without a project; empty: the project that pays.

    Raises:
        ValueError: the region of the subnetwork is unknown.
    """
    subnetwork = subnetwork_of(text)
    if not (subnetwork.region or region):
        raise ValueError(f"the region of subnetwork {text} is not known")
    path, project = f"regions/{subnetwork.region or region}/subnetworks/{subnetwork.name}", subnetwork.project or host
    return f"projects/{project}/{path}" if project else path
