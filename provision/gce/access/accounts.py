"""Accounts: that of OS Login, and the service account of the instances with its access to the bucket.

With OS Login, the fleet's key is imported into the profile of the account in use, whose login name the instances use.
It expires when Compute Engine deletes the instances, and `fleet down` removes it. Its comment names the fleet.

Sources: https://cloud.google.com/compute/docs/oslogin, https://cloud.google.com/storage/docs/oauth-scopes, and
https://cloud.google.com/storage/docs/access-control/iam-roles.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote

from google.cloud import compute_v1

from provision.gce.account import Account
from provision.gce.api.client import Api, ApiError, Json
from provision.gce.api.iam import permitted, project_of_account, project_policy, service_account
from provision.gce.api.resources import is_os_login
from provision.gce.catalog.names import Fleet, is_region, is_zone, marked, region_of
from provision.gce.diagnosis import grant_role, missing_permission
from provision.gce.options import SCHEME, GceOptions
from provision.model import Command
from provision.provider import ErrorKind, ProviderError

OS_LOGIN = "--os-login"
IMPORT = "import_key"
LOGIN = "compute.instances.osLogin"
_OS_LOGIN_API = "https://oslogin.googleapis.com"
_MARGIN_S = 3600
_GONE = (403, 404)


def uses_os_login(cloud: GceOptions, project: compute_v1.Project) -> bool:
    """Return whether new instances use OS Login: the user requests it, or the metadata of the project enables it."""
    return cloud.os_login or is_os_login(project.common_instance_metadata)


def login_of(account: Account, cloud: GceOptions, project: compute_v1.Project) -> str:
    """Return who logs in on new instances: the account in use with OS Login, otherwise the user of the options."""
    return account.api.account if uses_os_login(cloud, project) else cloud.ssh_user


def check_os_login(account: Account) -> str:
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


def import_key(account: Account, fleet: Fleet) -> str:
    """Let the fleet's key log in until its instances are deleted; return the login name.

    Raises:
        ApiError: a call failed.
        ProviderError: the account is unknown.
    """
    email = _email(account)
    account.journal.intend(fleet.name, IMPORT, account=email)
    kind, blob, *_ = fleet.spec.public_key.split()
    key: Json = {"key": f"{kind} {blob} {fleet.mark()}"}
    if fleet.cloud.delete_after_s:
        key["expirationTimeUsec"] = _expiry(account, fleet.cloud.delete_after_s)
    path = f"{_path(email)}:importSshPublicKey?projectId={account.api.project}"
    profile: Json = account.api.ask(_OS_LOGIN_API, path, key).get("loginProfile", {})
    for imported in _keys(profile):  # a key that was imported before keeps its expiry
        if blob in str(imported.get("key")) and imported.get("expirationTimeUsec") != key.get("expirationTimeUsec"):
            _renew(account, imported, key.get("expirationTimeUsec", "0"))
    return _login_name(profile, email)


def extend_key(account: Account, fleet: str, seconds: int) -> None:
    """Let the key of a fleet log in for this many seconds more.

    Raises:
        ApiError: a call failed.
    """
    for key in _imported(account, fleet):
        _renew(account, key, _expiry(account, seconds))


def remove_key(account: Account, fleet: str) -> None:
    """Remove the key of a fleet.

    Raises:
        ApiError: a call failed.
    """
    for key in _imported(account, fleet):
        account.api.ask(_OS_LOGIN_API, f"/v1/{quote(str(key['name']))}", verb="DELETE")


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
    account.api.ask(_OS_LOGIN_API, path, {"key": key["key"], "expirationTimeUsec": expiry}, verb="PATCH")


def _profile(account: Account, email: str) -> Json:
    return account.api.ask(_OS_LOGIN_API, f"{_path(email)}/loginProfile?projectId={account.api.project}")


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


# --- the account --------------------------------------------------------------------------------------------------

_ID = re.compile(r"[a-z][a-z0-9-]{4,28}[a-z0-9]", re.ASCII)
"""First part of an address: https://cloud.google.com/iam/docs/service-accounts-create#creating."""


def check_given(account: Account, cloud: GceOptions) -> None:
    """Check the account that the user gave; one that the caller may not read is left to Compute Engine.

    Raises:
        ProviderError: it does not exist, or is disabled.
    """
    if not cloud.service_account or not cloud.scopes:
        return
    try:
        check_service_account(account, cloud.service_account)
    except ApiError:
        return


def check_service_account(account: Account, email: str) -> None:
    """Check that a service account can be used by instances.

    Raises:
        ApiError: it cannot be read.
        ProviderError: it does not exist, or is disabled.
    """
    existing, project = service_account(account.api, email), project_of_account(account.api, email)
    of_accounts, steps = ("gcloud", "iam", "service-accounts"), list[Command]()
    in_project = ("--project", project)
    other = "select an existing one: --service-account EMAIL"
    if existing is None:
        name, _, domain = email.partition("@")
        is_own = _ID.fullmatch(name) and domain.endswith(".iam.gserviceaccount.com")
        message, hint = f"the service account {email} does not exist", f"create it, or {other}" if is_own else other
        steps += [(*of_accounts, "create", name, *in_project)] if is_own else []
    elif existing.get("disabled"):
        message, hint = f"the service account {email} is disabled", f"enable it, or {other}"
        steps.append((*of_accounts, "enable", email, *in_project))
    else:
        return
    steps.append((*of_accounts, "list", *in_project))
    raise ProviderError(ErrorKind.USAGE, message, hint=hint, next_steps=steps)


# --- the bucket ---------------------------------------------------------------------------------------------------

_CONTINENTS = MappingProxyType({"us": "us-", "eu": "europe-", "asia": "asia-"})
ROLES = ("roles/storage.objectUser", "roles/storage.legacyBucketReader")
"""Roles that TensorFlow needs: it also reads the properties of the bucket."""

_GIVES = MappingProxyType(
    {
        "admin": "glwb",
        "objectAdmin": "glw",
        "objectUser": "glw",
        "objectViewer": "gl",
        "legacyBucketOwner": "lwb",
        "legacyBucketWriter": "lwb",
        "legacyBucketReader": "lb",
        "legacyObjectOwner": "g",
        "legacyObjectReader": "g",
    }
)
"""Permissions that each role of Cloud Storage includes: on objects, and on the bucket itself."""
_BASIC = MappingProxyType(
    {"roles/owner": "projectOwner", "roles/editor": "projectEditor", "roles/viewer": "projectViewer"}
)
"""Members of the policies of buckets that stand for the members with a role on a project."""
_STORAGE = "https://storage.googleapis.com"
_NOT_FOUND, _HIDDEN = 404, (401, 403)


class Access(NamedTuple):
    """The access of the instances to their bucket.

    Attributes:
        email: E-mail address of the service account of the instances.
        doubt: Reason why the access is not certain; empty: it is.
        location: Region of the bucket, or a larger location, ``us``; empty: unknown.
    """

    email: str
    doubt: str
    location: str

    def grants(self, cloud: GceOptions) -> list[str]:
        """Return the commands that give the account the roles on the bucket."""
        member = f"serviceAccount:{self.email}"
        return [grant_role("storage buckets", [cloud.bucket], role, member) for role in ROLES]

    def notes(self, cloud: GceOptions, region: str) -> Iterator[str]:
        """Yield sentences for the user about the bucket of instances in a region."""
        if self.doubt:
            doubt = f"it is not certain that {self.email} can read and write {cloud.bucket}: {self.doubt}"
            yield f"{doubt}; fleet doctor --bucket {cloud.bucket} shows the commands that grant them"
        else:
            yield f"{self.email} reads and writes {cloud.bucket}"
        if _is_far(self.location, region):
            yield f"{cloud.bucket} is in {self.location}: its traffic with instances in {region} costs extra"


def _is_far(location: str, region: str) -> bool:
    """Return whether traffic between instances in a region and a bucket costs money, as far as that is known.

    Source: https://cloud.google.com/storage/pricing#network-buckets.
    """
    if is_region(location):
        return location != region
    return location in _CONTINENTS and not region.startswith(_CONTINENTS[location])


def examine_bucket(account: Account, cloud: GceOptions) -> Access:
    """Return whether the service account of the instances can read and write the bucket.

    The account of the caller reads the policies of the bucket and of the project. Both may be closed to it, and roles
    may come from the organization or a group: then the access is in doubt.

    Args:
        account: The owner of the fleet.
        cloud: Its options, resolved, with a bucket.

    Raises:
        ApiError: Cloud Storage does not answer.
        ProviderError: the bucket does not exist.
    """
    api, name = account.api, cloud.bucket.removeprefix(SCHEME)
    email = cloud.service_account or api.get_project().default_service_account
    try:
        of_bucket = api.ask(_STORAGE, f"/storage/v1/b/{name}/iam")
    except ApiError as error:
        if error.status == _NOT_FOUND:
            raise _missing(api, cloud) from error
        if error.status not in _HIDDEN:
            raise
        return Access(email, "your account cannot read the policy of the bucket", _location(api, name))
    try:
        of_project: Mapping[str, Any] = project_policy(api)
    except ApiError:  # the caller may not read it
        of_project = {}
    is_certain = _can_use(email, api.project, of_bucket, of_project)
    doubt = "" if is_certain else "the policies of bucket and project do not give it the roles"
    return Access(email, doubt, _location(api, name))


def _can_use(email: str, project: str, of_bucket: Mapping[str, Any], of_project: Mapping[str, Any]) -> bool:
    """Return whether policies let a service account read and write the objects of a bucket.

    Roles of groups, roles that come from the organization, and roles with conditions are not counted.
    """
    account = f"serviceAccount:{email}"
    on_project = _roles(of_project, {account})
    members = {account, "allUsers", "allAuthenticatedUsers"}
    members |= {f"{member}:{project}" for role, member in _BASIC.items() if role in on_project}
    roles = on_project | _roles(of_bucket, members)
    return {letter for role in roles for letter in _GIVES.get(role.removeprefix("roles/storage."), "")} == set("glwb")


def _roles(policy: Mapping[str, Any], members: Iterable[str]) -> set[str]:
    """Return the roles that a policy gives to any of `members` without a condition."""
    return {
        str(binding.get("role"))
        for binding in policy.get("bindings", ())
        if "condition" not in binding and not set(members).isdisjoint(binding.get("members", ()))
    }


def _location(api: Api, name: str) -> str:
    """Return the location of a bucket; empty if it cannot be read."""
    try:
        return str(api.ask(_STORAGE, f"/storage/v1/b/{name}").get("location", "")).lower()
    except ApiError:
        return ""


def _missing(api: Api, cloud: GceOptions) -> ProviderError:
    place = next(iter(cloud.zones), "us-central1")
    region = region_of(place) if is_zone(place) else place
    buckets = ("gcloud", "storage", "buckets")
    return ProviderError(
        ErrorKind.MISSING,
        f"the bucket {cloud.bucket} does not exist",
        hint="create it in the region of the instances, or give the name of an existing one",
        next_steps=[
            (*buckets, "create", cloud.bucket, "--project", api.project, "--location", region),
            (*buckets, "list", "--project", api.project),
        ],
    )
