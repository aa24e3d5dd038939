"""Read what a quote depends on, and check what no zone could change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from provision.gce.access import bucket, iap, os_login, restarting, service_account
from provision.gce.access.bucket import Access
from provision.gce.access.firewall import open_sources
from provision.gce.access.restarting import Restarting
from provision.gce.account import Account
from provision.gce.catalog.machines import image_refusal
from provision.gce.options import GceOptions
from provision.gce.rest import images
from provision.gce.rest.api import Json
from provision.model import FleetSpec
from provision.provider import ErrorKind, ProviderError


@dataclass(frozen=True)
class Facts:
    """State of a project as far as a quote depends on it.

    Attributes:
        project: The project.
        regions: Its regions, with their quotas.
        existing: The instances of the fleet.
        network: Its network.
        sources: Ranges of addresses that can use SSH.
        image: The image of prepared hosts from which new instances boot, if there is one.
        login: Account that logs in; empty: OS Login is not used.
        tunnels: Account that opens tunnels, empty if it is unknown; None: there are none.
        storage: Access of the instances to the bucket; None: the fleet has no bucket.
        restarting: Permissions with which hosts start each other again; None: they do not.
    """

    project: Json
    regions: Sequence[Json]
    existing: Sequence[Json]
    network: Json
    sources: Sequence[str] = ()
    image: images.Choice = field(default_factory=images.Choice)
    login: str = ""
    tunnels: str | None = None
    storage: Access | None = None
    restarting: Restarting | None = None


def read_facts(account: Account, spec: FleetSpec, cloud: GceOptions, count: int) -> Facts:
    """Read the state of the project, and the price list, for `count` new instances; 0: only of the existing ones.

    Raises:
        ApiError: a call failed; for example, the project, network, or image does not exist.
        ProviderError: there are no credentials, the image is unsuitable, or a permission is missing.
    """
    api = account.api
    calls: list[Callable[[], Any]] = [
        api.get_project,
        api.regions,
        lambda: account.resources(spec.name),
        lambda: api.image(cloud.image),
        lambda: images.listed(api) if images.is_prepared(spec) else [],
        lambda: open_sources(account, spec, cloud),
        lambda: iap.check(account) if count and not cloud.external else None,
        lambda: bucket.examine(account, cloud) if count and cloud.bucket else None,
        lambda: service_account.check_given(account, cloud) if count else None,
        lambda: _restarting(account, cloud) if count and cloud.unattended else None,
        lambda: api.network(cloud.network),
        lambda: account.update_prices(cloud),
    ]
    project, regions, existing, base, baked, sources, tunnels, storage, _, restarts, network, _ = api.together(*calls)
    if (refused := image_refusal(cloud, base)) is not None:
        raise refused
    if count == 0:
        return Facts(project, regions, existing, network)
    login = os_login.check(account) if os_login.is_required(cloud, project) else ""
    image = _image(account, spec, cloud, project, base, baked)
    return Facts(project, regions, existing, network, sources, image, login, tunnels, storage, restarts)


def _image(
    account: Account, spec: FleetSpec, cloud: GceOptions, project: Json, base: Json, baked: Sequence[Json]
) -> images.Choice:
    """Return the image that fleet created with the requested content, if there is one."""
    if not baked:
        return images.Choice()
    of = images.content(spec, cloud, os_login.login_of(account, cloud, project))
    return images.choose(baked, base, of, cloud)


def _restarting(account: Account, cloud: GceOptions) -> Restarting:
    """Return the permissions of the service account with which hosts start each other again.

    Raises:
        ProviderError: it does not have those that are required.
    """
    result = restarting.examine(account, cloud)
    if result.doubt:
        raise ProviderError(
            ErrorKind.USAGE,
            f"--unattended: {result.note}",
            hint="create the role, and give it to the account",
            next_steps=restarting.grants(account, cloud),
        )
    return result
