"""Images of prepared hosts: `fleet bake` creates them, `fleet up` boots from them, and `fleet gc` lists them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from fleet.console.reports import format_report
from fleet.errors import CredentialsError, NotReadyError
from fleet.events import BootstrapProgress, ImageBaked, OrphansFound, Quoted, ZoneTried
from fleet.steps import Again
from provision.gce.bake import PERMISSIONS
from provision.gce.catalog.machines import resolved
from provision.gce.checks.account import permissions
from provision.gce.options import GceOptions
from tests.cloud.access_modes import EMAIL, MODES, OPTIONAL, allow, write_credentials
from tests.cloud.customer import QUICK, Customer, Quiet
from tests.emulator import Emulator, catalog
from tests.program import Program


@pytest.fixture
def team(user: Customer) -> Customer:
    user.options["zones"] = ("us-central1-a",)
    return user


def boot_images(team: Customer) -> set[str]:
    """Return the names of the images of all boot disks."""
    return {disk["sourceImage"].rpartition("/")[2] for disk in team.emulator.cloud.disks.values()}


def notes(sink: Quiet) -> str:
    return " ".join(note for quoted in sink.of(Quoted) for note in quoted.notes)


def test_hosts_with_the_same_options_boot_from_the_image(team: Customer) -> None:
    [baked] = team.bake(gpu="t4").of(ImageBaked)
    assert team.held() == []
    assert team.emulator.state()["images"] == [baked.image]
    of_fleets = permissions(resolved(GceOptions(setup="true")), "proj-1")
    assert team.emulator.api.needed <= {*of_fleets, *PERMISSIONS, *OPTIONAL}
    assert baked.created
    assert (baked.size_gb, round(baked.usd_month, 2)) == (10.0, 0.5)
    [again] = team.bake(gpu="t4").of(ImageBaked)
    assert (again.image, again.created) == (baked.image, False)

    quoted = team.up(gpu="t4")
    assert f"boots from image {baked.image}" in notes(quoted)
    assert boot_images(team) == {baked.image}
    team.down()
    assert team.emulator.state()["images"] == [baked.image]

    [listed] = team.gc().of(OrphansFound)
    [image] = listed.orphans
    assert (image.kind, image.name, image.size_gb, image.to_delete) == ("image", baked.image, 10.0, False)
    assert round(image.price_usd_h * 730, 2) == 0.5
    assert format_report(listed).splitlines()[2].split()[-3:] == ["10.0", "GB", "$0.50"]
    assert team.emulator.state()["images"] == [baked.image]
    team.gc(images=True)
    assert team.emulator.state()["images"] == []


@pytest.mark.parametrize(
    "other",
    [{"setup": "true"}, {"packages": ("numpy",)}, {"ssh_user": "ann"}],
)
def test_hosts_with_other_content_boot_from_the_base_image(team: Customer, other: dict[str, Any]) -> None:
    [baked] = team.bake().of(ImageBaked)
    assert "image " not in notes(team.up(**other))
    assert baked.image not in boot_images(team)
    team.down()


def test_an_image_of_an_older_release_of_the_base_image_is_not_used(
    team: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    [baked] = team.bake().of(ImageBaked)
    newer = [dataclasses.replace(image, name=f"{image.name}-2") for image in catalog.IMAGES]
    monkeypatch.setattr(catalog, "IMAGES", tuple(newer))
    assert f"image {baked.image} is not used: ubuntu-2404-noble-amd64-v20261012-2 is newer" in notes(team.up())
    assert baked.image not in boot_images(team)
    team.down()
    [renewed] = team.bake().of(ImageBaked)
    assert renewed.created
    assert renewed.image != baked.image


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "404", "resource": "global/images/{image}"},
        {
            "kind": "http",
            "status": 412,
            "reason": "conditionNotMet",
            "message": "Constraint constraints/compute.trustedImageProjects violated for project proj-1. Use of "
            "images from project proj-1 is prohibited.",
        },
    ],
)
def test_hosts_boot_from_the_base_image_if_theirs_cannot_be_used(team: Customer, fault: dict[str, Any]) -> None:
    [baked] = team.bake().of(ImageBaked)
    values = {key: str(value).format(image=baked.image) for key, value in fault.items()}
    kind, status = values.pop("kind"), int(values.pop("status", 0))
    team.emulator.faults.add(kind, "compute.*ulkInsert", status=status, **values)
    reported = [event.step for event in team.up().of(ZoneTried)]
    assert [step for step in reported if step.endswith("the packages are installed instead")]
    assert boot_images(team) == {"ubuntu-2404-noble-amd64-v20261012"}
    team.down()


def test_a_dry_run_creates_nothing_and_a_host_that_cannot_be_prepared_is_deleted(team: Customer) -> None:
    [quoted] = team.bake(gpu="l4", dry_run=True).of(Quoted)
    assert (quoted.instances, quoted.offers[0].machine, quoted.delete_after_s) == (1, "n1-standard-4", 3 * 3600)
    assert not team.emulator.cloud.charges
    with pytest.raises(NotReadyError, match="cannot be prepared") as failed:
        team.bake(unprepared=True)
    assert [*failed.value.next_steps] == [Again({})]
    assert team.held() == team.emulator.state()["images"] == []
    assert not team.store.baking.names()


@pytest.mark.parametrize("denied", ["compute.images.create", "compute.disks.useReadOnly"])
def test_a_missing_permission_is_reported_before_anything_is_paid(team: Customer, denied: str) -> None:
    team.emulator.deny(denied)
    with pytest.raises(CredentialsError, match=denied):
        team.bake()
    assert "compute.instances.bulkInsert" not in team.emulator.state()["calls"]


@pytest.mark.wire
def test_the_command_refuses_other_providers_and_asks_before_it_spends_money(
    caller: Program, emulator: Emulator
) -> None:
    assert "provider 'local' has no images" in caller.run("bake", code=2).err
    ran = caller.run("bake", "--gpu", "t4", code=2)
    assert "n1-standard-4" in ran.text + ran.err
    assert "fleet bake --yes --gpu t4" in ran.err
    assert not any(emulator.state()[kind] for kind in ("instances", "disks", "images"))


@pytest.mark.wire
@pytest.mark.usefixtures("gcloud")
@pytest.mark.parametrize(("baking", "use", "user"), [("iap", "external", "fleet")])
def test_a_host_that_boots_from_an_image_installs_nothing_and_has_its_own_keys(
    guest_emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, baking: str, use: str, user: str
) -> None:
    allow(guest_emulator)
    monkeypatch.setenv("FLEET_ADDRESS_URL", f"{guest_emulator.url}/emulator/address")
    monkeypatch.setenv("FLEET_GCE_ENDPOINT", guest_emulator.url)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", write_credentials(tmp_path, guest_emulator.url))
    timing = dataclasses.replace(QUICK, boot_s=60.0, operation_s=60.0, confirm_s=60.0)
    team = Customer(guest_emulator, tmp_path / "state", timing, zones=("us-central1-a",))
    content: dict[str, Any] = {"packages": ("six",), "setup": "echo once >>/var/lib/prepared"}
    try:
        made = team.bake(**content, **MODES[baking])
        assert "installing packages" in {event.step for event in made.of(BootstrapProgress)}
        assert ("iap.tunnel" in guest_emulator.state()["calls"]) == (baking == "iap")
        assert guest_emulator.cloud.profiles.get(EMAIL).keys == {}
        [files] = guest_emulator.cloud.directory.glob("image-*")
        check_files(files, user)

        booted = team.up(workers=1, **content, **MODES[use])
        assert {event.step for event in booted.of(BootstrapProgress)} == {"checking Python", "ready"}
        [instance] = guest_emulator.cloud.instances.values()
        directory = guest_emulator.cloud.directory / instance.body["id"]
        assert (directory / "covers/var/lib/prepared").read_text() == "once\n"
        assert len((directory / "etc/machine-id").read_text().strip()) == 32
        team.down()
        team.gc(images=True)
        guest_emulator.cloud.join(90)
        assert not [*guest_emulator.cloud.directory.glob("image-*")]
    finally:
        guest_emulator.reset()


def check_files(image: Path, user: str) -> None:
    """Check that an image has the environment, but no key, script, log, or identity of the host it was made of."""
    assert (image / "covers/var/lib/prepared").read_text() == "once\n"
    assert (image / "etc/machine-id").read_text() == ""
    assert {path.name for path in (image / "covers/home" / user / ".fleet").iterdir()} <= {"venvs", "agent", "pip"}
    files = [path for path in image.rglob("*") if path.is_file() and "/.fleet/" not in str(path)]
    assert not [path for path in files if path.name in ("authorized_keys", "fleet-setup") or path.suffix == ".log"]
    assert not [path for path in files if b"echo once" in path.read_bytes()]
