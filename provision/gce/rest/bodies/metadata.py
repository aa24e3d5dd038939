"""Metadata of instances: SSH keys, guest attributes, and the startup script."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from provision.gce.options import GceOptions
from provision.gce.options.machines import LOCAL_SSD_PATH
from provision.gce.options.time import END_AT, IDLE_TIMEOUT, STOP_AT
from provision.options import split_pair

OS_LOGIN = "enable-oslogin"
"""Metadata item that lets Google manage the accounts of an instance; its SSH keys in metadata then have no effect."""

RESTARTS = "fleet-restarts"
"""Metadata item with the URL of the API with which hosts start each other again, see train.agent.peers.revive."""

IMAGE = "fleet-image"
"""Metadata item that lets an instance remove what belongs to it alone, so that its disk can become an image."""

SEAL: Mapping[str, str] = MappingProxyType(
    {"ssh-keys": "", "fleet-startup-script": "", "fleet-setup": "", IMAGE: "TRUE"}
)
"""Changes of metadata before an image is made; an empty value removes an item."""

STARTUP = "startup-script"
_SCRIPT = Path(__file__).with_name("startup.sh")


def ssh_keys(user: str, public_key: str) -> str:
    """Return the value of the metadata ``ssh-keys`` that lets the owner of `public_key` log in as `user`."""
    return f"{user}:{' '.join(public_key.split())}"


def scripts(cloud: GceOptions) -> dict[str, str]:
    """Return the metadata items with the scripts that the startup script runs as root; empty texts: none."""
    return {"fleet-startup-script": cloud.startup_script, "fleet-setup": cloud.setup}


def startup_script() -> str:
    """Return the startup script of all instances."""
    return _SCRIPT.read_text(encoding="utf-8")


def runs_scripts(startup: str, cloud: GceOptions) -> bool:
    """Return whether a startup script, possibly of an older version, runs the items of `scripts` and mounts disks."""
    mounted = [LOCAL_SSD_PATH] if cloud.has_local_ssds else []
    return all(item in startup for item in [*scripts(GceOptions()), *mounted])


def is_os_login(metadata: Mapping[str, Any]) -> bool:
    """Return whether the metadata of an instance or a project enables OS Login."""
    items = {str(item.get("key")): str(item.get("value", "")) for item in metadata.get("items", ())}
    return items.get(OS_LOGIN, "").upper() == "TRUE"


def deadlines(cloud: GceOptions, now: float) -> dict[str, str]:
    """Return the metadata items with the deadlines of an instance that starts now, in seconds since the epoch."""
    after_s = {END_AT: cloud.end_after_s, STOP_AT: cloud.stop_after_s}
    return {key: str(round(now) + seconds if seconds else 0) for key, seconds in after_s.items()}


def restarts(cloud: GceOptions) -> dict[str, str]:
    """Return the metadata item with which the hosts start each other again, if the options request that."""
    return {RESTARTS: cloud.endpoint or "https://compute.googleapis.com"} if cloud.unattended else {}


def items_of(resource: Mapping[str, Any]) -> dict[str, str]:
    """Return the metadata items of an instance."""
    return {str(item["key"]): str(item.get("value", "")) for item in resource.get("metadata", {}).get("items", ())}


def metadata_items(cloud: GceOptions, public_key: str, now: float) -> list[dict[str, str]]:
    """Return metadata with which only the fleet's own key logs in, and the guest agent publishes the host keys.

    With OS Login, the key is imported into a profile instead. `now` is the start of the instance, in seconds since
    the epoch.
    """
    items = {
        **dict(split_pair(text, "--metadata") for text in cloud.metadata),
        **({} if cloud.os_login else {"ssh-keys": ssh_keys(cloud.ssh_user, public_key)}),
        "block-project-ssh-keys": "true",
        OS_LOGIN: str(cloud.os_login).upper(),
        "enable-guest-attributes": "TRUE",
        STARTUP: startup_script(),
        **deadlines(cloud, now),
        **restarts(cloud),
        **({IDLE_TIMEOUT: str(cloud.idle_timeout_s)} if cloud.idle_timeout_s and not cloud.is_temporary else {}),
        **{key: text for key, text in scripts(cloud).items() if text},
    }
    return [{"key": key, "value": value} for key, value in items.items()]
