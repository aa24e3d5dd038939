"""Check that the account in use can log in if OS Login is required."""

from __future__ import annotations

from provision.gce.access import os_login
from provision.gce.account import Account
from provision.gce.checks.check import Check
from provision.gce.options import GceOptions
from provision.gce.rest.api import ApiError
from provision.gce.rest.governance import effective_policies

_CONSTRAINTS = ("compute.requireOsLogin", "compute.managed.requireOsLogin")


def _os_login(account: Account, cloud: GceOptions) -> str:
    if not os_login.is_required(cloud, account.api.get_project()) and not _is_enforced(account):
        return "not required"
    return f"the key of a fleet will be imported into the profile of {os_login.check(account)}"


def _is_enforced(account: Account) -> bool:
    """Return whether a policy requires OS Login; False if the policies cannot be read."""
    try:
        policies = effective_policies(account.api, _CONSTRAINTS)
    except ApiError:
        return False
    return any(rule.get("enforce") for rules in policies.values() for rule in rules)


OS_LOGIN = Check("OS Login", _os_login)
