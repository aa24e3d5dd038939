"""Options that select the project and the API."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from provision.gce.options.groups import GENERAL
from provision.options import TEXT, option

ENDPOINT_VARIABLE = "FLEET_GCE_ENDPOINT"


def _check_endpoint(value: str) -> None:
    """Raise ValueError for an endpoint to which a file, maybe of another user, must not send credentials."""
    if not is_loopback(value) and not f".{urlsplit(value).hostname or ''}".endswith(".googleapis.com"):
        raise ValueError(f"must be a googleapis.com or loopback URL; set others with {ENDPOINT_VARIABLE}")


def is_loopback(url: str) -> bool:
    """Return whether the API at this URL is on this computer."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class AccountOptions:
    """Options that select the project and the API.

    Attributes:
        project: Project that pays; empty: the project of the credentials.
        endpoint: URL of the API, for a private one; empty: the public one.
    """

    project: str = option(
        "",
        TEXT,
        "project",
        metavar="ID",
        help="Google Cloud project to bill.",
        default="the project of your credentials",
        group=GENERAL,
        variables=("FLEET_GCE_PROJECT", "GOOGLE_CLOUD_PROJECT"),
        scope=True,
    )
    endpoint: str = option(
        "", TEXT, "endpoint", variables=(ENDPOINT_VARIABLE,), scope=True, check_file=_check_endpoint
    )
