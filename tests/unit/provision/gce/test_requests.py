"""Requests compared with exact texts, and with Google's discovery document."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.gce.api.messages import to_json
from provision.gce.api.requests import IAP_RANGE, bulk_insert, firewalls, ssh_keys
from provision.gce.catalog.machines import GPU_IMAGE, resolved
from provision.gce.catalog.names import instance_name, label_value, labels, mark, marked, marked_project, stem
from provision.gce.options import GceOptions
from provision.gce.provider import GceProvider
from provision.model import FleetSpec
from tests.emulator.discovery import discovery

OWNER = "k3jq7xab"
DAY_S = 24 * 3600
NOW = 1_800_000_000.0
SCRIPT = (Path(__file__).parents[4] / "provision" / "gce" / "api" / "startup.sh").read_text()
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5 fleet demo"
NAMES = {f"worker-{index}": instance_name("demo", OWNER, f"worker-{index}") for index in range(2)}


def body(cloud: GceOptions, zones: tuple[str, ...] | None = None, region: str = "") -> dict[str, Any]:
    spec = FleetSpec("demo", "gce", 2, KEY, options=resolved(cloud))
    return to_json(bulk_insert(spec, NAMES, owner=OWNER, user="ada@laptop", zones=zones, region=region, now=NOW))


def properties(cloud: GceOptions) -> dict[str, Any]:
    request = body(cloud)["instanceProperties"]
    assert isinstance(request, dict)
    return request


def problems_of(request: dict[str, Any], method: str) -> list[str]:
    api = discovery()
    return api.check_request(api.methods[method], request)


def test_two_instances_with_a_t4_each() -> None:
    marks = {"fleet": "demo", "fleet-owner": OWNER, "fleet-user": "ada-laptop"}
    assert body(GceOptions(gpu="t4")) == {
        "count": "2",
        "minCount": "2",
        "instanceProperties": {
            "machineType": "n1-standard-4",
            "description": "made by fleet for demo, owner k3jq7xab, user ada-laptop",
            "labels": marks,
            "tags": {"items": ["demo-k3jq7xab"]},
            "disks": [
                {
                    "boot": True,
                    "autoDelete": True,
                    "initializeParams": {
                        "sourceImage": GPU_IMAGE,
                        "diskSizeGb": "100",
                        "diskType": "pd-balanced",
                        "labels": marks,
                    },
                }
            ],
            "networkInterfaces": [
                {
                    "network": "global/networks/default",
                    "accessConfigs": [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}],
                }
            ],
            "metadata": {
                "items": [
                    {"key": "ssh-keys", "value": f"fleet:{KEY}"},
                    {"key": "block-project-ssh-keys", "value": "true"},
                    {"key": "enable-oslogin", "value": "FALSE"},
                    {"key": "enable-guest-attributes", "value": "TRUE"},
                    {"key": "startup-script", "value": SCRIPT},
                    {"key": "fleet-end-at", "value": "1800028800"},
                    {"key": "fleet-stop-at", "value": "1800028800"},
                ]
            },
            "scheduling": {
                "provisioningModel": "STANDARD",
                "onHostMaintenance": "TERMINATE",
                "automaticRestart": True,
                "maxRunDuration": {"seconds": "604800"},
                "instanceTerminationAction": "DELETE",
            },
            "guestAccelerators": [{"acceleratorType": "nvidia-tesla-t4", "acceleratorCount": 1}],
        },
        "perInstanceProperties": {
            "demo-k3jq7xab-worker-0": {},
            "demo-k3jq7xab-worker-1": {},
        },
    }


def test_one_zone_of_several() -> None:
    request = body(GceOptions(), ("us-central1-a", "us-central1-f"))
    assert request["locationPolicy"] == {
        "targetShape": "ANY_SINGLE_ZONE",
        "locations": {"zones/us-central1-a": {"preference": "ALLOW"}, "zones/us-central1-f": {"preference": "ALLOW"}},
    }
    assert "locationPolicy" not in body(GceOptions())


def test_the_other_zones_of_the_region_are_denied() -> None:
    spec = FleetSpec("demo", "gce", 2, KEY, options=resolved(GceOptions()))
    zones, others = ("us-central1-a", "us-central1-f"), ("us-central1-b",)
    request = to_json(bulk_insert(spec, NAMES, owner=OWNER, user="u", zones=zones, others=others, now=NOW))
    assert request["locationPolicy"]["locations"]["zones/us-central1-b"] == {"preference": "DENY"}
    assert problems_of(request, "compute.regionInstances.bulkInsert") == []


def test_spot_and_time_limit() -> None:
    spot = properties(GceOptions(spot=True, max_duration_s=0))["scheduling"]
    assert spot == {
        "provisioningModel": "SPOT",
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": False,
        "instanceTerminationAction": "DELETE",
    }
    assert properties(GceOptions(max_duration_s=0))["scheduling"] == {
        "provisioningModel": "STANDARD",
        "onHostMaintenance": "MIGRATE",
        "automaticRestart": True,
    }


def test_instances_do_not_restart_by_themselves_if_their_cost_is_limited() -> None:
    scheduling = properties(GceOptions(max_cost_usd=5.0))["scheduling"]
    assert (scheduling["automaticRestart"], "maxRunDuration" in scheduling) == (False, True)


def test_unattended_instances_are_stopped_and_may_start_each_other() -> None:
    given = {"spot": True, "unattended": True, "service_account": "a@p.iam.gserviceaccount.com"}
    request = properties(GceProvider.change(GceOptions(), given))
    assert request["scheduling"]["instanceTerminationAction"] == "STOP"
    assert request["serviceAccounts"] == [
        {"email": "a@p.iam.gserviceaccount.com", "scopes": ["https://www.googleapis.com/auth/compute"]}
    ]
    items = {item["key"]: item["value"] for item in request["metadata"]["items"]}
    assert items["fleet-restarts"] == "https://compute.googleapis.com"


def test_no_start_moves_the_end_of_unattended_instances_whose_cost_is_limited() -> None:
    given = {"spot": True, "unattended": True, "service_account": "a@p.iam.gserviceaccount.com"}
    limits = {"max_duration_s": 3600, "max_cost_usd": 5.0}
    request = properties(GceProvider.change(GceOptions(), {**given, **limits}))
    scheduling = request["scheduling"]
    assert (scheduling["instanceTerminationAction"], "maxRunDuration" in scheduling) == ("STOP", False)
    assert datetime.fromisoformat(scheduling["terminationTime"]).timestamp() == NOW + 3600
    items = {item["key"]: item["value"] for item in request["metadata"]["items"]}
    assert items["fleet-stop-at"] == items["fleet-end-at"] == str(int(NOW) + 3000)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "--unattended is for Spot VMs"),
        ({"spot": True}, "--unattended requires --service-account"),
    ],
)
def test_options_that_contradict_unattended_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GceProvider.change(GceOptions(), {"unattended": True, **given})


def test_gpus_that_come_with_the_machine_are_not_attached() -> None:
    request = properties(GceOptions(gpu="l4"))
    assert "guestAccelerators" not in request
    assert request["scheduling"]["onHostMaintenance"] == "TERMINATE"


@pytest.mark.parametrize("machine_type", ["a4-highgpu-8g", "g4-standard-48", "a3-megagpu-8g"])
def test_machines_with_gpus_that_are_not_listed_stop_for_maintenance_too(machine_type: str) -> None:
    assert properties(GceOptions(machine_type=machine_type))["scheduling"]["onHostMaintenance"] == "TERMINATE"


@pytest.mark.parametrize(
    ("machine_type", "disk", "nic"),
    [
        ("n2-standard-4", "pd-balanced", None),
        ("c3-standard-4", "pd-balanced", "GVNIC"),
        ("c3-standard-192-metal", "pd-balanced", None),
        ("n4-custom-4-8192", "hyperdisk-balanced", "GVNIC"),
        ("h4d-standard-192", "hyperdisk-balanced", "GVNIC"),
        ("z9-newer-4", "hyperdisk-balanced", None),
    ],
)
def test_disk_and_network_interface_of_the_series(machine_type: str, disk: str, nic: str | None) -> None:
    request = properties(GceOptions(machine_type=machine_type))
    assert request["disks"][0]["initializeParams"]["diskType"] == disk
    assert request["networkInterfaces"][0].get("nicType") == nic
    assert problems_of(body(GceOptions(machine_type=machine_type)), "compute.instances.bulkInsert") == []


def test_no_scope_no_service_account() -> None:
    assert "serviceAccounts" not in properties(GceOptions(service_account="x@y.iam.gserviceaccount.com"))
    scopes = ("https://www.googleapis.com/auth/devstorage.read_only",)
    assert properties(GceOptions(scopes=scopes))["serviceAccounts"] == [{"email": "default", "scopes": list(scopes)}]
    custom = properties(GceOptions(scopes=scopes, service_account="x@y.iam.gserviceaccount.com"))
    assert custom["serviceAccounts"][0]["email"] == "x@y.iam.gserviceaccount.com"


def test_no_external_address() -> None:
    assert "accessConfigs" not in properties(GceOptions(external=False))["networkInterfaces"][0]


def test_networks_and_subnetworks() -> None:
    cloud = GceOptions(network="inner", subnetwork="small")
    expected = {"network": "global/networks/inner", "subnetwork": "regions/us-east1/subnetworks/small"}
    for request in (body(cloud, ("us-east1-b", "us-east1-c")), body(cloud, region="us-east1")):
        [interface] = request["instanceProperties"]["networkInterfaces"]
        assert {name: interface[name] for name in expected} == expected
    with pytest.raises(ValueError, match="region of subnetwork small"):
        body(cloud)
    shared = GceOptions(network="projects/h/global/networks/n", subnetwork="projects/h/regions/r1/subnetworks/s")
    [interface] = properties(shared)["networkInterfaces"]
    assert interface["network"] == "projects/h/global/networks/n"
    assert interface["subnetwork"] == "projects/h/regions/r1/subnetworks/s"


def test_a_fleet_of_another_provider_is_refused() -> None:
    with pytest.raises(ValueError, match="not of Compute Engine"):
        bulk_insert(FleetSpec("demo", "local", 2), NAMES, owner=OWNER, user="u", zones=None, now=NOW)


def test_ssh_from_the_caller_alone_and_everything_among_the_fleet() -> None:
    rules = firewalls("demo", OWNER, "ada@laptop", GceOptions(ssh_port=2022), ["203.0.113.7/32"])
    assert [to_json(rule) for rule in rules] == [
        {
            "network": "global/networks/default",
            "description": "made by fleet for demo, owner k3jq7xab, user ada-laptop",
            "direction": "INGRESS",
            "targetTags": ["demo-k3jq7xab"],
            "name": "demo-k3jq7xab-ssh",
            "allowed": [{"IPProtocol": "tcp", "ports": ["2022"]}],
            "sourceRanges": ["203.0.113.7/32"],
        },
        {
            "network": "global/networks/default",
            "description": "made by fleet for demo, owner k3jq7xab, user ada-laptop",
            "direction": "INGRESS",
            "targetTags": ["demo-k3jq7xab"],
            "name": "demo-k3jq7xab-internal",
            "allowed": [{"IPProtocol": "tcp"}, {"IPProtocol": "udp"}, {"IPProtocol": "icmp"}],
            "sourceTags": ["demo-k3jq7xab"],
        },
    ]


def test_rules_in_a_host_project_name_the_project_of_the_instances() -> None:
    for project in ("", "proj-1"):
        rules = firewalls("demo", OWNER, "ada@laptop", GceOptions(), [], project=project)
        for rule in rules:
            assert marked(rule.description) == ("demo", OWNER, "ada-laptop")
            assert marked_project(rule.description) == project
    assert marked("made by fleet for demo, owner k3jq7xab, user ada, or another user") is None


def test_without_external_addresses_ssh_comes_from_identity_aware_proxy() -> None:
    [ssh, internal] = firewalls("demo", OWNER, "ada@laptop", GceOptions(external=False), ["203.0.113.7/32"])
    assert list(ssh.source_ranges) == [IAP_RANGE]
    assert not internal.source_ranges


ALTERNATIVES: dict[str, tuple[Any, ...]] = {
    "gpu": ("", "t4", "l4", "a100"),
    "spot": (False, True),
    "max_duration_s": (0, 3600),
    "external": (True, False),
    "subnetwork": ("", "small"),
    "scopes": ((), ("https://www.googleapis.com/auth/cloud-platform",)),
}


def test_every_request_fits_the_discovery_document() -> None:
    for values in itertools.product(*ALTERNATIVES.values()):
        cloud = replace(GceOptions(), **dict(zip(ALTERNATIVES, values, strict=True)))
        assert problems_of(body(cloud, region="us-central1"), "compute.instances.bulkInsert") == []
        regional = body(cloud, ("us-central1-a", "us-central1-b"))
        assert problems_of(regional, "compute.regionInstances.bulkInsert") == []
        for rule in firewalls("demo", OWNER, "ada@laptop", cloud, ["203.0.113.7/32"]):
            assert problems_of(to_json(rule), "compute.firewalls.insert") == []


@pytest.mark.parametrize(
    ("cloud", "end_s", "stop_s", "delete_s"),
    [
        (GceOptions(max_duration_s=0), 0, 0, 0),
        (GceOptions(max_duration_s=60), 60, 60, 7 * DAY_S),
        (GceOptions(max_duration_s=7 * DAY_S), 7 * DAY_S - 600, 7 * DAY_S - 600, 7 * DAY_S),
        (GceOptions(max_duration_s=30 * DAY_S), 30 * DAY_S, 30 * DAY_S, 30 * DAY_S + 600),
        (GceOptions(max_duration_s=120 * DAY_S), 120 * DAY_S - 600, 120 * DAY_S - 600, 120 * DAY_S),
        (GceOptions(max_duration_s=7200, max_cost_usd=5.0), 6600, 0, 7200),
        (GceOptions(max_duration_s=800, max_cost_usd=5.0), 600, 0, 800),
    ],
)
def test_jobs_end_before_instances_power_off_and_these_before_they_are_deleted(
    cloud: GceOptions, end_s: int, stop_s: int, delete_s: int
) -> None:
    assert (cloud.end_after_s, cloud.stop_after_s, cloud.delete_after_s) == (end_s, stop_s, delete_s)
    request = properties(cloud)
    items = {item["key"]: item["value"] for item in request["metadata"]["items"]}
    times = [str(round(NOW) + seconds if seconds else 0) for seconds in (end_s, stop_s)]
    assert [items["fleet-end-at"], items["fleet-stop-at"]] == times
    assert request["scheduling"].get("maxRunDuration", {"seconds": "0"}) == {"seconds": str(delete_s)}


@pytest.mark.parametrize(
    ("cloud", "idle"),
    [
        (GceOptions(), None),
        (GceOptions(idle_timeout_s=1800), "1800"),
        (GceOptions(idle_timeout_s=1800, max_cost_usd=5.0), "1800"),
        (GceOptions(idle_timeout_s=1800, is_temporary=True), None),
    ],
)
def test_the_idle_timeout_is_an_item_of_the_metadata(cloud: GceOptions, idle: str | None) -> None:
    items = {item["key"]: item["value"] for item in properties(cloud)["metadata"]["items"]}
    assert items.get("fleet-idle-timeout") == idle


def test_a_field_that_does_not_exist_would_be_noticed() -> None:
    assert problems_of({**body(GceOptions()), "workers": 2}, "compute.instances.bulkInsert")


NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def test_the_longest_names_fit() -> None:
    longest = instance_name("f" * 30, OWNER, "worker-9999")
    assert len(longest) <= 63
    assert NAME.fullmatch(longest)
    assert stem("demo", OWNER) == "demo-k3jq7xab"


@given(st.text(max_size=100))
def test_labels_take_any_text(text: str) -> None:
    assert re.fullmatch(r"[a-z0-9_-]{0,63}", label_value(text))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Ada.Lovelace@My Laptop.local", "ada-lovelace-my-laptop-local"),
        ("--x--", "x"),
        ("Ünï", "n"),
        ("x" * 62 + "--y", "x" * 62),
    ],
)
def test_labels_stay_readable(text: str, value: str) -> None:
    assert label_value(text) == value


def test_labels_of_one_instance() -> None:
    assert labels("demo", OWNER, "ada", 3)["fleet-index"] == "3"
    assert "fleet-index" not in labels("demo", OWNER, "ada")


def test_what_has_no_labels_is_found_by_its_description() -> None:
    assert marked(mark("demo", OWNER, "Ada@Laptop")) == ("demo", OWNER, "ada-laptop")
    assert marked("made by hand") is None
    assert marked(mark("demo", OWNER, "ada")[1:]) is None


def test_an_ssh_key_is_one_line() -> None:
    assert ssh_keys("fleet", "ssh-ed25519 AAAA  fleet demo\n") == "fleet:ssh-ed25519 AAAA fleet demo"
