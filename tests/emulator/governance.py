"""State of a project that decides which calls are allowed at all: billing, APIs, policies, service accounts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.emulator.failures import Refusal, api_disabled

Json = dict[str, Any]
COMPUTE = "compute.googleapis.com"
TRIAL_QUOTAS = {"CPUS_ALL_REGIONS": 12.0, "GPUS_ALL_REGIONS": 0.0}
TRIAL_REGION_QUOTAS = {"SSD_TOTAL_GB": 250.0, "IN_USE_ADDRESSES": 4.0}


PROJECT_NUMBER = "100000000001"
DEFAULT_ACCOUNT = f"{PROJECT_NUMBER}-compute@developer.gserviceaccount.com"


ROLES = {
    "roles/compute.viewer": ("compute.instances.get", "compute.instances.list"),
    "roles/compute.instanceAdmin.v1": (
        *("compute.instances.delete", "compute.instances.get", "compute.instances.list"),
        *("compute.instances.start", "compute.instances.stop"),
    ),
}
"""Some permissions of predefined roles."""


@dataclass
class Governance:
    """The project's billing account, enabled APIs, organization policies, and service accounts.

    Attributes:
        billing_account: Its billing account; empty: none.
        is_open: Whether the billing account is open.
        is_trial: Whether it is in its free trial.
        disabled: Hosts of the APIs that the project has not enabled.
        policies: Effective policies by constraint, each as the `spec` of a Policy; others have the default.
        service_accounts: Whether each service account is enabled, by its e-mail address.
        roles: Permissions of roles, by their names; the policy of the project is in `tests.emulator.storage`.
    """

    billing_account: str = "billingAccounts/012345-567890-ABCDEF"
    is_open: bool = True
    is_trial: bool = False
    disabled: set[str] = field(default_factory=set)
    policies: dict[str, Json] = field(default_factory=dict)
    service_accounts: dict[str, bool] = field(default_factory=lambda: {DEFAULT_ACCOUNT: True})
    roles: dict[str, list[str]] = field(default_factory=lambda: {name: list(names) for name, names in ROLES.items()})

    @property
    def is_billed(self) -> bool:
        """Return whether an open billing account pays for the project."""
        return bool(self.billing_account) and self.is_open

    def check_call(self, host: str, project: str) -> None:
        """Check that the project may call an API.

        Raises:
            Refusal: the API is not enabled, or needs a billing account.
        """
        if host in self.disabled:
            raise api_disabled(project, host)
        if host == COMPUTE and not self.is_billed:
            raise _billing_disabled(project)

    def is_enforced(self, constraint: str) -> bool:
        """Return whether a boolean constraint, or the managed one of its name, is enforced."""
        managed = constraint.replace("compute.", "compute.managed.")
        return any(rule.get("enforce") for name in (constraint, managed) for rule in self.rules(name))

    def rules(self, constraint: str) -> list[Json]:
        """Return the rules of a policy; empty: it has none, or was reset to the default of the constraint."""
        return list(self.policies.get(constraint, {}).get("rules", ()))

    def allows(self, constraint: str, *values: str) -> bool:
        """Return whether a list constraint allows a value, given in all of its forms."""
        for rule in self.rules(constraint):
            listed = rule.get("values", {})
            if rule.get("denyAll") or not set(values).isdisjoint(listed.get("deniedValues", ())):
                return False
            if listed.get("allowedValues") and set(values).isdisjoint(listed["allowedValues"]):
                return False
        return True


def _billing_disabled(project: str) -> Refusal:
    url = f"https://console.developers.google.com/billing/enable?project={project}"
    message = (
        f"This API method requires billing to be enabled. Please enable billing on project #{project} by visiting "
        f"{url} then retry. If you enabled billing for this project recently, wait a few minutes for the action to "
        "propagate to our systems and retry."
    )
    details = [
        {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": "BILLING_DISABLED",
            "domain": "googleapis.com",
            "metadata": {"service": COMPUTE, "consumer": f"projects/{project}"},
        }
    ]
    return Refusal(403, "forbidden", message, canonical="PERMISSION_DENIED", details=details)
