"""Read from a request the instance to create, with the checks that the API makes before it starts an operation."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tests.emulator.catalog import images, locations, machines
from tests.emulator.catalog.images import Image
from tests.emulator.catalog.machines import MachineType
from tests.emulator.catalog.series import FLEX_START, RESERVATION_BOUND, STANDARD
from tests.emulator.failures import Machine, bad_request, invalid, not_found, required

Json = dict[str, Any]
FindImage = Callable[[str], Image | None]
"""Returns the image for a path from ``projects/`` on."""

LONGEST_PREEMPTIBLE_S = 7 * 24 * 3600
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_METADATA_KEY = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_METADATA_LIMIT = 512 * 1024
_SHORTEST_RUN_S, _LONGEST_RUN_S = 30, 120 * 24 * 3600
_FLEX_RUN_S = (600, LONGEST_PREEMPTIBLE_S)
_FLEX_QUEUE_S = (90, 7200)
# Fields of a request that the instance shows unchanged.
_KEPT = (
    "advancedMachineFeatures",
    "canIpForward",
    "confidentialInstanceConfig",
    "description",
    "displayDevice",
    "hostname",
    "keyRevocationActionType",
    "minCpuPlatform",
    "reservationAffinity",
    "resourcePolicies",
    "serviceAccounts",
    "shieldedInstanceConfig",
)


@dataclass
class Blueprint:
    """A requested instance.

    Attributes:
        project: Project.
        name: Name.
        zone: Zone.
        machine_type: Machine type.
        gpu: Type of its GPUs; empty: none.
        gpus: Number of GPUs.
        external: Whether it has an external address.
        scheduling: Its ``scheduling``.
        body: The fields of the Instance that follow from the request alone.
        disks: Disks to create for it, as Disk bodies without id and links.
        gpu_metric: Quota that its GPUs count against; chosen when it gets them.
        queue_s: Time for which the request may wait for capacity.
        image: The image of its boot disk; None: the disk was made before the instance.
        reservation: Name of the reservation that it selects; empty: none.
        local_ssds: Number of its Local SSDs, attached or included.
    """

    project: str
    name: str
    zone: str
    machine_type: MachineType
    gpu: str
    gpus: int
    external: bool
    scheduling: Json
    body: Json
    disks: list[Json] = field(default_factory=list)
    gpu_metric: str = ""
    queue_s: float = 0.0
    image: Image | None = None
    reservation: str = ""
    local_ssds: int = 0

    @property
    def region(self) -> str:
        """Return its region."""
        return locations.ZONES[self.zone]

    @property
    def spot(self) -> bool:
        """Return whether it can be preempted."""
        return bool(self.scheduling["preemptible"])

    @property
    def is_flex_start(self) -> bool:
        """Return whether it is a Flex-start VM, which uses the quotas of preemptible instances."""
        return bool(self.scheduling["provisioningModel"] == FLEX_START)

    @property
    def run_s(self) -> float:
        """Return its time limit in seconds; 0: none."""
        duration = self.scheduling.get("maxRunDuration", {})
        return float(duration.get("seconds", 0))

    @property
    def ends_at(self) -> float:
        """Return the time at which it ends, in seconds since the epoch; 0: none."""
        text = self.scheduling.get("terminationTime", "")
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() if text else 0.0

    @property
    def machine(self) -> Machine:
        """Return its properties for error messages."""
        return Machine(self.project, self.zone, self.machine_type.name, self.gpu, self.gpus)

    @property
    def needs_gvnic(self) -> bool:
        """Return whether its image must have a driver for gVNIC."""
        interfaces = self.body["networkInterfaces"]
        return self.machine_type.series.gvnic or any(each.get("nicType") == "GVNIC" for each in interfaces)

    @property
    def path(self) -> str:
        """Return ``projects/P/zones/Z/instances/NAME``."""
        return f"projects/{self.project}/zones/{self.zone}/instances/{self.name}"


def fingerprint(value: object) -> str:
    """Return a hash of `value`."""
    return base64.b64encode(hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()[:8]).decode()


def last(reference: str) -> str:
    """Return the last segment of a URL or a path."""
    return reference.rsplit("/", 1)[-1]


def project_of(reference: str) -> str:
    """Return the project in a URL or a path; empty: none."""
    match = re.search(r"projects/([^/]+)/", reference)
    return match[1] if match else ""


def relative(reference: str) -> str:
    """Return the part of a URL or a path from ``projects/`` on, without host and version."""
    match = re.search(r"projects/.*", reference)
    return match[0] if match else reference


def check_labels(labels: Json, name: str) -> None:
    """Raise Refusal unless `labels` may be the labels of a resource."""
    for key, value in labels.items():
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(str(value)):
            raise invalid(name, f"{key}: {value}", f"Label '{key}' or its value does not conform to the rules.")
    if len(labels) > 64:
        raise invalid(name, len(labels), "At most 64 labels are allowed.")


def check_metadata(metadata: Json) -> Json:
    """Return `metadata` with its new fingerprint; raise Refusal if it is invalid for an instance or a project."""
    items = metadata.get("items", [])
    keys = [item.get("key", "") for item in items]
    if len(set(keys)) < len(keys) or not all(_METADATA_KEY.fullmatch(key) for key in keys):
        raise invalid("metadata", keys, "Metadata keys must be unique, of letters, digits, hyphens and underscores.")
    if sum(len(item.get("value", "")) for item in items) > _METADATA_LIMIT:
        raise invalid("metadata", "", "Metadata is larger than 512 KB.")
    metadata_body: Json = {"kind": "compute#metadata", "items": items}
    return {**metadata_body, "fingerprint": fingerprint(metadata_body)}


def check_name(name: str) -> None:
    """Raise Refusal unless a resource may have this name."""
    if not _NAME.fullmatch(name):
        raise invalid("resource.name", name, f"Must be a match of regex '{_NAME.pattern}'")


def draw(
    project: str,
    zone: str,
    name: str,
    given: Json,
    find_image: FindImage = images.find_image,
    *,
    bulk: bool = False,
) -> Blueprint:
    """Return the instance that an Instance, or in `bulk` its InstanceProperties, requests.

    Raises:
        Refusal: it is not available in the zone, independent of the capacity.
    """
    check_name(name)
    machine_type = _machine_type(given, zone, bulk)
    scheduling = complete_scheduling(given.get("scheduling", {}))
    model = "SPOT" if scheduling["preemptible"] else scheduling["provisioningModel"]
    if model not in machine_type.series.models:
        raise bad_request(f"{machine_type.name} is not available with the provisioning model {model}.")
    gpu, gpus = _gpus(project, zone, machine_type, given.get("guestAccelerators", []), bulk)
    if model == FLEX_START and (bulk or (machine_type.family == "n1" and not gpu)):
        refused_by = "instances.bulkInsert" if bulk else f"{machine_type.name} without GPUs"
        raise bad_request(f"The provisioning model {FLEX_START} is not supported by {refused_by}.")
    if gpu and scheduling["onHostMaintenance"] != "TERMINATE":
        raise bad_request("Instances with guest accelerators do not support live migration.")
    maintenance = machine_type.series.maintenance
    if model == STANDARD and scheduling["onHostMaintenance"] not in maintenance:
        raise bad_request(f"Instances of type {machine_type.name} must have onHostMaintenance {maintenance[0]}.")
    interfaces = given.get("networkInterfaces") or [{"network": f"projects/{project}/global/networks/default"}]
    _check_interfaces(machine_type, interfaces)
    check_labels(given.get("labels", {}), "resource.labels")
    for reference in given.get("resourcePolicies", ()):
        if bulk == ("/" in reference):
            raise invalid("resource.resourcePolicies", reference, "The URL is malformed.")
    tags = given.get("tags", {}).get("items", [])
    for tag in tags:
        if not _NAME.fullmatch(tag):
            raise invalid("resource.tags.items", tag, f"Must be a match of regex '{_NAME.pattern}'")
    body = {key: given[key] for key in _KEPT if key in given}
    body.update(
        labels=given.get("labels", {}),
        labelFingerprint=fingerprint(given.get("labels", {})),
        metadata=check_metadata(given.get("metadata", {})),
        tags={"items": tags, "fingerprint": fingerprint(tags)},
        networkInterfaces=interfaces,
        deletionProtection=given.get("deletionProtection", False),
    )
    blueprint = Blueprint(
        project=project,
        name=name,
        zone=zone,
        machine_type=machine_type,
        gpu=gpu,
        gpus=gpus,
        external=any(interface.get("accessConfigs") for interface in interfaces),
        scheduling=scheduling,
        body=body,
        queue_s=_queue_s(given, scheduling),
        reservation=_reservation(given, model),
    )
    _disks(blueprint, given.get("disks", []), find_image)
    check_stop_action(scheduling, blueprint.local_ssds)
    return blueprint


def _machine_type(given: Json, zone: str, bulk: bool) -> MachineType:
    reference = given.get("machineType", "")
    if not reference:
        raise required("resource.machineType")
    if bulk == ("/" in reference):
        wanted = "a name, not a URL" if bulk else "a URL"
        raise invalid("resource.machineType", reference, f"The URL is malformed. Expected {wanted}.")
    name = last(reference)
    machine_type = machines.MACHINE_TYPES.get(name)
    if machine_type is None or not machine_type.is_in(zone):
        raise invalid(
            "resource.machineType", reference, f"Machine type with name '{name}' does not exist in zone '{zone}'."
        )
    if not bulk and f"zones/{zone}/" not in reference:
        raise invalid("resource.machineType", reference, f"The machine type is not of zone '{zone}'.")
    return machine_type


def _gpus(project: str, zone: str, machine_type: MachineType, given: list[Json], bulk: bool) -> tuple[str, int]:
    if not given:
        return machine_type.gpu, machine_type.gpus
    if len(given) > 1:
        raise bad_request("At most one type of guest accelerator is supported.")
    reference, count = given[0].get("acceleratorType", ""), given[0].get("acceleratorCount", 0)
    name = last(reference)
    if bulk == ("/" in reference):
        raise invalid("resource.guestAccelerators[0].acceleratorType", reference, "The URL is malformed.")
    accelerator = machines.ACCELERATORS.get(name)
    if accelerator is None or zone not in accelerator.zones:
        raise not_found(f"projects/{project}/zones/{zone}/acceleratorTypes/{name}")
    if name == machine_type.gpu and count == machine_type.gpus:
        return name, count
    if machine_type.family != "n1" or not accelerator.counts:
        raise bad_request(f"[{machine_type.name}, {name}] features are not compatible for creating instance.")
    if count not in accelerator.counts:
        raise bad_request(
            f"The number of GPU cards for '{name}' must be one of {list(accelerator.counts)}; {count} were requested."
        )
    if machine_type.cpus > accelerator.max_cpus * count:
        raise bad_request(f"[{machine_type.name}] has too many CPUs for {count} {name}.")
    return name, count


def complete_scheduling(given: Json) -> Json:
    """Return `given` with the API's defaults; a spot instance is preemptible and vice versa."""
    scheduling = dict(given)
    spot = scheduling.get("provisioningModel") == "SPOT" or bool(scheduling.get("preemptible"))
    scheduling["preemptible"] = spot
    scheduling.setdefault("provisioningModel", "STANDARD")
    scheduling.setdefault("automaticRestart", not spot)
    scheduling.setdefault("onHostMaintenance", "TERMINATE" if spot else "MIGRATE")
    if spot and (scheduling["automaticRestart"] or scheduling["onHostMaintenance"] != "TERMINATE"):
        raise bad_request(
            "Scheduling must have preemptible be false when AutomaticRestart is true or it may migrate."
        )
    limit = scheduling.get("maxRunDuration")
    end = scheduling.get("terminationTime")
    action = scheduling.get("instanceTerminationAction")
    if limit is not None and end is not None:
        raise bad_request("Scheduling must not have both maxRunDuration and terminationTime.")
    if end is not None and action is None:
        raise bad_request("Scheduling must have instanceTerminationAction set when terminationTime is.")
    if limit is not None:
        seconds = int(limit.get("seconds", 0))
        if not _SHORTEST_RUN_S <= seconds <= _LONGEST_RUN_S:
            raise invalid("resource.scheduling.maxRunDuration", seconds, "It must be from 30 seconds to 120 days.")
        if action is None:
            raise bad_request("Scheduling must have instanceTerminationAction set when maxRunDuration is.")
    if action is not None and limit is end is None and _is_standard(scheduling):
        raise bad_request("instanceTerminationAction is only for Spot VMs and VMs with a limited run time.")
    if scheduling["provisioningModel"] == FLEX_START:
        _check_flex_start(scheduling)
    if scheduling["provisioningModel"] == RESERVATION_BOUND and action is None:
        raise bad_request(f"Scheduling must have instanceTerminationAction set for {RESERVATION_BOUND}.")
    return scheduling


def _check_flex_start(scheduling: Json) -> None:
    """Raise Refusal unless Flex-start VMs may have this scheduling.

    Source: https://cloud.google.com/compute/docs/instances/about-flex-start-vms.
    """
    if scheduling["automaticRestart"] or scheduling["onHostMaintenance"] != "TERMINATE":
        raise bad_request("Flex-start VMs must have automaticRestart false and onHostMaintenance TERMINATE.")
    seconds = int(scheduling.get("maxRunDuration", {}).get("seconds", 0))
    shortest, longest = _FLEX_RUN_S
    if not shortest <= seconds <= longest:
        raise invalid("resource.scheduling.maxRunDuration", seconds, "Flex-start VMs run for 10 minutes to 7 days.")


def _reservation(given: Json, model: str) -> str:
    """Return the name of the reservation that an instance selects; empty: none."""
    affinity = given.get("reservationAffinity", {})
    if affinity.get("consumeReservationType") != "SPECIFIC_RESERVATION":
        if model == RESERVATION_BOUND:
            raise bad_request(f"The provisioning model {RESERVATION_BOUND} requires a specific reservation.")
        return ""
    if affinity.get("key") != "compute.googleapis.com/reservation-name" or len(affinity.get("values", ())) != 1:
        raise invalid("resource.reservationAffinity", affinity, "It must have the name of one reservation.")
    if model not in (STANDARD, RESERVATION_BOUND):
        raise bad_request(f"Instances of the provisioning model {model} cannot consume a specific reservation.")
    return last(str(affinity["values"][0]))


def _queue_s(given: Json, scheduling: Json) -> float:
    """Return the time for which a request waits for capacity; 0: it does not."""
    seconds = int(given.get("params", {}).get("requestValidForDuration", {}).get("seconds", 0))
    if not seconds:
        return 0.0
    if scheduling["provisioningModel"] != FLEX_START:
        raise bad_request("requestValidForDuration is only for the provisioning model FLEX_START.")
    shortest, longest = _FLEX_QUEUE_S
    if not shortest <= seconds <= longest:
        raise invalid("resource.params.requestValidForDuration", seconds, "It must be from 90 seconds to 2 hours.")
    return float(seconds)


def _check_interfaces(machine_type: MachineType, interfaces: list[Json]) -> None:
    if machine_type.series.gvnic and any(each.get("nicType", "GVNIC") != "GVNIC" for each in interfaces):
        raise bad_request(f"[{machine_type.name}] supports only network interfaces of type GVNIC.")


def _is_standard(scheduling: Json) -> bool:
    """Return whether it is neither spot nor of another provisioning model."""
    return bool(scheduling["provisioningModel"] == "STANDARD" and not scheduling["preemptible"])


def _disks(blueprint: Blueprint, given: list[Json], find_image: FindImage) -> None:
    """Set the disks to create, and the instance's ``disks``."""
    if not given or not given[0].get("boot"):
        raise invalid("resource.disks", "", "At least one disk, the first of them a boot disk, is required.")
    attached = []
    persistent = [disk for disk in given if disk.get("type", "PERSISTENT") == "PERSISTENT"]
    scratch = [disk for disk in given if disk not in persistent]
    _check_local_ssds(blueprint.machine_type, scratch)
    for index, disk in enumerate(persistent):
        attach = {
            "kind": "compute#attachedDisk",
            "type": "PERSISTENT",
            "mode": "READ_WRITE",
            "interface": "SCSI",
            "deviceName": disk.get("deviceName", f"persistent-disk-{index}"),
            "index": index,
            "boot": bool(disk.get("boot")),
            "autoDelete": bool(disk.get("autoDelete")),
        }
        if "initializeParams" in disk:
            image = _image(disk["initializeParams"], index, find_image)
            blueprint.image = blueprint.image if index else image
            made = _new_disk(blueprint, disk, index, image)
            blueprint.disks.append(made)
            attach["source"] = made["name"]
            attach["diskSizeGb"] = made["sizeGb"]
        elif "source" in disk:
            attach["source"] = last(disk["source"])
        else:
            raise required(f"resource.disks[{index}].initializeParams")
        attached.append(attach)
    blueprint.local_ssds = blueprint.machine_type.local_ssds or len(scratch)
    local = [_local_ssd(number, len(attached) + number) for number in range(blueprint.local_ssds)]
    blueprint.body["disks"] = [*attached, *local]


def _check_local_ssds(machine_type: MachineType, scratch: list[Json]) -> None:
    """Raise Refusal unless the machine type can have these Local SSDs."""
    for disk in scratch:
        params = disk.get("initializeParams", {})
        if last(params.get("diskType", "")) != "local-ssd" or disk.get("interface") != "NVME":
            raise bad_request("Scratch disks must have the type local-ssd; this image needs the interface NVME.")
        if not disk.get("autoDelete"):
            raise bad_request("Scratch disks must have autoDelete set to true.")
        if str(params.get("diskSizeGb", disk.get("diskSizeGb", "375"))) != "375":
            raise bad_request("Local SSDs have 375 GB.")
    allowed = machine_type.local_ssd_counts
    if len(scratch) not in allowed:
        raise bad_request(
            f"Number of local SSDs for an instance of type {machine_type.name} should be one of {list(allowed)}, "
            f"while [{len(scratch)}] is requested."
        )


def check_stop_action(scheduling: Json, local_ssds: int) -> None:
    """Raise Refusal if a stop at the end of the lifetime would have to keep Local SSDs, or has none to discard.

    Source: https://cloud.google.com/sdk/gcloud/reference/compute/instances/create
    (``--discard-local-ssds-at-termination-timestamp``).
    """
    discards = bool(scheduling.get("onInstanceStopAction", {}).get("discardLocalSsd"))
    has_end = any(scheduling.get(key) for key in ("maxRunDuration", "terminationTime"))
    stops = scheduling.get("instanceTerminationAction") == "STOP" and has_end
    if stops and local_ssds and not discards:
        raise bad_request("Instances with Local SSDs cannot be stopped at their end unless discardLocalSsd is true.")
    if discards and not (stops and local_ssds):
        raise bad_request("discardLocalSsd is only for instances with Local SSDs that are stopped at their end.")


def _image(params: Json, index: int, find_image: FindImage) -> Image:
    source = relative(params.get("sourceImage", ""))
    image = find_image(source)
    if image is not None:
        return image
    if source:
        raise not_found(source)
    raise required(f"resource.disks[{index}].initializeParams.sourceImage")


def _local_ssd(number: int, index: int) -> Json:
    """Return a Local SSD of an instance; it is not a resource of its own."""
    return {
        "kind": "compute#attachedDisk",
        "type": "SCRATCH",
        "mode": "READ_WRITE",
        "interface": "NVME",
        "deviceName": f"local-nvme-ssd-{number}",
        "index": index,
        "boot": False,
        "autoDelete": True,
        "diskSizeGb": "375",
    }


def _new_disk(blueprint: Blueprint, disk: Json, index: int, image: Image) -> Json:
    params = disk["initializeParams"]
    size_gb = int(params.get("diskSizeGb") or disk.get("diskSizeGb") or image.disk_gb)
    if size_gb < image.disk_gb:
        raise invalid(
            f"resource.disks[{index}].initializeParams.diskSizeGb",
            size_gb,
            f"Requested disk size cannot be smaller than the image size ({image.disk_gb} GB)",
        )
    kind = last(params.get("diskType") or "pd-standard")
    if kind not in machines.DISK_TYPES:
        raise not_found(f"projects/{blueprint.project}/zones/{blueprint.zone}/diskTypes/{kind}")
    machine_type = blueprint.machine_type
    if kind not in machine_type.series.disks:
        raise bad_request(f"{kind} disk type cannot be used by {machine_type.name} machine type.")
    if image.architecture != machine_type.series.architecture:
        raise bad_request(
            f"Requested boot disk architecture ({image.architecture}) is not compatible with machine type "
            f"architecture ({machine_type.series.architecture})."
        )
    if not image.gvnic and blueprint.needs_gvnic:
        raise bad_request("The image does not have the guest OS feature GVNIC, which the network interface requires.")
    labels = params.get("labels", {})
    check_labels(labels, f"resource.disks[{index}].initializeParams.labels")
    default = blueprint.name if index == 0 else f"{blueprint.name}-{index}"
    return {
        "name": params.get("diskName") or default,
        "sizeGb": str(size_gb),
        "type": kind,
        "sourceImage": image.path,
        "sourceImageId": image.id,
        "labels": labels,
    }
