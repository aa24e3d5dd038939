"""The other resources of Compute Engine: each kind is a row of a table with what is special about it.

Sources: https://cloud.google.com/compute/docs/instances/use-compact-placement-policies for placement policies,
https://cloud.google.com/nat/docs/overview for Cloud NAT, which belongs to Cloud Routers.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tests.emulator import catalog, messages
from tests.emulator.blueprint import check_labels, check_metadata, check_name, last, project_of, relative
from tests.emulator.catalog import ACCELERATORS, CREATED, MACHINE_TYPES, REGIONS, ZONES, Image, entry
from tests.emulator.cloud import METHODS, STARTING, Call, Cloud, method, starting
from tests.emulator.governance import DEFAULT_ACCOUNT, PROJECT_NUMBER
from tests.emulator.lifecycle import launch
from tests.emulator.listing import aggregated, page
from tests.emulator.messages import Failure, bad_request, invalid, not_found, refusal
from tests.emulator.operations import Done, Operation

Json = dict[str, Any]
_RANGE = re.compile(r"\d{1,3}(\.\d{1,3}){3}(/\d{1,2})?|[0-9a-fA-F:]+(/\d{1,3})?")
_LONGEST_WAIT_S = 120.0


@dataclass(frozen=True)
class Kind:
    """A kind of resource.

    Attributes:
        singular: ``address``; also the name of the parameter in paths.
        scope: ``zone``, ``region`` or ``global``.
        held: Name of the attribute of Cloud with the resources that users create; empty: there are none.
        make: Returns the fields of a new or changed resource that follow from a request; raises Refusal.
        quota: Quota that counts them; empty: none.
        offered: Returns the resources of a place that the cloud has by itself, by name.
        complete: Called at the end of an `insert` with what reports the end.
        check_deletion: Raises Refusal if a resource cannot be deleted.
        changed: Called after each change.
        shown: Returns a resource as the API shows it.
    """

    singular: str
    scope: str
    held: str = ""
    make: Callable[[Cloud, Call, Json], Json] = lambda _cloud, _call, given: given
    quota: str = ""
    offered: Callable[[Cloud, Call, str], Mapping[Any, Json]] = lambda _cloud, _call, _place: {}
    complete: Callable[[Cloud, Json, Done], None] = lambda _cloud, _body, done: done(None)
    check_deletion: Callable[[Cloud, Json], None] = lambda _cloud, _body: None
    changed: Callable[[Cloud], None] = lambda _cloud: None
    shown: Callable[[Cloud, Json], Json] = lambda _cloud, body: body

    def place(self, call: Call) -> str:
        """Return the zone or region of a call; empty: it has none."""
        return call.path.get(self.scope, "")

    def places(self) -> list[str]:
        """Return all zones, or all regions."""
        return list(ZONES) if self.scope == "zone" else list(REGIONS)

    def all(self, cloud: Cloud, call: Call, place: str) -> dict[str, Json]:
        """Return the resources of a place by name; those of other projects are hidden."""
        result = dict(self.offered(cloud, call, place))
        for key, body in sorted(getattr(cloud, self.held).items()) if self.held else ():
            where, name = key if isinstance(key, tuple) else ("", key)
            if where == place and project_of(body["selfLink"]) == call.path["project"]:
                result[name] = self.shown(cloud, body)
        return result

    def find(self, cloud: Cloud, call: Call) -> Json:
        """Return the resource that a path names; raise Refusal if it does not exist."""
        name, all_ = call.path[self.singular], self.all(cloud, call, self.place(call))
        if name not in all_:
            # Zones and regions are their own scopes.
            scope = "" if call.noun in ("zones", "regions") else f"{call.scope}/"
            raise not_found(f"projects/{call.path['project']}/{scope}{call.noun}/{name}")
        return all_[name]

    def key(self, call: Call, name: str) -> Any:
        """Return the key of a resource in `held`."""
        return name if self.scope == "global" else (self.place(call), name)


def _insert(kind: Kind, cloud: Cloud, call: Call) -> Json:
    name, project, held = call.body["name"], call.path["project"], getattr(cloud, kind.held)
    check_name(name)
    path = f"projects/{project}/{call.scope}/{call.noun}/{name}"
    if name in kind.all(cloud, call, kind.place(call)):
        raise refusal("409", resource=path)
    scope = {kind.scope: f"{cloud.url_of(project)}/{call.scope}"} if kind.scope != "global" else {}
    body: Json = {
        **kind.make(cloud, call, call.body),
        "kind": f"compute#{kind.singular}",
        "id": cloud.new_id(),
        "creationTimestamp": cloud.clock.stamp(),
        **scope,
        "selfLink": f"{cloud.root}/{path}",
    }

    def begin() -> Failure | None:
        key = kind.key(call, name)
        if key in held:
            return messages.failure("exists", message=f"The resource '{path}' already exists")
        failure = cloud.limits.project_shortage(kind.quota, cloud.usage()) if kind.quota else None
        if failure is None:
            held[key] = body
            kind.changed(cloud)
        return failure

    finish = partial(kind.complete, cloud, body)
    return launch(cloud, call, body["selfLink"], begin, finish, targetId=body["id"]).body


def _patch(kind: Kind, cloud: Cloud, call: Call) -> Json:
    before, held = kind.find(cloud, call), getattr(cloud, kind.held)
    after = {**before, **kind.make(cloud, call, {**before, **call.body})}
    key = kind.key(call, call.path[kind.singular])

    def begin() -> None:
        if key in held:
            held[key] = after
            kind.changed(cloud)

    return launch(cloud, call, before["selfLink"], begin, targetId=before["id"]).body


def _delete(kind: Kind, cloud: Cloud, call: Call) -> Json:
    body, held = kind.find(cloud, call), getattr(cloud, kind.held)
    kind.check_deletion(cloud, body)

    def begin() -> None:
        held.pop(kind.key(call, call.path[kind.singular]), None)
        cloud.end_charge(body["id"])
        kind.changed(cloud)

    return launch(cloud, call, body["selfLink"], begin, targetId=body["id"]).body


def _list(kind: Kind, cloud: Cloud, call: Call) -> Json:
    return page(cloud, call, kind.all(cloud, call, kind.place(call)).values())


def _list_all(kind: Kind, cloud: Cloud, call: Call) -> Json:
    scoped = {f"{kind.scope}s/{place}": kind.all(cloud, call, place).values() for place in kind.places()}
    return aggregated(cloud, call, scoped)


# --- what is special about a kind


def _make_firewall(cloud: Cloud, call: Call, given: Json) -> Json:
    reference, project = given.get("network", "global/networks/default"), call.path["project"]
    network = cloud.network(reference, project)
    if project_of(network) != project:
        raise invalid("resource.network", reference, "Cross project referencing is not allowed for this resource.")
    if not given.get("allowed") and not given.get("denied"):
        raise refusal("required", field="resource.allowed")
    for name in ("sourceRanges", "destinationRanges"):
        for text in given.get(name, ()):
            if not _RANGE.fullmatch(text):
                raise invalid(f"resource.{name}", text, "It must be a range of addresses in CIDR notation.")
    defaults: Json = {"direction": "INGRESS", "priority": 1000, "disabled": False, "description": ""}
    everyone = {} if given.get("sourceTags") else {"sourceRanges": ["0.0.0.0/0"]}
    return {**defaults, **everyone, **given, "network": network}


def _make_reservation(cloud: Cloud, call: Call, given: Json) -> Json:
    machine_type = given.get("specificReservation", {}).get("instanceProperties", {}).get("machineType", "")
    if machine_type not in MACHINE_TYPES:
        raise invalid("resource.specificReservation.instanceProperties.machineType", machine_type, "It is unknown.")
    return {"specificReservationRequired": False, **given, "status": "READY"}


def _count_instances(cloud: Cloud, body: Json) -> Json:
    used = cloud.reserved(last(body["zone"]), body["name"])
    return {**body, "specificReservation": {**body["specificReservation"], "inUseCount": str(used)}}


def _make_policy(cloud: Cloud, call: Call, given: Json) -> Json:
    if given.get("groupPlacementPolicy", {}).get("collocation") != "COLLOCATED":
        raise bad_request("Only compact placement policies are emulated.")
    return {**given, "status": "READY"}


def _check_policy_is_free(cloud: Cloud, body: Json) -> None:
    for instance in cloud.instances.values():
        if body["selfLink"] in instance.body.get("resourcePolicies", ()):
            raise refusal("in use", resource=relative(body["selfLink"]), user=instance.blueprint.path)


def _make_router(cloud: Cloud, call: Call, given: Json) -> Json:
    return {**given, "network": cloud.network(given["network"], call.path["project"])}


def _check_disk_is_free(cloud: Cloud, body: Json) -> None:
    if body.get("users"):
        raise refusal("in use", resource=relative(body["selfLink"]), user=relative(body["users"][0]))
    refuse_copied(cloud, body["selfLink"])


def _networks(cloud: Cloud, call: Call, place: str) -> Mapping[str, Json]:
    """Return the networks; those that users create are in custom mode, with one subnetwork in each region."""
    base = cloud.url_of(call.path["project"])
    return {
        name: entry(
            "network",
            name,
            autoCreateSubnetworks=name == "default",
            subnetworks=[f"{base}/regions/{region}/subnetworks/{name}" for region in REGIONS],
            networkFirewallPolicyEnforcementOrder="AFTER_CLASSIC_FIREWALL",
            selfLink=f"{base}/global/networks/{name}",
        )
        for name in cloud.networks_of(call.path["project"])
    }


def _instances(cloud: Cloud, call: Call, place: str) -> Mapping[str, Json]:
    return {name: each.body for (zone, name), each in sorted(cloud.instances.items()) if zone == place}


def _machine_types(cloud: Cloud, call: Call, place: str) -> Mapping[str, Json]:
    return {name: each.body(cloud.base, place) for name, each in MACHINE_TYPES.items() if each.is_in(place)}


def _accelerators(cloud: Cloud, call: Call, place: str) -> Mapping[str, Json]:
    return {name: each.body(cloud.base, place) for name, each in ACCELERATORS.items() if place in each.zones}


def _zones(cloud: Cloud, call: Call, place: str) -> Mapping[str, Json]:
    regions = f"{cloud.base}/regions"
    fields: dict[str, Json] = {zone: {"region": f"{regions}/{region}"} for zone, region in ZONES.items()}
    return _places(cloud, "zone", fields)


def _regions(cloud: Cloud, call: Call, place: str) -> Mapping[str, Json]:
    usage = cloud.usage()
    quotas = {region: cloud.limits.quotas(region, usage) for region in REGIONS}
    zones = {region: [f"{cloud.base}/zones/{zone}" for zone in zones] for region, zones in REGIONS.items()}
    return _places(cloud, "region", {each: {"zones": zones[each], "quotas": quotas[each]} for each in REGIONS})


def _places(cloud: Cloud, kind: str, fields: Mapping[str, Json]) -> Mapping[str, Json]:
    link = f"{cloud.base}/{kind}s"
    return {name: entry(kind, name, status="UP", selfLink=f"{link}/{name}", **more) for name, more in fields.items()}


def _public_images(cloud: Cloud, call: Call, place: str) -> Mapping[str, Json]:
    images = [image for image in catalog.IMAGES if image.project == call.path["project"]]
    return {image.name: image.body(cloud.root) for image in images}


def _make_image(cloud: Cloud, call: Call, given: Json) -> Json:
    """Return an image of a disk, whose instance must not run without ``forceCreate``."""
    check_labels(given.get("labels", {}), "resource.labels")
    path = relative(given.get("sourceDisk", ""))
    disk = cloud.disks.get((last(path.rpartition("/disks/")[0]), last(path)))
    if disk is None:
        raise not_found(path) if path else refusal("required", field="resource.sourceDisk")
    for user in disk.get("users", ()):
        is_forced = call.query.get("forceCreate", "").lower() == "true"
        if not is_forced and cloud.instance(last(disk["zone"]), last(user)).status != "TERMINATED":
            raise refusal("in use", resource=path, user=relative(user))
    base = find_image(cloud, relative(disk["sourceImage"]))
    if base is None:
        raise not_found(relative(disk["sourceImage"]))
    return {
        **base.body(cloud.root),
        "family": "",
        "labels": {},
        **given,
        "status": "PENDING",
        "sourceDisk": disk["selfLink"],
        "sourceDiskId": disk["id"],
        "diskSizeGb": disk["sizeGb"],
        "archiveSizeBytes": str(int(disk["sizeGb"]) * 2**30 // 10),
        "storageLocations": ["us"],
    }


def _complete_image(cloud: Cloud, body: Json, done: Done) -> None:
    """Save the files of the disk."""
    zone, name = body["sourceDisk"].split("/")[-3::2]
    disk, files = cloud.disks.get((zone, name)), cloud.directory / f"image-{body['id']}"
    if disk is None:  # its instance was taken back
        del cloud.images[body["name"]]
        done(messages.failure("missing", resource=relative(body["sourceDisk"])))
        return
    user = next((cloud.instance(zone, last(user)) for user in disk.get("users", ())), None)
    base = find_image(cloud, relative(disk["sourceImage"]))
    assert base
    mine = {"project": cloud.project, "family": "", "name": body["name"], "number": body["id"], "files": files}
    cloud.image_contents[body["name"]] = replace(base, disk_gb=int(disk["sizeGb"]), **mine)

    def saved() -> None:
        body["status"] = "READY"
        done(None)

    cloud.aside(partial(user.guest.save, files) if user and user.guest else lambda: None, saved)


def _check_image_is_ready(cloud: Cloud, body: Json) -> None:
    if body["status"] == "PENDING":
        raise refusal("not ready", resource=relative(body["selfLink"]))


def _drop_contents(cloud: Cloud) -> None:
    """Delete the files of images that do not exist."""
    for name in cloud.image_contents.keys() - cloud.images.keys():
        if files := cloud.image_contents.pop(name).files:
            cloud.aside(partial(shutil.rmtree, files, ignore_errors=True))


_EVERYTHING = ("get", "list", "aggregatedList", "insert", "delete")
KINDS: dict[str, tuple[Kind, tuple[str, ...]]] = {
    "addresses": (Kind("address", "region", "addresses"), ("aggregatedList",)),
    "disks": (
        Kind("disk", "zone", "disks", check_deletion=_check_disk_is_free),
        ("list", "aggregatedList", "delete"),
    ),
    "firewalls": (
        Kind("firewall", "global", "firewalls", _make_firewall, "FIREWALLS", changed=Cloud.change_firewall),
        ("get", "list", "insert", "patch", "delete"),
    ),
    "reservations": (
        Kind("reservation", "zone", "reservations", _make_reservation, shown=_count_instances),
        ("aggregatedList", "insert"),
    ),
    "resourcePolicies": (
        Kind("resourcePolicy", "region", "policies", _make_policy, check_deletion=_check_policy_is_free),
        _EVERYTHING,
    ),
    "routers": (Kind("router", "region", "routers", _make_router), (*_EVERYTHING, "patch")),
    "images": (
        Kind(
            *("image", "global", "images", _make_image, "IMAGES", _public_images, _complete_image),
            check_deletion=_check_image_is_ready,
            changed=_drop_contents,
        ),
        ("list", "insert", "delete"),
    ),
    "instances": (Kind("instance", "zone", offered=_instances), ("list", "aggregatedList")),
    "networks": (Kind("network", "global", offered=_networks), ("get", "list")),
    "machineTypes": (Kind("machineType", "zone", offered=_machine_types), ("get", "list", "aggregatedList")),
    "acceleratorTypes": (Kind("acceleratorType", "zone", offered=_accelerators), ("list", "aggregatedList")),
    "zones": (Kind("zone", "global", offered=_zones), ("get", "list")),
    "regions": (Kind("region", "global", offered=_regions), ("get", "list")),
}
"""The kinds by their nouns, each with the methods that it has in common with others."""
_VERBS = {"insert": _insert, "patch": _patch, "delete": _delete, "list": _list, "aggregatedList": _list_all}


def _register() -> None:
    for noun, (kind, verbs) in KINDS.items():
        for verb in verbs:
            METHODS[f"compute.{noun}.{verb}"] = _bound(verb, kind)
        STARTING.update(f"compute.{noun}.{verb}" for verb in verbs if verb in ("insert", "patch", "delete"))


def _bound(verb: str, kind: Kind) -> Callable[[Cloud, Call], Json]:
    if verb == "get":
        return kind.find
    act = _VERBS[verb]
    return lambda cloud, call: act(kind, cloud, call)


_register()


# --- networks and the project


@method("compute.networks.getEffectiveFirewalls")
def get_effective_firewalls(cloud: Cloud, call: Call) -> Json:
    network = KINDS["networks"][0].find(cloud, call)["selfLink"]
    rules = [rule for rule in cloud.firewalls.values() if rule["network"] == network]
    return {"firewalls": rules, "firewallPolicys": cloud.firewall_policies}


@method("compute.subnetworks.testIamPermissions")
def test_subnetwork_permissions(cloud: Cloud, call: Call) -> Json:
    project, asked = call.path["project"], call.body.get("permissions", [])
    return {"permissions": [name for name in asked if not cloud.denied & {name, f"{project}:{name}"}]}


@method("compute.projects.get")
def get_project(cloud: Cloud, call: Call) -> Json:
    return {
        "kind": "compute#project",
        "id": PROJECT_NUMBER,
        "name": cloud.project,
        "creationTimestamp": CREATED,
        "commonInstanceMetadata": cloud.metadata,
        "defaultServiceAccount": DEFAULT_ACCOUNT,
        "quotas": cloud.limits.quotas("", cloud.usage()),
        "selfLink": cloud.base,
    }


@method("compute.projects.getXpnHost")
def get_host_project(cloud: Cloud, call: Call) -> Json:
    return next(({"kind": "compute#project", "name": host} for host in cloud.shared), {})


@starting("compute.projects.setCommonInstanceMetadata")
def set_common_instance_metadata(cloud: Cloud, call: Call) -> Json:
    if call.body.get("fingerprint") != cloud.metadata["fingerprint"]:
        raise refusal("condition", message="Supplied fingerprint does not match current metadata fingerprint.")
    metadata = check_metadata(call.body)

    def begin() -> None:
        cloud.metadata = metadata
        cloud.update_guests()

    return launch(cloud, call, cloud.base, begin).body


# --- operations


@method(*(f"compute.{scope}Operations.get" for scope in ("zone", "region", "global")))
def get_operation(cloud: Cloud, call: Call) -> Json:
    return _operation(cloud, call).body


@method(*(f"compute.{scope}Operations.wait" for scope in ("zone", "region", "global")))
def wait_for_operation(cloud: Cloud, call: Call) -> Json:
    operation = _operation(cloud, call)
    scope, name = operation.scope, operation.body["name"]
    cloud.clock.wait_for(lambda: operation.done or cloud.operations.find(scope, name) is None, _LONGEST_WAIT_S)
    return operation.body


@method("compute.globalOperations.aggregatedList")
def list_all_operations(cloud: Cloud, call: Call) -> Json:
    scopes = ("global", *(f"regions/{name}" for name in REGIONS), *(f"zones/{name}" for name in ZONES))
    scoped: dict[str, list[Json]] = {scope: [] for scope in scopes}
    for operation in cloud.operations.retained():
        if project_of(operation.body["selfLink"]) == call.path["project"]:
            scoped[operation.scope].append(operation.body)
    return aggregated(cloud, call, scoped)


def _operation(cloud: Cloud, call: Call) -> Operation:
    name, project = call.path["operation"], call.path["project"]
    operation = cloud.operations.find(call.scope, name)
    if operation is None or project_of(operation.body["selfLink"]) != project:
        raise not_found(f"projects/{project}/{call.scope}/operations/{name}")
    return operation


# --- images


def refuse_copied(cloud: Cloud, disk: str) -> None:
    """Raise Refusal while an image is made of the disk at this URL."""
    for image in cloud.images.values():
        if image["status"] == "PENDING" and image["sourceDisk"] == disk:
            raise refusal("in use", resource=relative(disk), user=relative(image["selfLink"]))


def find_image(cloud: Cloud, source: str) -> Image | None:
    """Return the image for a path from ``projects/`` on; raise Refusal if it is not ready."""
    stem, _, name = source.rpartition("/")
    if stem != f"projects/{cloud.project}/global/images" or name not in cloud.images:
        return catalog.find_image(source)
    if cloud.images[name]["status"] != "READY":
        raise refusal("not ready", resource=source)
    return cloud.image_contents[name]


@method("compute.images.get", "compute.images.getFromFamily")
def get_image(cloud: Cloud, call: Call) -> Json:
    project, name = call.path["project"], call.path.get("image") or f"family/{call.path['family']}"
    path = f"projects/{project}/global/images/{name}"
    if project == cloud.project and name in cloud.images:
        return cloud.images[name]
    image = catalog.find_image(path)
    if image is None:
        raise not_found(path)
    return image.body(cloud.root)
