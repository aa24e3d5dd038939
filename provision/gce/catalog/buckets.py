"""Buckets of Cloud Storage: their names, and the scopes and roles with which instances use them.

Sources: https://cloud.google.com/storage/docs/buckets#naming, https://cloud.google.com/storage/docs/oauth-scopes, and
https://cloud.google.com/storage/docs/access-control/iam-roles.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from provision.gce.catalog.locations import is_region
from provision.gce.options import GceOptions
from provision.options import InvalidOptionError

SCHEME = "gs://"
_CONTINENTS = MappingProxyType({"us": "us-", "eu": "europe-", "asia": "asia-"})
ROLES = ("roles/storage.objectUser", "roles/storage.legacyBucketReader")
"""Roles that TensorFlow needs: it also reads the properties of the bucket."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]", re.ASCII)
_AUTH = "https://www.googleapis.com/auth/"
_SCOPE = f"{_AUTH}devstorage.read_write"
_SUFFICIENT = frozenset({_SCOPE, f"{_AUTH}devstorage.full_control", f"{_AUTH}cloud-platform"})

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


def check_bucket(cloud: GceOptions) -> None:
    """Raise ValueError if the bucket is not the URL of a bucket; the text is for the user."""
    name = cloud.bucket.removeprefix(SCHEME)
    if cloud.bucket and (not cloud.bucket.startswith(SCHEME) or not _NAME.fullmatch(name)):
        path = f"; add paths in the script or in --checkpoint-dir {cloud.bucket}" if "/" in name.strip("/") else ""
        message = f"invalid bucket {cloud.bucket!r}; expected a URL like gs://training-data{path}"
        first = name.strip("/").partition("/")[0]
        raise InvalidOptionError(message, {"--bucket": f"{SCHEME}{first}" if _NAME.fullmatch(first) else None})


def with_storage_scope(cloud: GceOptions) -> GceOptions:
    """Return `cloud` with the scope that lets instances read and write its bucket, if it has one."""
    if not cloud.bucket or not _SUFFICIENT.isdisjoint(cloud.scopes):
        return cloud
    return replace(cloud, scopes=(*cloud.scopes, _SCOPE))


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
