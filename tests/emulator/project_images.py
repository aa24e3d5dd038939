"""Images that the project made of its disks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.emulator.blueprint import relative
from tests.emulator.catalog import images
from tests.emulator.catalog.images import Image
from tests.emulator.cloud import Cloud
from tests.emulator.failures import Refusal, in_use

Json = dict[str, Any]


@dataclass
class ProjectImages:
    """The images of the project by name.

    Attributes:
        bodies: As the API shows them.
        contents: The properties of the disks that are made of them.
    """

    bodies: dict[str, Json] = field(default_factory=dict)
    contents: dict[str, Image] = field(default_factory=dict)


def refuse_copied(cloud: Cloud, disk: str) -> None:
    """Raise Refusal while an image is made of the disk at this URL."""
    for image in cloud.part(ProjectImages).bodies.values():
        if image["status"] == "PENDING" and image["sourceDisk"] == disk:
            raise in_use(relative(disk), relative(image["selfLink"]))


def find_image(cloud: Cloud, source: str) -> Image | None:
    """Return the image, public or of the project, for a path from ``projects/`` on.

    Raises:
        Refusal: it is not ready.
    """
    stem, _, name = source.rpartition("/")
    stored = cloud.part(ProjectImages)
    if stem != f"projects/{cloud.project}/global/images" or name not in stored.bodies:
        return images.find_image(source)
    if stored.bodies[name]["status"] != "READY":
        raise Refusal(400, "resourceNotReady", f"The resource '{source}' is not ready")
    return stored.contents[name]
