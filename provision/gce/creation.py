"""Create instances on Compute Engine, all in one zone; try zones in order until one has capacity."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from provision.deferred import dataclass
from provision.gce.access import os_login
from provision.gce.access.firewall import open_firewall
from provision.gce.access.host_keys import await_keys
from provision.gce.access.nat import with_nat
from provision.gce.account import Account
from provision.gce.catalog.locations import is_ai_zone
from provision.gce.catalog.machines import describe
from provision.gce.catalog.networks import subnetwork_of
from provision.gce.deletion import delete_instances, delete_unused_disks
from provision.gce.diagnosis.cases import Scope
from provision.gce.diagnosis.failures import Failure, from_operation
from provision.gce.limit import current_budget, dearest, limited, too_expensive
from provision.gce.options import GceOptions
from provision.gce.power import start, start_for
from provision.gce.rest.api import ApiError, Json
from provision.gce.rest.bodies.bulk import bulk_insert
from provision.gce.rest.bodies.labels import instance_name
from provision.gce.rest.resources import created_count, our_name, zone_of, zones_tried
from provision.gce.zones import Region, Search, candidates, is_zone, region_of
from provision.model import FleetSpec
from provision.provider import ErrorKind, Progress, ProviderError
from provision.quantities import counted

_RETRIES = 3


@dataclass(frozen=True)
class _Attempt:
    """One attempt to create instances in a zone or a region."""

    region: Region
    names: Mapping[str, str]  # name within the fleet -> name on Compute Engine
    others: Sequence[str] = ()  # zones of the region that have such machines, but must not be used

    @property
    def regional(self) -> bool:
        """Return whether Compute Engine chooses the zone."""
        return len(self.region.zones) > 1

    @property
    def location(self) -> str:
        return self.region.name if self.regional else self.region.zones[0]

    def __str__(self) -> str:
        return f"{self.region.name} ({', '.join(self.region.zones)})" if self.regional else self.location


def create(account: Account, spec: FleetSpec, cloud: GceOptions, names: Sequence[str], progress: Progress) -> None:
    """Create the instances `names`, start stopped ones, and wait until each has published its host key.

    Raises:
        ApiError: a call failed.
        ProviderError: no zone has capacity; instances that were created on the way are deleted.
    """
    existing = account.named(spec.name)
    half = [
        resource
        for name, resource in existing.items()
        if name in names and resource.get("status") in ("PROVISIONING", "STAGING")
    ]
    delete_instances(account, half, progress)
    for resource in half:
        del existing[our_name(resource)]
    access = open_firewall(account, spec, cloud)
    if access.note:
        progress(account.host_project or account.api.project, access.note)
    stopped = [existing[name] for name in names if name in existing and existing[name].get("status") != "RUNNING"]
    missing = {name: instance_name(spec.name, account.owner, name) for name in names if name not in existing}
    _start(account, spec.name, cloud, stopped, len(missing), progress)
    if missing:
        if os_login.is_required(cloud, account.api.get_project()):
            cloud = _with_os_login(account, spec, cloud, progress)
        _insert(
            account, spec, cloud, missing, sorted({zone_of(resource) for resource in existing.values()}), progress
        )
    made = account.named(spec.name)
    await_keys(account, [made[name] for name in dict.fromkeys(names) if name in made], progress)


# --- instances ----------------------------------------------------------------------------------------------------


def _start(
    account: Account, fleet: str, cloud: GceOptions, stopped: Sequence[Json], count: int, progress: Progress
) -> None:
    """Start stopped instances again; they and `count` others must live on what the limit of the cost leaves.

    Raises:
        ApiError: an instance does not start.
        ProviderError: the limit of the cost does not pay for them; nothing was started.
    """
    if not cloud.max_cost_usd or not stopped:
        start(account, stopped, progress)
        return
    price = account.prices.price(cloud, zone_of(stopped[0]))
    budget = current_budget(account, fleet, cloud)
    allowed = limited(budget, cloud, price, len(stopped) + count, account.clock())
    if isinstance(allowed, ProviderError):
        raise allowed
    start_for(account, stopped, allowed.max_duration_s, price, progress)


def offered(
    account: Account, spec: FleetSpec, cloud: GceOptions, pinned: Sequence[str] = ()
) -> Mapping[str, Sequence[str]]:
    """Return the zones, by region, that offer the machine type and GPU; the first of `pinned` if there are any.

    Raises:
        ApiError: a call failed.
        ProviderError: instances in none of them could download the packages of the fleet.
    """
    if pinned:
        return {region_of(pinned[0]): [pinned[0]]}
    api = account.api
    calls = [lambda: api.machine_types(cloud.machine_type)]
    if cloud.gpu:
        calls.append(lambda: api.accelerator_types(cloud.gpu))
    zones, *others = ([zone_of(resource) for resource in resources] for resources in api.together(*calls))
    region = subnetwork_of(cloud.subnetwork).region
    zones = [zone for zone in zones if is_zone(zone) and all(zone in other for other in others)]
    zones = [zone for zone in zones if region in ("", region_of(zone))]
    by_region: dict[str, list[str]] = {}
    for zone in zones:
        by_region.setdefault(region_of(zone), []).append(zone)
    return with_nat(account, spec, cloud, by_region)


def regions_to_try(
    account: Account, cloud: GceOptions, zones: Mapping[str, Sequence[str]], pinned: Sequence[str], count: int
) -> list[Region]:
    """Return the regions and zones that are tried for `count` instances, in this order.

    Args:
        account: The owner of the fleet.
        cloud: Options of the instances, resolved.
        zones: Zones by region that offer such machines.
        pinned: Zones of the fleet's other instances.
        count: Number of instances.

    Raises:
        ProviderError: there are none, or only at a higher price than the limit.
    """
    cloud = replace(cloud, zones=tuple(pinned)) if pinned else cloud
    regions = candidates(cloud, zones, account.prices)
    if not regions:
        unlimited = candidates(replace(cloud, max_price_usd_h=0.0, anywhere=True), zones, account.prices)
        if unlimited:
            raise too_expensive(cloud, [zone for region in unlimited for zone in region.zones], account.prices)
        raise nowhere(count, cloud, {})
    return regions


def _insert(
    account: Account,
    spec: FleetSpec,
    cloud: GceOptions,
    names: Mapping[str, str],
    pinned: Sequence[str],
    progress: Progress,
) -> None:
    """Request all instances in one zone or region after another, until one has capacity.

    Args:
        account: The owner of the fleet.
        spec: The fleet.
        cloud: Its options, resolved.
        names: Names on Compute Engine by the names within the fleet.
        pinned: Zones of the fleet's other instances; if there are any, only the first is tried.
        progress: Called for each attempt.
    """
    zones_by_region = offered(account, spec, cloud, pinned)
    search = Search.over(regions_to_try(account, cloud, zones_by_region, pinned, len(names)))
    reasons: dict[str, str] = {}
    diagnosis: ProviderError | None = None
    retries = 0
    while (region := search.next()) is not None:
        allowed = _limited(account, spec.name, cloud, region, len(names))
        if isinstance(allowed, ProviderError):
            diagnosis, search = diagnosis or allowed, search.skip(region, Scope.REGION)
            continue
        others = [
            zone for zone in zones_by_region.get(region.name, ()) if zone not in region.zones and not is_ai_zone(zone)
        ]
        attempt = _Attempt(region, names, others)
        progress(attempt.location, f"requesting {counted(len(names), 'instance')}")
        failures, zones_tried = _tried(account, replace(spec, options=allowed), attempt, progress)
        if not failures:
            return
        doing = f"create {counted(len(names), 'instance')} ({describe(cloud)})"
        diagnosis = account.diagnosis(failures, doing, attempt.location)
        if os_login.OPTION in (diagnosis.again or ()) and not cloud.os_login and account.api.account:
            cloud = _with_os_login(account, spec, cloud, progress)
            continue
        progress(attempt.location, diagnosis.message.removeprefix(f"{attempt.location} "))
        reasons[str(attempt)] = diagnosis.message
        if diagnosis.scope is Scope.EVERYTHING:
            raise diagnosis
        if diagnosis.scope is Scope.RETRY and retries < _RETRIES:
            retries += 1
            time.sleep(account.api.timing.longest_poll_s)
            continue
        retries = 0
        scope = Scope.ZONE if diagnosis.scope is Scope.RETRY else diagnosis.scope
        if scope is Scope.ZONE and attempt.regional:
            # Compute Engine chose one of several zones; it did not try the others.
            search = search.each_separately(region, zones_tried, diagnosis.zones)
        else:
            search = search.skip(region, scope, diagnosis.zones)
    if diagnosis is not None and len(reasons) == 1:
        if pinned and diagnosis.kind is ErrorKind.CAPACITY:
            diagnosis.hint = f"the fleet is in {pinned[0]}, so only this zone was tried; --retry-until-up waits"
        raise diagnosis
    raise nowhere(len(names), cloud, reasons)


def _with_os_login(account: Account, spec: FleetSpec, cloud: GceOptions, progress: Progress) -> GceOptions:
    """Import the fleet's key for OS Login; return the options of instances that use it."""
    account.logins[spec.name] = os_login.grant(account, spec, cloud)
    progress(account.api.project, f"OS Login is used: the login name is {account.logins[spec.name]}")
    return replace(cloud, os_login=True)


def _limited(
    account: Account, fleet: str, cloud: GceOptions, region: Region, count: int
) -> GceOptions | ProviderError:
    """Return the options of instances in a region, with the lifetime that the limit of the cost pays for there."""
    if not cloud.max_cost_usd:
        return cloud
    budget = current_budget(account, fleet, cloud)
    return limited(budget, cloud, dearest(account.prices, cloud, region.zones), count, account.clock())


def nowhere(count: int, cloud: GceOptions, reasons: Mapping[str, str]) -> ProviderError:
    """Return the error that no zone has capacity for `count` instances; `reasons` are by zone or region."""
    instances = f"{counted(count, 'instance')} ({describe(cloud)})"
    if not reasons:
        return ProviderError(
            ErrorKind.CAPACITY,
            f"no zone offers {instances}",
            cause="none of the requested zones offers this machine",
            hint="select another --zone, --gpu, or --machine-type",
        )
    other = "allow other zones (--zone)" if cloud.zones or cloud.anywhere else "--anywhere tries all continents"
    return ProviderError(
        ErrorKind.CAPACITY,
        f"no capacity for {instances} in {len(reasons)} attempts",
        cause="; ".join(f"{location}: {reason}" for location, reason in reasons.items()),
        hint=f"--retry-until-up waits for capacity; {other}",
        again={"--retry-until-up": True},
    )


def _tried(
    account: Account, spec: FleetSpec, attempt: _Attempt, progress: Progress
) -> tuple[list[Failure], Collection[str]]:
    """Make one attempt.

    Returns:
        The failures (if there are any, all instances of the attempt are deleted), and the zones in which Compute
        Engine reports that it tried to create the instances.
    """
    tried: Collection[str] = ()
    body = bulk_insert(
        spec,
        attempt.names,
        owner=account.owner,
        user=account.user,
        zones=attempt.region.zones if attempt.regional else None,
        others=attempt.others,
        region=attempt.region.name,
    )
    try:
        with account.insertion(spec.name, "bulkInsert", **_intent(account, spec, attempt)) as request:
            request.created = 0  # if the call is rejected
            operation = account.api.bulk_insert(attempt.location, body, request.id, regional=attempt.regional)
            request.created = None
            operation = account.api.wait(operation, f"creating instances in {attempt}")
            request.created = created_count(operation)
            failures = from_operation(operation)
            tried = zones_tried(operation)
        if failures and operation.get("operationGroupId"):
            group = account.api.operations(f'operationGroupId="{operation["operationGroupId"]}"')
            failures += [
                failure for child in group if child["name"] != operation["name"] for failure in from_operation(child)
            ]
    except ApiError as error:
        failures = list(error.failures)
    return _reconciled(account, spec, attempt, failures, progress), tried


def _intent(account: Account, spec: FleetSpec, attempt: _Attempt) -> dict[str, Any]:
    """Return the description of an attempt for the journal, with what its instances cost if the cost is limited."""
    cloud = GceOptions.of(spec.options)
    zones = list(attempt.region.zones)
    intent = {"location": attempt.location, "zones": zones, "names": list(attempt.names.values())}
    price = dearest(account.prices, cloud, zones)
    if not cloud.max_cost_usd or price is None:
        return intent
    prices = {"usd_h": price.usd_h, "stopped_usd_h": price.stopped_usd_h}
    return {**intent, "workers": list(attempt.names), "lifetime_s": cloud.max_duration_s, **prices}


def _reconciled(
    account: Account, spec: FleetSpec, attempt: _Attempt, failures: list[Failure], progress: Progress
) -> list[Failure]:
    """Compare an attempt with the list of instances: return no failures if all exist, else delete those that do."""
    account.settle(spec.name)
    existing = account.named(spec.name)
    made = [existing[name] for name in attempt.names if name in existing]
    zones = {zone_of(resource) for resource in made}
    if len(made) == len(attempt.names) and len(zones) == 1:
        running = [resource for resource in made if resource.get("status") == "RUNNING"]
        if len(running) == len(made) or not failures:
            return []
    if made:
        account.observe(spec.name)  # they cost something, too
        delete_instances(account, made, progress)
    if any(failure.of_operation for failure in failures):
        with contextlib.suppress(ApiError):  # `fleet down` deletes them, too
            delete_unused_disks(account, spec.name, set(attempt.names.values()))
    return failures or [
        Failure(code="MISSING", message=f"{len(made)} of {counted(len(attempt.names), 'instance')} exist")
    ]
