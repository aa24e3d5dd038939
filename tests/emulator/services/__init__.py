"""The emulated APIs, one module for each discovery document.

A module declares DOCUMENT, registers its methods, and has the function `permissions`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Protocol, cast

from tests.emulator.cloud import Call, Cloud


class Service(Protocol):
    """An emulated API.

    Attributes:
        DOCUMENT: Name of its discovery document, ``compute.v1``.
    """

    DOCUMENT: str

    def permissions(self, cloud: Cloud, call: Call) -> Iterable[tuple[str, str]]:
        """Return the permissions that a call needs, each with its project.

        Raises:
            Refusal: the project, zone, or region of the call does not exist.
        """


@cache
def services() -> Sequence[Service]:
    """Return all services."""
    names = [f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)]
    return [cast("Service", importlib.import_module(name)) for name in names]
