"""Effective organization policies, and what they forbid for the options of a fleet."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import compute_v1

from provision.gce.catalog.machines import resolved
from provision.gce.checks.account import forbids_addresses, forbids_image, forbids_locations, is_enforced
from provision.gce.options import GceOptions
from provision.gce.quota import look_like_trial

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
        (values(allowedValues=["us-central1-a"]), ("us-central1",), False),
        (values(allowedValues=["us-central1-b"]), ("us-central1-a",), True),
        (values(allowedValues=["in:us-central1-locations"]), ("us-central1-a",), False),
        (values(allowedValues=["in:eu-locations"]), ("europe-west1",), False),
        (values(allowedValues=["in:eu-locations"]), ("us-central1", "europe-west1"), False),
        (values(allowedValues=["in:eu-locations"]), ("us-central1",), True),
        (values(allowedValues=["in:us-locations"]), ("us-west4-b",), False),
        (values(allowedValues=["in:low-carbon-locations"]), ("us-central1",), False),
        (values(deniedValues=["in:us-locations"]), ("us-central1",), True),
        (values(deniedValues=["in:low-carbon-locations"]), ("us-central1",), False),
        ([{"denyAll": True}], ("us-central1",), True),
        (values(allowedValues=["in:eu-locations"]), (), False),
        ([{"allowAll": True}], ("us-central1",), False),
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


def test_quotas_of_a_trial() -> None:
    def quotas(**limits: float) -> list[compute_v1.Quota]:
        return [compute_v1.Quota(metric=metric, limit=limit) for metric, limit in limits.items()]

    project, region = {"GPUS_ALL_REGIONS": 0, "CPUS_ALL_REGIONS": 12}, {"SSD_TOTAL_GB": 250, "IN_USE_ADDRESSES": 4}
    assert look_like_trial(quotas(**project), quotas(**region))
    assert not look_like_trial(quotas(**{**project, "CPUS_ALL_REGIONS": 32}), quotas(**region))
    assert not look_like_trial(quotas(**project), quotas(**{**region, "SSD_TOTAL_GB": 500}))
    assert not look_like_trial(quotas(**project), quotas(SSD_TOTAL_GB=250))
