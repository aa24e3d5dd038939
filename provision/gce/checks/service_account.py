"""Check that the service account of the instances exists, and that the caller may give it to them."""

from __future__ import annotations

from provision.gce.access import restarting, service_account
from provision.gce.account import Account
from provision.gce.checks.check import Check
from provision.gce.diagnosis.failures import Failure
from provision.gce.options import GceOptions
from provision.gce.rest.governance import permitted_on_account
from provision.model import Finding

_SUBJECT = "service account"
_ACT_AS = "iam.serviceAccounts.actAs"


def _service_account(account: Account, cloud: GceOptions) -> str | Finding:
    if not cloud.scopes:
        return "none: instances have one only with --scopes"
    email = cloud.service_account or str(account.api.get_project().get("defaultServiceAccount", ""))
    service_account.check(account, cloud, email)
    if _ACT_AS not in permitted_on_account(account.api, email, [_ACT_AS]):
        denied = Failure("SERVICE_ACCOUNT_ACCESS_DENIED", f"no access to service account {email}")
        raise account.diagnosis([denied], "create instances")
    if cloud.unattended:
        return _restarting(account, cloud)
    return f"{email} can be used"


def _restarting(account: Account, cloud: GceOptions) -> str | Finding:
    result = restarting.examine(account, cloud)
    if not result.doubt:
        return result.note
    return Finding(_SUBJECT, None, result.note, "give it a role of its own", restarting.grants(account, cloud))


SERVICE_ACCOUNT = Check(_SUBJECT, _service_account, is_optional=True)
