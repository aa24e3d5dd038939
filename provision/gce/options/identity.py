"""Options of the service account of instances."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from provision.gce.options.groups import GENERAL, NETWORK
from provision.options import FLAG, TEXT, TEXTS, InvalidOptionError, option

COMPUTE = "https://www.googleapis.com/auth/compute"
"""Scope with which the service account of an instance may start others, if a role allows it."""


@dataclass(frozen=True)
class IdentityOptions:
    """Options of the service account of instances.

    Attributes:
        scopes: OAuth scopes of the instances' service account; empty: no account.
        service_account: E-mail address of that account; empty: the project's default, if there are scopes.
        unattended: Spot VMs are stopped, not deleted, and the other hosts start them again.
    """

    scopes: tuple[str, ...] = option(
        (),
        TEXTS,
        "scopes",
        metavar="SCOPE",
        help="OAuth scope of the service account, e.g. devstorage.read_only. Repeatable.",
        default="none",
        group=NETWORK,
    )
    service_account: str = option(
        "",
        TEXT,
        "service-account",
        metavar="EMAIL",
        help="Service account of the instances.",
        default="none; with --scopes or --bucket that of the project",
        group=NETWORK,
    )
    unattended: bool = option(
        False,
        FLAG,
        "unattended",
        help="Keep the disks of preempted Spot VMs; the other hosts start them again, without this computer.",
        group=GENERAL,
    )


_SCOPES = "https://www.googleapis.com/auth/"
_KNOWN = frozenset(
    {
        *("bigquery", "bigquery.insertdata", "bigquery.readonly", "bigtable.admin", "bigtable.data"),
        *("cloud-platform", "cloud-platform.read-only", "cloudkms", "cloudruntimeconfig", "cloud_debugger"),
        *("compute", "compute.readonly", "datastore"),
        *("devstorage.full_control", "devstorage.read_only", "devstorage.read_write"),
        *("drive", "drive.readonly", "firebase", "logging.admin", "logging.read", "logging.write", "monitoring"),
        *("monitoring.read", "monitoring.write", "ndev.clouddns.readonly", "ndev.clouddns.readwrite", "pubsub"),
        *("service.management", "service.management.readonly", "servicecontrol", "source.full_control"),
        *("source.read_only", "source.read_write", "spanner.admin", "spanner.data", "spreadsheets"),
        *("spreadsheets.readonly", "sqlservice.admin", "taskqueue", "trace.append", "trace.readonly"),
        *("userinfo.email", "userinfo.profile"),
    }
)
"""Scopes that may be given without their beginning: https://developers.google.com/identity/protocols/oauth2/scopes."""
_OF_GCLOUD = {
    "storage-full": "devstorage.full_control",
    "storage-ro": "devstorage.read_only",
    "storage-rw": "devstorage.read_write",
}
_URL = re.compile(r"https://[!-~]+", re.ASCII)
_LIST = ("gcloud", "iam", "service-accounts", "list")


def complete_scopes(scopes: Sequence[str]) -> tuple[str, ...]:
    """Return OAuth scopes as URLs.

    Raises:
        InvalidOptionError: a scope is unknown and not a URL.
    """
    for scope in scopes:
        if scope not in _KNOWN and not _URL.fullmatch(scope):
            from difflib import get_close_matches

            close = get_close_matches(scope, sorted(_KNOWN), n=1)
            near = _OF_GCLOUD.get(scope) or (close[0] if close else "")
            meant = dict.fromkeys(near if other == scope else other for other in scopes)
            raise InvalidOptionError(
                f"--scopes {scope!r} is not a known OAuth scope, such as devstorage.read_only; others are given as "
                f"URLs, {_SCOPES}...",
                {"--scopes": ",".join(filter(None, meant)) or None},
            )
    return tuple(_SCOPES + scope if scope in _KNOWN else scope for scope in scopes)


Options = TypeVar("Options", bound=IdentityOptions)


def check_account(cloud: Options) -> Options:
    """Return resolved options.

    Raises:
        ValueError: the service account has no effect, or is not an address.
    """
    if cloud.service_account and not cloud.scopes:
        message = "--service-account requires --scopes or --bucket: without them, instances have no account"
        raise InvalidOptionError(message, {"--scopes": "cloud-platform"})
    if cloud.service_account and "@" not in cloud.service_account:
        raise InvalidOptionError(
            f"--service-account {cloud.service_account!r} is not an e-mail address, "
            "such as NAME@PROJECT.iam.gserviceaccount.com",
            next_steps=[_LIST],
        )
    return cloud


def check_identity(cloud: Options, *, spot: bool) -> Options:
    """Return options with the scope that ``--unattended`` needs.

    Raises:
        ValueError: it contradicts other options.
    """
    if not cloud.unattended:
        return cloud
    if not spot:
        message = "--unattended is for Spot VMs: Compute Engine restarts instances on demand by itself"
        raise InvalidOptionError(message, {"--spot": True})
    if not cloud.service_account:
        message = "--unattended requires --service-account: hosts start each other with this account"
        raise InvalidOptionError(message, next_steps=[_LIST])
    return cloud if COMPUTE in cloud.scopes else replace(cloud, scopes=(*cloud.scopes, COMPUTE))
