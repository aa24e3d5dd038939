"""Delete the resources of fleets on Compute Engine in batches, and wait until they are gone."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from google.cloud import compute_v1

from provision.gce.account import Account
from provision.gce.api.batch import Call
from provision.gce.api.messages import ApiError, Listing, M, is_done
from provision.gce.api.resources import instance, our_name, seconds, zone_of
from provision.gce.catalog.names import last, marked, marked_project
from provision.gce.images import listed, price_usd_h, size_of
from provision.model import IMAGE, Orphan
from provision.provider import Progress

POLICY = "placement policy"


_COLLECTIONS = {
    "instance": "instances",
    "disk": "disks",
    "address": "addresses",
    "firewall rule": "firewalls",
    IMAGE: "images",
    POLICY: "resourcePolicies",
}
_GLOBAL = ("global",)


def delete_call(account: Account, thing: Orphan) -> Call:
    """Return the call that deletes a resource."""
    collection, rule = _COLLECTIONS[thing.kind], thing.kind == "firewall rule"
    of_region = ("regions", thing.zone)
    scope = {"address": of_region, POLICY: of_region, "firewall rule": _GLOBAL, IMAGE: _GLOBAL}.get(
        thing.kind, ("zones", thing.zone)
    )
    words = [*scope, collection, thing.name]
    project = thing.zone if rule else ""
    return Call("DELETE", account.api.path(*words, project=project, requestId=str(uuid.uuid4())), None)


def of_instance(account: Account, resource: compute_v1.Instance) -> Orphan:
    """Return an instance as an Orphan."""
    usd_h = instance(resource, account.prices).current_usd_h
    return replace(_labelled("instance", resource, zone_of(resource)), price_usd_h=usd_h)


def of_image(account: Account, resource: compute_v1.Image) -> Orphan:
    """Return an image as an Orphan."""
    usd_h = price_usd_h(resource, account.prices)
    return replace(_labelled(IMAGE, resource, ""), price_usd_h=usd_h, size_gb=size_of(resource))


def _labelled(
    kind: str, resource: compute_v1.Instance | compute_v1.Disk | compute_v1.Address | compute_v1.Image, location: str
) -> Orphan:
    return Orphan(
        fleet=resource.labels.get("fleet", ""),
        owner=resource.labels.get("fleet-owner", ""),
        user=resource.labels.get("fleet-user", ""),
        kind=kind,
        name=resource.name,
        zone=location,
        created_at=seconds(resource.creation_timestamp),
    )


def _rules(account: Account) -> list[Orphan]:
    """Return the firewall rules of fleets in the project; they are in it, or in the host project of its network."""
    rules = [_rule(account, resource, "") for resource in account.api.firewalls()]
    rules += [_rule(account, resource, account.host_project) for resource in _shared(account, account.api.firewalls)]
    return [rule for rule in rules if rule is not None]


def _rule(account: Account, resource: compute_v1.Firewall, project: str) -> Orphan | None:
    """Return a firewall rule as an Orphan; None if it belongs to no fleet in the account's project.

    Args:
        account: The account.
        resource: The rule.
        project: Project of the rule; empty: that of the account.
    """
    fields, instances = marked(resource.description), marked_project(resource.description)
    if fields is None or instances not in ((account.api.project,) if project else ("", account.api.project)):
        return None
    created_at = seconds(resource.creation_timestamp)
    return Orphan(*fields, "firewall rule", resource.name, project, created_at=created_at)


def _policies(account: Account) -> Listing[compute_v1.ResourcePolicy]:
    """Return the placement policies; none if the caller may not list them, and has not created any."""
    try:
        return account.api.resource_policies()
    except ApiError as error:
        if not error.is_forbidden:
            raise
        return Listing()


def _of_policies(policies: Iterable[compute_v1.ResourcePolicy]) -> list[Orphan]:
    """Return those placement policies that are of fleets as Orphans."""
    marks = [(resource, marked(resource.description)) for resource in policies]
    return [
        Orphan(
            *fields,
            POLICY,
            resource.name,
            last(resource.region),
            created_at=seconds(resource.creation_timestamp),
        )
        for resource, fields in marks
        if fields is not None
    ]


def things(account: Account, fleet: str = "") -> list[Orphan]:
    """Return the resources of one fleet in the project, or of all fleets with the images; of any owner.

    Those in zones and regions that do not answer are missing; `account.silent` has these then.
    """
    api, query = account.api, f"labels.fleet={fleet}" if fleet else "labels.fleet:*"
    instances, disks, addresses, rules, policies, images = api.together(
        lambda: api.instances(query),
        lambda: api.disks(query),
        lambda: api.addresses(query),
        lambda: _rules(account),
        lambda: _policies(account),
        lambda: [] if fleet else listed(api),
    )
    account.silent = instances.silent | disks.silent | addresses.silent | policies.silent
    orphans = [of_instance(account, resource) for resource in instances]
    orphans += [_labelled("disk", resource, zone_of(resource)) for resource in disks]
    orphans += [_labelled("address", resource, last(resource.region)) for resource in addresses]
    orphans += [*rules, *_of_policies(policies), *(of_image(account, resource) for resource in images)]
    return [orphan for orphan in orphans if orphan.owner]


def of_fleet(account: Account, fleet: str) -> list[Orphan]:
    """Return all resources of one fleet of this owner.

    Raises:
        ApiError: a zone that may have some does not answer.
    """
    orphans = things(account, fleet)
    account.require(account.silent & (account.tried(fleet) or account.silent))
    return [orphan for orphan in orphans if (orphan.fleet, orphan.owner) == (fleet, account.owner)]


def delete_fleet(account: Account, fleet: str) -> list[Orphan]:
    """Delete all resources of one fleet of this owner, and return those that are left.

    Raises:
        ApiError: a zone that may have some does not answer, or a resource could not be deleted.
    """
    delete_things(account, of_fleet(account, fleet))
    return of_fleet(account, fleet)


def find_host_project(account: Account) -> None:
    """Let the resources of fleets include rules in the host project, if the project belongs to a Shared VPC.

    Raises:
        ApiError: the project does not answer.
    """
    if not account.host_project:
        try:
            account.host_project = account.api.host_project()
        except ApiError as error:
            if not error.is_forbidden:
                raise


def await_insertions(account: Account) -> None:
    """Wait until what pending insertions in the project create is listed, and rules in its host project exist.

    Raises:
        ApiError: the insertions take too long.
    """
    kinds = ("bulkInsert", "insert")
    operations = [operation for kind in kinds for operation in account.api.operations(f'operationType="{kind}"')]
    account.await_operations(
        [operation for operation in operations if not is_done(operation)],
        "what is being made",
        or_queued=True,
    )
    for operation in _shared(account, lambda host: account.api.operations('operationType="insert"', host)):
        if "/firewalls/" in operation.target_link:
            account.api.wait(operation, "what is being made")


def _shared(account: Account, list_resources: Callable[[str], list[M]]) -> list[M]:
    """Return resources of the host project; none if the caller may not list them, and thus has not created any."""
    try:
        return list_resources(account.host_project) if account.host_project else []
    except ApiError as error:
        if not error.is_forbidden:
            raise
        return []


def delete_instances(account: Account, targets: Sequence[compute_v1.Instance], progress: Progress) -> None:
    """Delete instances, given as the API lists them, and wait until they are gone.

    Raises:
        ApiError: an instance could not be deleted, or is not gone in time.
    """
    if not targets:
        return
    left = {str(resource.id): resource for resource in targets}
    names = {key: our_name(resource) for key, resource in left.items()}
    for name in names.values():
        progress(name, "deleting")
    _request(account, [of_instance(account, resource) for resource in targets])
    fleets = {resource.labels["fleet"] for resource in targets}
    query = f"labels.fleet={fleets.pop()}" if len(fleets) == 1 else "labels.fleet:*"

    def list_remaining() -> list[Orphan]:
        listing = account.api.instances(query)
        existing = {str(resource.id): resource for resource in listing}
        gone = [key for key in left if key not in existing and zone_of(left[key]) not in listing.silent]
        for key in gone:
            del left[key]
            progress(names[key], "deleted")
        idle = [existing[key] for key in left if key in existing and existing[key].status != "STOPPING"]
        return [of_instance(account, resource) for resource in idle]

    _await_gone(account, list_remaining, lambda: bool(left), f"deleting {', '.join(names.values())}")


def delete_unused_disks(account: Account, fleet: str, names: Collection[str]) -> None:
    """Delete the disks of a fleet with these names that no instance uses, as a failed creation leaves them.

    Raises:
        ApiError: they cannot be listed or deleted.
    """
    disks = [
        each for each in account.api.disks(f"labels.fleet={fleet}") if each.labels.get("fleet-owner") == account.owner
    ]
    unused = [disk for disk in disks if disk.name in names and not disk.users]
    delete_things(account, [_labelled("disk", resource, zone_of(resource)) for resource in unused])


def delete_things(account: Account, targets: Sequence[Orphan]) -> None:
    """Delete resources, instances before their disks, and wait until they are gone.

    Raises:
        ApiError: a resource could not be deleted, or is not gone in time.
    """
    for kinds in (("instance", "firewall rule"), ("disk", "address", POLICY, IMAGE)):
        group = [orphan for orphan in targets if orphan.kind in kinds]
        if group:
            _delete_group(account, group)


def _delete_group(account: Account, group: Sequence[Orphan]) -> None:
    fleets = {orphan.fleet for orphan in group}
    fleet = min(fleets) if len(fleets) == 1 else ""
    left: list[Orphan] = list(group)
    # A disk that is deleted with its instance may be gone already.
    _request(account, group)

    def list_remaining() -> list[Orphan]:
        left[:] = remaining(account, group, fleet)
        return list(left)

    _await_gone(
        account, list_remaining, lambda: bool(left), f"deleting {', '.join(sorted(orphan.name for orphan in group))}"
    )


def remaining(account: Account, orphans: Sequence[Orphan], fleet: str = "") -> list[Orphan]:
    """Return those of `orphans` that the lists of a fleet, or of all, have, or whose zone does not answer."""
    existing = {(orphan.kind, orphan.zone, orphan.name) for orphan in things(account, fleet)}
    return [
        orphan
        for orphan in orphans
        if (orphan.kind, orphan.zone, orphan.name) in existing or orphan.zone in account.silent
    ]


def _request(account: Account, targets: Sequence[Orphan]) -> None:
    """Request the deletion of resources, all in one request.

    Raises:
        ApiError: a deletion is refused permanently.
    """
    answers = account.api.batch([delete_call(account, orphan) for orphan in targets])
    refused = [
        failure
        for answer in answers
        if answer.status not in (404, 409) and not _in_use(answer.body)
        for failure in answer.failures
    ]
    if refused:
        raise ApiError(refused)


def _in_use(body: Any) -> bool:
    """Return whether a deletion was refused because another resource, or its own creation, still uses this one."""
    return any(reason in str(body) for reason in ("resourceInUseByAnotherResource", "resourceNotReady"))


def _await_gone(
    account: Account, list_remaining: Callable[[], list[Orphan]], more: Callable[[], bool], activity: str
) -> None:
    """Wait until nothing is left; repeat the deletion of resources that `list_remaining` returns.

    Raises:
        ApiError: it takes too long, or a deletion is refused permanently.
    """
    again = time.monotonic() + account.api.timing.again_s

    def are_gone() -> bool:
        nonlocal again
        idle = list_remaining()
        if idle and more() and time.monotonic() > again:
            _request(account, idle)
            again = time.monotonic() + account.api.timing.again_s
        return not more()

    account.api.until(are_gone, activity)
