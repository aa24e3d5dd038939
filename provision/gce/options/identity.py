"""Options of the service account of instances."""

from __future__ import annotations

from provision.deferred import dataclass
from provision.gce.options.groups import NETWORK
from provision.options import TEXT, TEXTS, option


@dataclass(frozen=True)
class IdentityOptions:
    """Options of the service account of instances.

    Attributes:
        scopes: OAuth scopes of the instances' service account; empty: no account.
        service_account: E-mail address of that account; empty: the project's default, if there are scopes.
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
        group=NETWORK,
    )
