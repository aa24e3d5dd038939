"""The methods of images: public ones, and those that the project made of its disks."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

from tests.emulator import failures
from tests.emulator.blueprint import check_labels, check_name, fingerprint, last, relative
from tests.emulator.catalog import images
from tests.emulator.catalog.images import Image
from tests.emulator.cloud import Call, Cloud, Instance
from tests.emulator.failures import Failure, Refusal, already_exists, condition_not_met, in_use, not_found, required
from tests.emulator.listing import page
from tests.emulator.methods.common import existing_name, launch
from tests.emulator.operations import Done
from tests.emulator.project_images import ProjectImages
from tests.emulator.registry import method, starting

Json = dict[str, Any]
_ARCHIVED = 0.1
"""Share of a disk that its image takes up, compressed."""


@method("compute.images.get", "compute.images.getFromFamily")
def get_image(cloud: Cloud, call: Call) -> Json:
    if call.path["project"] == cloud.project and "image" in call.path:
        return _own(cloud, call, "image")
    name = f"family/{call.path['family']}" if "family" in call.path else call.path["image"]
    path = f"projects/{call.path['project']}/global/images/{name}"
    image = images.find_image(path)
    if image is None:
        raise not_found(path)
    return images.image_body(cloud.root, image)


@method("compute.images.list")
def list_images(cloud: Cloud, call: Call) -> Json:
    if call.path["project"] == cloud.project:
        return page(cloud, call, cloud.part(ProjectImages).bodies.values())
    public = [image for image in images.IMAGES if image.project == call.path["project"]]
    return page(cloud, call, [images.image_body(cloud.root, image) for image in public])


@starting("compute.images.insert")
def insert_image(cloud: Cloud, call: Call) -> Json:
    stored, name, labels = cloud.part(ProjectImages), call.body["name"], call.body.get("labels", {})
    check_name(name)
    check_labels(labels, "resource.labels")
    path = f"projects/{cloud.project}/global/images/{name}"
    if name in stored.bodies:
        raise already_exists(path)
    disk, user = _source_disk(cloud, call)
    base = images.find_image(relative(disk.get("sourceImage", ""))) or stored.contents.get(last(disk["sourceImage"]))
    if base is None:
        raise required("resource.sourceDisk")
    body = _body(cloud, call.body, disk, base, f"{cloud.root}/{path}")
    files = cloud.directory / f"image-{body['id']}"

    def begin() -> Failure | None:
        if name in stored.bodies:
            return failures.operation_failure("RESOURCE_ALREADY_EXISTS", f"The resource '{path}' already exists", 409)
        quota = cloud.limits.project_shortage("IMAGES", {("", "IMAGES"): float(len(stored.bodies))})
        if quota is None:
            stored.bodies[name] = body
            stored.contents[name] = replace(
                base,
                project=cloud.project,
                family="",
                name=name,
                disk_gb=int(disk["sizeGb"]),
                number=body["id"],
                files=files,
            )
        return quota

    def finish(done: Done) -> None:
        def saved() -> None:
            body["status"] = "READY"
            done(None)

        guest = user.guest if user else None
        cloud.aside(lambda: guest.save(files) if guest else None, saved)

    return launch(cloud, call, "insert", body["selfLink"], begin, body["id"], finish)


@starting("compute.images.delete")
def delete_image(cloud: Cloud, call: Call) -> Json:
    image, stored = _own(cloud, call, "image"), cloud.part(ProjectImages)
    if image["status"] == "PENDING":
        raise Refusal(400, "resourceNotReady", f"The resource '{relative(image['selfLink'])}' is not ready")

    def begin() -> Failure | None:
        if stored.bodies.pop(image["name"], None) is not None:
            files = stored.contents.pop(image["name"]).files
            cloud.aside(lambda: shutil.rmtree(files, ignore_errors=True) if files else None)
        return None

    return launch(cloud, call, "delete", image["selfLink"], begin, image["id"])


@starting("compute.images.setLabels")
def set_labels(cloud: Cloud, call: Call) -> Json:
    image, labels = _own(cloud, call, "resource"), call.body.get("labels", {})
    if call.body.get("labelFingerprint") != image["labelFingerprint"]:
        raise condition_not_met("Labels fingerprint either invalid or resource labels have changed")
    check_labels(labels, "labels")

    def begin() -> Failure | None:
        image.update(labels=labels, labelFingerprint=fingerprint(labels))
        return None

    return launch(cloud, call, "setLabels", image["selfLink"], begin, image["id"])


def _own(cloud: Cloud, call: Call, parameter: str) -> Json:
    """The image of the project that the path names."""
    bodies = cloud.part(ProjectImages).bodies
    return bodies[existing_name(cloud, call, parameter, bodies, "global/images")]


def _source_disk(cloud: Cloud, call: Call) -> tuple[Json, Instance | None]:
    """The disk of an image, and the instance that uses it, which must not run without ``forceCreate``."""
    if not call.body.get("sourceDisk"):
        raise required("resource.sourceDisk")
    path = relative(call.body["sourceDisk"])
    disk = cloud.disks.get((last(path.rpartition("/disks/")[0]), last(path)))
    if disk is None:
        raise not_found(path)
    users = [cloud.instance(last(disk["zone"]), last(user)) for user in disk.get("users", ())]
    for user in users:
        if user.status != "TERMINATED" and call.query.get("forceCreate", "").lower() != "true":
            raise in_use(relative(disk["selfLink"]), user.blueprint.path)
    return disk, users[0] if users else None


def _body(cloud: Cloud, given: Json, disk: Json, base: Image, url: str) -> Json:
    labels = given.get("labels", {})
    return {
        **images.image_body(cloud.root, base),
        **given,
        "family": given.get("family", ""),
        "id": cloud.new_id(),
        "creationTimestamp": cloud.clock.stamp(),
        "status": "PENDING",
        "sourceDisk": disk["selfLink"],
        "sourceDiskId": disk["id"],
        "diskSizeGb": disk["sizeGb"],
        "archiveSizeBytes": str(round(_ARCHIVED * int(disk["sizeGb"]) * 2**30)),
        "storageLocations": ["us"],
        "labels": labels,
        "labelFingerprint": fingerprint(labels),
        "selfLink": url,
    }
