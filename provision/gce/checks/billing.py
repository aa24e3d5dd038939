"""Check that an open billing account pays for the project."""

from __future__ import annotations

from provision.gce.account import Account
from provision.gce.checks.check import Check
from provision.gce.diagnosis.failures import Failure
from provision.gce.options import GceOptions
from provision.gce.rest.governance import billing_info


def _billing(account: Account, _cloud: GceOptions) -> str:
    billing = billing_info(account.api)
    if not billing.get("billingEnabled"):
        closed = billing.get("billingAccountName")
        message = f"{closed} is closed" if closed else "no billing account is linked"
        raise account.diagnosis([Failure(code="BILLING_DISABLED", message=message)], "check the billing")
    return f"{billing['billingAccountName']} pays"


BILLING = Check("billing", _billing, requires=("credentials", "project"), is_optional=True)
