"""Requests that each create one instance; only these can be queued.

Source: https://cloud.google.com/compute/docs/reference/rest/v1/instances/insert.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from provision.gce.catalog.locations import region_of
from provision.gce.options import GceOptions
from provision.gce.rest.bodies.bulk import properties
from provision.model import FleetSpec


def single_inserts(
    spec: FleetSpec, names: Iterable[str], *, owner: str, user: str, project: str, zone: str, now: float
) -> list[dict[str, Any]]:
    """Return the body of the request for each instance in a zone.

    In a bulk request, types of machines, disks, and GPUs are names; here they are paths.

    Args:
        spec: The fleet; its options are resolved.
        names: Names on Compute Engine.
        owner: ID of the state directory.
        user: Login and computer of the user.
        project: Project of the instances.
        zone: Zone of the instances.
        now: Time of their start, in seconds since the epoch, from which their deadlines count.
    """
    cloud = GceOptions.of(spec.options)
    body = properties(spec, owner, user, region_of(zone), now)
    body["machineType"] = f"zones/{zone}/machineTypes/{body['machineType']}"
    for disk in body["disks"]:
        params = disk["initializeParams"]
        params["diskType"] = f"zones/{zone}/diskTypes/{params['diskType']}"
    for gpu in body.get("guestAccelerators", ()):
        gpu["acceleratorType"] = f"projects/{project}/zones/{zone}/acceleratorTypes/{gpu['acceleratorType']}"
    if "resourcePolicies" in body:
        policies = f"projects/{project}/regions/{region_of(zone)}/resourcePolicies"
        body["resourcePolicies"] = [f"{policies}/{name}" for name in body["resourcePolicies"]]
    if cloud.wait_s:
        body["params"] = {"requestValidForDuration": {"seconds": str(cloud.wait_s)}}
    return [{**body, "name": name} for name in names]
