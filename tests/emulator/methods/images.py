"""The methods of images."""

from __future__ import annotations

from typing import Any

from tests.emulator.catalog import images
from tests.emulator.cloud import Call, Cloud
from tests.emulator.failures import not_found
from tests.emulator.registry import method

Json = dict[str, Any]


@method("compute.images.get", "compute.images.getFromFamily")
def get_image(cloud: Cloud, call: Call) -> Json:
    name = f"family/{call.path['family']}" if "family" in call.path else call.path["image"]
    path = f"projects/{call.path['project']}/global/images/{name}"
    image = images.find_image(path)
    if image is None:
        raise not_found(path)
    return images.image_body(cloud.root, image)
