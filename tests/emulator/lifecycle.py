"""From nothing to PENDING, PROVISIONING, STAGING, RUNNING, STOPPING, TERMINATED and to nothing again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.emulator.blueprint import Blueprint, fingerprint, last, project_of
from tests.emulator.catalog import locations
from tests.emulator.charges import Charge
from tests.emulator.cloud import Cloud, Instance
from tests.emulator.failures import Failure, already_exists, free_trial
from tests.emulator.guest_specs import guest_spec
from tests.emulator.metadata import POWER_OFF, RESTART
from tests.emulator.operations import SYSTEM, Done, Launch, Work
from tests.emulator.queueing import Queue
from tests.emulator.reservations import reservation_shortage

Json = dict[str, Any]
PREEMPTED = "compute.instances.preempted"
HOST_ERROR = "compute.instances.hostError"
MAINTENANCE = "compute.instances.terminateOnHostMaintenance"
GUEST_TERMINATED = "compute.instances.guestTerminate"
AUTOMATIC_RESTART = "compute.instances.automaticRestart"


def refuse_taken_names(cloud: Cloud, blueprint: Blueprint) -> None:
    """Raise Refusal where the instance or one of its disks exists already."""
    if (blueprint.zone, blueprint.name) in cloud.instances:
        raise already_exists(blueprint.path)
    for disk in blueprint.disks:
        if (blueprint.zone, disk["name"]) in cloud.disks:
            raise already_exists(f"projects/{cloud.project}/zones/{blueprint.zone}/disks/{disk['name']}")


def shortage(cloud: Cloud, blueprint: Blueprint) -> Failure | None:
    """Why there is no room for it."""
    usage = cloud.usage()
    if blueprint.gpu and cloud.governance.is_trial:
        return free_trial()
    failure = reservation_shortage(cloud, blueprint) or cloud.limits.shortage(blueprint, cloud.held(), usage)
    return failure or cloud.limits.disk_shortage(blueprint, usage)


def appear(cloud: Cloud, blueprint: Blueprint, *, pending: bool = False) -> Instance:
    """The instance is there: PROVISIONING with its disks, or `pending`, which has none yet."""
    address = cloud.free_address()
    instance = Instance(blueprint, _body(cloud, blueprint, address), address)
    cloud.instances[blueprint.zone, blueprint.name] = instance
    if pending:
        instance.body["status"] = "PENDING"
    else:
        provision(cloud, instance)
    return instance


def provision(cloud: Cloud, instance: Instance) -> None:
    """It gets its disks, and is about to start."""
    instance.body["status"] = "PROVISIONING"
    for disk in instance.blueprint.disks:
        make_disk(cloud, instance.blueprint.zone, disk, instance.body["selfLink"])

    def stage() -> None:
        if instance.status == "PROVISIONING":
            instance.body["status"] = "STAGING"

    cloud.clock.call_in(0.4 * cloud.operations.operation_s, stage)


def make_disk(cloud: Cloud, zone: str, disk: Json, user: str = "") -> Json:
    """A disk is there, used by the instance at the URL `user`."""
    body: Json = {
        "kind": "compute#disk",
        "id": cloud.new_id(),
        "creationTimestamp": cloud.clock.stamp(),
        "physicalBlockSizeBytes": "4096",
        "status": "READY",
        **disk,
        "labelFingerprint": fingerprint(disk.get("labels", {})),
        "type": f"{cloud.base}/zones/{zone}/diskTypes/{disk['type']}",
        "zone": f"{cloud.base}/zones/{zone}",
        "selfLink": f"{cloud.base}/zones/{zone}/disks/{disk['name']}",
    }
    if "sourceImage" in disk:
        body["sourceImage"] = f"{cloud.root}/{disk['sourceImage']}"
    if user:
        body["users"] = [user]
        body["lastAttachTimestamp"] = cloud.clock.stamp()
    cloud.disks[zone, disk["name"]] = body
    cloud.charges.begin(Charge(body["id"], cloud.clock.now(), disk=body))
    return body


def start(cloud: Cloud, instance: Instance) -> None:
    """It runs, and ends by itself when its time is over."""
    if gone(cloud, instance):
        return
    instance.starts += 1
    instance.body["status"] = "RUNNING"
    cloud.charges.begin(Charge(instance.body["id"], cloud.clock.now(), instance.blueprint))
    instance.body["lastStartTimestamp"] = cloud.clock.stamp()
    instance.external = cloud.free_address() if instance.blueprint.external else ""
    _show_external_address(instance, instance.external)
    if instance.blueprint.run_s or instance.blueprint.ends_at:
        _limit(cloud, instance)
    if instance.guest is None:
        instance.guest = cloud.guests(
            guest_spec(cloud, instance), lambda *attribute: _publish(cloud, instance, *attribute)
        )
    cloud.apply_firewall(instance)
    instance.guest.boot(instance.external)


def halt(cloud: Cloud, instance: Instance, then: Callable[[], None]) -> None:
    """It stops; `then` follows once it is TERMINATED."""
    instance.body["status"] = "STOPPING"

    def stopped() -> None:
        if not gone(cloud, instance):
            instance.body["status"] = "TERMINATED"
            cloud.charges.end(instance.body["id"], cloud.clock.now())
            instance.body["lastStopTimestamp"] = cloud.clock.stamp()
            instance.body["resourceStatus"]["scheduling"].pop("terminationTimestamp", None)
            instance.body["resourceStatus"].pop("upcomingMaintenance", None)
            _show_external_address(instance, "")
            cloud.part(Queue).recheck()
        then()

    cloud.aside(instance.guest.power_off if instance.guest else lambda: None, stopped)


def vanish(cloud: Cloud, instance: Instance, then: Callable[[], None] = lambda: None) -> None:
    """It stops and is gone, and so are its disks with autoDelete; `then` follows."""
    instance.body["status"] = "STOPPING"

    def removed() -> None:
        if not gone(cloud, instance):
            del cloud.instances[instance.blueprint.zone, instance.blueprint.name]
            cloud.charges.end(instance.body["id"], cloud.clock.now())
            for disk in instance.body["disks"]:
                _release_disk(cloud, disk, instance)
            cloud.part(Queue).recheck()
        then()

    cloud.aside(instance.guest.remove if instance.guest else lambda: None, removed)


def gone(cloud: Cloud, instance: Instance) -> bool:
    """Return whether it no longer exists."""
    return cloud.instances.get((instance.blueprint.zone, instance.blueprint.name)) is not instance


def preempt(cloud: Cloud, instance: Instance, grace_s: float) -> None:
    """It is warned, and taken back after `grace_s`."""
    instance.body["status"] = "STOPPING"
    if instance.guest:
        cloud.aside(instance.guest.warn_of_preemption)
    action = instance.blueprint.scheduling.get("instanceTerminationAction", "STOP")
    cloud.clock.call_in(grace_s, lambda: _end(cloud, instance, instance.starts, PREEMPTED, action))


def maintain(cloud: Cloud, instance: Instance) -> None:
    """Its host is maintained: it migrates, or is announced to stop, an hour before if it has GPUs, and stops."""
    action = instance.blueprint.scheduling.get("onHostMaintenance", "MIGRATE")
    if instance.guest:
        guest = instance.guest
        cloud.aside(lambda: guest.announce_maintenance(f"{action}_ON_HOST_MAINTENANCE"))
    notice_s = 3600.0 if instance.blueprint.gpus else 60.0
    if action == "TERMINATE":
        cloud.clock.call_in(notice_s, lambda: _end(cloud, instance, instance.starts, MAINTENANCE, "STOP"))


def plan_maintenance(cloud: Cloud, instance: Instance, start: float, end: float) -> None:
    """Maintenance of its host is planned in a time window, in seconds since the epoch, and announced an hour before.

    Source: https://cloud.google.com/compute/docs/instances/monitor-plan-host-maintenance-event.
    """
    window = {"windowStartTime": cloud.clock.stamp(start), "windowEndTime": cloud.clock.stamp(end)}
    window["latestWindowStartTime"] = window["windowStartTime"]
    status = {"maintenanceStatus": "PENDING", "type": "SCHEDULED"}
    more = {"canReschedule": False, "maintenanceReasons": ["PLANNED_UPDATE"]}
    instance.body["resourceStatus"]["upcomingMaintenance"] = {**window, **status, **more}
    if instance.guest:
        guest, values = instance.guest, {_snake(key): value for key, value in {**window, **status}.items()}
        cloud.aside(lambda: guest.plan_maintenance(values))
    starts = instance.starts

    def announce() -> None:
        if not gone(cloud, instance) and instance.starts == starts and instance.status == "RUNNING":
            maintain(cloud, instance)

    cloud.clock.call_at(start - 3600.0, announce)


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def fail_host(cloud: Cloud, instance: Instance) -> None:
    """Its machine fails: it ends without a warning, and starts on another machine if ``automaticRestart`` is true.

    Source: https://cloud.google.com/compute/docs/instances/host-maintenance-overview (host errors).
    """
    _end(cloud, instance, instance.starts, HOST_ERROR, "STOP")
    if not instance.blueprint.scheduling["automaticRestart"]:
        return

    def begin() -> Failure | None:
        if gone(cloud, instance) or instance.status != "TERMINATED":
            return None
        instance.body["status"] = "STAGING"
        return None

    def finish(done: Done) -> None:
        if not gone(cloud, instance) and instance.status == "STAGING":
            start(cloud, instance)
        done(None)

    zone, target = f"zones/{instance.blueprint.zone}", instance.body["selfLink"]
    restart = Launch(zone, AUTOMATIC_RESTART, target, instance.body["id"], user=SYSTEM)
    instance.latest = cloud.operations.launch(restart, Work(begin, finish), instance.latest)


def power_off(cloud: Cloud, instance: Instance) -> None:
    """Its guest powers itself off."""
    _end(cloud, instance, instance.starts, GUEST_TERMINATED, "STOP")


def _limit(cloud: Cloud, instance: Instance) -> None:
    at = instance.blueprint.ends_at or cloud.clock.now() + instance.blueprint.run_s
    instance.body["resourceStatus"]["scheduling"]["terminationTimestamp"] = cloud.clock.stamp(at)
    action = instance.blueprint.scheduling["instanceTerminationAction"]
    kind, starts = action.lower(), instance.starts
    cloud.clock.call_at(at + cloud.late_s, lambda: _end(cloud, instance, starts, kind, action))


def _end(cloud: Cloud, instance: Instance, starts: int, kind: str, action: str) -> None:
    """The system ends the instance, unless it has ended or was started again since."""
    if gone(cloud, instance) or instance.starts != starts or instance.status == "TERMINATED":
        return

    def finish(done: Done) -> None:
        if gone(cloud, instance):
            done(None)
        elif action == "DELETE":
            vanish(cloud, instance, lambda: done(None))
        else:
            halt(cloud, instance, lambda: done(None))

    launch = Launch(
        f"zones/{instance.blueprint.zone}", kind, instance.body["selfLink"], instance.body["id"], user=SYSTEM
    )
    operation = cloud.operations.launch(launch, Work(finish=finish), instance.latest)
    if kind == PREEMPTED:
        operation.body["statusMessage"] = "Instance was preempted."
    instance.latest = operation


def _release_disk(cloud: Cloud, attached: Json, instance: Instance) -> None:
    key = (instance.blueprint.zone, attached.get("source", "").rsplit("/", 1)[-1])
    disk = cloud.disks.get(key)
    if disk is None:
        return
    if attached["autoDelete"]:
        cloud.charges.end(disk["id"], cloud.clock.now())
        del cloud.disks[key]
    else:
        disk.pop("users", None)
        disk["lastDetachTimestamp"] = cloud.clock.stamp()


def _publish(cloud: Cloud, instance: Instance, namespace: str, key: str, value: str) -> None:
    with cloud.clock.changed:
        if (namespace, key, value) == POWER_OFF:
            power_off(cloud, instance)
            return
        if (namespace, key, value) == RESTART and instance.guest:
            cloud.aside(instance.guest.restart)
            return
        instance.attributes[namespace, key] = value
        cloud.clock.changed.notify_all()


def _show_external_address(instance: Instance, address: str) -> None:
    for interface in instance.body["networkInterfaces"]:
        for access in interface.get("accessConfigs", ()):
            access.pop("natIP", None)
            if address:
                access["natIP"] = address


def _body(cloud: Cloud, blueprint: Blueprint, address: str) -> Json:
    zone_url = f"{cloud.base}/zones/{blueprint.zone}"
    body: Json = {
        "kind": "compute#instance",
        "id": cloud.new_id(),
        "name": blueprint.name,
        "creationTimestamp": cloud.clock.stamp(),
        "status": "PROVISIONING",
        "zone": zone_url,
        "machineType": f"{zone_url}/machineTypes/{blueprint.machine_type.name}",
        "cpuPlatform": "Intel Skylake",
        "startRestricted": False,
        "selfLink": f"{zone_url}/instances/{blueprint.name}",
        "scheduling": blueprint.scheduling,
        "resourceStatus": {"scheduling": {}},
        **blueprint.body,
        "networkInterfaces": [
            _interface(cloud, blueprint, index, given, address)
            for index, given in enumerate(blueprint.body["networkInterfaces"])
        ],
        "disks": [
            {**disk, "source": f"{zone_url}/disks/{disk['source']}"} if "source" in disk else disk
            for disk in blueprint.body["disks"]
        ],
    }
    if "resourcePolicies" in body:
        policies = f"{cloud.base}/regions/{blueprint.region}/resourcePolicies"
        body["resourcePolicies"] = [f"{policies}/{last(reference)}" for reference in body["resourcePolicies"]]
    if blueprint.gpus:
        accelerator = f"{zone_url}/acceleratorTypes/{blueprint.gpu}"
        body["guestAccelerators"] = [{"acceleratorType": accelerator, "acceleratorCount": blueprint.gpus}]
    if "serviceAccounts" in body:
        body["serviceAccounts"] = [
            {**account, "email": _email(account.get("email", "default"))} for account in body["serviceAccounts"]
        ]
    body["fingerprint"] = fingerprint(body["id"])
    return body


def _email(given: str) -> str:
    return given if "@" in given else "100000000001-compute@developer.gserviceaccount.com"


def _interface(cloud: Cloud, blueprint: Blueprint, index: int, given: Json, address: str) -> Json:
    network, subnetwork = given.get("network", ""), given.get("subnetwork", "")
    base = cloud.url_of(project_of(network) or project_of(subnetwork) or cloud.project)
    network, subnetwork = last(network or subnetwork or "default"), last(subnetwork or network or "default")
    shown: Json = {
        "kind": "compute#networkInterface",
        "name": f"nic{index}",
        "network": f"{base}/global/networks/{network}",
        "subnetwork": f"{base}/regions/{locations.ZONES[blueprint.zone]}/subnetworks/{subnetwork}",
        "networkIP": address,
        "nicType": given.get("nicType") or ("GVNIC" if blueprint.needs_gvnic else "VIRTIO_NET"),
        "stackType": "IPV4_ONLY",
        "fingerprint": fingerprint(address),
    }
    if given.get("accessConfigs"):
        shown["accessConfigs"] = [
            {
                "kind": "compute#accessConfig",
                "type": access.get("type", "ONE_TO_ONE_NAT"),
                "name": access.get("name", "External NAT"),
                "networkTier": access.get("networkTier", "PREMIUM"),
            }
            for access in given["accessConfigs"]
        ]
    return shown
