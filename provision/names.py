"""Names of fleets and of their instances."""

from __future__ import annotations

import re

FLEET_NAME_LENGTH_MAX = 30

_FLEET_NAME = re.compile(r"[a-z][a-z0-9-]*")
_INSTANCE_NAME = re.compile(r"worker-(0|[1-9][0-9]*)", re.ASCII)


def validate_fleet_name(name: str) -> str:
    """Return `name` if a fleet may be called so.

    The rule is the one that Compute Engine has for labels and instances, minus room for ``-worker-12``.

    Raises:
        ValueError: what is wrong with it, as a sentence for the user.
    """
    if len(name) > FLEET_NAME_LENGTH_MAX:
        raise ValueError(f"The fleet name {name!r} has {len(name)} characters; {FLEET_NAME_LENGTH_MAX} are allowed")
    if not _FLEET_NAME.fullmatch(name):
        raise ValueError(
            f"The fleet name {name!r} is not usable: it must start with a lower-case letter "
            "and go on with lower-case letters, digits and hyphens"
        )
    return name


def instance_name(index: int) -> str:
    """Name of the instance with this index, ``worker-0``.

    Raises:
        ValueError: `index` is negative.
    """
    if index < 0:
        raise ValueError(f"There is no worker {index}: workers count from 0")
    return f"worker-{index}"


def is_instance_name(text: str) -> bool:
    """Whether `text` is the name of an instance, ``worker-0``."""
    return _INSTANCE_NAME.fullmatch(text) is not None


def index_of(name: str) -> int:
    """Index of the instance with this name: 0 of ``worker-0``.

    Raises:
        ValueError: `name` is not the name of an instance.
    """
    found = _INSTANCE_NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is not a worker's name; workers are called worker-0, worker-1 and so on")
    return int(found[1])
