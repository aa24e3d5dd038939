"""Check the organization policies that decide whether instances can be created.

Source: https://cloud.google.com/resource-manager/docs/organization-policy/org-policy-constraints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from provision.gce.account import Account
from provision.gce.checks.check import Check
from provision.gce.diagnosis.failures import Failure
from provision.gce.options import GceOptions
from provision.gce.rest.api import Json
from provision.gce.rest.governance import effective_policies

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


class _Policy(NamedTuple):
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
    allowed: str
    detail: str = ""
    tolerated: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the legacy and the managed constraint."""
        managed = self.constraint.replace("compute.", "compute.managed.")
        return tuple(dict.fromkeys((self.constraint, managed)))


_ALL = (
    _Policy("compute.vmExternalIpAccess", "external addresses", forbids_addresses, "allowed by the policies"),
    _Policy(
        "compute.disableGuestAttributesAccess",
        "guest attributes",
        is_enforced,
        "allowed by the policies",
        tolerated="hidden by a policy: host keys are read from the serial consoles, where images of Debian do not "
        "print them, and instances that could not be prepared are not kept",
    ),
    _Policy("compute.requireShieldedVm", "Secure Boot", is_enforced, "not required by a policy", ": Secure Boot"),
    _Policy("compute.trustedImageProjects", "image project", forbids_image, "allowed by the policies"),
    _Policy("gcp.resourceLocations", "locations", forbids_locations, "allowed by the policies"),
)


def policy_checks() -> list[Check]:
    """Return the check that reads the policies, and one for each constraint, which share what was read."""
    rules: dict[str, Rules] = {}

    def read(account: Account, _cloud: GceOptions) -> str:
        names = [name for policy in _ALL for name in policy.names]
        for name, effective in effective_policies(account.api, names).items():
            rules[name] = [rule for rule in effective if "condition" not in rule]  # applies to some resources only
        return f"read {len(names)} effective policies of the project"

    def check(account: Account, cloud: GceOptions, *, policy: _Policy) -> str:
        enforced = [name for name in policy.names if policy.forbids(rules[name], cloud)]
        if not enforced:
            return policy.allowed
        if policy.tolerated and enforced == [policy.constraint]:
            return policy.tolerated
        message = f"constraints/{enforced[-1]}{policy.detail} is enforced for project {account.api.project}"
        diagnosis = account.diagnosis([Failure("conditionNotMet", message, 412)], "create instances")
        instead = [("fleet", "doctor", "--provider", "gce", *(diagnosis.again or ()))]
        raise replace(diagnosis, next_steps=diagnosis.next_steps or instead)

    constraints = [Check(policy.subject, partial(check, policy=policy), requires=("policies",)) for policy in _ALL]
    return [Check("policies", read, is_optional=True), *constraints]
