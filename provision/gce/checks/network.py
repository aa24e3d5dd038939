"""Check that the network exists."""

from __future__ import annotations

from provision.gce.account import Account
from provision.gce.checks.check import Check
from provision.gce.options import GceOptions


def _network(account: Account, cloud: GceOptions) -> str:
    account.api.network(cloud.network)
    return f"{cloud.network} exists"


NETWORK = Check("network", _network)
