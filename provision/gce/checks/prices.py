"""Check that the prices of the Cloud Billing catalog can be read."""

from __future__ import annotations

from provision.gce.account import Account
from provision.gce.checks.check import Check
from provision.gce.options import GceOptions
from provision.gce.rest.price_list import read_page


def _prices(account: Account, cloud: GceOptions) -> str:
    read_page(account.api, size=1)
    account.update_prices(cloud)  # `fleet up` tries the zones in their order
    return "the Cloud Billing catalog can be read"


PRICES = Check("prices", _prices, requires=("credentials", "project"), is_optional=True)
