"""Checks of requests to create instances that depend on the state of the project: networks, policies, accounts.

A module registers its check with `on_create`.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.emulator.blueprint import Blueprint
from tests.emulator.cloud import Cloud

Check = Callable[[Cloud, Blueprint], None]
_CHECKS: list[Check] = []


def on_create(check: Check) -> Check:
    """Let each request to create an instance call the decorated function, which raises Refusal to reject it."""
    _CHECKS.append(check)
    return check


def check(cloud: Cloud, blueprint: Blueprint) -> None:
    """Raise Refusal if a registered check rejects the instance."""
    for each in _CHECKS:
        each(cloud, blueprint)
