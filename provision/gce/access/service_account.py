"""Check that the service account of the instances exists, and explain how to create it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from provision.gce.access import bucket, restarting
from provision.gce.account import Account
from provision.gce.options import GceOptions
from provision.gce.rest.api import ApiError
from provision.gce.rest.governance import project_of_account, service_account
from provision.model import Command
from provision.provider import ErrorKind, ProviderError

# https://cloud.google.com/iam/docs/service-accounts-create#creating
_ID = re.compile(r"[a-z][a-z0-9-]{4,28}[a-z0-9]", re.ASCII)


def check_given(account: Account, cloud: GceOptions) -> None:
    """Check the account that the user gave; one that the caller may not read is left to Compute Engine.

    Raises:
        ProviderError: it does not exist, or is disabled.
    """
    if not cloud.service_account or not cloud.scopes:
        return
    try:
        check(account, cloud, cloud.service_account)
    except ApiError:
        return


def check(account: Account, cloud: GceOptions, email: str) -> None:
    """Check that a service account can be used by instances.

    Raises:
        ApiError: it cannot be read.
        ProviderError: it does not exist, or is disabled.
    """
    existing, project = service_account(account.api, email), project_of_account(account.api, email)
    if existing is None:
        creation = list(_creation(account, cloud, email, project))
        raise ProviderError(
            ErrorKind.USAGE,
            f"the service account {email} does not exist",
            hint=f"{'create it, or ' if creation else ''}select an existing one: --service-account EMAIL",
            next_steps=[*creation, _list(project)],
        )
    if existing.get("disabled"):
        enable = ("gcloud", "iam", "service-accounts", "enable", email, "--project", project)
        raise ProviderError(
            ErrorKind.USAGE,
            f"the service account {email} is disabled",
            hint="enable it, or select another one: --service-account EMAIL",
            next_steps=[enable, _list(project)],
        )


def _creation(account: Account, cloud: GceOptions, email: str, project: str) -> Iterator[Command]:
    """Yield the commands that create the account with the roles that the options need."""
    name, _, domain = email.partition("@")
    if not _ID.fullmatch(name) or not domain.endswith(".iam.gserviceaccount.com"):
        return
    yield ("gcloud", "iam", "service-accounts", "create", name, "--project", project)
    if cloud.unattended:
        yield from restarting.grants(account, cloud)
    if cloud.bucket:
        yield from bucket.Access(email, "", "").grants(cloud)


def _list(project: str) -> Command:
    return ("gcloud", "iam", "service-accounts", "list", "--project", project)
