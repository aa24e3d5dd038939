"""Images of the emulator's project, with Google's client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.emulator import Emulator
from tests.emulator import library as compute
from tests.emulator.client import PROJECT, Client, codes

AT_ZONE: dict[str, Any] = {"project": PROJECT, "zone": "us-central1-a"}
DISK = f"projects/{PROJECT}/zones/us-central1-a/disks/demo"
OPERATION_S = 100.0


@pytest.fixture(scope="module")
def running() -> Iterator[Emulator]:
    with Emulator(operation_s=OPERATION_S) as emulator:
        yield emulator


@pytest.fixture
def emulator(emulator: Emulator) -> Emulator:
    """Return an emulator with a stopped instance; its operations end when the test lets them."""
    client = Client(emulator.url)
    client.insert("demo")
    emulator.settle()
    client.instances.stop_unary(**AT_ZONE, instance="demo")
    emulator.settle()
    return emulator


def insert(client: Client, name: str = "mine", *, force: bool = False) -> compute.Operation:
    image = compute.Image(name=name, source_disk=DISK, labels={"a": "b"})
    return client.of("Images").insert_unary({"project": PROJECT, "image_resource": image, "force_create": force})


def boot(client: Client, image: str = "mine", disk_gb: int = 100) -> compute.Operation:
    source = f"projects/{PROJECT}/global/images/{image}"
    params = compute.AttachedDiskInitializeParams(source_image=source, disk_size_gb=disk_gb)
    disk = compute.AttachedDisk(boot=True, auto_delete=True, initialize_params=params)
    return client.insert("other", disks=[disk])


def test_an_image_is_pending_until_its_operation_ends(emulator: Emulator, client: Client) -> None:
    insert(client)
    emulator.clock.advance(0.3 * OPERATION_S)
    image = client.of("Images").get(project=PROJECT, image="mine")
    assert (image.status, image.disk_size_gb, dict(image.labels)) == ("PENDING", 100, {"a": "b"})
    with pytest.raises(compute.exceptions.BadRequest, match="is not ready"):
        boot(client)
    with pytest.raises(compute.exceptions.BadRequest, match="is not ready"):
        client.of("Images").delete_unary(project=PROJECT, image="mine")
    with pytest.raises(compute.exceptions.BadRequest, match=r"already being used by 'projects/.*/images/mine'"):
        client.instances.delete_unary(**AT_ZONE, instance="demo")
    emulator.settle()
    assert client.of("Images").get(project=PROJECT, image="mine").status == "READY"
    assert [each.name for each in client.of("Images").list(project=PROJECT)] == ["mine"]
    with pytest.raises(compute.exceptions.Conflict, match="already exists"):
        insert(client)


def test_a_disk_is_at_least_as_large_as_its_image(emulator: Emulator, client: Client) -> None:
    insert(client)
    emulator.settle()
    with pytest.raises(compute.exceptions.BadRequest, match=r"cannot be smaller than the image size \(100 GB\)"):
        boot(client, disk_gb=99)
    boot(client)
    client.of("Images").delete_unary(project=PROJECT, image="mine")
    emulator.settle()
    assert emulator.state()["images"] == []
    assert emulator.state()["disks"] == ["demo", "other"]
    with pytest.raises(compute.exceptions.NotFound, match="images/mine' was not found"):
        boot(client)


def test_the_disk_of_a_running_instance_needs_force_create(emulator: Emulator, client: Client) -> None:
    client.instances.start_unary(**AT_ZONE, instance="demo")
    emulator.settle()
    with pytest.raises(compute.exceptions.BadRequest, match=r"already being used by 'projects/.*/instances/demo'"):
        insert(client)
    insert(client, force=True)
    emulator.settle()
    assert emulator.state()["images"] == ["mine"]


def test_the_quota_of_images_is_enforced(emulator: Emulator, client: Client) -> None:
    emulator.set_quota("IMAGES", 1)
    first, second = insert(client), insert(client, "second")
    emulator.settle()
    assert [codes(client.wait(operation)) for operation in (first, second)] == [[], ["QUOTA_EXCEEDED"]]
    assert emulator.state()["images"] == ["mine"]


def test_an_image_needs_permissions_on_the_disk_and_for_labels(emulator: Emulator, client: Client) -> None:
    for permission in ("compute.images.create", "compute.disks.useReadOnly", "compute.images.setLabels"):
        emulator.deny(permission)
        with pytest.raises(compute.exceptions.Forbidden, match=permission):
            insert(client)
        emulator.cloud.denied.clear()
    assert emulator.state()["images"] == []
