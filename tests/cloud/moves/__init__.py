"""Commands, events, and checks of the random histories; each module registers those of its topic."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from google.cloud import compute_v1

from provision.gce.api.messages import from_json
from provision.gce.api.resources import our_name

if TYPE_CHECKING:
    from tests.cloud.histories import History
    from tests.cloud.spending import SpendingHistory

    Story: TypeAlias = History | SpendingHistory

Act = Callable[["History"], None]
COMMANDS: dict[str, Act] = {}
WEIGHTS: dict[str, int] = {}
EVENTS: list[tuple[float, Act]] = []
STARTS: list[Act] = []
"""Functions that change the cloud before the first command."""
CHECKS: dict[str, list[Act]] = {}
INVARIANTS: list[Act] = []
"""Functions that check the cloud after each command, whether it succeeds or not."""
SUDDEN: list[Act] = []
"""Events that happen between two calls of a command, too."""
QUEUED: list[Callable[[Story, str], None]] = []
"""Events while instances wait for capacity in a zone; one happens whenever their number changes."""

RETRIED: list[Act] = []
"""Events before ``fleet up --retry-until-up`` requests capacity again; one happens each time."""


def command(name: str, weight: int = 0) -> Callable[[Act], Act]:
    """Let the decorated function run ``fleet NAME``; `weight` is its weight among the random commands."""

    def register(act: Act) -> Act:
        COMMANDS[name], WEIGHTS[name] = act, weight
        return act

    return register


def event(chance: float) -> Callable[[Act], Act]:
    """Let the decorated function change the cloud with this probability after each command."""

    def register(act: Act) -> Act:
        EVENTS.append((chance, act))
        return act

    return register


def sudden(act: Act) -> Act:
    """Let the decorated function change the cloud between two calls of some commands, too."""
    SUDDEN.append(act)
    return act


def invariant(act: Act) -> Act:
    """Let the decorated function check the cloud after each command."""
    INVARIANTS.append(act)
    return act


def check(*names: str) -> Callable[[Act], Act]:
    """Let the decorated function check the cloud after each of these commands that reports success."""

    def register(act: Act) -> Act:
        for name in names:
            CHECKS.setdefault(name, []).append(act)
        return act

    return register


@cache
def load() -> None:
    """Import the modules of this package, which fill the registries."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")


def worker_of(body: dict[str, Any]) -> str:
    """Return the name within its fleet of an instance of the emulator."""
    return our_name(from_json(compute_v1.Instance, body))
