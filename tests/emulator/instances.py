"""The methods of instances, except bulk inserts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.emulator import creation, lifecycle, messages
from tests.emulator.blueprint import Blueprint, check_metadata, complete_scheduling, draw
from tests.emulator.cloud import Call, Cloud, Instance, method, starting
from tests.emulator.messages import Failure, Refusal, bad_request, invalid, refusal
from tests.emulator.operations import Done, at_once
from tests.emulator.resources import find_image, refuse_copied

Json = dict[str, Any]


@method("compute.instances.get")
def get(cloud: Cloud, call: Call) -> Json:
    return _of(cloud, call).body


@starting("compute.instances.insert")
def insert(cloud: Cloud, call: Call) -> Json:
    drawn = draw(cloud.project, call.zone, call.body["name"], call.body, partial(find_image, cloud))
    creation.check(cloud, drawn)
    lifecycle.refuse_taken_names(cloud, drawn)
    made: list[Instance] = []

    def begin() -> Failure | None:
        waits = bool(drawn.queue_s) and not cloud.limits.has_room(drawn, cloud.held(), drawn.zone)
        failure = name_taken(cloud, drawn) or (None if waits else lifecycle.shortage(cloud, drawn))
        if failure is None:
            made.append(lifecycle.appear(cloud, drawn, pending=waits))
            made[0].latest = operation
            operation.body["targetId"] = made[0].body["id"]
        return failure

    def finish(done: Done) -> None:
        if made[0].status == "PENDING":
            lifecycle.enqueue(cloud, made[0], done)
        elif lifecycle.gone(cloud, made[0]) or made[0].status == "STOPPING":
            done(lifecycle.deleted(made[0]))
        else:
            lifecycle.start(cloud, made[0])
            done(None)

    target = f"{cloud.base}/zones/{call.zone}/instances/{drawn.name}"
    operation = lifecycle.launch(cloud, call, target, begin, finish, drawn=drawn)
    return operation.body


@starting("compute.instances.delete")
def delete(cloud: Cloud, call: Call) -> Json:
    instance = _of(cloud, call)
    for disk in instance.body["disks"]:
        refuse_copied(cloud, disk.get("source", ""))

    def begin() -> None:
        instance.body["status"] = "STOPPING"
        if (ticket := cloud.take_ticket(instance)) is not None:
            ticket.end(lifecycle.deleted(instance))

    def finish(done: Done) -> None:
        lifecycle.vanish(cloud, instance, lambda: done(None))

    return _launch(cloud, call, instance, begin, finish)


@starting("compute.instances.stop")
def stop(cloud: Cloud, call: Call) -> Json:
    instance = _of(cloud, call)
    if instance.status == "PENDING":
        raise refusal("not ready", resource=instance.blueprint.path)
    if instance.blueprint.local_ssds and "discardLocalSsd" not in call.query:
        raise bad_request("VM has a Local SSD attached but an undefined value for `discardLocalSsd`.")

    def finish(done: Done) -> None:
        if instance.status == "TERMINATED":
            done(None)
        else:
            lifecycle.halt(cloud, instance, lambda: done(None))

    return _launch(cloud, call, instance, finish=finish)


@starting("compute.instances.start")
def start(cloud: Cloud, call: Call) -> Json:
    instance = _of(cloud, call)
    if instance.status == "STOPPING":
        raise refusal("not ready", resource=instance.blueprint.path)

    def begin() -> Failure | None:
        if instance.status != "TERMINATED":
            return None
        failure = lifecycle.shortage(cloud, instance.blueprint, disks=False)
        if failure is None:
            instance.body["status"] = "STAGING"
        return failure

    def finish(done: Done) -> None:
        if instance.status == "STAGING":
            lifecycle.start(cloud, instance)
        done(None)

    return _launch(cloud, call, instance, begin, finish, drawn=instance.blueprint)


@starting("compute.instances.setMetadata")
def set_metadata(cloud: Cloud, call: Call) -> Json:
    instance = _of(cloud, call)
    if call.body.get("fingerprint") != instance.body["metadata"]["fingerprint"]:
        raise refusal("condition", message="Supplied fingerprint does not match current metadata fingerprint.")
    metadata = check_metadata(call.body)

    def begin() -> None:
        instance.body["metadata"] = metadata
        cloud.update_guests(instance)

    return _launch(cloud, call, instance, begin)


@starting("compute.instances.setScheduling")
def set_scheduling(cloud: Cloud, call: Call) -> Json:
    instance = _of(cloud, call)
    if instance.status != "TERMINATED":
        raise bad_request("Instance scheduling can only be set while the instance is stopped (TERMINATED).")
    scheduling = complete_scheduling({**instance.blueprint.scheduling, **call.body})

    def begin() -> None:
        instance.blueprint.scheduling = instance.body["scheduling"] = scheduling

    return _launch(cloud, call, instance, begin)


@method("compute.instances.getGuestAttributes")
def get_guest_attributes(cloud: Cloud, call: Call) -> Json:
    instance, query = _of(cloud, call), call.query.get("queryPath", "")
    constraint = "compute.disableGuestAttributesAccess"
    if any(rule.get("enforce") for rule in cloud.governance.rules(constraint)):
        message = f"Constraint constraints/{constraint} violated for project {cloud.project}."
        raise refusal("condition", message=message)
    namespace, _, name = query.partition("/")
    items = [
        {"namespace": space, "key": item, "value": value}
        for (space, item), value in sorted(instance.attributes.items())
        if namespace in ("", space) and name in ("", item)
    ]
    if not items or instance.metadata().get("enable-guest-attributes", "").upper() != "TRUE":
        raise Refusal(404, "notFound", f"The resource '{query}' of type 'Guest Attribute' was not found.")
    link = f"{instance.body['selfLink']}/guestAttributes/{query}"
    return {"kind": "compute#guestAttributes", "selfLink": link, "queryPath": query, "queryValue": {"items": items}}


@method("compute.instances.getSerialPortOutput")
def get_serial_port_output(cloud: Cloud, call: Call) -> Json:
    instance = _of(cloud, call)
    port, start_at = int(call.query.get("port", "1")), int(call.query.get("start", "0"))
    text = instance.guest.serial() if instance.guest and port == 1 else ""
    if start_at > len(text):
        raise invalid("start", start_at, f"It is beyond the output, which ends at {len(text)}.")
    numbers = {"start": str(start_at), "next": str(len(text))}
    link = f"{instance.body['selfLink']}/serialPort"
    return {"kind": "compute#serialPortOutput", "contents": text[start_at:], "selfLink": link, **numbers}


def name_taken(cloud: Cloud, drawn: Blueprint) -> Failure | None:
    """Return the error of a name that another instance took after the request had arrived; None if it is free."""
    try:
        lifecycle.refuse_taken_names(cloud, drawn)
    except Refusal as taken:
        return messages.failure("exists", message=str(taken))
    return None


def _of(cloud: Cloud, call: Call) -> Instance:
    return cloud.instance(call.zone, call.path["instance"])


def _launch(
    cloud: Cloud,
    call: Call,
    instance: Instance,
    begin: Callable[[], Failure | None] = lambda: None,
    finish: Callable[[Done], None] = at_once,
    drawn: Blueprint | None = None,
) -> Json:
    """Start an operation on an instance, after the one before it."""

    def begin_now() -> Failure | None:
        return lifecycle.deleted(instance) if lifecycle.gone(cloud, instance) else begin()

    after = None if instance.status == "PENDING" else instance.latest  # a queue may be long
    more: Json = {"drawn": drawn, "targetId": instance.body["id"], "after": after}
    instance.latest = lifecycle.launch(cloud, call, instance.body["selfLink"], begin_now, finish, **more)
    return instance.latest.body
