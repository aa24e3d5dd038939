"""Images of prepared hosts, named by their content: which one a fleet boots from.

`fleet bake` creates them. The name is a hash of everything that determines what is on the image; labels identify the
images that fleet created. An image that is missing or unsuitable costs time, not correctness: hosts are checked and
completed in any case.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from google.cloud import compute_v1

from provision.gce.api.client import Api, ApiError
from provision.gce.api.prices import Prices
from provision.gce.catalog.names import IMAGE_CONTENT, IMAGE_FORMAT, Fleet, last
from provision.gce.diagnosis import Failure
from provision.gce.options import root_scripts
from provision.model import Image
from provision.quantities import HOURS_PER_MONTH

FORMAT = "1"
"""Format of what is on an image; it changes with the format of virtual environments, which are on it."""
QUERY = f"labels.{IMAGE_FORMAT}:*"
"""Filter for the images that fleet created."""
READY, PENDING = "READY", "PENDING"
_FORBIDDEN = 403
_TRUSTED = "compute.trustedImageProjects"


class Choice(NamedTuple):
    """The image that instances boot from, instead of that of their options.

    Attributes:
        path: ``projects/P/global/images/NAME``; empty: that of the options.
        note: Sentence for the user; empty: none.
    """

    path: str = ""
    note: str = ""


def is_prepared(fleet: Fleet) -> bool:
    """Return whether hosts of a fleet are prepared in a way that an image can save."""
    return bool(fleet.spec.packages or root_scripts(fleet.cloud))


def content(fleet: Fleet, login: str) -> str:
    """Return a hash of everything that determines what is on an image, except for the release of its base image.

    Args:
        fleet: The fleet, with its packages.
        login: Who logs in on the hosts; the environment is in the home directory of this user.
    """
    spec, scripts = fleet.spec, [word for pair in root_scripts(fleet.cloud).items() for word in pair]
    image, packages = fleet.cloud.image, sorted(spec.packages)
    return _hash(FORMAT, image, login, spec.index_url, "packages", *packages, "scripts", *scripts)


def image_name(of: str, base: compute_v1.Image) -> str:
    """Return the name of the image with the content `of` on the base image `base`, as the API shows the latter."""
    return f"fleet-{_hash(of, str(base.id))}"


def listed(api: Api) -> list[compute_v1.Image]:
    """Return the images in the project that fleet created, of all users; none if the caller may not list images.

    Raises:
        ApiError: Compute Engine does not answer.
    """
    try:
        return api.images(QUERY)
    except ApiError as error:
        if error.status != _FORBIDDEN:
            raise
        return []


def find(api: Api, fleet: Fleet, login: str) -> Choice:
    """Return the image that new instances of a fleet boot from; `login` is as in `content`.

    Raises:
        ApiError: Compute Engine does not answer.
    """
    if not is_prepared(fleet) or not (baked := listed(api)):
        return Choice()
    return choose(fleet, baked, api.image(fleet.cloud.image), login)


def choose(fleet: Fleet, baked: Sequence[compute_v1.Image], base: compute_v1.Image, login: str) -> Choice:
    """Return the image that new instances of a fleet boot from.

    Args:
        fleet: The fleet.
        baked: The images that fleet created, as the API shows them.
        base: The image of the options.
        login: Who logs in on the hosts.
    """
    of = content(fleet, login)
    alike = [image for image in baked if image.labels.get(IMAGE_CONTENT) == of]
    current = next((image for image in alike if image.name == image_name(of, base)), None)
    if current is None:
        older = f"image {alike[0].name} is not used: {base.name} is newer than its base image" if alike else ""
        return Choice(note=f"{older}; fleet bake with the same options makes a new one" if older else "")
    name, size_gb = current.name, current.disk_size_gb
    if current.status != READY:
        return Choice(note=f"image {name} is not used: its status is {current.status}")
    if size_gb > fleet.cloud.disk_gb:
        return Choice(note=f"image {name} is not used: it needs --disk-size {size_gb}")
    path = f"projects/{_project(current)}/global/images/{name}"
    return Choice(path, f"boots from image {name}, on which everything is installed")


def is_rejected(image: str, failures: Sequence[Failure]) -> bool:
    """Return whether instances were not created because of the image at this path; empty: they use none of these."""
    words = (last(image), _TRUSTED)
    return bool(image) and any(word in failure.message for word in words for failure in failures)


def to_image(resource: compute_v1.Image, prices: Prices) -> Image:
    """Return an image of the API with its price."""
    return Image(resource.name, size_of(resource), price_usd_h(resource, prices) * HOURS_PER_MONTH)


def price_usd_h(resource: compute_v1.Image, prices: Prices) -> float:
    """Return the estimated price of an image where it is stored, in US dollars an hour."""
    location = next(iter(resource.storage_locations), "")
    return prices.image_usd_h(size_of(resource), location)


def size_of(resource: compute_v1.Image) -> float:
    """Return the size in GB for which an image is billed: that of its compressed content."""
    return resource.archive_size_bytes / 2**30


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _project(resource: compute_v1.Image) -> str:
    return resource.self_link.partition("/projects/")[2].partition("/")[0]
