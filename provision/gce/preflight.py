"""Check quotas, permissions, and settings before anything is rented."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from typing import Any

from provision.gce.account import Account
from provision.gce.catalog.machines import describe
from provision.gce.catalog.networks import network_of
from provision.gce.catalog.prices import PRICED_AT, price
from provision.gce.creation import nowhere, offered
from provision.gce.diagnosis import Diagnosis, diagnose, grant_role, quota_hint
from provision.gce.firewall import ssh_sources
from provision.gce.options import GceOptions
from provision.gce.quota import problems
from provision.gce.rest.api import ApiError, Json
from provision.gce.rest.resources import zone_of
from provision.gce.zones import Region, candidates, region_of
from provision.model import Finding, FleetSpec, Offer, Quote
from provision.provider import ProviderError
from provision.quantities import counted

_ALWAYS = (
    "compute.acceleratorTypes.list",
    "compute.addresses.list",
    "compute.disks.create",
    "compute.disks.delete",
    "compute.disks.list",
    "compute.firewalls.list",
    "compute.globalOperations.list",
    "compute.instances.create",
    "compute.instances.delete",
    "compute.instances.getGuestAttributes",
    "compute.instances.list",
    "compute.instances.setLabels",
    "compute.instances.setMetadata",
    "compute.instances.setScheduling",
    "compute.instances.setTags",
    "compute.instances.start",
    "compute.instances.stop",
    "compute.machineTypes.list",
    "compute.projects.get",
    "compute.regionOperations.get",
    "compute.regions.list",
    "compute.zoneOperations.get",
)
_NETWORK = ("compute.networks.get", "compute.subnetworks.use")
_FIREWALL = (
    "compute.firewalls.create",
    "compute.firewalls.delete",
    "compute.firewalls.update",
    "compute.globalOperations.get",
    "compute.networks.updatePolicy",
)
ROLE = "roles/compute.admin"
_IMAGE = re.compile(r"projects/([^/]+)/global/images/(family/)?")


def permissions(cloud: GceOptions, project: str) -> tuple[str, ...]:
    """Return the permissions in `project` that the calls for fleets like `cloud` need, sorted.

    Permissions in other projects (of a Shared VPC, of a public image) are left out: this project cannot confirm them.

    Source: https://cloud.google.com/compute/docs/reference/rest/v1, IAM permissions of each method.
    """
    network, image = network_of(cloud.network).project, _IMAGE.search(cloud.image)
    names = {*_ALWAYS}
    if network in ("", project):
        names |= {*_NETWORK, *(_FIREWALL if cloud.firewall else ())}
        names |= {"compute.subnetworks.useExternalIp"} if cloud.external else set()
    if image is not None and image[1] == project:
        names |= {"compute.images.useReadOnly", f"compute.images.{'getFromFamily' if image[2] else 'get'}"}
    if cloud.scopes:
        # iam.serviceAccounts.actAs is also needed, but it is often granted on the account and not in the project.
        names.add("compute.instances.setServiceAccount")
    return tuple(sorted(names))


def quote(account: Account, spec: FleetSpec, cloud: GceOptions, names: Sequence[str]) -> Quote:
    """Return zones in the order in which they will be tried, with prices, without regions whose quota is too small.

    Raises:
        ApiError: a call failed; for example, the project, network, or image does not exist.
        ProviderError: there are no credentials, or no zone is left.
    """
    count, api = len(names), account.api
    calls: list[Callable[[], Any]] = [
        api.get_project,
        api.regions,
        lambda: account.resources(spec.name),
        lambda: api.network(cloud.network),
        lambda: api.image(cloud.image),
        lambda: ssh_sources(account, cloud),
    ]
    project, region_resources, existing, *_, sources = api.together(*calls)
    if count == 0:
        return Quote(0, spot=cloud.spot, priced_at=PRICED_AT, delete_after_s=cloud.max_duration_s)
    pinned = sorted({zone_of(resource) for resource in existing})
    regions = [Region(region_of(pinned[0]), (pinned[0],))] if pinned else candidates(cloud, offered(account, cloud))
    if not regions:
        raise nowhere(count, cloud, {})
    left, short = _within_quota(cloud, count, regions, _Quotas(api.project, project, region_resources))
    if not left:
        raise short[0]
    offers = [Offer(zone, describe(cloud), price(cloud, zone)) for region in left for zone in region.zones]
    return Quote(
        count,
        tuple(offers),
        spot=cloud.spot,
        priced_at=PRICED_AT,
        delete_after_s=cloud.max_duration_s,
        notes=(*dict.fromkeys(problem.message for problem in short), *_access(cloud, sources)),
    )


def _access(cloud: GceOptions, sources: Sequence[str]) -> list[str]:
    """Return a sentence with the addresses that can use SSH."""
    if not cloud.firewall:
        return [
            "no firewall rules are created (--no-firewall): existing rules must allow SSH and the fleet's traffic"
        ]
    if not cloud.external:
        return []
    addresses = ", ".join(sources)
    if cloud.ssh_from:
        return [f"SSH is open to {addresses}"]
    if len(sources) > 1:
        return [f"SSH is open to {addresses}: this computer has several addresses; --ssh-from limits it to one"]
    return [f"SSH is open to {addresses}, the address of this computer"]


class _Quotas:
    """Quotas of a project, as Compute Engine reports them."""

    def __init__(self, name: str, project: Json, regions: Sequence[Json]) -> None:
        self._name = name
        self._project = project.get("quotas", ())
        self._regions = {str(region["name"]): region.get("quotas", ()) for region in regions}

    def problems(self, cloud: GceOptions, count: int, region: str) -> list[Diagnosis]:
        """Return the quotas that are too small for `count` instances in a region."""
        return problems(cloud, count, self._regions.get(region, ()), self._project, region, self._name)


def _within_quota(
    cloud: GceOptions, count: int, regions: Sequence[Region], quotas: _Quotas
) -> tuple[list[Region], list[Diagnosis]]:
    """Return the regions whose quotas are large enough, and the problems of the others."""
    problems_of = {region: quotas.problems(cloud, count, region.name) for region in regions}
    left = [region for region, shortages in problems_of.items() if not shortages]
    return left, [shortage for shortages in problems_of.values() for shortage in shortages]


def doctor(account: Account, cloud: GceOptions) -> list[Finding]:
    """Check all prerequisites of `fleet up` that can be checked; a failed check does not hide later ones.

    Args:
        account: The owner of the fleets.
        cloud: Options of a fleet, resolved.
    """
    findings = [
        _finding(account, "credentials", lambda: _credentials(account)),
        _finding(account, "project", lambda: f"calls go to project {account.api.project}"),
    ]
    if all(finding.ok for finding in findings):
        project: Json = {}
        findings.append(_finding(account, "API", lambda: _api(account, project)))
        if project:
            findings += _permissions(account, cloud)
            findings.append(_finding(account, "network", lambda: _network(account, cloud)))
            findings.append(
                _finding(account, "image", lambda: f"{account.api.image(cloud.image)['name']} can be used")
            )
            findings.append(_gpus(account, project))
            findings.append(_finding(account, "regional quota", lambda: _regional(account, cloud)))
    findings.append(_finding(account, "address", lambda: _address(account, cloud)))
    gcloud = shutil.which("gcloud")
    needed = "not installed (only required for --iap)"
    findings.append(Finding("gcloud", bool(gcloud) or cloud.external, f"{gcloud}, for --iap" if gcloud else needed))
    return findings


def _finding(account: Account, subject: str, check: Callable[[], str]) -> Finding:
    """Return the result of `check` as a finding, or the reason why the check failed."""
    try:
        return Finding(subject, True, check())
    except ApiError as error:
        diagnosis = diagnose(error.failures, project=_project(account), location="", doing=f"check the {subject}")
        # If nothing answers, the credentials are not to blame but the connection.
        return diagnosis.finding("connection" if subject == "credentials" and not error.status else subject)
    except ProviderError as error:
        return error.finding(subject)


def _project(account: Account) -> str:
    """Return the project, or a placeholder if it is unknown."""
    try:
        return account.api.project
    except (ApiError, ProviderError):
        return "(unknown)"


def _credentials(account: Account) -> str:
    account.api.authenticate()
    return "accepted by Google Cloud"


def _api(account: Account, project: Json) -> str:
    project.update(account.api.get_project())
    return "the Compute Engine API is enabled"


def _network(account: Account, cloud: GceOptions) -> str:
    account.api.network(cloud.network)
    return f"{cloud.network} exists"


def _regional(account: Account, cloud: GceOptions) -> str:
    """Return the number of regions whose quotas have room for one instance, as a message.

    Raises:
        ProviderError: no region has room.
    """
    project, regions = account.api.together(account.api.get_project, account.api.regions)
    quotas = _Quotas(account.api.project, project, regions)
    names = [str(region["name"]) for region in regions]
    room = [name for name in names if not quotas.problems(cloud, 1, name)]
    if not room and names:
        raise quotas.problems(cloud, 1, names[0])[0]
    return f"room for {describe(cloud)} in {len(room)} of {counted(len(names), 'region')}"


def _address(account: Account, cloud: GceOptions) -> str:
    sources = ssh_sources(account, cloud)
    return f"SSH would be open to {', '.join(sources)}" if sources else "not required: no firewall rule uses it"


def _permissions(account: Account, cloud: GceOptions) -> list[Finding]:
    needed = permissions(cloud, account.api.project)
    try:
        missing = sorted(set(needed) - account.api.permitted(needed))
    except ApiError as error:
        return [Finding("permissions", True, f"not checked: {error}")]
    if not missing:
        return [Finding("permissions", True, f"all {len(needed)} required permissions")]
    add = grant_role(account.api.project, ROLE)
    return [Finding("permissions", False, f"missing: {', '.join(missing)}", next_steps=[add])]


def _gpus(account: Account, project: Json) -> Finding:
    limits = {str(quota.get("metric")): float(quota.get("limit", 0)) for quota in project.get("quotas", ())}
    limit = limits.get("GPUS_ALL_REGIONS")
    if limit is None:
        return Finding("GPU quota", True, "unknown")
    if limit < 1:
        hint = quota_hint("GPUs", account.api.project)
        return Finding("GPU quota", False, "GPUS_ALL_REGIONS is 0: GPUs cannot be created", hint=hint)
    return Finding("GPU quota", True, f"GPUS_ALL_REGIONS is {limit:g}")
