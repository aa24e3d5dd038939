"""Google's client, configured for an emulator, with the calls that the tests of the emulator use.

Constants and parametrized values are dictionaries: collection in each worker need not import Google's types, 1.5 s.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from tests.emulator import library as compute
from tests.emulator.catalog import locations

PROJECT = "proj-1"
IMAGE = "projects/deeplearning-platform-release/global/images/family/common-cu129-ubuntu-2404-nvidia-580"
NAT = [{"name": "External NAT", "type_": "ONE_TO_ONE_NAT"}]


class Client:
    """Calls an emulator.

    Args:
        url: Of the emulator.
    """

    def __init__(self, url: str) -> None:
        from google.api_core.client_options import ClientOptions
        from google.auth.credentials import AnonymousCredentials

        self._settings: dict[str, Any] = {
            "credentials": AnonymousCredentials(),  # type: ignore[no-untyped-call]
            "client_options": ClientOptions(api_endpoint=url),
        }

    @cached_property
    def instances(self) -> compute.InstancesClient:
        return compute.InstancesClient(**self._settings)

    @cached_property
    def disks(self) -> compute.DisksClient:
        return compute.DisksClient(**self._settings)

    @cached_property
    def zone_operations(self) -> compute.ZoneOperationsClient:
        return compute.ZoneOperationsClient(**self._settings)

    @cached_property
    def region_operations(self) -> compute.RegionOperationsClient:
        return compute.RegionOperationsClient(**self._settings)

    @cached_property
    def global_operations(self) -> compute.GlobalOperationsClient:
        return compute.GlobalOperationsClient(**self._settings)

    def of(self, kind: str) -> Any:
        """Return any other client, such as ``Firewalls``."""
        return getattr(compute, f"{kind}Client")(**self._settings)

    def insert(self, name: str, zone: str = "us-central1-a", **fields: Any) -> compute.Operation:
        """Request an instance; return before it exists."""
        machine = fields.pop("machine", "n1-standard-4")
        instance = compute.Instance(
            name=name, machine_type=f"zones/{zone}/machineTypes/{machine}", **{**_common(), **fields}
        )
        return self.instances.insert_unary(project=PROJECT, zone=zone, instance_resource=instance)

    def create(self, name: str, zone: str = "us-central1-a", **fields: Any) -> compute.Instance:
        """Create an instance; return it."""
        operation = self.wait(self.insert(name, zone, **fields))
        assert not operation.error.errors, operation.error
        return self.instances.get(project=PROJECT, zone=zone, instance=name)

    def bulk_insert(
        self, names: Sequence[str], place: str, zones: Sequence[str] = (), request_id: str = "", **fields: Any
    ) -> compute.Operation:
        """Request instances in a zone, or in one of `zones` of a region; return before they exist."""
        machine = fields.pop("machine", "n1-standard-4")
        min_count = fields.pop("min_count", len(names))
        nothing = compute.BulkInsertInstanceResourcePerInstanceProperties()
        resource = compute.BulkInsertInstanceResource(
            count=len(names),
            min_count=min_count,
            instance_properties=compute.InstanceProperties(machine_type=machine, **{**_common(), **fields}),
            per_instance_properties=dict.fromkeys(names, nothing),
        )
        arguments: dict[str, Any] = {"project": PROJECT, "request_id": request_id or str(uuid.uuid4())}
        if place[-2] == "-":
            request = compute.BulkInsertInstanceRequest(
                zone=place, bulk_insert_instance_resource_resource=resource, **arguments
            )
            return self.instances.bulk_insert_unary(request=request)
        others = [zone for zone in locations.REGIONS[place] if zones and zone not in zones]
        denied = {f"zones/{zone}": compute.LocationPolicyLocation(preference="DENY") for zone in others}
        resource.location_policy = compute.LocationPolicy(target_shape="ANY_SINGLE_ZONE", locations=denied)
        regional = compute.BulkInsertRegionInstanceRequest(
            region=place, bulk_insert_instance_resource_resource=resource, **arguments
        )
        return self.of("RegionInstances").bulk_insert_unary(request=regional)

    def reserve(
        self, name: str, count: int, zone: str = "us-central1-a", *, specific: bool = True, **properties: Any
    ) -> None:
        """Create a reservation; `properties` are those of its instances, n1-standard-4 by default."""
        machine = compute.AllocationSpecificSKUAllocationReservedInstanceProperties(
            **{"machine_type": "n1-standard-4", **properties}
        )
        reservation = compute.Reservation(
            name=name,
            specific_reservation=compute.AllocationSpecificSKUReservation(count=count, instance_properties=machine),
            specific_reservation_required=specific,
        )
        operation = self.of("Reservations").insert_unary(project=PROJECT, zone=zone, reservation_resource=reservation)
        assert not self.wait(operation).error.errors

    def wait(self, operation: compute.Operation) -> compute.Operation:
        """Wait until the operation is done; return it."""
        while operation.status != compute.Operation.Status.DONE:
            scope: dict[str, Any] = {"project": PROJECT, "operation": operation.name}
            if operation.zone:
                operation = self.zone_operations.wait(zone=operation.zone.rsplit("/", 1)[-1], **scope)
            elif operation.region:
                operation = self.region_operations.wait(region=operation.region.rsplit("/", 1)[-1], **scope)
            else:
                operation = self.global_operations.wait(**scope)
        return operation

    def all_instances(self, wanted: str = "", **settings: Any) -> dict[str, compute.Instance]:
        """Return all instances that pass a filter, by name."""
        request = compute.AggregatedListInstancesRequest(project=PROJECT, filter=wanted, **settings)
        return {
            instance.name: instance
            for _, scope in self.instances.aggregated_list(request=request)
            for instance in scope.instances
        }

    def all_operations(self, wanted: str = "") -> list[compute.Operation]:
        """Return all operations that pass a filter."""
        request = compute.AggregatedListGlobalOperationsRequest(project=PROJECT, filter=wanted)
        return [
            operation
            for _, scope in self.global_operations.aggregated_list(request=request)
            for operation in scope.operations
        ]


def t4(count: int = 1, zone: str = "us-central1-a", *, bulk: bool = False) -> dict[str, Any]:
    """Return fields of an instance with T4 GPUs; a bulk insert names them without their zone."""
    path = "nvidia-tesla-t4" if bulk else f"projects/{PROJECT}/zones/{zone}/acceleratorTypes/nvidia-tesla-t4"
    return {
        "guest_accelerators": [{"accelerator_count": count, "accelerator_type": path}],
        "scheduling": {"on_host_maintenance": "TERMINATE", "automatic_restart": False},
    }


def spot(action: str = "DELETE", **fields: Any) -> dict[str, Any]:
    """Return the scheduling of a spot instance."""
    return {
        "on_host_maintenance": "TERMINATE",
        "automatic_restart": False,
        "provisioning_model": "SPOT",
        "instance_termination_action": action,
        **fields,
    }


def limited(seconds: int, action: str = "DELETE") -> dict[str, Any]:
    """Return the scheduling of an instance with a time limit."""
    return {"max_run_duration": {"seconds": seconds}, "instance_termination_action": action}


def codes(operation: compute.Operation) -> list[str]:
    """Return the error codes of an operation."""
    return [error.code for error in operation.error.errors]


def _common() -> dict[str, Any]:
    items = [
        compute.Items(key="enable-guest-attributes", value="TRUE"),
        compute.Items(key="ssh-keys", value="fleet:k"),
    ]
    disk = compute.AttachedDiskInitializeParams(source_image=IMAGE, disk_size_gb=100, labels={"fleet": "demo"})
    return {
        "disks": [compute.AttachedDisk(boot=True, auto_delete=True, initialize_params=disk)],
        "labels": {"fleet": "demo"},
        "metadata": compute.Metadata(items=items),
        "network_interfaces": [compute.NetworkInterface(network="global/networks/default", access_configs=NAT)],
    }
