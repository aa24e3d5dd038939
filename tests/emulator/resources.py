"""The methods of all but instances and operations: what exists by itself, disks, firewall rules, addresses."""

from __future__ import annotations

import re
from typing import Any

from tests.emulator import catalog, failures, lifecycle
from tests.emulator.blueprint import check_labels, check_metadata, last, project_of, relative
from tests.emulator.cloud import PROJECT_NUMBER, Call, Cloud
from tests.emulator.failures import Failure, Refusal, already_exists, condition_not_met, invalid, not_found, required
from tests.emulator.listing import aggregated, page
from tests.emulator.methods import method, starting
from tests.emulator.operations import Work

Json = dict[str, Any]
_RANGE = re.compile(r"\d{1,3}(\.\d{1,3}){3}(/\d{1,2})?|[0-9a-fA-F:]+(/\d{1,3})?")


@method("compute.projects.get")
def get_project(cloud: Cloud, call: Call) -> Json:
    return {
        "kind": "compute#project",
        "id": PROJECT_NUMBER,
        "name": cloud.project,
        "creationTimestamp": catalog.CREATED,
        "commonInstanceMetadata": cloud.metadata,
        "defaultServiceAccount": f"{PROJECT_NUMBER}-compute@developer.gserviceaccount.com",
        "defaultNetworkTier": "PREMIUM",
        "vmDnsSetting": "ZONAL_ONLY",
        "xpnProjectStatus": "UNSPECIFIED_XPN_PROJECT_STATUS",
        "quotas": cloud.limits.quotas("", cloud.usage()),
        "selfLink": cloud.base,
    }


@starting("compute.projects.setCommonInstanceMetadata")
def set_common_instance_metadata(cloud: Cloud, call: Call) -> Json:
    if call.body.get("fingerprint") != cloud.metadata["fingerprint"]:
        raise condition_not_met("Supplied fingerprint does not match current metadata fingerprint.")
    metadata = check_metadata(call.body)

    def begin() -> Failure | None:
        cloud.metadata = metadata
        cloud.update_guests(*cloud.instances.values())
        return None

    return _launch(cloud, call, "compute.projects.setCommonInstanceMetadata", cloud.base, begin)


@method("compute.regions.get")
def get_region(cloud: Cloud, call: Call) -> Json:
    region = _known(cloud, call, "region", catalog.REGIONS, "regions")
    return catalog.region_body(cloud.base, region, cloud.limits.quotas(region, cloud.usage()))


@method("compute.regions.list")
def list_regions(cloud: Cloud, call: Call) -> Json:
    usage = cloud.usage()
    regions = [catalog.region_body(cloud.base, name, cloud.limits.quotas(name, usage)) for name in catalog.REGIONS]
    return page(cloud, call, regions)


@method("compute.zones.get")
def get_zone(cloud: Cloud, call: Call) -> Json:
    return catalog.zone_body(cloud.base, _known(cloud, call, "zone", catalog.ZONES, "zones"))


@method("compute.zones.list")
def list_zones(cloud: Cloud, call: Call) -> Json:
    return page(cloud, call, [catalog.zone_body(cloud.base, zone) for zone in catalog.ZONES])


@method("compute.machineTypes.get")
def get_machine_type(cloud: Cloud, call: Call) -> Json:
    return _catalogued(cloud, call, "machineType")


@method("compute.machineTypes.list")
def list_machine_types(cloud: Cloud, call: Call) -> Json:
    return page(cloud, call, _machine_types(cloud, call.zone))


@method("compute.machineTypes.aggregatedList")
def aggregated_machine_types(cloud: Cloud, call: Call) -> Json:
    return aggregated(cloud, call, {f"zones/{zone}": _machine_types(cloud, zone) for zone in catalog.ZONES})


@method("compute.acceleratorTypes.get")
def get_accelerator_type(cloud: Cloud, call: Call) -> Json:
    return _catalogued(cloud, call, "acceleratorType")


@method("compute.acceleratorTypes.list")
def list_accelerator_types(cloud: Cloud, call: Call) -> Json:
    return page(cloud, call, _accelerators(cloud, call.zone))


@method("compute.acceleratorTypes.aggregatedList")
def aggregated_accelerator_types(cloud: Cloud, call: Call) -> Json:
    return aggregated(cloud, call, {f"zones/{zone}": _accelerators(cloud, zone) for zone in catalog.ZONES})


@method("compute.diskTypes.get")
def get_disk_type(cloud: Cloud, call: Call) -> Json:
    return _catalogued(cloud, call, "diskType")


@method("compute.diskTypes.list")
def list_disk_types(cloud: Cloud, call: Call) -> Json:
    return page(cloud, call, _disk_types(cloud, call.zone))


@method("compute.images.get", "compute.images.getFromFamily")
def get_image(cloud: Cloud, call: Call) -> Json:
    name = f"family/{call.path['family']}" if "family" in call.path else call.path["image"]
    path = f"projects/{call.path['project']}/global/images/{name}"
    image = catalog.find_image(path)
    if image is None:
        raise not_found(path)
    return catalog.image_body(cloud.root, image)


@method("compute.networks.get")
def get_network(cloud: Cloud, call: Call) -> Json:
    project = call.path["project"]
    name = _known(cloud, call, "network", cloud.networks_of(project), "global/networks")
    return catalog.network_body(cloud.url_of(project), name)


@method("compute.networks.list")
def list_networks(cloud: Cloud, call: Call) -> Json:
    return page(cloud, call, [catalog.network_body(cloud.base, name) for name in cloud.networks])


@method("compute.subnetworks.get")
def get_subnetwork(cloud: Cloud, call: Call) -> Json:
    region = _known(cloud, call, "region", catalog.REGIONS, "regions")
    name = _known(cloud, call, "subnetwork", cloud.networks, f"regions/{region}/subnetworks")
    return catalog.subnetwork_body(cloud.base, region, name)


@method("compute.subnetworks.list")
def list_subnetworks(cloud: Cloud, call: Call) -> Json:
    region = _known(cloud, call, "region", catalog.REGIONS, "regions")
    return page(cloud, call, _subnetworks(cloud, region))


@method("compute.subnetworks.aggregatedList")
def aggregated_subnetworks(cloud: Cloud, call: Call) -> Json:
    return aggregated(cloud, call, {f"regions/{region}": _subnetworks(cloud, region) for region in catalog.REGIONS})


@method("compute.disks.get")
def get_disk(cloud: Cloud, call: Call) -> Json:
    return cloud.disks[_disk_key(cloud, call)]


@method("compute.disks.list")
def list_disks(cloud: Cloud, call: Call) -> Json:
    return page(cloud, call, [disk for (zone, _), disk in cloud.disks.items() if zone == call.zone])


@method("compute.disks.aggregatedList")
def aggregated_disks(cloud: Cloud, call: Call) -> Json:
    scoped: dict[str, list[Json]] = {f"zones/{zone}": [] for zone in catalog.ZONES}
    for (zone, _), disk in sorted(cloud.disks.items()):
        scoped[f"zones/{zone}"].append(disk)
    return aggregated(cloud, call, scoped)


@starting("compute.disks.insert")
def insert_disk(cloud: Cloud, call: Call) -> Json:
    zone = _known(cloud, call, "zone", catalog.ZONES, "zones")
    name = call.body["name"]
    if (zone, name) in cloud.disks:
        raise already_exists(f"projects/{cloud.project}/zones/{zone}/disks/{name}")
    kind = last(call.body.get("type", "pd-standard"))
    if kind not in catalog.DISK_TYPES:
        raise not_found(f"projects/{cloud.project}/zones/{zone}/diskTypes/{kind}")
    disk = {
        "name": name,
        "type": kind,
        "sizeGb": call.body.get("sizeGb", "100"),
        "labels": call.body.get("labels", {}),
    }
    check_labels(disk["labels"], "resource.labels")
    if "sourceImage" in call.body:
        disk["sourceImage"] = relative(call.body["sourceImage"])

    def begin() -> Failure | None:
        if (zone, name) in cloud.disks:
            return failures.operation_failure("RESOURCE_ALREADY_EXISTS", f"The disk '{name}' already exists", 409)
        lifecycle.make_disk(cloud, zone, disk)
        return None

    return _launch(cloud, call, "insert", f"{cloud.base}/zones/{zone}/disks/{name}", begin)


@starting("compute.disks.delete")
def delete_disk(cloud: Cloud, call: Call) -> Json:
    key = _disk_key(cloud, call)
    disk = cloud.disks[key]
    if disk.get("users"):
        raise Refusal(
            400,
            "resourceInUseByAnotherResource",
            f"The disk resource '{relative(disk['selfLink'])}' is already being used by "
            f"'{relative(disk['users'][0])}'",
        )

    def begin() -> Failure | None:
        cloud.disks.pop(key, None)
        return None

    return _launch(cloud, call, "delete", disk["selfLink"], begin)


@method("compute.firewalls.get")
def get_firewall(cloud: Cloud, call: Call) -> Json:
    return cloud.firewalls[_known(cloud, call, "firewall", _rules(cloud, call), "global/firewalls")]


@method("compute.firewalls.list")
def list_firewalls(cloud: Cloud, call: Call) -> Json:
    return page(cloud, call, _rules(cloud, call).values())


@starting("compute.firewalls.insert")
def insert_firewall(cloud: Cloud, call: Call) -> Json:
    name = call.body["name"]
    if name in cloud.firewalls:
        raise already_exists(f"projects/{cloud.project}/global/firewalls/{name}")
    target = f"{cloud.url_of(call.path['project'])}/global/firewalls/{name}"
    made: Json = {
        "kind": "compute#firewall",
        "id": cloud.new_id(),
        "creationTimestamp": cloud.clock.stamp(),
        "selfLink": target,
        "direction": "INGRESS",
        "priority": 1000,
        "disabled": False,
        "logConfig": {"enable": False},
        "description": "",
        **_firewall(cloud, call, call.body),
    }
    if made["direction"] == "INGRESS" and not made.get("sourceTags"):
        made.setdefault("sourceRanges", ["0.0.0.0/0"])

    def begin() -> Failure | None:
        if name in cloud.firewalls:
            return failures.operation_failure("RESOURCE_ALREADY_EXISTS", f"The resource '{name}' already exists", 409)
        quota = cloud.limits.project_shortage("FIREWALLS", cloud.usage())
        if quota is None:
            cloud.firewalls[name] = made
            cloud.apply_firewall()
        return quota

    return _launch(cloud, call, "insert", target, begin, made["id"])


@starting("compute.firewalls.patch", "compute.firewalls.update")
def change_firewall(cloud: Cloud, call: Call) -> Json:
    name = _known(cloud, call, "firewall", _rules(cloud, call), "global/firewalls")
    old = cloud.firewalls[name]
    kind = call.method.id.rsplit(".", 1)[-1]
    fixed = ("kind", "id", "creationTimestamp", "selfLink", "name", "direction", "network")
    kept = old if kind == "patch" else {field: old[field] for field in fixed}
    changed = {**kept, **_firewall(cloud, call, {**kept, **call.body})}

    def begin() -> Failure | None:
        if name in cloud.firewalls:
            cloud.firewalls[name] = changed
            cloud.apply_firewall()
        return None

    return _launch(cloud, call, kind, old["selfLink"], begin, old["id"])


@starting("compute.firewalls.delete")
def delete_firewall(cloud: Cloud, call: Call) -> Json:
    name = _known(cloud, call, "firewall", _rules(cloud, call), "global/firewalls")
    rule = cloud.firewalls[name]

    def begin() -> Failure | None:
        cloud.firewalls.pop(name, None)
        cloud.apply_firewall()
        return None

    return _launch(cloud, call, "delete", rule["selfLink"], begin, rule["id"])


@method("compute.addresses.list")
def list_addresses(cloud: Cloud, call: Call) -> Json:
    region = _known(cloud, call, "region", catalog.REGIONS, "regions")
    return page(cloud, call, [address for (where, _), address in cloud.addresses.items() if where == region])


@method("compute.addresses.aggregatedList")
def aggregated_addresses(cloud: Cloud, call: Call) -> Json:
    scoped: dict[str, list[Json]] = {"global": [], **{f"regions/{region}": [] for region in catalog.REGIONS}}
    for (region, _), address in sorted(cloud.addresses.items()):
        scoped[f"regions/{region}"].append(address)
    return aggregated(cloud, call, scoped)


@starting("compute.addresses.insert")
def insert_address(cloud: Cloud, call: Call) -> Json:
    region = _known(cloud, call, "region", catalog.REGIONS, "regions")
    name = call.body["name"]
    if (region, name) in cloud.addresses:
        raise already_exists(f"projects/{cloud.project}/regions/{region}/addresses/{name}")
    target = f"{cloud.base}/regions/{region}/addresses/{name}"
    made: Json = {
        "kind": "compute#address",
        "id": cloud.new_id(),
        "creationTimestamp": cloud.clock.stamp(),
        "name": name,
        "address": f"203.0.113.{len(cloud.addresses) + 1}",
        "addressType": "EXTERNAL",
        "networkTier": "PREMIUM",
        "status": "RESERVED",
        "region": f"{cloud.base}/regions/{region}",
        "description": call.body.get("description", ""),
        "labels": call.body.get("labels", {}),
        "selfLink": target,
    }

    def begin() -> Failure | None:
        cloud.addresses[region, name] = made
        return None

    return _launch(cloud, call, "insert", target, begin, made["id"])


@starting("compute.addresses.delete")
def delete_address(cloud: Cloud, call: Call) -> Json:
    region, name = call.path["region"], call.path["address"]
    address = cloud.addresses.get((region, name))
    if address is None:
        raise not_found(f"projects/{cloud.project}/regions/{region}/addresses/{name}")

    def begin() -> Failure | None:
        cloud.addresses.pop((region, name), None)
        return None

    return _launch(cloud, call, "delete", address["selfLink"], begin, address["id"])


def _launch(cloud: Cloud, call: Call, kind: str, target: str, begin: Any, target_id: str = "") -> Json:
    """Start an operation whose effect comes when it begins."""
    fault = call.fault

    def faulty() -> Failure | None:
        failure = fault.failure(None, "") if fault else None
        failure = failure or begin()
        if failure is None and fault and fault.kind == "fails-after":
            failure = failures.operation_failure("INTERNAL_ERROR", fault.message, 500)
        return failure

    operation = cloud.launch(call, kind, target, Work(faulty), target_id=target_id)
    project = call.path["project"]
    operation.body["selfLink"] = operation.body["selfLink"].replace(cloud.base, cloud.url_of(project))
    return operation.body


def _known(cloud: Cloud, call: Call, parameter: str, names: Any, noun: str) -> str:
    """The parameter of the path, which must be one of `names`."""
    name = call.path[parameter]
    if name not in names:
        raise not_found(f"projects/{cloud.project}/{noun}/{name}")
    return name


def _disk_key(cloud: Cloud, call: Call) -> tuple[str, str]:
    key = (call.zone, call.path["disk"])
    if key not in cloud.disks:
        raise not_found(f"projects/{cloud.project}/zones/{call.zone}/disks/{call.path['disk']}")
    return key


def _rules(cloud: Cloud, call: Call) -> dict[str, Json]:
    """The firewall rules of the project that the path names."""
    project = call.path["project"]
    return {name: rule for name, rule in cloud.firewalls.items() if project_of(rule["selfLink"]) == project}


def _firewall(cloud: Cloud, call: Call, given: Json) -> Json:
    """The fields of a firewall rule that a request may set, checked."""
    reference, project = given.get("network", "global/networks/default"), call.path["project"]
    network = cloud.network(reference if project_of(reference) else f"projects/{project}/{reference}")
    if project_of(network) != project:
        raise invalid("resource.network", reference, "Cross project referencing is not allowed for this resource.")
    if not given.get("allowed") and not given.get("denied"):
        raise required("resource.allowed")
    for name in ("sourceRanges", "destinationRanges"):
        for text in given.get(name, ()):
            if not _RANGE.fullmatch(text):
                raise invalid(f"resource.{name}", text, "It must be a range of addresses in CIDR notation.")
    for rule in (*given.get("allowed", ()), *given.get("denied", ())):
        if "IPProtocol" not in rule:
            raise required("resource.allowed[0].IPProtocol")
    return {**given, "network": network}


def _machine_types(cloud: Cloud, zone: str) -> list[Json]:
    return [
        catalog.machine_type_body(cloud.base, zone, machine)
        for machine in catalog.MACHINE_TYPES.values()
        if machine.is_in(zone)
    ]


def _accelerators(cloud: Cloud, zone: str) -> list[Json]:
    return [
        catalog.accelerator_body(cloud.base, zone, accelerator)
        for accelerator in catalog.ACCELERATORS.values()
        if zone in accelerator.zones
    ]


def _disk_types(cloud: Cloud, zone: str) -> list[Json]:
    return [catalog.disk_type_body(cloud.base, zone, name) for name in catalog.DISK_TYPES]


def _subnetworks(cloud: Cloud, region: str) -> list[Json]:
    return [catalog.subnetwork_body(cloud.base, region, name) for name in cloud.networks]


def _catalogued(cloud: Cloud, call: Call, parameter: str) -> Json:
    """The entry of a zone's catalogue that the path names."""
    zone = _known(cloud, call, "zone", catalog.ZONES, "zones")
    of_zone = {"machineType": _machine_types, "acceleratorType": _accelerators, "diskType": _disk_types}[parameter]
    entries = {entry["name"]: entry for entry in of_zone(cloud, zone)}
    return entries[_known(cloud, call, parameter, entries, f"zones/{zone}/{parameter}s")]
