"""Checks of the account: credentials, project, billing, permissions, policies, and service account."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

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


def check_prices(account: Account, cloud: GceOptions) -> str:
    """Return that prices can be read."""
    read_page(account.api, size=1)
    account.update_prices(cloud)  # `fleet up` tries the zones in their order
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


def check_service_account(account: Account, cloud: GceOptions) -> str | Finding:
    """Return that the service account of the instances exists, and that the caller may give it to them."""
    if not cloud.scopes:
        return "none: instances have one only with --scopes"
    email = cloud.service_account or account.api.get_project().default_service_account
    accounts.check_service_account(account, cloud, email)
    if _ACT_AS not in permitted_on_account(account.api, email, [_ACT_AS]):
        denied = Failure("SERVICE_ACCOUNT_ACCESS_DENIED", f"no access to service account {email}")
        raise account.diagnosis([denied], "create instances")
    if cloud.unattended:
        return _restarting(account, cloud)
    return f"{email} can be used"


def _restarting(account: Account, cloud: GceOptions) -> str | Finding:
    result = accounts.examine(account, cloud)
    if not result.doubt:
        return result.note
    return Finding("service account", None, result.note, "give it a role of its own", accounts.grants(account, cloud))


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


Rules = Sequence[Json]
_PROJECT = re.compile(r"projects/([^/]+)/")
_GROUP = re.compile(r"in:([a-z0-9-]+)-locations")


def is_enforced(rules: Rules, _cloud: GceOptions) -> bool:
    """Return whether a boolean constraint is enforced."""
    return any(rule.get("enforce") for rule in rules)


def forbids_addresses(rules: Rules, cloud: GceOptions) -> bool:
    """Return whether instances would have external addresses that a policy forbids; it lists those that may."""
    return cloud.external and any(rule.get("denyAll") or rule.get("enforce") or rule.get("values") for rule in rules)


def forbids_image(rules: Rules, cloud: GceOptions) -> bool:
    """Return whether a policy forbids images of the project of the boot image."""
    project = _PROJECT.search(cloud.image)
    return project is not None and not _allows(rules, lambda value: value == f"projects/{project[1]}")


def forbids_locations(rules: Rules, cloud: GceOptions) -> bool:
    """Return whether a policy forbids all of the requested zones and regions."""
    return bool(cloud.zones) and not any(_allows(rules, partial(_covers, place=place)) for place in cloud.zones)


def _covers(value: str, place: str) -> bool:
    """Return whether a zone or region is, or contains, or belongs to the location or group ``in:eu-locations``."""
    group = _GROUP.fullmatch(value)
    name = group[1] if group else value
    name = "europe" if name == "eu" else name
    return place == name or place.startswith(f"{name}-") or name.startswith(f"{place}-")


def _is_opaque(value: str) -> bool:
    """Return whether it is unknown what a value contains: ``under:organizations/1``, ``in:low-carbon-locations``."""
    group = _GROUP.fullmatch(value)
    return value.startswith("under:") or (group is not None and "-" in group[1] and not re.search(r"\d", group[1]))


def _allows(rules: Rules, matches: Callable[[str], bool]) -> bool:
    """Return whether a list constraint allows a value, as far as that is known."""
    for rule in rules:
        values: Mapping[str, Sequence[str]] = rule.get("values", {})
        allowed = values.get("allowedValues", ())
        if rule.get("denyAll") or any(map(matches, values.get("deniedValues", ()))):
            return False
        if allowed and not any(matches(value) or _is_opaque(value) for value in allowed):
            return False
    return True


class Policy(NamedTuple):
    """A constraint; the managed one of the same name forbids the same.

    Attributes:
        constraint: ``compute.requireOsLogin``.
        subject: Subject of the check.
        forbids: Function of rules and options that returns whether the policy forbids the instances.
        allowed: Message if it does not.
        detail: Addition to the message of the violation.
        tolerated: Message if the legacy constraint alone does not stop `fleet up`; empty: it does.
    """

    constraint: str
    subject: str
    forbids: Callable[[Rules, GceOptions], bool]
    allowed: str = "allowed by the policies"
    detail: str = ""
    tolerated: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the legacy and the managed constraint."""
        managed = self.constraint.replace("compute.", "compute.managed.")
        return tuple(dict.fromkeys((self.constraint, managed)))


# fmt: off
POLICIES = (
    Policy("compute.vmExternalIpAccess", "external addresses", forbids_addresses),
    Policy("compute.disableGuestAttributesAccess", "guest attributes", is_enforced,
        tolerated="hidden by a policy: host keys are read from the serial consoles, where images of Debian do not "
        "print them, and instances that could not be prepared are not kept"),
    Policy("compute.requireShieldedVm", "Secure Boot", is_enforced, "not required by a policy", ": Secure Boot"),
    Policy("compute.trustedImageProjects", "image project", forbids_image),
    Policy("gcp.resourceLocations", "locations", forbids_locations),
)
# fmt: on


class EffectivePolicies:
    """The effective policies of a project, which are read by the first check."""

    def __init__(self) -> None:
        self._rules: dict[str, Rules] = {}

    def read(self, account: Account, _cloud: GceOptions) -> str:
        """Read the policies; return how many."""
        names = [name for policy in POLICIES for name in policy.names]
        for name, effective in effective_policies(account.api, names).items():
            self._rules[name] = [rule for rule in effective if "condition" not in rule]  # applies to some resources
        return f"read {len(names)} effective policies of the project"

    def check(self, account: Account, cloud: GceOptions, *, policy: Policy) -> str:
        """Return that a policy does not forbid the instances.

        Raises:
            ProviderError: it does.
        """
        enforced = [name for name in policy.names if policy.forbids(self._rules[name], cloud)]
        if not enforced:
            return policy.allowed
        if policy.tolerated and enforced == [policy.constraint]:
            return policy.tolerated
        message = f"constraints/{enforced[-1]}{policy.detail} is enforced for project {account.api.project}"
        diagnosis = account.diagnosis([Failure("conditionNotMet", message, 412)], "create instances")
        instead = [("fleet", "doctor", "--provider", "gce", *(diagnosis.again or ()))]
        raise replace(diagnosis, next_steps=diagnosis.next_steps or instead)
