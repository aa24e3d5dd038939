"""Check that the boot image can be used."""

from __future__ import annotations

from provision.gce.account import Account
from provision.gce.checks.check import Check
from provision.gce.options import GceOptions


def _image(account: Account, cloud: GceOptions) -> str:
    return f"{account.api.image(cloud.image)['name']} can be used"


IMAGE = Check("image", _image)
