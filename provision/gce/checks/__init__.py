"""Check all prerequisites of a fleet that can be checked."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import NamedTuple

from provision.gce.account import Account
from provision.gce.api.client import ApiError
from provision.gce.checks import account as of_account
from provision.gce.checks import machine as of_machine
from provision.gce.checks import network as of_network
from provision.gce.diagnosis import diagnose
from provision.gce.options import GceOptions
from provision.model import Finding
from provision.provider import ProviderError


class Check(NamedTuple):
    """A check of one prerequisite. It does not depend on the results of other checks, except for those it requires.

    Attributes:
        subject: Name of the prerequisite, ``credentials``.
        run: Function that returns the result as a message, or as a finding. It raises ApiError or ProviderError if
            the prerequisite is not met.
        requires: Subjects of the checks without which this one cannot run.
        is_optional: `fleet up` does not make the calls of the check. If one fails, the prerequisite is unknown, not
            missing.
    """

    subject: str
    run: Callable[[Account, GceOptions], str | Finding]
    requires: Collection[str] = ("API",)
    is_optional: bool = False

    def finding(self, account: Account, cloud: GceOptions) -> Finding:
        """Return the result as a finding, or the reason why the check failed."""
        try:
            result = self.run(account, cloud)
            return Finding(self.subject, True, result) if isinstance(result, str) else result
        except ApiError as error:
            diagnosis = diagnose(
                error.failures,
                project=_project(account),
                location="",
                doing=f"check the {self.subject}",
                member=account.api.member,
            )
            if self.is_optional:
                return diagnosis.finding(self.subject)._replace(ok=None)
            # If nothing answers, the credentials are not to blame but the connection.
            offline = self.subject == "credentials" and not error.status
            return diagnosis.finding("connection" if offline else self.subject)
        except ProviderError as error:
            return error.finding(self.subject)


def _project(account: Account) -> str:
    """Return the project, or a placeholder if it is unknown."""
    try:
        return account.api.project
    except (ApiError, ProviderError):
        return "(unknown)"


def _checks(count: int) -> list[Check]:
    """Return all checks for this number of instances, in their order."""
    return [
        Check("credentials", of_account.check_credentials, ()),
        Check("project", of_account.check_project, ()),
        Check("billing", of_account.check_billing, ("credentials", "project"), is_optional=True),
        Check("prices", of_account.check_prices, ("credentials", "project"), is_optional=True),
        Check("API", of_account.check_api, ("credentials", "project")),
        Check("permissions", of_account.check_permissions, is_optional=True),
        Check("network", of_network.check_network),
        Check("subnetwork", of_network.check_subnetwork, ("API", "network")),
        Check("machine type", of_machine.check_machine),
        Check("image", of_machine.check_image),
        Check("global quota", partial(of_machine.check_global_quota, count=count)),
        Check("regional quota", partial(of_machine.check_regional_quota, count=count), ("API", "machine type")),
        Check("reservation", partial(of_machine.check_reservation, count=count)),
        Check("service account", of_account.check_service_account, is_optional=True),
        Check("bucket", of_account.check_bucket, is_optional=True),
        Check("OS Login", of_account.check_os_login),
        Check("Cloud NAT", of_network.check_nat, ("API", "network"), is_optional=True),
        Check("policies", of_account.check_policies, is_optional=True),
        Check("address", of_network.check_address, ()),
        Check("firewall", of_network.check_firewall, ("API", "network", "address"), is_optional=True),
        Check("gcloud", of_network.check_gcloud, ()),
        Check("Identity-Aware Proxy", of_network.check_tunnels, ("API", "gcloud")),
    ]


def doctor(account: Account, cloud: GceOptions, workers: int) -> list[Finding]:
    """Run all checks; a failed check hides only those that require it, or that fail for the same reason.

    Args:
        account: The owner of the fleets.
        cloud: Options of a fleet, resolved.
        workers: Number of instances to create.
    """
    findings: list[Finding] = []
    met: set[str] = set()
    for check in _checks(workers):
        if met.issuperset(check.requires):
            finding = check.finding(account, cloud)
            if finding.ok:
                met.add(check.subject)
            earlier = [other._replace(subject=finding.subject) for other in findings]
            if finding.ok is not False or finding not in earlier:
                findings.append(finding)
    return findings
