"""Read from a request the instance to create, with the checks that the API makes before it starts an operation."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.emulator.catalog import (
    ACCELERATORS,
    DISK_TYPES,
    FLEX_START,
    MACHINE_TYPES,
    RESERVATION_BOUND,
    STANDARD,
    ZONES,
    Image,
    MachineType,
)
from tests.emulator.messages import Failure, bad_request, failure, invalid, not_found, refusal

Json = dict[str, Any]
FindImage = Callable[[str], Image | None]
"""Returns the image for a path from ``projects/`` on."""

LONGEST_PREEMPTIBLE_S = 7 * 24 * 3600
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_KEY, _LABEL_VALUE = re.compile(r"[a-z][a-z0-9_-]{0,62}"), re.compile(r"[a-z0-9_-]{0,63}")
_METADATA_KEY = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_METADATA_LIMIT = 512 * 1024
_KEPT = ("description", "reservationAffinity", "resourcePolicies", "serviceAccounts", "shieldedInstanceConfig")
"""Fields of a request that the instance shows unchanged."""


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
        reservation: Name of the reservation that it selects; empty: none.
        local_ssds: Number of its Local SSDs, attached or included.
        image: The image of its boot disk.
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
    reservation: str = ""
    local_ssds: int = 0
    image: Image = field(init=False)

    @property
    def region(self) -> str:
        """Return its region."""
        return ZONES[self.zone]

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
        return float(self.scheduling.get("maxRunDuration", {}).get("seconds", 0))

    @property
    def needs_gvnic(self) -> bool:
        """Return whether its image must have a driver for gVNIC."""
        interfaces = self.body["networkInterfaces"]
        return self.machine_type.series.gvnic or any(each.get("nicType") == "GVNIC" for each in interfaces)

    @property
    def path(self) -> str:
        """Return ``projects/P/zones/Z/instances/NAME``."""
        return f"projects/{self.project}/zones/{self.zone}/instances/{self.name}"

    def stockout(self, zones_available: str = "") -> Failure:
        """Return the failure because of missing capacity, which names other zones."""
        machine_type = self.machine_type.name
        advice = f" Consider trying your request in the {zones_available} zone(s)." if zones_available else ""
        with_gpus = f" with {self.gpus} {self.gpu} accelerator(s)" if self.gpu else ""
        return failure(
            "stockout",
            project=self.project,
            zone=self.zone,
            machine_type=machine_type,
            vm=f"A {machine_type} VM instance{with_gpus}",
            attachment=f"{self.gpu}:{self.gpus}" if self.gpu else "",
            advice=advice,
            zones_available=zones_available,
        )


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


def check_name(name: str, at: str = "resource.name") -> None:
    """Raise Refusal unless a resource or a tag may have this name."""
    if not _NAME.fullmatch(name):
        raise invalid(at, name, f"Must be a match of regex '{_NAME.pattern}'")


def draw(project: str, zone: str, name: str, given: Json, find_image: FindImage, *, bulk: bool = False) -> Blueprint:
    """Return the instance that an Instance, or in `bulk` its InstanceProperties, requests.

    Raises:
        Refusal: it is not available in the zone, independent of the capacity.
    """
    check_name(name)
    machine_type = _machine_type(given, zone, bulk)
    scheduling = complete_scheduling(given.get("scheduling", {}))
    model = "SPOT" if scheduling["preemptible"] else scheduling["provisioningModel"]
    gpu, gpus = _gpus(project, zone, machine_type, given.get("guestAccelerators", []), bulk)
    _check_model(machine_type, model, gpu, scheduling, bulk)
    interfaces = given.get("networkInterfaces") or [{"network": f"projects/{project}/global/networks/default"}]
    if machine_type.series.gvnic and any(each.get("nicType", "GVNIC") != "GVNIC" for each in interfaces):
        raise bad_request(f"[{machine_type.name}] supports only network interfaces of type GVNIC.")
    labels, tags = given.get("labels", {}), given.get("tags", {}).get("items", [])
    check_labels(labels, "resource.labels")
    for tag in tags:
        check_name(tag, "resource.tags.items")
    for reference in given.get("resourcePolicies", ()):
        if bulk == ("/" in reference):
            raise invalid("resource.resourcePolicies", reference, "The URL is malformed.")
    body = {
        **{key: given[key] for key in _KEPT if key in given},
        "labels": labels,
        "labelFingerprint": fingerprint(labels),
        "metadata": check_metadata(given.get("metadata", {})),
        "tags": {"items": tags, "fingerprint": fingerprint(tags)},
        "networkInterfaces": interfaces,
    }
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
    return blueprint


def _machine_type(given: Json, zone: str, bulk: bool) -> MachineType:
    reference, at = given.get("machineType", ""), "resource.machineType"
    if not reference:
        raise refusal("required", field=at)
    if bulk == ("/" in reference):
        raise invalid(at, reference, f"The URL is malformed. Expected {'a name, not a URL' if bulk else 'a URL'}.")
    machine_type = MACHINE_TYPES.get(last(reference))
    if machine_type is None or not machine_type.is_in(zone):
        why = f"Machine type with name '{last(reference)}' does not exist in zone '{zone}'."
        raise invalid(at, reference, why)
    if not bulk and f"zones/{zone}/" not in reference:
        raise invalid(at, reference, f"The machine type is not of zone '{zone}'.")
    return machine_type


def refuse(*problems: tuple[object, str]) -> None:
    """Raise Refusal with the text of the first problem whose condition is true."""
    for condition, message in problems:
        if condition:
            raise bad_request(message)


def _check_model(machine_type: MachineType, model: str, gpu: str, scheduling: Json, bulk: bool) -> None:
    """Raise Refusal unless machines of this type are sold and maintained so."""
    name, policy, possible = machine_type.name, scheduling["onHostMaintenance"], machine_type.series.maintenance
    refused_by = "instances.bulkInsert" if bulk else f"{name} without GPUs"
    is_queued, is_plain = model == FLEX_START, machine_type.family == "n1" and not gpu
    refuse(
        (model not in machine_type.series.models, f"{name} is not available with the provisioning model {model}."),
        (is_queued and (bulk or is_plain), f"The provisioning model {model} is not supported by {refused_by}."),
        (gpu and policy != "TERMINATE", "Instances with guest accelerators do not support live migration."),
        (
            model == STANDARD and policy not in possible,
            f"Instances of type {name} must have onHostMaintenance {possible[0]}.",
        ),
    )


def _gpus(project: str, zone: str, machine_type: MachineType, given: list[Json], bulk: bool) -> tuple[str, int]:
    if not given:
        return machine_type.gpu, machine_type.gpus
    if len(given) > 1:
        raise bad_request("At most one type of guest accelerator is supported.")
    reference, count = given[0].get("acceleratorType", ""), given[0].get("acceleratorCount", 0)
    name = last(reference)
    if bulk == ("/" in reference):
        raise invalid("resource.guestAccelerators[0].acceleratorType", reference, "The URL is malformed.")
    accelerator = ACCELERATORS.get(name)
    if accelerator is None or zone not in accelerator.zones:
        raise not_found(f"projects/{project}/zones/{zone}/acceleratorTypes/{name}")
    if (name, count) != (machine_type.gpu, machine_type.gpus):
        is_attachable = machine_type.family == "n1" and accelerator.counts
        counts, too_many_cpus = list(accelerator.counts), machine_type.cpus > accelerator.max_cpus * count
        text = f"The number of GPU cards for '{name}' must be one of {counts}; {count} were requested."
        refuse(
            (not is_attachable, f"[{machine_type.name}, {name}] features are not compatible for creating instance."),
            (count not in counts, text),
            (too_many_cpus, f"[{machine_type.name}] has too many CPUs for {count} {name}."),
        )
    return name, count


def complete_scheduling(given: Json) -> Json:
    """Return `given` with the API's defaults; a spot instance is preemptible and vice versa.

    Source: https://cloud.google.com/compute/docs/instances/limit-vm-runtime, and
    https://cloud.google.com/compute/docs/instances/about-flex-start-vms.
    """
    spot = given.get("provisioningModel") == "SPOT" or bool(given.get("preemptible"))
    defaults = {"automaticRestart": not spot, "onHostMaintenance": "TERMINATE" if spot else "MIGRATE"}
    scheduling = {"provisioningModel": STANDARD, **defaults, **given, "preemptible": spot}
    model, is_kept = scheduling["provisioningModel"], scheduling["onHostMaintenance"] != "TERMINATE"
    is_kept |= scheduling["automaticRestart"]
    limit = scheduling.get("maxRunDuration")
    seconds, has_action = int((limit or {}).get("seconds", 0)), "instanceTerminationAction" in scheduling
    is_queued, is_bound = model == FLEX_START, model == RESERVATION_BOUND
    has_limit, action = limit is not None, scheduling.get("instanceTerminationAction", "DELETE")
    unknown = [name for name in ("terminationTime", "onInstanceStopAction") if name in scheduling]
    refuse(
        (spot and is_kept, "preemptible must be false when AutomaticRestart is true or it may migrate."),
        (
            unknown or action != "DELETE",
            f"The emulator only knows the deletion after a run time, not {unknown or action}.",
        ),
        (
            (has_limit or is_bound) and not has_action,
            "Scheduling must have instanceTerminationAction set with a run time or a reservation.",
        ),
        (has_limit and not 30 <= seconds <= 120 * 24 * 3600, "maxRunDuration must be from 30 seconds to 120 days."),
        (
            has_action and not (has_limit or spot) and model == STANDARD,
            "instanceTerminationAction is only for Spot VMs and VMs with a limited run time.",
        ),
        (is_queued and is_kept, "Flex-start VMs must neither restart automatically nor migrate."),
        (is_queued and not 600 <= seconds <= LONGEST_PREEMPTIBLE_S, "Flex-start VMs run for 10 minutes to 7 days."),
    )
    return scheduling


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
    if seconds and scheduling["provisioningModel"] != FLEX_START:
        raise bad_request("requestValidForDuration is only for the provisioning model FLEX_START.")
    if seconds and not 90 <= seconds <= 7200:
        raise invalid("resource.params.requestValidForDuration", seconds, "It must be from 90 seconds to 2 hours.")
    return float(seconds)


def _disks(blueprint: Blueprint, given: list[Json], find_image: FindImage) -> None:
    """Set the disks to create, and the instance's ``disks``."""
    if not given or not given[0].get("boot"):
        raise invalid("resource.disks", "", "At least one disk, the first of them a boot disk, is required.")
    scratch = [disk for disk in given if disk.get("type") == "SCRATCH"]
    _check_local_ssds(blueprint.machine_type, scratch)
    blueprint.local_ssds = blueprint.machine_type.local_ssds or len(scratch)
    attached = []
    for index, disk in enumerate(disk for disk in given if disk not in scratch):
        params = disk.get("initializeParams")
        if params is None:
            raise refusal("required", field=f"resource.disks[{index}].initializeParams")
        source = relative(params.get("sourceImage", ""))
        image = find_image(source)
        if image is None:
            raise not_found(source)
        if not index:
            blueprint.image = image
        made = _new_disk(blueprint, disk, index, image)
        blueprint.disks.append(made)
        size = {"source": made["name"], "diskSizeGb": made["sizeGb"]}
        flags = {"boot": bool(disk.get("boot")), "autoDelete": bool(disk.get("autoDelete"))}
        attached.append(_attached(index, "PERSISTENT", f"persistent-disk-{index}", **flags, **size))
    for number in range(blueprint.local_ssds):  # not resources of their own
        flags = {"boot": False, "autoDelete": True}
        name = f"local-nvme-ssd-{number}"
        attached.append(_attached(len(attached), "SCRATCH", name, **flags, diskSizeGb="375"))
    blueprint.body["disks"] = attached


def _attached(index: int, kind: str, name: str, **fields: Any) -> Json:
    interface = "NVME" if kind == "SCRATCH" else "SCSI"
    shared = {"kind": "compute#attachedDisk", "type": kind, "mode": "READ_WRITE", "interface": interface}
    return {**shared, "deviceName": name, "index": index, **fields}


def _check_local_ssds(machine_type: MachineType, scratch: list[Json]) -> None:
    """Raise Refusal unless the machine type can have these Local SSDs."""
    allowed = machine_type.local_ssd_counts
    for disk in scratch:
        params = disk.get("initializeParams", {})
        is_nvme = last(params.get("diskType", "")) == "local-ssd" and disk.get("interface") == "NVME"
        size_gb = str(params.get("diskSizeGb", disk.get("diskSizeGb", "375")))
        refuse(
            (not is_nvme, "Scratch disks must have the type local-ssd; this image needs the interface NVME."),
            (not disk.get("autoDelete"), "Scratch disks must have autoDelete set to true."),
            (size_gb != "375", "Local SSDs have 375 GB."),
        )
    text = f"Number of local SSDs for an instance of type {machine_type.name} should be one of {list(allowed)}"
    refuse((len(scratch) not in allowed, f"{text}, while [{len(scratch)}] is requested."))


def _new_disk(blueprint: Blueprint, disk: Json, index: int, image: Image) -> Json:
    params, machine_type, at = disk["initializeParams"], blueprint.machine_type, f"resource.disks[{index}]"
    size_gb = int(params.get("diskSizeGb") or disk.get("diskSizeGb") or image.disk_gb)
    if size_gb < image.disk_gb:
        why = f"Requested disk size cannot be smaller than the image size ({image.disk_gb} GB)"
        raise invalid(f"{at}.initializeParams.diskSizeGb", size_gb, why)
    kind = last(params.get("diskType") or "pd-standard")
    if kind not in DISK_TYPES:
        raise not_found(f"projects/{blueprint.project}/zones/{blueprint.zone}/diskTypes/{kind}")
    architectures = image.architecture, machine_type.series.architecture
    mixed = "Requested boot disk architecture ({}) is not compatible with machine type architecture ({})."
    no_gvnic = "The image does not have the guest OS feature GVNIC, which the network interface requires."
    refuse(
        (
            kind not in machine_type.series.disks,
            f"{kind} disk type cannot be used by {machine_type.name} machine type.",
        ),
        (architectures[0] != architectures[1], mixed.format(*architectures)),
        (not image.gvnic and blueprint.needs_gvnic, no_gvnic),
    )
    labels = params.get("labels", {})
    check_labels(labels, f"{at}.initializeParams.labels")
    return {
        "name": params.get("diskName") or (f"{blueprint.name}-{index}" if index else blueprint.name),
        "sizeGb": str(size_gb),
        "type": kind,
        "sourceImage": image.path,
        "sourceImageId": image.id,
        "labels": labels,
    }
