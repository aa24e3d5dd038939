"""The methods of instances."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.emulator import blueprint as blueprints
from tests.emulator import creation, failures, lifecycle
from tests.emulator.blueprint import Blueprint, check_labels, check_metadata, fingerprint
from tests.emulator.catalog import locations
from tests.emulator.cloud import Call, Cloud, Instance
from tests.emulator.failures import Failure, Refusal, bad_request, condition_not_met, invalid
from tests.emulator.listing import aggregated, page
from tests.emulator.operations import Done, Work
from tests.emulator.project_images import find_image, refuse_copied
from tests.emulator.queueing import Queue, Ticket
from tests.emulator.registry import method, starting
from tests.emulator.reservations import reservation_shortage

Json = dict[str, Any]
INTERNAL = failures.operation_failure(
    "INTERNAL_ERROR", "Internal error. Please try again or contact Google Support.", 500
)


@method("compute.instances.get")
def get(cloud: Cloud, call: Call) -> Json:
    return _of(cloud, call).body


@method("compute.instances.list")
def list_(cloud: Cloud, call: Call) -> Json:
    return page(cloud, call, [instance.body for (zone, _), instance in cloud.instances.items() if zone == call.zone])


@method("compute.instances.aggregatedList")
def aggregated_list(cloud: Cloud, call: Call) -> Json:
    scoped: dict[str, list[Json]] = {f"zones/{zone}": [] for zone in locations.ZONES}
    for (zone, _), instance in sorted(cloud.instances.items()):
        scoped[f"zones/{zone}"].append(instance.body)
    return aggregated(cloud, call, scoped)


@starting("compute.instances.insert")
def insert(cloud: Cloud, call: Call) -> Json:
    drawn = blueprints.draw(cloud.project, call.zone, call.body["name"], call.body, partial(find_image, cloud))
    creation.check(cloud, drawn)
    lifecycle.refuse_taken_names(cloud, drawn)
    target = f"{cloud.base}/zones/{call.zone}/instances/{drawn.name}"
    made: list[Instance] = []

    def begin() -> Failure | None:
        fault = call.fault
        failure = fault.failure(drawn.machine, drawn.region) if fault else None
        failure = failure or name_taken(cloud, drawn)
        waits = bool(drawn.queue_s) and not cloud.limits.has_room(drawn, cloud.held(), drawn.zone)
        if not waits:
            failure = failure or lifecycle.shortage(cloud, drawn)
        if failure is None:
            made.append(lifecycle.appear(cloud, drawn, pending=waits))
            made[0].latest = operation
            operation.body["targetId"] = made[0].body["id"]
        elif fault and fault.kind == "disk-left":
            leave_disks(cloud, drawn)
        return failure

    def finish(done: Done) -> None:
        if made[0].status == "PENDING":
            _enqueue(cloud, made[0], done)
        elif lifecycle.gone(cloud, made[0]) or made[0].status == "STOPPING":
            done(_deleted(made[0]))
        else:
            lifecycle.start(cloud, made[0])
            done(_effected(call))

    operation = cloud.launch(call, "insert", target, Work(begin, finish))
    return operation.body


def _enqueue(cloud: Cloud, instance: Instance, done: Done) -> None:
    """Let a PENDING instance wait for capacity; it starts or vanishes, and ends its operation."""
    drawn, queue = instance.blueprint, cloud.part(Queue)

    def start() -> None:
        is_alive = not lifecycle.gone(cloud, instance) and instance.status != "STOPPING"
        if is_alive:
            lifecycle.start(cloud, instance)
        done(None if is_alive else _deleted(instance))

    def admit() -> bool:
        if lifecycle.shortage(cloud, drawn) is not None:
            return False
        lifecycle.provision(cloud, instance)
        cloud.clock.call_in(cloud.operations.operation_s, start)
        return True

    def expire() -> None:
        if queue.take(instance.body["id"]) is not None:
            lifecycle.vanish(cloud, instance, lambda: done(failures.stockout(drawn.machine)))

    queue.add(Ticket(instance.body["id"], admit, done))
    cloud.clock.call_in(drawn.queue_s, expire)


def _deleted(instance: Instance) -> Failure:
    """The failure of an insertion whose instance was deleted before it ran."""
    message = f"The resource '{instance.blueprint.path}' was not found"
    return failures.operation_failure("RESOURCE_NOT_FOUND", message, 404)


@starting("compute.instances.delete")
def delete(cloud: Cloud, call: Call) -> Json:
    instance = _of(cloud, call)
    if instance.body["deletionProtection"]:
        raise condition_not_met("Invalid resource usage: 'Resource cannot be deleted if it's protected.'.")
    for disk in instance.body["disks"]:
        refuse_copied(cloud, disk.get("source", ""))

    def begin() -> Failure | None:
        instance.body["status"] = "STOPPING"
        if (ticket := cloud.part(Queue).take(instance.body["id"])) is not None:
            ticket.end(_deleted(instance))
        return None

    def finish(done: Done) -> None:
        lifecycle.vanish(cloud, instance, lambda: done(_effected(call)))

    return _launch(cloud, call, instance, "delete", Work(begin, finish))


@starting("compute.instances.stop")
def stop(cloud: Cloud, call: Call) -> Json:
    instance = _of(cloud, call)
    if instance.status == "PENDING":
        raise Refusal(400, "resourceNotReady", f"The resource '{instance.blueprint.path}' is not ready")
    if instance.blueprint.local_ssds and "discardLocalSsd" not in call.query:
        raise bad_request("VM has a Local SSD attached but an undefined value for `discardLocalSsd`.")

    def finish(done: Done) -> None:
        if instance.status == "TERMINATED":
            done(None)
        else:
            lifecycle.halt(cloud, instance, lambda: done(_effected(call)))

    return _launch(cloud, call, instance, "stop", Work(finish=finish))


@starting("compute.instances.start")
def start(cloud: Cloud, call: Call) -> Json:
    instance = _of(cloud, call)
    if instance.status == "STOPPING":
        raise Refusal(400, "resourceNotReady", f"The resource '{instance.blueprint.path}' is not ready")
    if 0 < instance.blueprint.ends_at <= cloud.clock.now():
        raise bad_request("The terminationTime of the instance is over: change or remove it before a start.")

    def begin() -> Failure | None:
        if instance.status != "TERMINATED":
            return None
        failure = call.fault.failure(instance.blueprint.machine, instance.blueprint.region) if call.fault else None
        failure = failure or reservation_shortage(cloud, instance.blueprint)
        failure = failure or cloud.limits.shortage(instance.blueprint, cloud.held(), cloud.usage())
        if failure is None:
            instance.body["status"] = "STAGING"
        return failure

    def finish(done: Done) -> None:
        if instance.status == "STAGING":
            lifecycle.start(cloud, instance)
        done(_effected(call))

    return _launch(cloud, call, instance, "start", Work(begin, finish), faulty=False)


@starting("compute.instances.setMetadata")
def set_metadata(cloud: Cloud, call: Call) -> Json:
    instance = _of(cloud, call)
    if call.body.get("fingerprint") != instance.body["metadata"]["fingerprint"]:
        raise condition_not_met("Supplied fingerprint does not match current metadata fingerprint.")
    metadata = check_metadata(call.body)

    def begin() -> Failure | None:
        instance.body["metadata"] = metadata
        cloud.update_guests(instance)
        return None

    return _launch(cloud, call, instance, "setMetadata", Work(begin))


@starting("compute.instances.setLabels")
def set_labels(cloud: Cloud, call: Call) -> Json:
    instance = _of(cloud, call)
    if call.body.get("labelFingerprint") != instance.body["labelFingerprint"]:
        raise condition_not_met("Labels fingerprint either invalid or resource labels have changed")
    labels = call.body.get("labels", {})
    check_labels(labels, "labels")

    def begin() -> Failure | None:
        instance.body.update(labels=labels, labelFingerprint=fingerprint(labels))
        return None

    return _launch(cloud, call, instance, "setLabels", Work(begin))


@starting("compute.instances.setScheduling")
def set_scheduling(cloud: Cloud, call: Call) -> Json:
    instance = _of(cloud, call)
    if instance.status != "TERMINATED":
        raise bad_request("Instance scheduling can only be set while the instance is stopped (TERMINATED).")
    scheduling = blueprints.complete_scheduling({**instance.blueprint.scheduling, **call.body})
    blueprints.check_stop_action(scheduling, instance.blueprint.local_ssds)

    def begin() -> Failure | None:
        instance.blueprint.scheduling = scheduling
        instance.body["scheduling"] = scheduling
        return None

    return _launch(cloud, call, instance, "setScheduling", Work(begin))


@starting("compute.instances.simulateMaintenanceEvent")
def simulate_maintenance_event(cloud: Cloud, call: Call) -> Json:
    instance = _of(cloud, call)
    if instance.status != "RUNNING":
        raise Refusal(400, "resourceNotReady", f"The resource '{instance.blueprint.path}' is not ready")

    def finish(done: Done) -> None:
        if instance.status == "RUNNING":
            if instance.blueprint.spot:
                lifecycle.preempt(cloud, instance, cloud.grace_s)
            else:
                lifecycle.maintain(cloud, instance)
        done(_effected(call))

    kind = "compute.instances.simulateMaintenanceEvent"
    return _launch(cloud, call, instance, kind, Work(finish=finish))


@method("compute.instances.getGuestAttributes")
def get_guest_attributes(cloud: Cloud, call: Call) -> Json:
    instance = _of(cloud, call)
    constraint = "compute.disableGuestAttributesAccess"
    if any(rule.get("enforce") for rule in cloud.governance.rules(constraint)):
        raise condition_not_met(f"Constraint constraints/{constraint} violated for project {cloud.project}.")
    query, key = call.query.get("queryPath", ""), call.query.get("variableKey", "")
    wanted = key or query
    namespace, _, name = wanted.partition("/")
    items = [
        {"namespace": space, "key": item, "value": value}
        for (space, item), value in sorted(instance.attributes.items())
        if namespace in ("", space) and name in ("", item)
    ]
    if not items or instance.metadata().get("enable-guest-attributes", "").upper() != "TRUE":
        raise Refusal(404, "notFound", f"The resource '{wanted}' of type 'Guest Attribute' was not found.")
    body: Json = {
        "kind": "compute#guestAttributes",
        "selfLink": f"{instance.body['selfLink']}/guestAttributes/{query}",
    }
    if key:
        return {**body, "variableKey": key, "variableValue": items[0]["value"]}
    return {**body, "queryPath": query, "queryValue": {"items": items}}


@method("compute.instances.getSerialPortOutput")
def get_serial_port_output(cloud: Cloud, call: Call) -> Json:
    instance = _of(cloud, call)
    port, start_at = int(call.query.get("port", "1")), int(call.query.get("start", "0"))
    text = instance.guest.serial() if instance.guest and port == 1 else ""
    if start_at > len(text):
        raise invalid("start", start_at, f"It is beyond the output, which ends at {len(text)}.")
    return {
        "kind": "compute#serialPortOutput",
        "contents": text[start_at:],
        "start": str(start_at),
        "next": str(len(text)),
        "selfLink": f"{instance.body['selfLink']}/serialPort",
    }


@method("compute.instances.testIamPermissions")
def test_iam_permissions(cloud: Cloud, call: Call) -> Json:
    return {"permissions": [name for name in call.body.get("permissions", []) if name not in cloud.denied]}


def leave_disks(cloud: Cloud, drawn: Blueprint) -> None:
    """The disks of an instance that could not be made are there all the same."""
    for disk in drawn.disks:
        lifecycle.make_disk(cloud, drawn.zone, disk)


def name_taken(cloud: Cloud, drawn: Blueprint) -> Failure | None:
    """Why its name is no longer free, though it was when the request came."""
    try:
        lifecycle.refuse_taken_names(cloud, drawn)
    except Refusal as refusal:
        return failures.operation_failure("RESOURCE_ALREADY_EXISTS", str(refusal), 409)
    return None


def _of(cloud: Cloud, call: Call) -> Instance:
    return cloud.instance(call.zone, call.path.get("instance") or call.path["resource"])


def _effected(call: Call) -> Failure | None:
    """The failure of an operation after its effect."""
    return INTERNAL if call.fault and call.fault.kind == "fails-after" else None


def _launch(cloud: Cloud, call: Call, instance: Instance, kind: str, work: Work, *, faulty: bool = True) -> Json:
    """Start an operation on an instance, after the one before it."""

    def begin() -> Failure | None:
        if lifecycle.gone(cloud, instance):
            return _deleted(instance)
        failure = call.fault.failure(None, "") if faulty and call.fault else None
        return failure or work.begin()

    operation = cloud.launch(
        call,
        kind,
        instance.body["selfLink"],
        Work(begin, work.finish),
        target_id=instance.body["id"],
        after=None if instance.status == "PENDING" else instance.latest,  # a queue may be long
    )
    instance.latest = operation
    return operation.body
