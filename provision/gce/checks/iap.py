"""Check the program that connects through Identity-Aware Proxy."""

from __future__ import annotations

import shutil

from provision.gce.account import Account
from provision.gce.checks.check import Check
from provision.gce.options import GceOptions
from provision.provider import ErrorKind, ProviderError


def _gcloud(_account: Account, cloud: GceOptions) -> str:
    gcloud, missing = shutil.which("gcloud"), "not installed (only required for --iap)"
    if gcloud is None and not cloud.external:
        raise ProviderError(ErrorKind.MISSING, missing)
    return f"{gcloud}, for --iap" if gcloud else missing


GCLOUD = Check("gcloud", _gcloud, requires=())
