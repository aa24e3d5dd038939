"""Check that the addresses that may use SSH are known."""

from __future__ import annotations

from provision.gce.access.firewall import ssh_sources
from provision.gce.account import Account
from provision.gce.checks.check import Check
from provision.gce.options import GceOptions


def _address(account: Account, cloud: GceOptions) -> str:
    sources = ssh_sources(account, cloud)
    return f"SSH would be open to {', '.join(sources)}" if sources else "not required: no firewall rule uses it"


ADDRESS = Check("address", _address, requires=())
