"""The service account of the instances: whether it exists, and what it may do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from provision.gce.access import buckets
from provision.gce.account import Account
from provision.gce.api.iam import project_of_account, project_policy, role_permissions, service_account
from provision.gce.api.messages import ApiError
from provision.gce.options import GceOptions
from provision.model import Command
from provision.provider import ErrorKind, ProviderError

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


# https://cloud.google.com/iam/docs/service-accounts-create#creating
_ID = re.compile(r"[a-z][a-z0-9-]{4,28}[a-z0-9]", re.ASCII)


def check_given(account: Account, cloud: GceOptions) -> None:
    """Check the account that the user gave; one that the caller may not read is left to Compute Engine.

    Raises:
        ProviderError: it does not exist, or is disabled.
    """
    if not cloud.service_account or not cloud.scopes:
        return
    try:
        check(account, cloud, cloud.service_account)
    except ApiError:
        return


def check(account: Account, cloud: GceOptions, email: str) -> None:
    """Check that a service account can be used by instances.

    Raises:
        ApiError: it cannot be read.
        ProviderError: it does not exist, or is disabled.
    """
    existing, project = service_account(account.api, email), project_of_account(account.api, email)
    if existing is None:
        creation = list(_creation(account, cloud, email, project))
        message = f"the service account {email} does not exist"
        hint = f"{('create it, or ' if creation else '')}select an existing one: --service-account EMAIL"
        raise ProviderError(ErrorKind.USAGE, message, hint=hint, next_steps=[*creation, _list(project)])
    if existing.get("disabled"):
        enable = ("gcloud", "iam", "service-accounts", "enable", email, "--project", project)
        message = f"the service account {email} is disabled"
        hint = "enable it, or select another one: --service-account EMAIL"
        raise ProviderError(ErrorKind.USAGE, message, hint=hint, next_steps=[enable, _list(project)])


def _creation(account: Account, cloud: GceOptions, email: str, project: str) -> Iterator[Command]:
    """Yield the commands that create the account with the roles that the options need."""
    name, _, domain = email.partition("@")
    if not _ID.fullmatch(name) or not domain.endswith(".iam.gserviceaccount.com"):
        return
    yield ("gcloud", "iam", "service-accounts", "create", name, "--project", project)
    if cloud.unattended:
        yield from grants(account, cloud)
    if cloud.bucket:
        yield from buckets.Access(email, "", "").grants(cloud)


def _list(project: str) -> Command:
    return ("gcloud", "iam", "service-accounts", "list", "--project", project)
