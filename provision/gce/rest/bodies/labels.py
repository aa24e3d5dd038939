"""Names, labels, and descriptions by which the resources of a fleet are listed."""

from __future__ import annotations

import re

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


def labels(fleet: str, owner: str, user: str, index: int | None = None) -> dict[str, str]:
    """Return the labels of an instance and its disk, by which the resources of a fleet are listed.

    Args:
        fleet: Name of the fleet.
        owner: ID of the state directory, 8 characters.
        user: Login and computer of the user, in any form.
        index: Index of the instance; None: for all instances of a bulk request, which have the same labels.
    """
    pairs = {"fleet": fleet, "fleet-owner": owner, "fleet-user": label_value(user)}
    return pairs if index is None else {**pairs, "fleet-index": str(index)}


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
