"""What is looked at before any money is spent."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from typing import Any

from provision.gce.account import Account, raise_told
from provision.gce.api import ApiError, Json, RefusedError
from provision.gce.catalog import describe
from provision.gce.creation import nowhere, offered
from provision.gce.errors import Diagnosis, diagnose
from provision.gce.firewall import ssh_sources
from provision.gce.places import Region, candidates, region_of
from provision.gce.prices import PRICED_AT, price
from provision.gce.quota import problems
from provision.gce.reading import zone_of
from provision.model import CloudSpec, Finding, FleetSpec, Offer, Quote

PERMISSIONS = (
    "compute.disks.create",
    "compute.disks.delete",
    "compute.firewalls.create",
    "compute.firewalls.delete",
    "compute.firewalls.list",
    "compute.instances.create",
    "compute.instances.delete",
    "compute.instances.get",
    "compute.instances.getGuestAttributes",
    "compute.instances.list",
    "compute.instances.setLabels",
    "compute.instances.setMetadata",
    "compute.instances.setTags",
    "compute.networks.get",
    "compute.networks.updatePolicy",
    "compute.projects.get",
    "compute.subnetworks.use",
    "compute.subnetworks.useExternalIp",
    "compute.zoneOperations.get",
)
ROLE = "roles/compute.admin"


def quote(account: Account, spec: FleetSpec, cloud: CloudSpec, names: Sequence[str]) -> Quote:
    """Places in the order in which they will be tried, each with its price, less those whose quota is too small.

    Raises:
        ApiError: a call failed; project, network or image are not there, for example.
        RefusedError: there are no credentials.
        ProviderError: no place is left.
    """
    count, api = len(names), account.api
    looks: list[Callable[[], Any]] = [
        api.get_project,
        api.regions,
        lambda: account.resources(spec.name),
        lambda: api.network(cloud.network),
        lambda: api.image(cloud.image),
        lambda: ssh_sources(account, cloud),
    ]
    project, told, there, *_, sources = api.together(*looks)
    if count == 0:
        return Quote(0, spot=cloud.spot, priced_at=PRICED_AT, delete_after_s=cloud.max_duration_s)
    pinned = sorted({zone_of(one) for one in there})
    regions = [Region(region_of(pinned[0]), (pinned[0],))] if pinned else candidates(cloud, offered(account, cloud))
    if not regions:
        raise nowhere(count, cloud, {})
    left, short = _within_quota(cloud, count, regions, _Quotas(api.project, project, told))
    if not left:
        raise_told(short[0])
    offers = [Offer(zone, describe(cloud), price(cloud, zone)) for region in left for zone in region.zones]
    return Quote(
        count,
        tuple(offers),
        spot=cloud.spot,
        priced_at=PRICED_AT,
        delete_after_s=cloud.max_duration_s,
        notes=(*dict.fromkeys(one.sentence for one in short), *_access(cloud, sources)),
    )


def _access(cloud: CloudSpec, sources: Sequence[str]) -> list[str]:
    """Return the sentence that says who can use SSH."""
    if not cloud.firewall:
        return [
            "no firewall rules are made (--no-firewall): existing ones must admit SSH and the traffic of the fleet"
        ]
    if not cloud.external:
        return []
    places = ", ".join(sources)
    if cloud.ssh_from:
        return [f"SSH is open to {places}"]
    if len(sources) > 1:
        return [f"SSH is open to {places}: this computer has several addresses; --ssh-from limits it to one"]
    return [f"SSH is open to {places}, the address of this computer"]


class _Quotas:
    """Quotas of a project as Compute Engine told them."""

    def __init__(self, name: str, project: Json, regions: Sequence[Json]) -> None:
        self._name = name
        self._project = project.get("quotas", ())
        self._regions = {str(one["name"]): one.get("quotas", ()) for one in regions}

    def problems(self, cloud: CloudSpec, count: int, region: str) -> list[Diagnosis]:
        """What is too small for `count` instances in a region."""
        return problems(cloud, count, self._regions.get(region, ()), self._project, region, self._name)


def _within_quota(
    cloud: CloudSpec, count: int, regions: Sequence[Region], quotas: _Quotas
) -> tuple[list[Region], list[Diagnosis]]:
    """Regions whose quota is large enough, and what is wrong with the others."""
    left: list[Region] = []
    short: list[Diagnosis] = []
    for region in regions:
        found = quotas.problems(cloud, count, region.name)
        if found:
            short += found
        else:
            left.append(region)
    return left, short


def doctor(account: Account) -> list[Finding]:
    """Credentials, project, API, permissions, quota for GPUs, gcloud: what was found of each."""
    try:
        found = [Finding("project", True, f"calls go to project {account.api.project}")]
        project = account.api.get_project()
    except RefusedError as error:
        return [_missing("credentials", error.diagnosis)]
    except ApiError as error:
        told = diagnose(error.failures, project=account.api.project, place="", doing="look at the project")
        return [_missing("project", told)]
    found.insert(0, Finding("credentials", True, "Google Cloud accepts them"))
    found.append(Finding("API", True, "the Compute Engine API is enabled"))
    found += _permissions(account)
    found.append(_gpus(account, project))
    gcloud = shutil.which("gcloud")
    found.append(
        Finding("gcloud", True, f"{gcloud}, for --iap")
        if gcloud
        else Finding("gcloud", True, "not installed; only --iap wants it")
    )
    return found


def _missing(subject: str, told: Diagnosis) -> Finding:
    sentence = f"{told.sentence}: {told.cause}" if told.cause else told.sentence
    return Finding(subject, False, sentence, told.next_step, told.hint)


def _permissions(account: Account) -> list[Finding]:
    try:
        missing = sorted(set(PERMISSIONS) - account.api.permitted(PERMISSIONS))
    except ApiError as error:
        return [Finding("permissions", True, f"not looked at: {error}")]
    if not missing:
        return [Finding("permissions", True, f"all {len(PERMISSIONS)} that fleets need")]
    add = (
        f"gcloud projects add-iam-policy-binding {account.api.project} "
        f'--member="user:$(gcloud config get account)" --role={ROLE}'
    )
    return [Finding("permissions", False, f"missing: {', '.join(missing)}", add)]


def _gpus(account: Account, project: Json) -> Finding:
    limits = {str(one.get("metric")): float(one.get("limit", 0)) for one in project.get("quotas", ())}
    limit = limits.get("GPUS_ALL_REGIONS")
    if limit is None:
        return Finding("GPU quota", True, "not told")
    url = f"https://console.cloud.google.com/iam-admin/quotas?project={account.api.project}"
    if limit < 1:
        return Finding(
            "GPU quota", False, "GPUS_ALL_REGIONS is 0: no GPU may be rented", hint=f"request more at {url}"
        )
    return Finding("GPU quota", True, f"GPUS_ALL_REGIONS is {limit:g}")
