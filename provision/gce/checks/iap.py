"""Check the prerequisites of instances without external addresses: gcloud, its login, its role, and Cloud NAT."""

from __future__ import annotations

import shutil

from provision.gce.access import iap, nat
from provision.gce.account import Account
from provision.gce.catalog.locations import regions_of
from provision.gce.checks.check import Check
from provision.gce.options import GceOptions
from provision.quantities import counted

_EXTERNAL = "not required: instances have external addresses"


def _gcloud(_account: Account, cloud: GceOptions) -> str:
    if cloud.external:
        gcloud = shutil.which("gcloud")
        return f"{gcloud}, for --iap" if gcloud else "not installed (only required for --iap)"
    iap.access_token()
    return f"{iap.find_gcloud()} is logged in"


def _tunnels(account: Account, cloud: GceOptions) -> str:
    if cloud.external:
        return _EXTERNAL
    return f"{iap.check(account) or 'the account of gcloud'} can open tunnels"


def _nat(account: Account, cloud: GceOptions) -> str:
    """Return the regions in which Cloud NAT serves the instances, as a message.

    Raises:
        ApiError: the routers cannot be listed.
        ProviderError: it serves none of the requested regions.
    """
    if cloud.external:
        return _EXTERNAL
    asked, served = regions_of(cloud.zones), nat.regions_with_nat(account, cloud)
    usable = served & asked if asked else served
    if not usable:
        raise nat.missing_nat(account, cloud, min(asked, default="us-central1"))
    return f"instances in {counted(len(usable), 'region')} can download packages"


GCLOUD = Check("gcloud", _gcloud, requires=())
TUNNELS = Check("Identity-Aware Proxy", _tunnels, requires=("API", "gcloud"))
NAT = Check("Cloud NAT", _nat, requires=("API", "network"), is_optional=True)
