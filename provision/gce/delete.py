"""Delete the resources of fleets on Compute Engine, and wait until they are gone."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Sequence
from functools import partial

from google.cloud import compute_v1

from provision.gce.account import Account, require_success
from provision.gce.api.client import ApiError, Call, Listing, M, is_done
from provision.gce.api.resources import instance, our_name, seconds, zone_of
from provision.gce.catalog.names import last, marked, marked_project
from provision.gce.images import listed, price_usd_h, size_of
from provision.model import IMAGE, Orphan
from provision.provider import Progress

INSTANCE, DISK, ADDRESS, RULE, POLICY = "instance", "disk", "address", "firewall rule", "placement policy"
_COLLECTIONS = {
    INSTANCE: "instances",
    RULE: "firewalls",
    DISK: "disks",
    ADDRESS: "addresses",
    POLICY: "resourcePolicies",
    IMAGE: "images",
}
"""Collections by the kind of resource, in the order of their deletion."""
_IN_USE = frozenset({"resourceInUseByAnotherResource", "resourceNotReady"})
_SILENT: frozenset[str] = frozenset()


def delete_call(account: Account, thing: Orphan) -> Call:
    """Return the call that deletes a resource."""
    scope = ("zones", thing.zone)
    if thing.kind in (ADDRESS, POLICY):
        scope = ("regions", thing.zone)
    words = [*(("global",) if thing.kind in (RULE, IMAGE) else scope), _COLLECTIONS[thing.kind], thing.name]
    project = thing.zone if thing.kind == RULE else ""
    return Call("DELETE", account.api.path(*words, project=project, requestId=str(uuid.uuid4())))


def of_image(account: Account, resource: compute_v1.Image) -> Orphan:
    """Return an image as an Orphan."""
    usd_h = price_usd_h(resource, account.prices)
    return _labelled(IMAGE, resource, "")._replace(price_usd_h=usd_h, size_gb=size_of(resource))


def _of_instance(account: Account, resource: compute_v1.Instance) -> Orphan:
    usd_h = instance(resource, account.prices).current_usd_h
    return _labelled(INSTANCE, resource, zone_of(resource))._replace(price_usd_h=usd_h)


def _labelled(
    kind: str, resource: compute_v1.Instance | compute_v1.Disk | compute_v1.Address | compute_v1.Image, location: str
) -> Orphan:
    fleet, owner, user = (resource.labels.get(name, "") for name in ("fleet", "fleet-owner", "fleet-user"))
    created_at = seconds(resource.creation_timestamp)
    return Orphan(fleet, owner, user, kind, resource.name, location, created_at=created_at)


def _described(kind: str, resource: compute_v1.Firewall | compute_v1.ResourcePolicy, location: str) -> Orphan:
    """Return a resource without labels as an Orphan; one that belongs to no fleet has no owner."""
    fields = marked(resource.description) or ("", "", "")
    return Orphan(*fields, kind, resource.name, location, created_at=seconds(resource.creation_timestamp))


def _rules(account: Account) -> list[Orphan]:
    """Return the firewall rules of fleets in the project; they are in it, or in the host project of its network."""
    api, host = account.api, account.host_project
    rules = [("", rule) for rule in api.firewalls()] + [(host, rule) for rule in _shared(account, api.firewalls)]
    return [
        _described(RULE, rule, project)
        for project, rule in rules
        if marked_project(rule.description) in ((api.project,) if project else ("", api.project))
    ]


def _policies(account: Account) -> Listing[compute_v1.ResourcePolicy]:
    """Return the placement policies; none if the caller may not list them, and has not created any."""
    try:
        return account.api.resource_policies()
    except ApiError as error:
        if not error.is_forbidden:
            raise
        return Listing()


def _list(account: Account, kind: str, query: str) -> tuple[list[Orphan], frozenset[str]]:
    """Return the resources of a kind, and the zones and regions that did not answer."""
    api = account.api
    if kind == INSTANCE:
        instances = api.instances(query)
        return [_of_instance(account, each) for each in instances], instances.silent
    if kind == DISK:
        disks = api.disks(query)
        return [_labelled(kind, each, zone_of(each)) for each in disks], disks.silent
    if kind == ADDRESS:
        addresses = api.addresses(query)
        return [_labelled(kind, each, last(each.region)) for each in addresses], addresses.silent
    if kind == POLICY:
        policies = _policies(account)
        return [_described(kind, each, last(each.region)) for each in policies], policies.silent
    return (_rules(account) if kind == RULE else [of_image(account, each) for each in listed(api)]), _SILENT


def things(account: Account, fleet: str = "", kinds: Collection[str] = tuple(_COLLECTIONS)) -> list[Orphan]:
    """Return the resources of one fleet in the project, or of all fleets with the images; of any owner.

    Those in zones and regions that do not answer are missing; `account.silent` has these then.

    Args:
        account: The owner.
        fleet: Name of the fleet; empty: all.
        kinds: Kinds of the resources.
    """
    query = f"labels.fleet={fleet}" if fleet else "labels.fleet:*"
    wanted = [kind for kind in kinds if kind != IMAGE or not fleet]
    listings = account.api.together(*(partial(_list, account, kind, query) for kind in wanted))
    account.silent = _SILENT.union(*(silent for _, silent in listings))
    return [orphan for orphans, _ in listings for orphan in orphans if orphan.owner]


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
    pending = [operation for operation in operations if not is_done(operation)]
    account.await_operations(pending, "what is being made", or_queued=True)
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
    for resource in targets:
        progress(our_name(resource), "deleting")
    delete_things(account, [_of_instance(account, resource) for resource in targets])
    for resource in targets:
        progress(our_name(resource), "deleted")


def delete_unused_disks(account: Account, fleet: str, names: Collection[str]) -> None:
    """Delete the disks of a fleet with these names that no instance uses, as a failed creation leaves them.

    Raises:
        ApiError: they cannot be listed or deleted.
    """
    disks = account.api.disks(f"labels.fleet={fleet}")
    mine = [disk for disk in disks if disk.labels.get("fleet-owner") == account.owner and disk.name in names]
    delete_things(account, [_labelled(DISK, disk, zone_of(disk)) for disk in mine if not disk.users])


def delete_things(account: Account, targets: Sequence[Orphan]) -> None:
    """Delete resources, instances before their disks, and wait until they are gone.

    Raises:
        ApiError: a resource could not be deleted, or is not gone in time.
    """
    for kinds in ((INSTANCE, RULE), (DISK, ADDRESS, POLICY, IMAGE)):
        group = [orphan for orphan in targets if orphan.kind in kinds]
        if group:
            _delete_group(account, group)


def _delete_group(account: Account, group: Sequence[Orphan]) -> None:
    """Request the deletion of resources, and wait until they are gone; repeat the requests for those that remain.

    A disk that is deleted with its instance may be gone already.
    """
    fleets = {orphan.fleet for orphan in group}
    fleet = min(fleets) if len(fleets) == 1 else ""
    left, again_at = list(group), 0.0

    def are_gone() -> bool:
        nonlocal again_at
        if time.monotonic() >= again_at:
            _request(account, left)
            again_at = time.monotonic() + account.api.timing.again_s
        left[:] = remaining(account, group, fleet)
        return not left

    account.api.until(are_gone, f"deleting {', '.join(sorted(orphan.name for orphan in group))}")


def remaining(account: Account, orphans: Sequence[Orphan], fleet: str = "") -> list[Orphan]:
    """Return those of `orphans` that the lists of a fleet, or of all, have, or whose zone does not answer."""
    listed_now = things(account, fleet, {orphan.kind for orphan in orphans})
    existing = {(orphan.kind, orphan.zone, orphan.name) for orphan in listed_now}
    return [
        orphan
        for orphan in orphans
        if (orphan.kind, orphan.zone, orphan.name) in existing or orphan.zone in account.silent
    ]


def _request(account: Account, targets: Sequence[Orphan]) -> None:
    """Request the deletion of resources; those that another resource, or their own creation, still uses come later.

    Raises:
        ApiError: a deletion is refused permanently.
    """
    errors, _ = account.begun(account.api.each([delete_call(account, orphan) for orphan in targets]))
    refused = [error for error in errors if error.status not in (404, 409)]
    require_success([error for error in refused if _IN_USE.isdisjoint(each.code for each in error.failures)])
