"""The properties of a guest that follow from its instance and its project."""

from __future__ import annotations

from tests.emulator.cloud import Cloud, Instance
from tests.emulator.disk import GuestSpec
from tests.emulator.nat import reaches_internet


def guest_spec(cloud: Cloud, instance: Instance) -> GuestSpec:
    """Return the properties of the guest of `instance`."""
    blueprint, number = instance.blueprint, instance.body["id"]
    is_online = reaches_internet(cloud, instance)
    return GuestSpec(
        name=blueprint.name,
        zone=blueprint.zone,
        project=cloud.project,
        id=number,
        address=instance.address,
        ssh_port=cloud.ssh_port,
        gpus=blueprint.gpus,
        gpu=blueprint.gpu,
        metadata=cloud.guest_metadata(instance),
        os_login_keys=cloud.os_login_keys(instance),
        directory=cloud.directory / number,
        image=blueprint.image,
        index=is_online,
        hosts=cloud.google_hosts if is_online else (),
        certificate=cloud.google_certificate,
        service_accounts=tuple(instance.body.get("serviceAccounts", ())),
        clock=cloud.clock,
        local_ssds=blueprint.local_ssds,
    )
