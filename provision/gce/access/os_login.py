"""OS Login: the fleet's key is imported into the profile of the account in use, whose login name the instances use.

The key expires when Compute Engine deletes the instances, and `fleet down` removes it. Its comment names the fleet.

Source: https://cloud.google.com/compute/docs/oslogin, and the discovery document of the OS Login API.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from google.cloud import compute_v1

from provision.gce.account import Account
from provision.gce.api.iam import permitted
from provision.gce.api.messages import ApiError, Json
from provision.gce.api.requests import is_os_login
from provision.gce.catalog.names import mark, marked
from provision.gce.diagnosis import missing_permission
from provision.gce.options import GceOptions
from provision.model import FleetSpec
from provision.provider import ErrorKind, ProviderError

OPTION = "--os-login"
IMPORT = "import_key"
LOGIN = "compute.instances.osLogin"
_API = "https://oslogin.googleapis.com"
_MARGIN_S = 3600
_GONE = (403, 404)


def is_required(cloud: GceOptions, project: compute_v1.Project) -> bool:
    """Return whether new instances use OS Login: the user requests it, or the metadata of the project enables it."""
    return cloud.os_login or is_os_login(project.common_instance_metadata)


def login_of(account: Account, cloud: GceOptions, project: compute_v1.Project) -> str:
    """Return who logs in on new instances: the account in use with OS Login, otherwise the user of the options."""
    return account.api.account if is_required(cloud, project) else cloud.ssh_user


def check(account: Account) -> str:
    """Check that the account in use can log in, and return it.

    Raises:
        ApiError: the OS Login API does not answer, for example because it is disabled.
        ProviderError: the account is unknown, or lacks the permission.
    """
    email = _email(account)
    _profile(account, email)
    try:
        may_log_in = LOGIN in permitted(account.api, [LOGIN])
    except ApiError:  # Resource Manager may be disabled; the login will show it
        may_log_in = True
    if not may_log_in:
        project, member = account.api.project, account.api.member()
        raise missing_permission(LOGIN, project, doing="log in with OS Login", member=member)
    return email


def grant(account: Account, spec: FleetSpec, cloud: GceOptions) -> str:
    """Let the fleet's key log in until its instances are deleted; return the login name.

    Raises:
        ApiError: a call failed.
        ProviderError: the account is unknown.
    """
    email = _email(account)
    account.journal.intend(spec.name, IMPORT, account=email)
    kind, blob, *_ = spec.public_key.split()
    key: Json = {"key": f"{kind} {blob} {mark(spec.name, account.owner, account.user)}"}
    if cloud.delete_after_s:
        key["expirationTimeUsec"] = _expiry(account, cloud.delete_after_s)
    path = f"{_path(email)}:importSshPublicKey?projectId={account.api.project}"
    profile: Json = account.api.ask(_API, path, key).get("loginProfile", {})
    for imported in _keys(profile):  # a key that was imported before keeps its expiry
        if blob in str(imported.get("key")) and imported.get("expirationTimeUsec") != key.get("expirationTimeUsec"):
            _renew(account, imported, key.get("expirationTimeUsec", "0"))
    return _login_name(profile, email)


def extend(account: Account, fleet: str, seconds: int) -> None:
    """Let the key of a fleet log in for this many seconds more.

    Raises:
        ApiError: a call failed.
    """
    for key in _imported(account, fleet):
        _renew(account, key, _expiry(account, seconds))


def revoke(account: Account, fleet: str) -> None:
    """Remove the key of a fleet.

    Raises:
        ApiError: a call failed.
    """
    for key in _imported(account, fleet):
        account.api.ask(_API, f"/v1/{quote(str(key['name']))}", verb="DELETE")


def _imported(account: Account, fleet: str) -> list[Json]:
    """Return the keys of a fleet in the profiles of accounts that imported them; those of other users expire."""
    emails = {str(entry["account"]) for entry in account.journal.intents(fleet) if entry["intent"] == IMPORT}
    keys = []
    for email in sorted(emails):
        try:
            keys += _keys(_profile(account, email))
        except ApiError as error:
            if error.status not in _GONE:
                raise
    return [key for key in keys if _owner_of(key) == (fleet, account.owner)]


def _owner_of(key: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fleet and the owner in the comment of a key; empty if it has none."""
    return (marked(str(key.get("key", "")).split(None, 2)[-1]) or ())[:2]


def _renew(account: Account, key: Json, expiry: str) -> None:
    path = f"/v1/{quote(str(key['name']))}?updateMask=expirationTimeUsec"
    account.api.ask(_API, path, {"key": key["key"], "expirationTimeUsec": expiry}, verb="PATCH")


def _profile(account: Account, email: str) -> Json:
    return account.api.ask(_API, f"{_path(email)}/loginProfile?projectId={account.api.project}")


def _keys(profile: Json) -> list[Json]:
    return list(profile.get("sshPublicKeys", {}).values())


def _expiry(account: Account, seconds: int) -> str:
    """Return the time at which a key expires, in microseconds since the epoch."""
    return str(round((account.cloud_time() + seconds + _MARGIN_S) * 1e6))


def _path(email: str) -> str:
    return f"/v1/users/{quote(email)}"


def _email(account: Account) -> str:
    email = account.api.account.partition(":")[2]
    if not email:
        raise ProviderError(
            ErrorKind.CREDENTIALS,
            "OS Login requires the account of the credentials, which could not be determined",
            cause="the fleet's SSH key is imported into the profile of this account",
            hint="use the credentials of a user or a service account",
            next_steps=[("gcloud", "auth", "application-default", "login")],
        )
    return email


def _login_name(profile: Json, email: str) -> str:
    """Return the login name on Linux; the primary one if there are several.

    Raises:
        ProviderError: the profile has none.
    """
    accounts = [each for each in profile.get("posixAccounts", ()) if each.get("username")]
    accounts = [each for each in accounts if each.get("operatingSystemType") != "WINDOWS"]
    accounts.sort(key=lambda each: not each.get("primary"))
    if not accounts:
        raise ProviderError(
            ErrorKind.CREDENTIALS,
            f"the OS Login profile of {email} has no login name",
            next_steps=[("gcloud", "compute", "os-login", "describe-profile")],
        )
    return str(accounts[0]["username"])
