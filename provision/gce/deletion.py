"""Deletes what fleets have on Compute Engine, all at once, and looks until it is gone."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from provision.gce.account import Account
from provision.gce.catalog.prices import price
from provision.gce.diagnosis import Failure
from provision.gce.rest.api import ApiError, Json, answer_failures
from provision.gce.rest.batch import Call
from provision.gce.rest.requests import marked
from provision.gce.rest.resources import cloud_of, last, our_name, seconds, zone_of
from provision.model import Orphan
from provision.provider import Progress

_PENDING = ("PENDING", "RUNNING")
_FORBIDDEN = 403


_COLLECTIONS = {"instance": "instances", "disk": "disks", "address": "addresses", "firewall rule": "firewalls"}


def delete_call(account: Account, thing: Orphan) -> Call:
    """The call that deletes a thing."""
    collection, rule = _COLLECTIONS[thing.kind], thing.kind == "firewall rule"
    scope = {"address": ("regions", thing.zone), "firewall rule": ("global",)}.get(thing.kind, ("zones", thing.zone))
    words = [*scope, collection, thing.name]
    project = thing.zone if rule else ""
    return Call("DELETE", account.api.path(*words, project=project, requestId=str(uuid.uuid4())), None)


def of_instance(resource: Json) -> Orphan:
    """An instance as a thing."""
    return _labelled("instance", resource, zone_of(resource))


def _labelled(kind: str, resource: Json, place: str) -> Orphan:
    labels = resource.get("labels", {})
    usd_h = price(cloud_of(resource), place) or 0.0 if kind == "instance" else 0.0
    return Orphan(
        fleet=str(labels.get("fleet", "")),
        owner=str(labels.get("fleet-owner", "")),
        user=str(labels.get("fleet-user", "")),
        kind=kind,
        name=str(resource["name"]),
        zone=place,
        created_at=seconds(str(resource.get("creationTimestamp", ""))),
        price_usd_h=usd_h,
    )


def _rules(account: Account) -> list[Orphan]:
    """The firewall rules of fleets, in the project and in the host project of its network."""
    found = [_rule(one, "") for one in account.api.firewalls()]
    if account.host_project:
        try:
            found += [_rule(one, account.host_project) for one in account.api.firewalls(account.host_project)]
        except ApiError as error:
            if error.status != _FORBIDDEN:  # who may not list them could not make any either
                raise
    return [rule for rule in found if rule is not None]


def _rule(resource: Json, project: str) -> Orphan | None:
    """A firewall rule as a thing; None where no fleet made it."""
    found = marked(str(resource.get("description", "")))
    if found is None:
        return None
    created_at = seconds(str(resource.get("creationTimestamp", "")))
    return Orphan(*found, "firewall rule", str(resource["name"]), project, created_at=created_at)


def things(account: Account, query: str = "labels.fleet:*") -> list[Orphan]:
    """All that fleets have in the project, whoever made it: four calls at the same time."""
    api = account.api
    instances, disks, addresses, rules = api.together(
        lambda: api.instances(query),
        lambda: api.disks(query),
        lambda: api.addresses(query),
        lambda: _rules(account),
    )
    found = [of_instance(one) for one in instances]
    found += [_labelled("disk", one, zone_of(one)) for one in disks]
    found += [_labelled("address", one, last(one.get("region", ""))) for one in addresses]
    found += rules
    return [one for one in found if one.owner]


def of_fleet(account: Account, fleet: str) -> list[Orphan]:
    """All that one fleet of ours has."""
    found = things(account, f"labels.fleet={fleet}")
    return [one for one in found if (one.fleet, one.owner) == (fleet, account.owner)]


def await_insertions(account: Account) -> None:
    """Wait until no instances and firewall rules are being made in the project: some of them may be ours.

    Raises:
        ApiError: it takes too long.
    """
    kinds = ("bulkInsert", "insert")
    found = [one for kind in kinds for one in account.api.operations(f'operationType="{kind}"')]
    account.await_operations([one for one in found if one.get("status") in _PENDING], "what is being made")


def delete_instances(account: Account, targets: Sequence[Json], progress: Progress) -> None:
    """Delete instances, as the API told them, and wait until they are gone.

    Raises:
        ApiError: one could not be deleted, or is not gone in time.
    """
    if not targets:
        return
    left = {str(one["id"]): one for one in targets}
    names = {key: our_name(one) for key, one in left.items()}
    for name in names.values():
        progress(name, "deleting")
    _ask(account, [of_instance(one) for one in targets])
    fleets = {str(one["labels"]["fleet"]) for one in targets}
    query = f"labels.fleet={fleets.pop()}" if len(fleets) == 1 else "labels.fleet:*"

    def look() -> list[Orphan]:
        there = {str(one["id"]): one for one in account.api.instances(query)}
        for key in [key for key in left if key not in there]:
            del left[key]
            progress(names[key], "deleted")
        return [of_instance(there[key]) for key in left if there[key].get("status") != "STOPPING"]

    _await_gone(account, look, lambda: bool(left), f"deleting {', '.join(names.values())}")


def delete_things(account: Account, targets: Sequence[Orphan]) -> None:
    """Delete things, instances first since disks hang on them, and wait until they are gone.

    Raises:
        ApiError: one could not be deleted, or is not gone in time.
    """
    for kinds in (("instance", "firewall rule"), ("disk", "address")):
        part = [one for one in targets if one.kind in kinds]
        if part:
            _delete_part(account, part)


def _delete_part(account: Account, part: Sequence[Orphan]) -> None:
    wanted = {(one.kind, one.zone, one.name) for one in part}
    fleets = {one.fleet for one in part}
    query = f"labels.fleet={min(fleets)}" if len(fleets) == 1 else "labels.fleet:*"
    left: list[Orphan] = list(part)
    # A disk that goes with its instance is gone by the time it is asked for.
    _ask(account, part)

    def look() -> list[Orphan]:
        left[:] = [one for one in things(account, query) if (one.kind, one.zone, one.name) in wanted]
        return list(left)

    _await_gone(account, look, lambda: bool(left), f"deleting {', '.join(sorted(one.name for one in part))}")


def _ask(account: Account, targets: Sequence[Orphan]) -> None:
    """Ask for deletions, all in one request.

    Raises:
        ApiError: one is refused for good.
    """
    answers = account.api.batch([delete_call(account, one) for one in targets])
    refused = [
        failure
        for answer in answers
        if answer.status not in (404, 409) and not _in_use(answer.body)
        for failure in answer_failures(answer)
    ]
    if refused:
        raise ApiError(refused)


def _in_use(body: Any) -> bool:
    """Whether something is not deleted because what uses it is not gone yet."""
    return "resourceInUseByAnotherResource" in str(body)


def _await_gone(account: Account, look: Callable[[], list[Orphan]], more: Callable[[], bool], what: str) -> None:
    """Look until nothing is left; ask again for what no deletion seems to go on of."""
    deadline = time.monotonic() + account.api.timing.operation_s
    again = time.monotonic() + account.api.timing.again_s
    for pause in account.api.timing.pauses():
        idle = look()
        if not more():
            return
        if time.monotonic() > deadline:
            message = f"{what} is not done after {account.api.timing.operation_s:g} s"
            raise ApiError([Failure(code="DEADLINE", message=message)])
        if idle and time.monotonic() > again:
            _ask(account, idle)
            again = time.monotonic() + account.api.timing.again_s
        time.sleep(pause)
