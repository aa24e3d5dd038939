"""Checks of the account: credentials, project, billing, permissions, policies, and service account."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from provision.gce.access import accounts
from provision.gce.account import Account
from provision.gce.api.client import ApiError, Json
from provision.gce.api.iam import billing_info, effective_policies, permitted, permitted_on_account
from provision.gce.api.prices import read_page
from provision.gce.catalog.machines import COMPACT
from provision.gce.catalog.names import network_of
from provision.gce.diagnosis import Failure, grant_role
from provision.gce.options import GceOptions
from provision.gce.zones import split_path
from provision.model import Finding
from provision.provider import ErrorKind, ProviderError


def check_credentials(account: Account, _cloud: GceOptions) -> str:
    """Return whose credentials are accepted."""
    account.api.authenticate()
    name = account.api.account.partition(":")[2]
    return f"accepted by Google Cloud, of {name}" if name else "accepted by Google Cloud"


def check_project(account: Account, _cloud: GceOptions) -> str:
    """Return the project of all calls."""
    return f"calls go to project {account.api.project}"


def check_api(account: Account, _cloud: GceOptions) -> str:
    """Return that the API is enabled."""
    account.api.get_project()
    return "the Compute Engine API is enabled"


def check_billing(account: Account, _cloud: GceOptions) -> str:
    """Return the open billing account that pays."""
    billing = billing_info(account.api)
    if not billing.get("billingEnabled"):
        closed = billing.get("billingAccountName")
        message = f"{closed} is closed" if closed else "no billing account is linked"
        raise account.diagnosis([Failure(code="BILLING_DISABLED", message=message)], "check the billing")
    return f"{billing['billingAccountName']} pays"


def check_prices(account: Account, _cloud: GceOptions) -> str:
    """Return that prices can be read."""
    read_page(account.api, size=1)
    account.update_prices()  # `fleet up` tries the zones in their order
    return "the Cloud Billing catalog can be read"


_ALWAYS = {
    "disks": "create delete list",
    "globalOperations": "list",
    "instances": "create delete list start stop getGuestAttributes getSerialPortOutput "
    "setLabels setMetadata setScheduling setTags",
    "projects regionOperations zoneOperations": "get",
    "acceleratorTypes addresses firewalls images machineTypes regions": "list",
}
_NETWORK = {"networks": "get", "subnetworks": "use"}
_FIREWALL = {"firewalls": "create delete update", "globalOperations": "get", "networks": "updatePolicy"}
_ROLE = "roles/compute.admin"
_IMAGE = re.compile(r"projects/([^/]+)/global/images/(family/)?")


def permissions(cloud: GceOptions, project: str) -> tuple[str, ...]:
    """Return the permissions in `project` that the calls for fleets like `cloud` need, sorted.

    Permissions in other projects (of a Shared VPC, of a public image) are left out: this project cannot confirm them.

    Source: https://cloud.google.com/compute/docs/reference/rest/v1, IAM permissions of each method.
    """
    network, image = network_of(cloud.network).project, _IMAGE.search(cloud.image)
    names = _named(_ALWAYS)
    if network in ("", project):
        names |= _named(_NETWORK) | (_named(_FIREWALL) if cloud.firewall else set())
        names |= {"compute.subnetworks.useExternalIp"} if cloud.external else set()
    if image is not None and image[1] == project:
        names |= {"compute.images.useReadOnly", f"compute.images.{'getFromFamily' if image[2] else 'get'}"}
    if cloud.placement == COMPACT:
        names |= _named({"resourcePolicies": "create delete list use"})
    if cloud.scopes:
        # iam.serviceAccounts.actAs is also needed, but it is often granted on the account and not in the project.
        names.add("compute.instances.setServiceAccount")
    if cloud.reservation and split_path(cloud.reservation)[0] in ("", project):
        names.add("compute.reservations.list")
    return tuple(sorted(names))


def _named(verbs: Mapping[str, str]) -> set[str]:
    """Return permissions from verbs by collections; both are separated by spaces."""
    pairs = [(nouns.split(), words.split()) for nouns, words in verbs.items()]
    return {f"compute.{noun}.{verb}" for nouns, words in pairs for noun in nouns for verb in words}


def check_permissions(account: Account, cloud: GceOptions) -> str:
    """Return how many permissions are required, all of which the caller has."""
    needed = permissions(cloud, account.api.project)
    missing = sorted(set(needed) - permitted(account.api, needed))
    if missing:
        grant = grant_role("projects", [account.api.project], _ROLE, account.api.member())
        raise ProviderError(ErrorKind.CREDENTIALS, f"missing: {', '.join(missing)}", next_steps=[grant])
    return f"all {len(needed)} required permissions"


_ACT_AS = "iam.serviceAccounts.actAs"


def check_service_account(account: Account, cloud: GceOptions) -> str:
    """Return that the service account of the instances exists, and that the caller may give it to them."""
    if not cloud.scopes:
        return "none: instances have one only with --scopes"
    email = cloud.service_account or account.api.get_project().default_service_account
    accounts.check_service_account(account, email)
    if _ACT_AS not in permitted_on_account(account.api, email, [_ACT_AS]):
        denied = Failure("SERVICE_ACCOUNT_ACCESS_DENIED", f"no access to service account {email}")
        raise account.diagnosis([denied], "create instances")
    return f"{email} can be used"


def check_bucket(account: Account, cloud: GceOptions) -> str | Finding:
    """Return that the bucket exists, and that the service account of the instances can use it."""
    if not cloud.bucket:
        return "none: jobs have one only with --bucket"
    access = accounts.examine_bucket(account, cloud)
    if not access.doubt:
        return f"{access.email} can read and write {cloud.bucket}"
    message = f"it is not certain that {access.email} can read and write {cloud.bucket}: {access.doubt}"
    return Finding("bucket", None, message, "give it the roles", access.grants(cloud))


_CONSTRAINTS = ("compute.requireOsLogin", "compute.managed.requireOsLogin")


def check_os_login(account: Account, cloud: GceOptions) -> str:
    """Return the account that can log in if OS Login is required."""
    if not accounts.uses_os_login(cloud, account.api.get_project()) and not _is_enforced(account):
        return "not required"
    return f"the key of a fleet will be imported into the profile of {accounts.check_os_login(account)}"


def _is_enforced(account: Account) -> bool:
    """Return whether a policy requires OS Login; False if the policies cannot be read."""
    try:
        policies = effective_policies(account.api, _CONSTRAINTS)
    except ApiError:
        return False
    return any(rule.get("enforce") for rules in policies.values() for rule in rules)


_HIDDEN = "compute.disableGuestAttributesAccess"
_POLICIES = ("compute.vmExternalIpAccess", _HIDDEN, "compute.requireShieldedVm")


def check_policies(account: Account, cloud: GceOptions) -> str:
    """Return that no policy of the organization is known to forbid the instances.

    A constraint and the managed one of the same name forbid the same, but guest attributes are only hidden by the
    older one.

    Raises:
        ProviderError: a policy forbids them.
    """
    names = [name for each in _POLICIES for name in (each, each.replace("compute.", "compute.managed."))]
    effective = effective_policies(account.api, names)
    enforced = [name for name, rules in effective.items() if any(_forbids(name, rule, cloud) for rule in rules)]
    for name in enforced:
        if name != _HIDDEN:
            message = f"constraints/{name} is enforced for project {account.api.project}"
            diagnosis = account.diagnosis([Failure("conditionNotMet", message, 412)], "create instances")
            instead = ("fleet", "doctor", "--provider", "gce", *(diagnosis.again or ()))
            raise replace(diagnosis, next_steps=diagnosis.next_steps or [instead])
    if enforced:
        return (
            "a policy hides guest attributes: host keys are read from the serial consoles, where images of Debian do "
            "not print them, and instances that could not be prepared are not kept"
        )
    return f"none of {len(names)} constraints forbids the instances"


def _forbids(name: str, rule: Json, cloud: GceOptions) -> bool:
    """Return whether a rule of a policy forbids instances; one with a condition applies to some resources only."""
    if "condition" in rule:
        return False
    if name.endswith("vmExternalIpAccess"):
        return cloud.external and any(rule.get(key) for key in ("denyAll", "enforce", "values"))
    return bool(rule.get("enforce"))
