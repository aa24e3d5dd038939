"""Requests compared with exact texts, and with Google's discovery document; and options that no request may have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provision.gce.api.client import to_json
from provision.gce.api.resources import IAP_RANGE, bulk_insert, firewalls
from provision.gce.catalog.machines import resolved
from provision.gce.catalog.names import Fleet, label_value, marked, marked_project
from provision.gce.options import GceOptions
from provision.gce.provider import GceProvider
from provision.model import FleetSpec

OWNER = "k3jq7xab"
DAY_S = 24 * 3600
NOW = 1_800_000_000.0
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5 fleet demo"


def fleet(cloud: GceOptions) -> Fleet:
    cloud = resolved(cloud)
    return Fleet(FleetSpec("demo", "gce", 2, KEY, options=cloud), cloud, OWNER, "ada@laptop")


def body(cloud: GceOptions, zone: str = "us-central1-a") -> dict[str, Any]:
    return to_json(bulk_insert(fleet(cloud), ["demo-k3jq7xab-worker-0", "demo-k3jq7xab-worker-1"], zone, NOW))


def properties(cloud: GceOptions) -> dict[str, Any]:
    request = body(cloud)["instanceProperties"]
    assert isinstance(request, dict)
    return request


def items(request: dict[str, Any]) -> dict[str, str]:
    return {item["key"]: item["value"] for item in request["metadata"]["items"]}


@pytest.mark.parametrize(
    ("cloud", "expected"),
    [
        (GceOptions(spot=True, max_duration_s=0), ("SPOT", "TERMINATE", False, "DELETE")),
        (GceOptions(max_duration_s=0), ("STANDARD", "MIGRATE", True, None)),
        (GceOptions(max_cost_usd=5.0), ("STANDARD", "MIGRATE", False, "DELETE")),
    ],
)
def test_scheduling(cloud: GceOptions, expected: tuple[Any, ...]) -> None:
    scheduling = properties(cloud)["scheduling"]
    names = ("provisioningModel", "onHostMaintenance", "automaticRestart", "instanceTerminationAction")
    assert tuple(scheduling.get(name) for name in names) == expected
    assert ("maxRunDuration" in scheduling) == bool(cloud.max_duration_s)


def test_networks_and_subnetworks() -> None:
    [interface] = body(GceOptions(network="inner", subnetwork="small"))["instanceProperties"]["networkInterfaces"]
    assert (interface["network"], interface["subnetwork"]) == (
        "global/networks/inner",
        "regions/us-central1/subnetworks/small",
    )
    shared = GceOptions(network="projects/h/global/networks/n", subnetwork="projects/h/regions/r1/subnetworks/s")
    [interface] = properties(replace(shared, external=False))["networkInterfaces"]
    assert interface == {"network": shared.network, "subnetwork": shared.subnetwork}


def test_ssh_from_the_caller_alone_and_everything_among_the_fleet() -> None:
    common = {
        "network": "global/networks/default",
        "description": "made by fleet for demo, owner k3jq7xab, user ada-laptop",
        "direction": "INGRESS",
        "targetTags": ["demo-k3jq7xab"],
    }
    rules = firewalls(fleet(GceOptions(ssh_port=2022)), ["203.0.113.7/32"])
    assert [to_json(rule) for rule in rules] == [
        {
            **common,
            "name": "demo-k3jq7xab-ssh",
            "allowed": [{"IPProtocol": "tcp", "ports": ["2022"]}],
            "sourceRanges": ["203.0.113.7/32"],
        },
        {
            **common,
            "name": "demo-k3jq7xab-internal",
            "allowed": [{"IPProtocol": "tcp"}, {"IPProtocol": "udp"}, {"IPProtocol": "icmp"}],
            "sourceTags": ["demo-k3jq7xab"],
        },
    ]
    ssh, internal = firewalls(fleet(GceOptions(external=False)), ["203.0.113.7/32"], project="proj-1")
    assert (list(ssh.source_ranges), list(internal.source_ranges)) == ([IAP_RANGE], [])
    assert (marked(ssh.description), marked_project(ssh.description)) == (("demo", OWNER, "ada-laptop"), "proj-1")
    assert marked("made by fleet for demo, owner k3jq7xab, user ada, or another user") is None
    assert label_value("Ada Lovelace@host.example") == "ada-lovelace-host-example"


@pytest.mark.parametrize(
    ("cloud", "end_s", "stop_s", "delete_s"),
    [
        (GceOptions(max_duration_s=0), 0, 0, 0),
        (GceOptions(max_duration_s=60), 60, 60, 7 * DAY_S),
        (GceOptions(max_duration_s=7 * DAY_S), 7 * DAY_S - 600, 7 * DAY_S - 600, 7 * DAY_S),
        (GceOptions(max_duration_s=30 * DAY_S), 30 * DAY_S, 30 * DAY_S, 30 * DAY_S + 600),
        (GceOptions(max_duration_s=7200, max_cost_usd=5.0), 6600, 0, 7200),
        (GceOptions(max_duration_s=800, max_cost_usd=5.0), 600, 0, 800),
    ],
)
def test_jobs_end_before_instances_power_off_and_these_before_they_are_deleted(
    cloud: GceOptions, end_s: int, stop_s: int, delete_s: int
) -> None:
    request = properties(cloud)
    times = [str(round(NOW) + seconds if seconds else 0) for seconds in (end_s, stop_s)]
    assert [items(request)["fleet-end-at"], items(request)["fleet-stop-at"]] == times
    assert request["scheduling"].get("maxRunDuration", {"seconds": "0"}) == {"seconds": str(delete_s)}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"metadata": ("startup-script=x",)}, "--metadata startup-script: fleet sets this item itself"),
        ({"metadata": ("fleet-stop-at=1",)}, "--metadata fleet-stop-at: fleet sets this item itself"),
        ({"metadata": ("a",)}, "'a' does not have the form KEY=VALUE"),
        ({"labels": ("fleet-owner=me",)}, "--label fleet-owner: fleet sets this label itself"),
    ],
)
def test_values_that_cannot_be_set_are_refused_before_any_call(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        GceProvider.change(GceOptions(), given)
    assert message in str(error.value)
