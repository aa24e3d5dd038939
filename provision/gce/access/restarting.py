"""The service account with which hosts start each other again: what it may do, and how it is created."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from provision.gce.account import Account
from provision.gce.options import GceOptions
from provision.gce.rest.api import ApiError
from provision.gce.rest.governance import project_policy, role_permissions
from provision.model import Command

NEEDED = frozenset({"compute.instances.get", "compute.instances.start"})
"""The permissions that hosts use, see train.agent.peers.revive."""
_ROLE = "fleetRestart"


@dataclass(frozen=True)
class Restarting:
    """Permissions of the service account of instances.

    Attributes:
        email: Its e-mail address.
        doubt: Why it is not certain that it can start instances; empty: it can.
        excess: How many other permissions it has in the project.
    """

    email: str
    doubt: str = ""
    excess: int = 0

    @property
    def note(self) -> str:
        """Return a sentence for the user before the price is accepted."""
        if self.doubt:
            return f"it is not certain that {self.email} can start lost hosts again: {self.doubt}"
        if self.excess:
            return (
                f"{self.email} has {self.excess} permissions in the project besides the 2 that hosts need to start "
                "each other: scripts on the hosts can use them"
            )
        return f"{self.email} starts lost hosts again, while at least one other host runs"


def examine(account: Account, cloud: GceOptions) -> Restarting:
    """Determine the permissions of the service account from the IAM policy of the project."""
    email = cloud.service_account
    try:
        bindings = project_policy(account.api).get("bindings", ())
        member = f"serviceAccount:{email}"
        roles = [str(each["role"]) for each in bindings if member in each["members"] and "condition" not in each]
        permissions = {name for role in roles for name in role_permissions(account.api, role)}
    except ApiError as error:
        return Restarting(email, f"its roles cannot be read ({error})")
    missing = sorted(NEEDED - permissions)
    doubt = f"it has no {' and no '.join(missing)} in the project" if missing else ""
    return Restarting(email, doubt, len(permissions - NEEDED))


def grants(account: Account, cloud: GceOptions) -> Sequence[Command]:
    """Return the commands that create the role, unless it exists, and grant it to the service account."""
    project = account.api.project
    role = f"projects/{project}/roles/{_ROLE}"
    permissions = f"--permissions={','.join(sorted(NEEDED))}"
    member = f"--member=serviceAccount:{cloud.service_account}"
    create = ("gcloud", "iam", "roles", "create", _ROLE, f"--project={project}", permissions)
    grant = ("gcloud", "projects", "add-iam-policy-binding", project, member, f"--role={role}")
    return (grant,) if _is_sufficient(account, role) else (create, grant)


def _is_sufficient(account: Account, role: str) -> bool:
    """Return whether a role exists that has the needed permissions."""
    try:
        return NEEDED.issubset(role_permissions(account.api, role))
    except ApiError:
        return False
