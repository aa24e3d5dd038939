"""Host keys of instances: guest attributes, and the serial console if a policy hides them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fleet.state import Store
from provision.gce.api.resources import console_host_key
from provision.gce.options import GceOptions
from provision.gce.provider import GceProvider
from provision.keys import generate_ed25519
from provision.model import FleetSpec
from provision.provider import ProviderError
from tests.cloud.customer import QUICK
from tests.emulator import Emulator
from tests.emulator.guests import Console

CONSTRAINT = "compute.disableGuestAttributesAccess"


@pytest.mark.parametrize("image", ["", "projects/debian-cloud/global/images/family/debian-12"])
def test_keys_come_from_the_console_if_a_policy_hides_guest_attributes(
    emulator: Emulator, tmp_path: Path, image: str
) -> None:
    emulator.cloud.governance.policies[CONSTRAINT] = {"rules": [{"enforce": True}]}
    cloud = GceOptions(project="proj-1", endpoint=emulator.url, zones=("us-central1-a",), image=image)
    provider = GceProvider("k3jq7xab", "me", Store(tmp_path), cloud, replace(QUICK, boot_s=0.1))
    spec = FleetSpec("demo", "gce", 1, "ssh-ed25519 AAAA me", options=cloud)
    if image:  # it prints no keys
        with pytest.raises(ProviderError, match=f"{CONSTRAINT} disables guest attributes"):
            provider.create(spec, ["worker-0"], lambda *_: None)
        return
    provider.create(spec, ["worker-0"], lambda *_: None)
    [host] = provider.hosts(spec, provider.list("demo"))
    [instance] = emulator.cloud.instances.values()
    assert instance.guest is not None
    assert f"\n{host.host_key} root@" in instance.guest.serial()


def test_the_last_key_that_cloud_init_printed_counts() -> None:
    console, keys = Console("w"), [generate_ed25519("root@w").public for _ in range(2)]
    assert console_host_key(console.text()) == ""
    for key in keys:
        console.host_key(key)
    blob = " ".join(keys[1].split()[:2])
    assert console_host_key(console.text()) == blob
    forged = " ".join(generate_ed25519("x").public.split()[:2])
    begin, end = "-----BEGIN SSH HOST KEY KEYS-----", "-----END SSH HOST KEY KEYS-----"
    for line in (begin, forged, end):
        console.program("user", 4711, line)
    assert console_host_key(console.text() + f"{forged} root@w\r\n") == blob
