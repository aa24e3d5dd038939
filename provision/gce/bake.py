"""Create an image of a prepared host.

Source: https://cloud.google.com/compute/docs/images/create-custom.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from google.cloud import compute_v1

from provision.gce.access import accounts
from provision.gce.account import Account
from provision.gce.api.client import ApiError
from provision.gce.api.iam import permitted
from provision.gce.api.resources import IMAGE, SEAL, our_name
from provision.gce.catalog.machines import DEFAULT_MACHINE_TYPE, has_gpus, resolved
from provision.gce.catalog.names import Fleet, image_labels, mark
from provision.gce.delete import delete_things, of_image
from provision.gce.diagnosis import grant_role
from provision.gce.images import FORMAT, PENDING, READY, content, image_name, is_prepared, listed, to_image
from provision.gce.options import GceOptions
from provision.gce.power import confirmed, set_items, stop
from provision.model import Baking, Image
from provision.provider import ErrorKind, Progress, ProviderError

PERMISSIONS = (
    "compute.disks.useReadOnly",
    "compute.images.create",
    "compute.images.delete",
    "compute.images.get",
    "compute.images.list",
    "compute.images.setLabels",
    "compute.images.useReadOnly",
)
"""Permissions that the calls for an image need, in addition to those for a fleet."""
LONGEST_S = 3 * 3600
"""Time after which Compute Engine deletes the host of which an image is made."""
_NOT_OF_HOST = (
    *("max_price_usd_h", "gpu", "gpus", "spot", "placement", "flex_start", "reservation", "wait_s", "local_ssds"),
)
"""Options of machines that the host of which an image is made does not have."""
_ROLE = "roles/compute.storageAdmin"
_CONFLICT = 409
_USABLE = (READY, PENDING)


def plan(account: Account, fleet: Fleet) -> Baking:
    """Return the image from which hosts of a fleet would boot, and the host of which it is made.

    The host has no GPUs: their driver is on the base image, and packages are installed without them.

    Raises:
        ApiError: a call failed; for example, the base image does not exist.
        ProviderError: there is nothing to install, or a permission is missing.
    """
    cloud = fleet.cloud
    if not is_prepared(fleet):
        message = "there is nothing to install: without packages and --setup, hosts boot from the base image"
        raise ProviderError(ErrorKind.USAGE, message, next_steps=[("fleet", "bake", "--help")])
    api = account.api
    project, base, baked = api.together(api.get_project, lambda: api.image(cloud.image), lambda: listed(api))
    name = image_name(content(fleet, accounts.login_of(account, cloud, project)), base)
    existing = next((image for image in baked if image.name == name), None)
    if existing is not None and existing.status == PENDING:
        existing = _await_end(account, name)
    host = replace(fleet.spec, workers=1, options=_host(cloud))
    if existing is not None and existing.status == READY:
        return Baking(host, name, to_image(existing, account.prices))
    _check_permissions(account)
    return Baking(host, name)


def _host(cloud: GceOptions) -> GceOptions:
    """Return the options of the host of which an image for `cloud` is made: a plain machine without GPUs."""
    plain: dict[str, Any] = {each.name: each.default for each in fields(GceOptions) if each.name in _NOT_OF_HOST}
    lifetime_s = min(cloud.max_duration_s or LONGEST_S, LONGEST_S)
    host = replace(cloud, **plain, max_duration_s=lifetime_s, is_temporary=True)
    if has_gpus(host):
        host = replace(host, machine_type=DEFAULT_MACHINE_TYPE, disk_type="")
    return resolved(host)


def _check_permissions(account: Account) -> None:
    """Raise ProviderError if the caller lacks a permission; if that cannot be determined, the calls show it."""
    try:
        missing = sorted(set(PERMISSIONS) - permitted(account.api, PERMISSIONS))
    except ApiError:
        return
    if missing:
        grant = grant_role("projects", [account.api.project], _ROLE, account.api.member())
        message = f"an image cannot be created: these permissions are missing: {', '.join(missing)}"
        raise ProviderError(ErrorKind.CREDENTIALS, message, next_steps=[grant])


def bake(account: Account, fleet: Fleet, name: str, progress: Progress) -> Image:
    """Remove from the only host of a fleet what belongs to it alone, stop it, and create an image of its disk.

    Args:
        account: The owner of the host.
        fleet: The fleet of the host, as `plan` returned it.
        name: Name of the image.
        progress: Called for each step.

    Returns:
        The image; it is ready.

    Raises:
        ApiError: a call failed.
        ProviderError: the host is gone, or does not confirm that it is cleaned; no image was created.
    """
    resource = next(iter(account.resources(fleet.name)), None)
    if resource is None:
        raise ProviderError(ErrorKind.UNREACHABLE, "the host of which the image should be made is gone")
    worker = our_name(resource)
    progress(worker, "removing keys, scripts, and logs")
    set_items(account, [resource], SEAL, "preparing the host for the image")
    if not confirmed(account, [resource], "image", SEAL[IMAGE]):
        message = f"{worker} did not confirm that its keys and scripts are removed, so no image was created"
        cause = "its startup script failed, or an organization policy hides guest attributes"
        raise ProviderError(ErrorKind.MISSING, message, cause=cause)
    stop(account, [resource], progress)
    progress(worker, "creating the image")
    failed = [image for image in listed(account.api) if image.name == name and image.status not in _USABLE]
    delete_things(account, [of_image(account, image) for image in failed])
    login = accounts.login_of(account, fleet.cloud, account.api.get_project())
    image = compute_v1.Image(
        name=name,
        description=mark("images", account.owner, account.user),
        source_disk=resource.disks[0].source,
        labels=image_labels(FORMAT, content(fleet, login), account.owner, account.user),
    )
    try:
        with account.request(fleet.name, "insert", image=name) as request:
            operation = account.api.create(("global", "images"), image, request.id)
            request.is_accepted = True
            account.api.done(operation, f"creating image {name}")
    except ApiError as error:
        if error.status != _CONFLICT:  # another user created it at the same time
            raise
    made = _await_end(account, name)
    if made.status != READY:
        raise ProviderError(ErrorKind.MISSING, f"image {name} is not usable: its status is {made.status}")
    return to_image(made, account.prices)


def _await_end(account: Account, name: str) -> compute_v1.Image:
    """Return an image when its creation has ended, successfully or not.

    Raises:
        ApiError: it takes too long.
    """
    images: list[compute_v1.Image] = []

    def has_ended() -> bool:
        images[:] = [account.api.image(f"projects/{account.api.project}/global/images/{name}")]
        return images[0].status != PENDING

    account.api.until(has_ended, f"creating image {name}")
    return images[0]
