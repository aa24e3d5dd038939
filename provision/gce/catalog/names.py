"""Names, labels, and paths of resources: zones, networks, and what belongs to a fleet."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from provision.gce.options import GceOptions
from provision.model import FleetSpec

_REGION = re.compile(r"[a-z]+(-[a-z]+)+[1-9][0-9]*", re.ASCII)
# Zones of AI hardware have longer suffixes: us-central1-ai1a.
_ZONE = re.compile(rf"({_REGION.pattern})-[a-z][a-z0-9]*", re.ASCII)


def is_zone(text: str) -> bool:
    """Return whether `text` has the form of a zone's name; the zone need not exist."""
    return _ZONE.fullmatch(text) is not None


def is_region(text: str) -> bool:
    """Return whether `text` has the form of a region's name; the region need not exist."""
    return _REGION.fullmatch(text) is not None


def region_of(zone: str) -> str:
    """Return the region of `zone`, ``us-central1`` for ``us-central1-a``.

    Raises:
        ValueError: `zone` is not a zone's name.
    """
    match = _ZONE.fullmatch(zone)
    if match is None:
        raise ValueError(f"{zone!r} is not a zone; zones are called like us-central1-a")
    return match[1]


def continent_of(place: str) -> str:
    """Return the continent of a zone or region: the first word of its name; ``us`` belongs to ``northamerica``."""
    word = place.partition("-")[0]
    return "northamerica" if word == "us" else word


def regions_of(places: Iterable[str]) -> set[str]:
    """Return the regions that a list of zones and regions names."""
    return {region_of(place) if is_zone(place) else place for place in places}


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


IMAGE_FORMAT, IMAGE_CONTENT = "fleet-image", "fleet-content"
"""Labels of the images that fleet created: format and hash of their content without the base image."""

_LABEL_LENGTH_MAX = 63
_MARK = re.compile(r"made by fleet for ([^ ,]+), owner ([^ ,]+), user ([^ ,]*)(?:, project ([^ ,]+))?")
_NOT_IN_LABELS = re.compile(r"[^a-z0-9_-]+", re.ASCII)


def stem(fleet: str, owner: str) -> str:
    """Return the network tag of a fleet, with which the names of its resources begin."""
    return f"{fleet}-{owner}"


def instance_name(fleet: str, owner: str, name: str) -> str:
    """Return the name on Compute Engine of the instance with the name `name` within the fleet."""
    return f"{stem(fleet, owner)}-{name}"


def label_value(text: str) -> str:
    """Return `text` as a valid label value: at most 63 lower-case letters, digits, hyphens, and underscores."""
    return _NOT_IN_LABELS.sub("-", text.lower()).strip("-")[:_LABEL_LENGTH_MAX].rstrip("-")


def labels(fleet: str, owner: str, user: str) -> dict[str, str]:
    """Return the labels of instances and their disks, by which the resources of a fleet are listed.

    Args:
        fleet: Name of the fleet.
        owner: ID of the state directory, 8 characters.
        user: Login and computer of the user, in any form.
    """
    return {"fleet": fleet, "fleet-owner": owner, "fleet-user": label_value(user)}


def image_labels(version: str, content: str, owner: str, user: str) -> dict[str, str]:
    """Return the labels of an image; it belongs to no fleet.

    Args:
        version: Format of what is on the image.
        content: Hash of its content.
        owner: ID of the state directory.
        user: Login and computer of the user, in any form.
    """
    return {IMAGE_FORMAT: version, IMAGE_CONTENT: content, "fleet-owner": owner, "fleet-user": label_value(user)}


def mark(fleet: str, owner: str, user: str, project: str = "") -> str:
    """Return the description of a fleet's resources; it identifies firewall rules, which have no labels.

    Args:
        fleet: Name of the fleet.
        owner: ID of the state directory.
        user: Login and computer of the user, in any form.
        project: Project of the instances, if the resource is in another one.
    """
    text = f"made by fleet for {fleet}, owner {owner}, user {label_value(user)}"
    return f"{text}, project {project}" if project else text


def marked(description: str) -> tuple[str, str, str] | None:
    """Return the fleet, owner, and user in a description; None if the resource belongs to no fleet."""
    match = _MARK.fullmatch(description)
    return (match[1], match[2], match[3]) if match else None


def marked_project(description: str) -> str:
    """Return the project of the instances in a description; empty if it is the project of the resource."""
    match = _MARK.fullmatch(description)
    return (match[4] or "") if match else ""


def last(url: str) -> str:
    """Return the last part of a URL or path, the resource's name."""
    return url.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Fleet:
    """A fleet with its resolved options and its owner, from which the names of its resources follow.

    Attributes:
        spec: The fleet, as the provider gets it.
        cloud: The options of its instances, resolved.
        owner: ID of the state directory.
        user: Login and computer of the user.
    """

    spec: FleetSpec
    cloud: GceOptions
    owner: str
    user: str

    @property
    def name(self) -> str:
        """Return the name of the fleet."""
        return self.spec.name

    @property
    def stem(self) -> str:
        """Return the network tag of the fleet, with which the names of its resources begin."""
        return stem(self.name, self.owner)

    def mark(self, project: str = "") -> str:
        """Return the description of its resources; `project` is as in the function `mark`."""
        return mark(self.name, self.owner, self.user, project)

    def changed(self, **options: Any) -> Fleet:
        """Return the fleet with some options changed."""
        return replace(self, cloud=replace(self.cloud, **options))
