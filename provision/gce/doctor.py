"""Check all prerequisites of a fleet that can be checked."""

from __future__ import annotations

from dataclasses import replace

from provision.gce.account import Account
from provision.gce.checks.address import ADDRESS, FIREWALL
from provision.gce.checks.billing import BILLING
from provision.gce.checks.bucket import BUCKET
from provision.gce.checks.credentials import CREDENTIALS
from provision.gce.checks.iap import GCLOUD, NAT, TUNNELS
from provision.gce.checks.machine import IMAGE, MACHINE
from provision.gce.checks.network import NETWORK, SUBNETWORK
from provision.gce.checks.os_login import OS_LOGIN
from provision.gce.checks.permissions import PERMISSIONS
from provision.gce.checks.policies import policy_checks
from provision.gce.checks.prices import PRICES
from provision.gce.checks.project import API, PROJECT
from provision.gce.checks.quotas import TRIAL, room_checks
from provision.gce.checks.service_account import SERVICE_ACCOUNT
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
