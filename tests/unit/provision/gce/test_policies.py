"""Effective organization policies, and what they forbid for the options of a fleet."""

from __future__ import annotations

from typing import Any

import pytest

from provision.gce.catalog.machines import resolved
from provision.gce.checks.account import forbids_addresses, forbids_image, forbids_locations, is_enforced
from provision.gce.options import GceOptions

ANY = GceOptions()


def values(**given: list[str]) -> list[dict[str, Any]]:
    return [{"values": given}]


def test_a_boolean_constraint_is_enforced_by_a_rule() -> None:
    assert is_enforced([{"enforce": True}], ANY)
    assert not is_enforced([{"enforce": False}], ANY)
    assert not is_enforced([], ANY)


@pytest.mark.parametrize(
    "rule", [{"denyAll": True}, {"enforce": True}, *values(allowedValues=["projects/p/zones/z"])]
)
def test_external_addresses_are_forbidden_unless_all_are_allowed(rule: dict[str, Any]) -> None:
    assert forbids_addresses([rule], ANY)
    assert not forbids_addresses([rule], GceOptions(external=False))
    assert not forbids_addresses([{"allowAll": True}], ANY)


@pytest.mark.parametrize(
    ("rules", "zones", "is_forbidden"),
    [
        (values(allowedValues=["us-central1"]), ("us-central1-a",), False),
        (values(allowedValues=["us-central1-b"]), ("us-central1-a",), True),
        (values(allowedValues=["in:eu-locations"]), ("europe-west1",), False),
        (values(allowedValues=["in:eu-locations"]), ("us-central1",), True),
        (values(allowedValues=["in:low-carbon-locations"]), ("us-central1",), False),
        (values(deniedValues=["in:us-locations"]), ("us-central1",), True),
        ([{"denyAll": True}], ("us-central1",), True),
        (values(allowedValues=["in:eu-locations"]), (), False),
    ],
)
def test_locations(rules: list[dict[str, Any]], zones: tuple[str, ...], is_forbidden: bool) -> None:
    assert forbids_locations(rules, GceOptions(zones=zones)) == is_forbidden


@pytest.mark.parametrize(
    ("rules", "is_forbidden"),
    [
        (values(allowedValues=["projects/ubuntu-os-cloud"]), False),
        (values(allowedValues=["projects/debian-cloud"]), True),
        (values(allowedValues=["projects/debian-cloud", "under:organizations/1"]), False),
        (values(deniedValues=["projects/ubuntu-os-cloud"]), True),
        ([], False),
    ],
)
def test_projects_of_images(rules: list[dict[str, Any]], is_forbidden: bool) -> None:
    assert forbids_image(rules, resolved(ANY)) == is_forbidden
