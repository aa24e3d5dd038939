"""Options of the service account of instances."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from provision.deferred import dataclass
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


_LIST = ("gcloud", "iam", "service-accounts", "list")

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
