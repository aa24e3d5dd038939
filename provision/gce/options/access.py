"""Options of the network, and of the access to instances."""

from __future__ import annotations

import re
from dataclasses import dataclass

from provision.gce.options.groups import NETWORK
from provision.options import COUNT, FLAG, TEXT, TEXTS, option

_TAKEN = re.compile(
    r"adm|admin|audio|backup|bin|cdrom|crontab|daemon|dialout|dip|disk|docker|fax|floppy|games|google-sudoers|"
    r"input|irc|kmem|kvm|landscape|list|lp|lxd|mail|man|messagebus|netdev|news|no(?:body|group)|operator|plugdev|"
    r"polkitd|proxy|rdma|render|sasl|sgx|shadow|src|ssh|sshd|staff|sudo|sync|sys|syslog|systemd-.*|tape|tcpdump|"
    r"tss|tty|users|utmp|uucp|uuidd|video|voice|www-data"
)
"""Groups and system accounts of the images: the guest agent cannot create a user of these names."""


def check_login(name: str) -> None:
    """Check that the guest agent of an image can create this user.

    Raises:
        ValueError: it cannot.
    """
    if _TAKEN.fullmatch(name):
        raise ValueError(f"ssh-user {name!r} is a group or an account of the images: choose another name")
    if not re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}", name, re.ASCII):
        raise ValueError(f"invalid ssh-user {name!r}; a login name has up to 32 of the characters a-z, 0-9, _, and -")


@dataclass(frozen=True)
class AccessOptions:
    """Options of the network, and of the access to instances.

    Attributes:
        network: VPC network: a name, or ``projects/P/global/networks/N`` of a Shared VPC.
        subnetwork: Subnetwork in it; empty: the one of the region.
        firewall: Create firewall rules for the fleet; otherwise existing rules must admit its traffic.
        external: Each instance has an external address; otherwise SSH goes through Identity-Aware Proxy.
        ssh_from: Addresses that may use SSH, in CIDR notation; empty: only the caller's.
        os_login: Log in with OS Login, not with a key in the metadata of the instances.
        ssh_user: Login name on the instances without OS Login.
        ssh_port: Port of the image's sshd.
    """

    network: str = option(
        "default",
        TEXT,
        "network",
        metavar="NAME",
        help="VPC network, or the path of a shared one, projects/P/global/networks/N.",
        group=NETWORK,
    )
    subnetwork: str = option(
        "",
        TEXT,
        "subnet",
        metavar="NAME",
        help="Subnetwork, or its path.",
        default="the one of the region",
        label="subnetwork",
        group=NETWORK,
    )
    firewall: bool = option(
        True,
        FLAG,
        "firewall",
        help="Create firewall rules for the fleet, or rely on existing ones.",
        group=NETWORK,
        fixed=False,
    )
    external: bool = option(
        True,
        FLAG,
        "iap",
        help="No external addresses; SSH goes through Identity-Aware Proxy.",
        label="Identity-Aware Proxy:",
        group=NETWORK,
        negated=True,
    )
    ssh_from: tuple[str, ...] = option(
        (),
        TEXTS,
        "ssh-from",
        metavar="CIDR",
        help="Source range allowed to use SSH. Repeatable.",
        default="your public address",
        group=NETWORK,
        fixed=False,
    )
    os_login: bool = option(
        False,
        FLAG,
        "os-login",
        help="Log in with OS Login.",
        default="if the project or its organization requires it",
        label="OS Login:",
        group=NETWORK,
    )
    ssh_user: str = option("fleet", TEXT, "ssh-user", label="login name")
    ssh_port: int = option(22, COUNT, "ssh-port", label="SSH port")
