"""Buckets of Cloud Storage: whether the instances can use theirs.

Sources: https://cloud.google.com/storage/docs/oauth-scopes and
https://cloud.google.com/storage/docs/access-control/iam-roles.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from types import MappingProxyType
from typing import Any, NamedTuple

from provision.gce.account import Account
from provision.gce.api.client import Api
from provision.gce.api.iam import project_policy
from provision.gce.api.messages import ApiError, Json
from provision.gce.catalog.names import is_region, region_of
from provision.gce.catalog.roles import grant_role
from provision.gce.options import SCHEME, GceOptions
from provision.provider import ErrorKind, ProviderError

_CONTINENTS = MappingProxyType({"us": "us-", "eu": "europe-", "asia": "asia-"})
ROLES = ("roles/storage.objectUser", "roles/storage.legacyBucketReader")
"""Roles that TensorFlow needs: it also reads the properties of the bucket."""


_GET, _LIST, _WRITE = {"objects.get"}, {"objects.list"}, {"objects.create", "objects.delete"}
_BUCKET = {"buckets.get"}
_ALL = frozenset({*_GET, *_LIST, *_WRITE, *_BUCKET})
_PERMISSIONS: Mapping[str, Set[str]] = MappingProxyType(
    {
        "roles/storage.admin": _ALL,
        "roles/storage.objectAdmin": _ALL - _BUCKET,
        "roles/storage.objectUser": _ALL - _BUCKET,
        "roles/storage.objectViewer": _GET | _LIST,
        "roles/storage.objectCreator": {"objects.create"},
        "roles/storage.legacyBucketOwner": _BUCKET | _LIST | _WRITE,
        "roles/storage.legacyBucketWriter": _BUCKET | _LIST | _WRITE,
        "roles/storage.legacyBucketReader": _BUCKET | _LIST,
        "roles/storage.legacyObjectOwner": _GET,
        "roles/storage.legacyObjectReader": _GET,
    }
)
_BASIC = MappingProxyType(
    {"roles/owner": "projectOwner", "roles/editor": "projectEditor", "roles/viewer": "projectViewer"}
)
"""Members of the policies of buckets that stand for the members with a role on a project."""


def is_far(location: str, region: str) -> bool:
    """Return whether traffic between instances in a region and a bucket costs money, as far as that is known.

    Source: https://cloud.google.com/storage/pricing#network-buckets.

    Args:
        location: Location of the bucket: a region, ``us``, ``eu``, or ``asia``; empty: unknown.
        region: Region of the instances.
    """
    if is_region(location):
        return location != region
    return location in _CONTINENTS and not region.startswith(_CONTINENTS[location])


def can_use(email: str, project: str, of_bucket: Mapping[str, Any], of_project: Mapping[str, Any]) -> bool:
    """Return whether policies let a service account read and write the objects of a bucket.

    Roles of groups, roles that come from the organization, and roles with conditions are not counted.

    Args:
        email: E-mail address of the account.
        project: The project of `of_project`.
        of_bucket: Policy of the bucket.
        of_project: Policy of the project; empty: unknown.
    """
    account = f"serviceAccount:{email}"
    on_project = _roles(of_project, {account})
    members = {account, "allUsers", "allAuthenticatedUsers"}
    members |= {f"{member}:{project}" for role, member in _BASIC.items() if role in on_project}
    granted: set[str] = set()
    for role in on_project | _roles(of_bucket, members):
        granted |= _PERMISSIONS.get(role, frozenset())
    return granted >= _ALL


def _roles(policy: Mapping[str, Any], members: Iterable[str]) -> set[str]:
    """Return the roles that a policy gives to any of `members` without a condition."""
    return {
        str(binding.get("role"))
        for binding in policy.get("bindings", ())
        if "condition" not in binding and not set(members).isdisjoint(binding.get("members", ()))
    }


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


def examine(account: Account, cloud: GceOptions) -> Access:
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
    is_certain = can_use(email, api.project, of_bucket, _project_policy(api))
    doubt = "" if is_certain else "the policies of bucket and project do not give it the roles"
    return Access(email, doubt, _location(api, name))


def _location(api: Api, name: str) -> str:
    """Return the location of a bucket; empty if it cannot be read."""
    try:
        return str(api.ask(_STORAGE, f"/storage/v1/b/{name}").get("location", "")).lower()
    except ApiError:
        return ""


def _project_policy(api: Api) -> Json:
    """Return the policy of the project; empty if it cannot be read."""
    try:
        return project_policy(api)
    except ApiError:
        return {}


def _missing(api: Api, cloud: GceOptions) -> ProviderError:
    place = next(iter(cloud.zones), "us-central1")
    region = region_of(place) if place.count("-") > 1 else place
    return ProviderError(
        ErrorKind.MISSING,
        f"the bucket {cloud.bucket} does not exist",
        hint="create it in the region of the instances, or give the name of an existing one",
        next_steps=[
            ("gcloud", "storage", "buckets", "create", cloud.bucket, "--project", api.project, "--location", region),
            ("gcloud", "storage", "buckets", "list", "--project", api.project),
        ],
    )
