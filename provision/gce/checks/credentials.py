"""Check that Google Cloud accepts the credentials of this computer."""

from __future__ import annotations

from provision.gce.account import Account
from provision.gce.checks.check import Check
from provision.gce.options import GceOptions


def _credentials(account: Account, _cloud: GceOptions) -> str:
    account.api.authenticate()
    name = account.api.account.partition(":")[2]
    return f"accepted by Google Cloud, of {name}" if name else "accepted by Google Cloud"


CREDENTIALS = Check("credentials", _credentials, requires=())
