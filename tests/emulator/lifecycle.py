"""From nothing to PENDING, PROVISIONING, STAGING, RUNNING, STOPPING, TERMINATED and to nothing again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.emulator import messages
from tests.emulator.blueprint import Blueprint, fingerprint, last, project_of
from tests.emulator.catalog import ZONES
from tests.emulator.cloud import Call, Charge, Cloud, Instance, Ticket
from tests.emulator.governance import DEFAULT_ACCOUNT
from tests.emulator.messages import Failure, refusal
from tests.emulator.metadata import POWER_OFF, RESTART
from tests.emulator.operations import SYSTEM, Done, Operation, Work, at_once

Json = dict[str, Any]
PREEMPTED = "compute.instances.preempted"
HOST_ERROR = "compute.instances.hostError"
MAINTENANCE = "compute.instances.terminateOnHostMaintenance"
GUEST_TERMINATED = "compute.instances.guestTerminate"
AUTOMATIC_RESTART = "compute.instances.automaticRestart"
_NOTICE_S = 3600.0
"""Time between the announcement of maintenance and its beginning."""


def launch(
    cloud: Cloud,
    call: Call,
    target: str,
    begin: Callable[[], Failure | None] = lambda: None,
    finish: Callable[[Done], None] = at_once,
    *,
    drawn: Blueprint | None = None,
    **more: Any,
) -> Operation:
    """Start the operation that answers a call.

    Args:
        cloud: The cloud.
        call: The call.
        target: URL of what it works on.
        begin: Has the effect, unless a fault strikes before it.
        finish: Does the rest when the time of the operation is over.
        drawn: The instance that it creates or starts.
        more: Further arguments of `Operations.launch`.
    """
    fault = call.fault

    def begin_or_fail() -> Failure | None:
        failure = fault.failure(drawn) if fault else None
        if failure and fault and fault.kind == "disk-left" and drawn:
            make_disks(cloud, drawn)
        return failure or begin()

    def finish_or_fail(done: Done) -> None:
        late = messages.failure("internal") if fault and fault.kind == "fails-after" else None
        finish(lambda failure: done(failure or late))

    more["clientOperationId"] = call.query.get("requestId", "")
    more["extra_s"] = fault.seconds if fault and fault.kind == "slow-operation" else 0.0
    kind = call.method.id.rpartition(".")[2]
    return cloud.operations.launch(call.scope, kind, target, Work(begin_or_fail, finish_or_fail), **more)


# --- creation


def refuse_taken_names(cloud: Cloud, blueprint: Blueprint) -> None:
    """Raise Refusal where the instance or one of its disks exists already."""
    if (blueprint.zone, blueprint.name) in cloud.instances:
        raise refusal("409", resource=blueprint.path)
    for disk in blueprint.disks:
        if (blueprint.zone, disk["name"]) in cloud.disks:
            raise refusal("409", resource=f"projects/{cloud.project}/zones/{blueprint.zone}/disks/{disk['name']}")


def shortage(cloud: Cloud, blueprint: Blueprint, *, disks: bool = True) -> Failure | None:
    """Return the error if no capacity is left for it, or for those of its disks that do not exist yet."""
    usage, reservation = cloud.usage(), cloud.reservations.get((blueprint.zone, blueprint.reservation))
    if blueprint.gpu and cloud.governance.is_trial:
        return messages.failure("trial")
    if reservation is not None:
        used = cloud.reserved(blueprint.zone, blueprint.reservation)
        if used >= int(reservation["specificReservation"]["count"]):
            return messages.failure("reservation", name=blueprint.reservation)
    failure = cloud.limits.shortage(blueprint, cloud.held(), usage)
    return failure or (cloud.limits.disk_shortage(blueprint, usage) if disks else None)


def appear(cloud: Cloud, blueprint: Blueprint, *, pending: bool = False) -> Instance:
    """Let the instance be there: PROVISIONING with its disks, or `pending`, which has none yet."""
    address = cloud.free_address()
    instance = Instance(blueprint, _body(cloud, blueprint, address), address)
    cloud.instances[blueprint.zone, blueprint.name] = instance
    if pending:
        instance.body["status"] = "PENDING"
    else:
        provision(cloud, instance)
    return instance


def provision(cloud: Cloud, instance: Instance) -> None:
    """Give it its disks; it is about to start."""
    instance.body["status"] = "PROVISIONING"
    make_disks(cloud, instance.blueprint, instance.body["selfLink"])

    def stage() -> None:
        if instance.status == "PROVISIONING":
            instance.body["status"] = "STAGING"

    cloud.clock.call_in(0.4 * cloud.operations.operation_s, stage)


def make_disks(cloud: Cloud, blueprint: Blueprint, user: str = "") -> None:
    """Create the disks of an instance, used by it at the URL `user`, or left by a creation that failed."""
    base = f"{cloud.base}/zones/{blueprint.zone}"
    for disk in blueprint.disks:
        body: Json = {
            "kind": "compute#disk",
            "id": cloud.new_id(),
            "creationTimestamp": cloud.clock.stamp(),
            "status": "READY",
            **disk,
            "labelFingerprint": fingerprint(disk["labels"]),
            "type": f"{base}/diskTypes/{disk['type']}",
            "sourceImage": f"{cloud.root}/{disk['sourceImage']}",
            "zone": base,
            "selfLink": f"{base}/disks/{disk['name']}",
            **({"users": [user], "lastAttachTimestamp": cloud.clock.stamp()} if user else {}),
        }
        cloud.disks[blueprint.zone, disk["name"]] = body
        cloud.charges.append(Charge(body["id"], cloud.clock.now(), disk=body))


def enqueue(cloud: Cloud, instance: Instance, done: Done) -> None:
    """Let a PENDING instance wait for capacity; it starts or vanishes, and ends its operation."""
    drawn = instance.blueprint

    def run() -> None:
        is_alive = not gone(cloud, instance) and instance.status != "STOPPING"
        if is_alive:
            start(cloud, instance)
        done(None if is_alive else deleted(instance))

    def admit() -> bool:
        if shortage(cloud, drawn) is not None:
            return False
        provision(cloud, instance)
        cloud.clock.call_in(cloud.operations.operation_s, run)
        return True

    def expire() -> None:
        if cloud.take_ticket(instance) is not None:
            vanish(cloud, instance, lambda: done(drawn.stockout()))

    cloud.queue.append(Ticket(instance.body["id"], admit, done))
    cloud.recheck_queue()
    cloud.clock.call_in(drawn.queue_s, expire)


def deleted(instance: Instance) -> Failure:
    """Return the failure of an operation whose instance was deleted before."""
    return messages.failure("missing", resource=instance.blueprint.path)


# --- start and end


def start(cloud: Cloud, instance: Instance) -> None:
    """Let it run; it ends by itself when its time is over."""
    if gone(cloud, instance):
        return
    blueprint = instance.blueprint
    instance.starts += 1
    instance.body.update(status="RUNNING", lastStartTimestamp=cloud.clock.stamp())
    cloud.charges.append(Charge(instance.body["id"], cloud.clock.now(), blueprint))
    instance.external = cloud.free_address() if blueprint.external else ""
    _show_external_address(instance, instance.external)
    if blueprint.run_s:
        at = cloud.clock.now() + blueprint.run_s
        instance.body["resourceStatus"]["scheduling"]["terminationTimestamp"] = cloud.clock.stamp(at)
        action, starts = blueprint.scheduling["instanceTerminationAction"], instance.starts
        cloud.clock.call_at(at + cloud.late_s, lambda: _end(cloud, instance, starts, action.lower(), action))
    if instance.guest is None:
        spec = cloud.guest_spec(instance)
        instance.guest = cloud.guests(spec, lambda *attribute: _publish(cloud, instance, *attribute))
    cloud.apply_firewall(instance)
    instance.guest.boot(instance.external)


def halt(cloud: Cloud, instance: Instance, then: Callable[[], None]) -> None:
    """Let it stop; `then` follows once it is TERMINATED."""
    instance.body["status"] = "STOPPING"

    def stopped() -> None:
        if not gone(cloud, instance):
            instance.body.update(status="TERMINATED", lastStopTimestamp=cloud.clock.stamp())
            cloud.end_charge(instance.body["id"])
            instance.body["resourceStatus"]["scheduling"].pop("terminationTimestamp", None)
            instance.body["resourceStatus"].pop("upcomingMaintenance", None)
            _show_external_address(instance, "")
            cloud.recheck_queue()
        then()

    cloud.aside(instance.guest.power_off if instance.guest else lambda: None, stopped)


def vanish(cloud: Cloud, instance: Instance, then: Callable[[], None] = lambda: None) -> None:
    """Let it stop and be gone, and so its disks with autoDelete; `then` follows."""
    instance.body["status"] = "STOPPING"
    zone = instance.blueprint.zone

    def removed() -> None:
        if not gone(cloud, instance):
            del cloud.instances[zone, instance.blueprint.name]
            cloud.end_charge(instance.body["id"])
            for attached in instance.body["disks"]:
                key = (zone, last(attached.get("source", "")))
                if key in cloud.disks and attached["autoDelete"]:
                    cloud.end_charge(cloud.disks.pop(key)["id"])
                elif key in cloud.disks:
                    cloud.disks[key].pop("users", None)
            cloud.recheck_queue()
        then()

    cloud.aside(instance.guest.remove if instance.guest else lambda: None, removed)


def gone(cloud: Cloud, instance: Instance) -> bool:
    """Return whether it no longer exists."""
    return cloud.instances.get((instance.blueprint.zone, instance.blueprint.name)) is not instance


def preempt(cloud: Cloud, instance: Instance, grace_s: float) -> None:
    """Warn a spot instance, and take it back after `grace_s`."""
    if not instance.blueprint.spot:
        raise ValueError(f"instance {instance.blueprint.name} is not a spot instance")
    instance.body["status"] = "STOPPING"
    if instance.guest:
        cloud.aside(partial(instance.guest.report, "preempted", "TRUE"))
    action, starts = instance.blueprint.scheduling.get("instanceTerminationAction", "STOP"), instance.starts
    cloud.clock.call_in(grace_s, lambda: _end(cloud, instance, starts, PREEMPTED, action))


def maintain(cloud: Cloud, instance: Instance) -> None:
    """Maintain its host: it migrates, or is announced to stop, an hour before if it has GPUs, and stops."""
    action, starts = instance.blueprint.scheduling["onHostMaintenance"], instance.starts
    if instance.guest:
        cloud.aside(partial(instance.guest.report, "maintenance-event", f"{action}_ON_HOST_MAINTENANCE"))
    if action == "TERMINATE":
        notice_s = _NOTICE_S if instance.blueprint.gpus else 60.0
        cloud.clock.call_in(notice_s, lambda: _end(cloud, instance, starts, MAINTENANCE, "STOP"))


def plan_maintenance(cloud: Cloud, instance: Instance, begin: float, end: float) -> None:
    """Plan maintenance of its host in a time window, in seconds since the epoch; it is announced an hour before.

    Source: https://cloud.google.com/compute/docs/instances/monitor-plan-host-maintenance-event.
    """
    first, last_ = cloud.clock.stamp(begin), cloud.clock.stamp(end)
    window = {"windowStartTime": first, "windowEndTime": last_, "latestWindowStartTime": first}
    planned = {**window, "maintenanceStatus": "PENDING", "type": "SCHEDULED"}
    more = {"canReschedule": False, "maintenanceReasons": ["PLANNED_UPDATE"]}
    instance.body["resourceStatus"]["upcomingMaintenance"] = {**planned, **more}
    if instance.guest:
        values = {_snake(key): value for key, value in planned.items()}
        cloud.aside(partial(instance.guest.report, "upcoming-maintenance", values))
    starts = instance.starts

    def announce() -> None:
        if not gone(cloud, instance) and instance.starts == starts and instance.status == "RUNNING":
            maintain(cloud, instance)

    cloud.clock.call_at(begin - _NOTICE_S, announce)


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def fail_host(cloud: Cloud, instance: Instance) -> None:
    """Let its machine fail: it ends without a warning, and starts elsewhere if ``automaticRestart`` is true.

    Source: https://cloud.google.com/compute/docs/instances/host-maintenance-overview (host errors).
    """
    _end(cloud, instance, instance.starts, HOST_ERROR, "STOP")
    if not instance.blueprint.scheduling["automaticRestart"]:
        return

    def begin() -> None:
        if not gone(cloud, instance) and instance.status == "TERMINATED":
            instance.body["status"] = "STAGING"

    def finish(done: Done) -> None:
        if not gone(cloud, instance) and instance.status == "STAGING":
            start(cloud, instance)
        done(None)

    _launch_by_system(cloud, instance, AUTOMATIC_RESTART, Work(begin, finish))


def power_off(cloud: Cloud, instance: Instance) -> None:
    """Let its guest power itself off."""
    _end(cloud, instance, instance.starts, GUEST_TERMINATED, "STOP")


def _end(cloud: Cloud, instance: Instance, starts: int, kind: str, action: str) -> None:
    """Let the system end the instance, unless it has ended or was started again since."""
    if gone(cloud, instance) or instance.starts != starts or instance.status == "TERMINATED":
        return

    def finish(done: Done) -> None:
        if gone(cloud, instance):
            done(None)
        elif action == "DELETE":
            vanish(cloud, instance, lambda: done(None))
        else:
            halt(cloud, instance, lambda: done(None))

    _launch_by_system(cloud, instance, kind, Work(finish=finish))
    if kind == PREEMPTED and instance.latest:
        instance.latest.body["statusMessage"] = "Instance was preempted."


def _launch_by_system(cloud: Cloud, instance: Instance, kind: str, work: Work) -> None:
    scope, body = f"zones/{instance.blueprint.zone}", instance.body
    more: Json = {"targetId": body["id"], "user": SYSTEM, "after": instance.latest}
    instance.latest = cloud.operations.launch(scope, kind, body["selfLink"], work, **more)


def _publish(cloud: Cloud, instance: Instance, namespace: str, key: str, value: str) -> None:
    with cloud.clock.changed:
        if (namespace, key, value) == POWER_OFF:
            power_off(cloud, instance)
        elif (namespace, key, value) == RESTART and instance.guest:
            cloud.aside(instance.guest.restart)
        else:
            instance.attributes[namespace, key] = value
            cloud.clock.changed.notify_all()


# --- how the API shows it


def _show_external_address(instance: Instance, address: str) -> None:
    for interface in instance.body["networkInterfaces"]:
        for access in interface.get("accessConfigs", ()):
            access.pop("natIP", None)
            if address:
                access["natIP"] = address


def _body(cloud: Cloud, blueprint: Blueprint, address: str) -> Json:
    base, given = f"{cloud.base}/zones/{blueprint.zone}", blueprint.body
    policies = f"{cloud.base}/regions/{blueprint.region}/resourcePolicies"
    body: Json = {
        "kind": "compute#instance",
        "id": cloud.new_id(),
        "name": blueprint.name,
        "creationTimestamp": cloud.clock.stamp(),
        "status": "PROVISIONING",
        "zone": base,
        "machineType": f"{base}/machineTypes/{blueprint.machine_type.name}",
        "cpuPlatform": "Intel Skylake",
        "selfLink": f"{base}/instances/{blueprint.name}",
        "scheduling": blueprint.scheduling,
        "resourceStatus": {"scheduling": {}},
        "fingerprint": fingerprint(blueprint.name),
        **given,
        "networkInterfaces": [
            _interface(cloud, blueprint, index, interface, address)
            for index, interface in enumerate(given["networkInterfaces"])
        ],
        "disks": [
            {**disk, "source": f"{base}/disks/{disk['source']}"} if "source" in disk else disk
            for disk in given["disks"]
        ],
    }
    if "resourcePolicies" in body:
        body["resourcePolicies"] = [f"{policies}/{last(reference)}" for reference in body["resourcePolicies"]]
    if blueprint.gpus:
        accelerator = f"{base}/acceleratorTypes/{blueprint.gpu}"
        body["guestAccelerators"] = [{"acceleratorType": accelerator, "acceleratorCount": blueprint.gpus}]
    for account in body.get("serviceAccounts", ()):
        account["email"] = account["email"] if "@" in account.get("email", "") else DEFAULT_ACCOUNT
    return body


def _interface(cloud: Cloud, blueprint: Blueprint, index: int, given: Json, address: str) -> Json:
    network, subnetwork = given.get("network", ""), given.get("subnetwork", "")
    base = cloud.url_of(project_of(network) or project_of(subnetwork) or cloud.project)
    network, subnetwork = last(network or subnetwork or "default"), last(subnetwork or network or "default")
    shown: Json = {
        "kind": "compute#networkInterface",
        "name": f"nic{index}",
        "network": f"{base}/global/networks/{network}",
        "subnetwork": f"{base}/regions/{ZONES[blueprint.zone]}/subnetworks/{subnetwork}",
        "networkIP": address,
        "nicType": given.get("nicType") or ("GVNIC" if blueprint.needs_gvnic else "VIRTIO_NET"),
        "stackType": "IPV4_ONLY",
        "fingerprint": fingerprint(address),
    }
    if given.get("accessConfigs"):
        defaults = {"type": "ONE_TO_ONE_NAT", "name": "External NAT", "networkTier": "PREMIUM"}
        shown["accessConfigs"] = [{**defaults, **access} for access in given["accessConfigs"]]
    return shown
