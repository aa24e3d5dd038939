"""Fleets whose instances have no external addresses: tunnels of Identity-Aware Proxy, and Cloud NAT."""

from __future__ import annotations

import pytest

from provision.gce.provider import GceProvider
from provision.model import FleetSpec
from provision.provider import ProviderError
from tests.cloud.conftest import Make, finding_of
from tests.emulator import Emulator
from tests.emulator.client import Gcloud
from tests.emulator.services import TUNNELS as HOST
from tests.emulator.services import USE_TUNNELS as USE
from tests.next_steps import command_lines
from tests.program import Program, lines_of

NAMES = ("worker-0", "worker-1")
ME = "me@example.com"
GRANT = "gcloud projects add-iam-policy-binding proj-1 --role roles/iap.tunnelResourceAccessor"


@pytest.fixture
def make(make: Make, gcloud: Gcloud) -> Make:
    """Return a function that makes a fleet without external addresses."""
    assert gcloud
    return lambda packages=(), **more: make(packages=packages, **{"external": False, "zones": (), **more})


def refused(provider: GceProvider, spec: FleetSpec) -> ProviderError:
    """Return the error of the plan, before anything is created."""
    with pytest.raises(ProviderError) as caught:
        provider.quote(spec, NAMES)
    return caught.value


# --- the tunnel ---------------------------------------------------------------------------------------------------


def test_the_account_of_gcloud_must_be_logged_in_and_have_the_role(
    emulator: Emulator, make: Make, gcloud: Gcloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulator.deny(f"ada@example.com:{USE}")
    provider, spec = make()
    assert any("gcloud's account me@example.com" in note for note in provider.quote(spec, NAMES).notes)
    assert finding_of(provider, "Identity-Aware Proxy").message == "me@example.com can open tunnels"
    gcloud.log_in("ada@example.com")
    error = refused(provider, spec)
    assert USE in error.message
    assert command_lines(error) == f"{GRANT} --member=user:ada@example.com"
    assert command_lines(finding_of(provider, "Identity-Aware Proxy")) == command_lines(error)

    (gcloud.directory / "account").unlink()
    provider, spec = make()
    error = refused(provider, spec)
    assert "You do not currently have an active account selected" in error.cause
    assert command_lines(error) == command_lines(finding_of(provider, "gcloud")) == "gcloud auth login"

    monkeypatch.setenv("PATH", "/nowhere")
    provider, spec = make()
    with pytest.raises(ProviderError, match="gcloud is not installed"):
        provider.check(spec)
    assert not finding_of(provider, "gcloud").ok


def test_a_disabled_api_is_reported_if_the_caller_may_ask(emulator: Emulator, make: Make) -> None:
    emulator.cloud.governance.disabled.add(HOST)
    provider, spec = make()
    assert command_lines(refused(provider, spec)) == f"gcloud services enable {HOST} --project proj-1"
    emulator.deny("serviceusage.services.get")
    emulator.cloud.governance.disabled.clear()
    assert provider.quote(spec, NAMES).offers


# --- Cloud NAT ----------------------------------------------------------------------------------------------------


def test_regions_without_cloud_nat_are_left_out_if_packages_are_downloaded(emulator: Emulator, make: Make) -> None:
    emulator.translate_addresses("us-west4", "europe-west1")
    provider, spec = make(("six",), anywhere=True)
    regions = {offer.zone.rpartition("-")[0] for offer in provider.quote(spec, NAMES).offers}
    assert regions == {"us-west4", "europe-west1"}
    provider.create(spec, NAMES, lambda *_: None)
    assert {instance.zone.rpartition("-")[0] for instance in provider.list("demo")} <= regions
    assert provider.delete_fleet("demo", lambda *_: None) == []
    regions = {offer.zone.rpartition("-")[0] for offer in provider.quote(make()[1], NAMES).offers}
    assert "us-central1" in regions


def test_missing_cloud_nat_is_reported_with_the_commands_that_create_it(emulator: Emulator, make: Make) -> None:
    emulator.translate_addresses("us-west4")
    emulator.translate_addresses("us-central1", network="other")
    provider, spec = make(("six",), zones=("us-central1-a", "europe-west1"))
    error = refused(provider, spec)
    assert "network default has no Cloud NAT" in error.message
    assert command_lines(error).splitlines() == [
        "gcloud compute routers create fleet-nat --network default --region us-central1 --project proj-1",
        "gcloud compute routers nats create fleet-nat --router fleet-nat --auto-allocate-nat-external-ips "
        "--nat-all-subnet-ip-ranges --region us-central1 --project proj-1",
    ]
    assert finding_of(provider, "Cloud NAT").ok is False
    emulator.deny("compute.routers.list")
    assert provider.quote(spec, NAMES).offers
    assert finding_of(provider, "Cloud NAT").ok is None


SECONDARY = ["LIST_OF_SECONDARY_IP_RANGES"]


def test_a_nat_for_some_subnetworks_serves_only_these(emulator: Emulator, make: Make) -> None:
    emulator.translate_addresses("us-west4")
    [router] = emulator.cloud.routers.values()
    subnetwork = f"{emulator.cloud.base}/regions/us-west4/subnetworks"
    nat = {"name": "n", "sourceSubnetworkIpRangesToNat": "LIST_OF_SUBNETWORKS"}
    provider, spec = make(("six",), zones=("us-west4",))
    for change, works in (
        ({"subnetworks": [{"name": f"{subnetwork}/other"}]}, False),
        ({"subnetworks": [{"name": f"{subnetwork}/default"}]}, True),
        ({"subnetworks": [{"name": f"{subnetwork}/default"}], "type": "PRIVATE"}, False),
        ({"subnetworks": [{"name": f"{subnetwork}/default", "sourceIpRangesToNat": SECONDARY}]}, False),
    ):
        router["nats"] = [{**nat, **change}]
        assert (finding_of(provider, "Cloud NAT").ok is True) == works
        if works:
            assert provider.quote(spec, NAMES).offers


# --- with guests --------------------------------------------------------------------------------------------------


@pytest.mark.wire
def test_a_fleet_without_external_addresses_runs_from_up_to_down(
    program: Program, guest_emulator: Emulator, gcloud: Gcloud
) -> None:
    emulator = guest_emulator
    program.env.update(FLEET_GCE_ENDPOINT=emulator.url, FLEET_GCE_PROJECT="proj-1", PATH=gcloud.path())
    machine = ("--gpu", "t4", "--image", "projects/gpu-images/global/images/family/ubuntu-2204-nvidia-535")
    up = ("up", "--workers", "2", "--provider", "gce", "--iap", "--zone", "us-central1", "--yes")
    assert "has no Cloud NAT in the requested regions" in program.run(*up, "--package", "six", code=14).err
    assert emulator.state()["instances"] == []

    emulator.translate_addresses("us-central1")
    program.run(*up, *machine, "--package", "six")
    assert not any(instance.blueprint.external for instance in emulator.cloud.instances.values())
    shown = "nvidia-smi --query-gpu=name --format=csv,noheader; python -c 'import six; print(six.__name__)'"
    assert lines_of(program.run("train", "--", "sh", "-c", shown), "worker-1") == ["Tesla T4", "six"]
    assert emulator.state()["calls"]["iap.tunnel"] >= 2

    emulator.deny(USE)
    ran = program.run("train", "--", "true", code=13)
    assert "Error while connecting [4033: 'not authorized']" in ran.err
    assert f"{GRANT} --member=user:{ME}" in ran.err
    emulator.cloud.denied.clear()
    (gcloud.directory / "account").unlink()
    ran = program.run("train", "--", "true", code=13)
    assert "You do not currently have an active account selected" in " ".join(ran.err.split())
    assert "gcloud auth login" in ran.err
    gcloud.log_in()
    program.run("down", "--yes")
    assert not any(emulator.state()[key] for key in ("instances", "disks", "firewalls", "violations"))
    program.close()
    emulator.reset()
