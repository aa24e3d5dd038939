"""Options of what runs on new instances before packages are installed, and of their metadata."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from provision.gce.options.groups import PREPARATION
from provision.options import FILE, PAIRS, TEXT, InvalidOptionError, option, split_pair

_KEY = re.compile(r"[A-Za-z0-9_-]{1,128}")
_RESERVED = frozenset(
    {
        *("ssh-keys", "sshKeys", "block-project-ssh-keys", "enable-guest-attributes"),
        *("enable-oslogin", "startup-script", "startup-script-url"),
    }
)
_VALUE_MAX = 256 * 1024
"""Bytes of a value: https://cloud.google.com/compute/docs/metadata/setting-custom-metadata#limitations."""
_ALL_MAX = 448 * 1024  # of 512 KiB; fleet sets others
"""Bytes of all keys and values."""


@dataclass(frozen=True)
class PreparationOptions:
    """Options of what runs on new instances before packages are installed, and of their metadata.

    Attributes:
        startup_script: Content of a script that root runs at each boot; empty: none.
        setup: Shell command that root runs once per content; empty: none.
        metadata: Further metadata items, ``KEY=VALUE``.
    """

    startup_script: str = option(
        "",
        FILE,
        "startup-script",
        metavar="FILE",
        help="Script that root runs on each instance at each boot.",
        group=PREPARATION,
        fixed=False,
    )
    setup: str = option(
        "",
        TEXT,
        "setup",
        metavar="CMD",
        help="Shell command that root runs once on each instance, before packages are installed.",
        group=PREPARATION,
        fixed=False,
    )
    metadata: tuple[str, ...] = option(
        (),
        PAIRS,
        "metadata",
        metavar="KEY=VALUE",
        help="Metadata item of the instances. Repeatable.",
        group=PREPARATION,
    )


def root_scripts(cloud: PreparationOptions) -> Mapping[str, str]:
    """Return the scripts that root runs, in their order, by the option that gives them."""
    scripts = {"--startup-script": cloud.startup_script, "--setup": cloud.setup}
    return {name: text for name, text in scripts.items() if text}


def digest(text: str) -> str:
    """Return the SHA-256 of a script, by which its result on a host is found."""
    return hashlib.sha256(text.encode()).hexdigest()


def check_preparation(cloud: PreparationOptions) -> None:
    """Raise InvalidOptionError if a metadata item cannot be set, or a script is too large for one."""
    for text in cloud.metadata:
        key, value = split_pair(text, "--metadata")
        if not _KEY.fullmatch(key):
            raise InvalidOptionError(
                f"--metadata {key!r}: a key has up to 128 letters, digits, hyphens, and underscores",
                {"--metadata": None},
            )
        if key in _RESERVED or key.startswith("fleet-"):
            raise InvalidOptionError(f"--metadata {key}: fleet sets this item itself", {"--metadata": None})
        _check_size(f"--metadata {key}", value)
    keys = [split_pair(text, "--metadata")[0] for text in cloud.metadata]
    if repeated := next((key for key in keys if keys.count(key) > 1), ""):
        raise InvalidOptionError(f"--metadata {repeated} is given more than once", {"--metadata": None})
    for name, text in root_scripts(cloud).items():
        _check_size(name, text)
    sizes = {"--metadata": sum(len(text.encode()) for text in cloud.metadata)}
    sizes |= {name: len(text.encode()) for name, text in root_scripts(cloud).items()}
    if (excess := sum(sizes.values()) - _ALL_MAX) > 0:
        raise InvalidOptionError(
            f"{', '.join(name for name, size in sizes.items() if size)}: an instance has at most "
            f"{_ALL_MAX // 1024} KiB of metadata and scripts in addition to those of fleet: "
            f"remove {-(-excess // 1024)} KiB",
            {max(sizes, key=lambda name: sizes[name]): None},
        )


def _check_size(name: str, text: str) -> None:
    if len(text.encode()) > _VALUE_MAX:
        option_name = name.partition(" ")[0]
        raise InvalidOptionError(
            f"{name}: a metadata value has at most {_VALUE_MAX // 1024} KiB", {option_name: None}
        )
