"""Names of fleets and of their instances."""

from __future__ import annotations

import re

FLEET_NAME_LENGTH_MAX = 30

_FLEET_NAME = re.compile(r"[a-z][a-z0-9-]*")
_INSTANCE_NAME = re.compile(r"worker-(0|[1-9][0-9]*)", re.ASCII)


def validate_fleet_name(name: str) -> str:
    """Return `name` if it is a valid fleet name.

    The rule is the one that Compute Engine has for labels and instances, minus room for ``-worker-12``.

    Raises:
        ValueError: `name` is invalid; the text is a sentence for the user.
    """
    if len(name) > FLEET_NAME_LENGTH_MAX:
        raise ValueError(
            f"fleet name {name[: 2 * FLEET_NAME_LENGTH_MAX]!r} has {len(name)} characters; "
            f"at most {FLEET_NAME_LENGTH_MAX} are allowed"
        )
    if not _FLEET_NAME.fullmatch(name):
        raise ValueError(
            f"invalid fleet name {name!r}: it must start with a lower-case letter, "
            "followed by lower-case letters, digits, and hyphens"
        )
    return name


def instance_name(index: int) -> str:
    """Return the name of the instance with this index, ``worker-0``.

    Raises:
        ValueError: `index` is negative.
    """
    if index < 0:
        raise ValueError(f"invalid worker index {index}: indices start at 0")
    return f"worker-{index}"


def is_instance_name(text: str) -> bool:
    """Return True if `text` is the name of an instance, ``worker-0``."""
    return _INSTANCE_NAME.fullmatch(text) is not None


def index_of(name: str) -> int:
    """Return the index of the instance with this name: 0 of ``worker-0``.

    Raises:
        ValueError: `name` is not the name of an instance.
    """
    match = _INSTANCE_NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"invalid worker name {name!r}; expected worker-0, worker-1, ...")
    return int(match[1])
