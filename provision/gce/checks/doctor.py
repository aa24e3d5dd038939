"""Check all prerequisites of a fleet that can be checked."""

from __future__ import annotations

from dataclasses import replace

from provision.gce.account import Account
from provision.gce.checks.account import (
    API,
    BILLING,
    BUCKET,
    CREDENTIALS,
    OS_LOGIN,
    PERMISSIONS,
    PRICES,
    PROJECT,
    SERVICE_ACCOUNT,
    policy_checks,
)
from provision.gce.checks.machine import IMAGE, MACHINE, TRIAL, room_checks
from provision.gce.checks.network import ADDRESS, FIREWALL, GCLOUD, NAT, NETWORK, SUBNETWORK, TUNNELS
from provision.gce.options import GceOptions
from provision.model import Finding

_OF_PROJECT = (CREDENTIALS, PROJECT, BILLING, PRICES, API, PERMISSIONS)
_OF_MACHINES = (NETWORK, SUBNETWORK, MACHINE, IMAGE, TRIAL)
_OF_INSTANCES = (SERVICE_ACCOUNT, BUCKET, OS_LOGIN, NAT)
_OF_THIS_COMPUTER = (ADDRESS, FIREWALL, GCLOUD, TUNNELS)


def doctor(account: Account, cloud: GceOptions, workers: int) -> list[Finding]:
    """Run all checks; a failed check hides only those that require it, or that fail for the same reason.

    Args:
        account: The owner of the fleets.
        cloud: Options of a fleet, resolved.
        workers: Number of instances to create.
    """
    findings: list[Finding] = []
    met: set[str] = set()
    of_fleet = (*_OF_MACHINES, *room_checks(workers), *_OF_INSTANCES, *policy_checks())
    for check in (*_OF_PROJECT, *of_fleet, *_OF_THIS_COMPUTER):
        if met.issuperset(check.requires):
            finding = check.finding(account, cloud)
            if finding.ok:
                met.add(check.subject)
            earlier = [replace(other, subject=finding.subject) for other in findings]
            if finding.ok is not False or finding not in earlier:
                findings.append(finding)
    return findings
