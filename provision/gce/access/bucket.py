"""Determine whether the instances will be able to use their bucket of Cloud Storage."""

from __future__ import annotations

from typing import NamedTuple

from provision.gce.account import Account
from provision.gce.catalog.buckets import ROLES, SCHEME, can_use
from provision.gce.catalog.locations import region_of
from provision.gce.diagnosis.roles import grant_role
from provision.gce.options import GceOptions
from provision.gce.rest.api import Api, ApiError, Json
from provision.gce.rest.governance import project_policy
from provision.provider import ErrorKind, ProviderError

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
    email = cloud.service_account or str(api.get_project().get("defaultServiceAccount", ""))
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
