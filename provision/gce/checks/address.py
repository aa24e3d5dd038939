"""Check that the addresses that may use SSH are known, and that no rule of the network denies them."""

from __future__ import annotations

from provision.gce.access.firewall import check_rules, ssh_sources
from provision.gce.account import Account
from provision.gce.checks.check import Check
from provision.gce.options import GceOptions
from provision.model import FleetSpec


def _address(account: Account, cloud: GceOptions) -> str:
    sources = ssh_sources(account, cloud)
    return f"SSH would be open to {', '.join(sources)}" if sources else "not required: no firewall rule uses it"


def _firewall(account: Account, cloud: GceOptions) -> str:
    spec = FleetSpec("default", "gce", 1, options=cloud)
    check_rules(account, spec, cloud, ssh_sources(account, cloud))
    return "no rule of the network is known to deny SSH"


ADDRESS = Check("address", _address, requires=())
FIREWALL = Check("firewall", _firewall, requires=("API", "network", "address"), is_optional=True)
