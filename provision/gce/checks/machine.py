"""Check that a requested zone offers the machine, and that the boot image can be used."""

from __future__ import annotations

from dataclasses import replace

from provision.gce.account import Account
from provision.gce.catalog.machines import describe
from provision.gce.checks.check import Check
from provision.gce.creation import offered
from provision.gce.options import GceOptions
from provision.gce.rest.offers import check_locations, explain_no_offer
from provision.gce.zones import Region, candidates
from provision.model import FleetSpec
from provision.quantities import counted


def offering_regions(account: Account, cloud: GceOptions) -> list[Region]:
    """Return the regions and zones that offer the machine, in the order in which `fleet up` tries them.

    Raises:
        ApiError: a call failed.
        ProviderError: none does, or a requested zone does not exist.
    """
    zones = offered(account, FleetSpec("default", "gce", 1, options=cloud), cloud, is_baked=True)
    check_locations(cloud, account.api.regions(), zones, account.api.project)
    regions = candidates(replace(cloud, max_price_usd_h=0.0), zones, account.prices)
    if not regions:
        raise explain_no_offer(account.api, cloud, zones, account.silent)
    return regions


def _machine(account: Account, cloud: GceOptions) -> str:
    regions = offering_regions(account, replace(cloud, anywhere=True))
    return f"{describe(cloud)} is offered in {counted(sum(len(region.zones) for region in regions), 'zone')}"


def _image(account: Account, cloud: GceOptions) -> str:
    return f"{account.api.image(cloud.image)['name']} can be used"


MACHINE = Check("machine type", _machine)
IMAGE = Check("image", _image)
